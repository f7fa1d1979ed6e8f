"""From rows to what every role should say: one layer for the inner trainer, the outer trainer and held-out accuracy.

A row has a `question` and one text column for each role; the style names the candidates (`targets`), and the first that
the data has is taken. `<column>_round<r>` holds a role's text for round r alone, for tasks in which rounds differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.mas.errors import InputError
from inference.mas.prompts import Question
from inference.mas.styles import FAMILIES, Style
from train.data.rows import Row


@dataclass(frozen=True)
class Example:
    """One usable row: the question and each role's gold text."""

    question: Question
    texts: Mapping[str, str]  # role -> gold text
    round_texts: Mapping[tuple[str, int], str] = field(
        default_factory=dict
    )  # (role, round) -> text of that round alone

    def text(self, role: str, round_index: int = 1) -> str:
        """The gold text of a role in a round."""
        return self.round_texts.get((role, round_index), self.texts[role])


@dataclass(frozen=True)
class Examples:
    """Usable rows, the columns they came from, and how many rows were dropped for an empty question or text."""

    items: list[Example]
    columns: dict[str, str]  # role -> column
    dropped: int


def build_examples(style: Style, roles: Sequence[str], rows: Sequence[Row], task: str, where: str) -> Examples:
    """Rows as examples with gold texts for `roles`; `where` names the data in errors.

    The row's `task_family` overrides `task`. A code task asks for a whole program where the row's `type` is "complete"
    or missing, else for the function `fn_name`.
    """
    present = {key for row in rows for key in row}
    if "question" not in present:
        raise InputError(f"{where}: no column 'question'; found {', '.join(sorted(present)) or 'none'}")
    columns = {role: _column(style, role, present, where) for role in roles}
    items = [_example(columns, row, index, task, where) for index, row in enumerate(rows)]
    kept = [item for item in items if item is not None]
    if not kept:
        raise InputError(
            f"{where}: every one of {len(rows)} rows has an empty question or target "
            f"(columns question, {', '.join(columns.values())})"
        )
    return Examples(kept, columns, len(rows) - len(kept))


def _column(style: Style, role: str, present: set[str], where: str) -> str:
    candidates = style.role(role).targets
    if not candidates:
        raise InputError(f"style {style.name}: role {role} names no training column; add `targets: [column]` to it")
    for column in candidates:
        if column in present:
            return column
    raise InputError(
        f"{where}: no column for the text of role {role}; expected {' or '.join(candidates)}, "
        f"found {', '.join(sorted(present))}"
    )


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    return "" if value is None else str(value).strip()


def _example(columns: Mapping[str, str], row: Row, index: int, task: str, where: str) -> Example | None:
    texts = {role: _text(row, column) for role, column in columns.items()}
    question = _text(row, "question")
    if not question or not all(texts.values()):
        return None
    family = _text(row, "task_family").lower() or task
    if family not in FAMILIES:
        raise InputError(
            f"{where}: row {index + 1} has task_family {family!r}; expected one of {', '.join(FAMILIES)}, or no such column"
        )
    kind = None
    if family == "code":
        kind = "program" if _text(row, "type") in {"", "complete"} else "function"
    # Rounds with a text of their own: column, "_round", number.
    round_texts = {
        (role, int(key.removeprefix(f"{column}_round"))): _text(row, key)
        for role, column in columns.items()
        for key in row
        if key.startswith(f"{column}_round") and key.removeprefix(f"{column}_round").isdigit() and _text(row, key)
    }
    identity = _text(row, "id") or str(index)
    return Example(Question(question, identity, family, kind, _text(row, "fn_name") or None), texts, round_texts)


def split_heldout(count: int, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices (train, held-out), each in file order; the same for every run with the same numbers."""
    # Imported here, so that reading rows needs no torch.
    import torch

    if not 0 <= fraction < 1:
        raise InputError(f"--eval_fraction {fraction}: expected a share from 0 to below 1")
    wanted = round(count * fraction)
    if fraction > 0 and not 0 < wanted < count:
        raise InputError(
            f"--eval_fraction {fraction}: holds out {wanted} of {count} rows; expected at least 1 on each side"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held = set(order[:wanted])
    return [i for i in range(count) if i not in held], sorted(held)
