"""From a question to token ids with holes: templates, chat rendering, slots.

The chat template is rendered to text with a marker in the place of each slot; the text is cut at the markers and every
piece is tokenised alone, without special tokens, as the released links were trained. Markers carry a random-looking key
that cannot stand in a question, so a question that quotes a slot's name is only text.

    render:  <|im_start|>user\\n[question] ... <marker> ...<|im_end|>\\n<|im_start|>assistant\\n
    cut:     [ids of the piece before]   Slot("PLAN")   [ids of the piece after]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from inference.mas.errors import InputError
from inference.mas.styles import TOKEN, Style, pick_family


@dataclass(frozen=True)
class Question:
    """One task. `family` is math, code, choice or reasoning; `kind` and `fn_name` describe the interface of code tasks."""

    text: str
    id: str = ""
    family: str = "math"
    kind: str | None = None
    fn_name: str | None = None


@dataclass(frozen=True)
class Slot:
    """The place of a message in a prompt."""

    name: str


Parts = tuple[str | Slot, ...]  # user text with slots
Pieces = list[list[int] | Slot]  # token ids with slots
_OPEN, _CLOSE = "<<slot:7b1f:", ">>"
_MARKER = re.compile(re.escape(_OPEN) + r"([A-Z0-9_]+)" + re.escape(_CLOSE))
_FIELD_LINE = re.compile(r"\{([a-z_]+)\}")


def fields(style: Style, role: str, question: Question, tools: Sequence[str] = ()) -> dict[str, str]:
    """What `{name}` stands for in the prompts of `role` for this question, in a stage that can run `tools`.

    The question's own fields, and the style's pieces: each in its text for the question's family, with the pieces above
    it put in, or empty if its conditions do not hold.
    """
    filled = {"question": question.text, "fn_name": question.fn_name or "", "label": style.role(role).label}
    kind = ("function" if question.kind == "function" else "program") if question.family == "code" else ""
    for key, piece in style.pieces.items():
        shown = piece.when.holds(question.text, kind, bool(question.fn_name), tools)
        template = piece.texts.get(question.family, piece.texts.get("math", "")) if shown else ""
        filled[key] = "".join(_parts(template, filled, {}))
    return filled


def _without_empty(template: str, values: Mapping[str, str]) -> str:
    """The template without lines that are one empty field; of the blank lines around one, a single one stays."""
    lines: list[str] = []
    dropped = False
    for line in template.split("\n"):
        field = _FIELD_LINE.fullmatch(line)
        if field and not values[field[1]]:
            dropped = True
        elif not (dropped and not line.strip() and (not lines or not lines[-1].strip())):
            lines.append(line)
            dropped = False
    while dropped and lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


def _parts(template: str, values: Mapping[str, str], texts: Mapping[str, str]) -> Parts:
    """The template with fields filled in one pass (a filled text is never searched again); text slots filled as text."""
    template = _without_empty(template, values)
    parts: list[str | Slot] = []
    text, end = "", 0
    for match in TOKEN.finditer(template):
        text, end = text + template[end : match.start()], match.end()
        if match[2] is not None and match[2] not in texts:
            parts += [text, Slot(match[2])]
            text = ""
        else:
            text += values[match[1]] if match[2] is None else texts[match[2]]
    return (*parts, text + template[end:])


def user_parts(
    style: Style,
    role: str,
    question: Question,
    round_index: int,
    texts: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
) -> Parts:
    """The user prompt of `role` in round `round_index` (1-based); slots named in `texts` are filled with that text.

    `tools` are those that this stage can run: the speaker's, while it writes the answer, and none in any other stage.
    """
    template = style.role(role).template(question.family, round_index)
    return _parts(template, fields(style, role, question, tools), texts or {})


def system_text(style: Style, role: str, question: Question, tools: Sequence[str] = ()) -> str:
    """The system message of `role`; `tools` as in `user_parts`."""
    return "".join(_parts(style.role(role).system, fields(style, role, question, tools), {}))


def single_parts(style: Style, question: Question, tools: Sequence[str] = ()) -> Parts:
    """The plain prompt for the speaker's model alone."""
    template = pick_family(style.single, question.family, "single")
    return _parts(template, fields(style, style.speaker, question, tools), {})


def chat_text(
    tokenizer: Any, system: str, user: str, *, enable_thinking: bool = False, assistant: str | None = None
) -> str:
    """The chat template's text: with the generation prompt, or with an assistant turn.

    A template without a system role gets the system text at the head of the user turn, a blank line between. A tokenizer
    without any template is an `InputError`.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template; expected an instruction-tuned model"
        )
    turns = [{"role": "user", "content": user}]
    if assistant is not None:
        turns.append({"role": "assistant", "content": assistant})

    def render(messages: list[dict[str, str]]) -> str:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=assistant is None, enable_thinking=enable_thinking
        )

    if not system:
        return render(turns)
    try:
        text = render([{"role": "system", "content": system}, *turns])
        # Some templates drop the system turn silently instead of refusing it.
        if system in text:
            return text
    except jinja2.exceptions.TemplateError:
        pass
    return render([{"role": "user", "content": f"{system}\n\n{user}"}, *turns[1:]])


def _cut(text: str) -> list[str | Slot]:
    """Rendered text cut at its markers."""
    out: list[str | Slot] = []
    for index, piece in enumerate(_MARKER.split(text)):
        if index % 2:
            out.append(Slot(piece))
        elif piece:
            out.append(piece)
    return out


def _marked(parts: Sequence[str | Slot]) -> str:
    return "".join(
        f"{_OPEN}{part.name}{_CLOSE}" if isinstance(part, Slot) else part.replace(_OPEN, "<<slot:") for part in parts
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def chat_ids(tokenizer: Any, system: str, parts: Parts, *, enable_thinking: bool = False) -> Pieces:
    """Token ids of the whole prompt, cut at its slots; `InputError` if the chat template lost one."""
    text = chat_text(tokenizer, system, _marked(parts), enable_thinking=enable_thinking)
    cut = _cut(text)
    wanted = [part for part in parts if isinstance(part, Slot)]
    if [piece for piece in cut if isinstance(piece, Slot)] != wanted:
        raise InputError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template does not show the user text once and unchanged"
        )
    return [piece if isinstance(piece, Slot) else _ids(tokenizer, piece) for piece in cut]


def target_ids(tokenizer: Any, system: str, parts: Parts, target: str, *, enable_thinking: bool = False) -> list[int]:
    """Token ids of a gold assistant turn: `target` and what the template writes after it (end of turn).

    Built from parts, so that prompt and target meet where inference starts to write, also for templates that put an
    empty think block into the generation prompt only.
    """
    sentinel = "\u241fanswer\u241f"
    text = chat_text(tokenizer, system, _marked(parts), enable_thinking=enable_thinking, assistant=sentinel)
    if text.count(sentinel) != 1:
        raise InputError(
            f"tokenizer {tokenizer.name_or_path!r}: its chat template does not show the assistant text once and unchanged"
        )
    return _ids(tokenizer, target + text.split(sentinel)[1])
