"""Inner training without a role: question and answer rows as one chat, other rows as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.mas.errors import InputError
from inference.mas.prompts import chat_ids, target_ids
from train.data.pieces import Tokens
from train.data.rows import Row

SYSTEM = "You are a helpful assistant."
FINAL_MARKER = "####"  # GSM8K's: what follows is the bare result, which no latent step should imitate


class PlainRows:
    """Rows without roles. Raises `InputError` if the columns allow neither form."""

    def __init__(self, rows: Sequence[Row], text_field: str | None, where: str) -> None:
        present = {key for row in rows for key in row}
        self.text_field = text_field
        if text_field is None and not {"question", "answer"} <= present:
            self.text_field = "text" if "text" in present else None
            if self.text_field is None:
                raise InputError(
                    f"{where}: columns {', '.join(sorted(present)) or 'none'}; expected question and answer, or text, or give "
                    "--mas_role (columns by role) or --text_field"
                )
        if text_field is not None and text_field not in present:
            raise InputError(f"{where}: no column {text_field!r} (--text_field); found {', '.join(sorted(present))}")
        kept = [(self._prompt(row), self._target(row)) for row in rows]
        self.items = [(prompt, target) for prompt, target in kept if target and (self.text_field or prompt)]
        self.dropped = len(rows) - len(self.items)
        if not self.items:
            raise InputError(f"{where}: every one of {len(rows)} rows is empty")

    def _prompt(self, row: Row) -> str:
        return "" if self.text_field else str(row.get("question") or "").strip()

    def _target(self, row: Row) -> str:
        if self.text_field:
            return str(row.get(self.text_field) or "").strip()
        parts = [str(row.get(column) or "").strip() for column in ("cot", "answer")]
        return "\n".join(part for part in parts if part) if parts[1] else ""

    def tokens(self, tokenizer: Any, index: int, enable_thinking: bool) -> Tokens:
        """Prompt and target of a row; in a chat only what stands before the final-answer marker counts."""
        prompt, target = self.items[index]
        if self.text_field:
            return Tokens([[]], tokenizer(target)["input_ids"])
        ids = chat_ids(tokenizer, SYSTEM, (prompt,), enable_thinking=enable_thinking)
        gold = target_ids(tokenizer, SYSTEM, (prompt,), target, enable_thinking=enable_thinking)
        counted = None
        if FINAL_MARKER in target:
            counted = len(tokenizer(target[: target.index(FINAL_MARKER)], add_special_tokens=False)["input_ids"])
        return Tokens(ids, gold, counted=counted)
