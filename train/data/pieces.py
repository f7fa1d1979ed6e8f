"""From an example to token pieces with slots, within a length; the text path is that of inference (`mas.prompts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.mas.prompts import Pieces, Slot, chat_ids, system_text, target_ids, user_parts
from inference.mas.styles import Style
from train.data.texts import Example


@dataclass(frozen=True)
class Tokens:
    """A prompt with slots, the gold turn after it, how many tokens were cut to fit, and how much of the turn counts."""

    prompt: Pieces
    target: list[int]
    cut: int = 0
    counted: int | None = None  # the first tokens of the target; None: all

    @property
    def scored(self) -> int:
        """Target tokens that count."""
        return len(self.target) if self.counted is None else min(self.counted, len(self.target))

    @property
    def text_length(self) -> int:
        """Tokens of the prompt's text, without its slots."""
        return sum(len(piece) for piece in self.prompt if not isinstance(piece, Slot))


def role_tokens(
    style: Style,
    role: str,
    tokenizer: Any,
    example: Example,
    round_index: int = 1,
    *,
    texts: Mapping[str, str] | None = None,
    with_target: bool = True,
    enable_thinking: bool = False,
    tools: Sequence[str] = (),
) -> Tokens:
    """What `role` reads in a round, and what it should write; slots named in `texts` are filled with that text.

    `tools` are offered in the prompt: the speaker's, where its text is the answer. Calls and results are plain text here.
    """
    parts = user_parts(style, role, example.question, round_index, texts, tools)
    system = system_text(style, role, example.question, tools)
    prompt = chat_ids(tokenizer, system, parts, enable_thinking=enable_thinking)
    target: list[int] = []
    if with_target:
        gold = example.text(role, round_index)
        target = target_ids(tokenizer, system, parts, gold, enable_thinking=enable_thinking)
    return Tokens(prompt, target)


def upstream_texts(style: Style, role: str, example: Example) -> dict[str, str]:
    """The gold texts of the roles before `role`, by the slot of `role` that they fill in round 1."""
    return {link.slot: example.text(link.source) for link in forward_links(style, role)}


def forward_links(style: Style, role: str) -> list[Any]:
    """Links into `role` whose message arrives in the same round."""
    return [link for link in style.incoming(role) if not style.is_feedback(link)]


def fit_right(tokens: Tokens, max_length: int) -> Tokens:
    """A prompt without slots and its target, cut at the end to `max_length` tokens (inner training)."""
    prompt = [token for piece in tokens.prompt if not isinstance(piece, Slot) for token in piece]
    cut = max(0, len(prompt) + len(tokens.target) - max_length)
    target = tokens.target[: max(0, max_length - len(prompt))]
    return Tokens([prompt[:max_length]], target, cut, tokens.counted)


def fit_left(tokens: Tokens, messages: Mapping[str, int], max_length: int) -> Tokens | None:
    """The prompt with text dropped from its start until text, messages and target fit in `max_length` positions.

    Messages (lengths by slot) and the target are never cut: None if these alone are too long, or if nothing of the
    text would be left.
    """
    fixed = sum(messages[piece.name] for piece in tokens.prompt if isinstance(piece, Slot)) + len(tokens.target)
    excess = fixed + tokens.text_length - max_length
    if excess <= 0:
        return tokens
    if excess >= tokens.text_length:
        return None
    prompt: Pieces = []
    left = excess
    for piece in tokens.prompt:
        if isinstance(piece, Slot):
            prompt.append(piece)
        else:
            drop = min(left, len(piece))
            left -= drop
            if piece[drop:]:
                prompt.append(piece[drop:])
    return Tokens(prompt, tokens.target, excess)
