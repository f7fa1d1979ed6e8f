"""Tools in a written text: which tags call them, and how a result is put behind the call.

    the model writes     ... <python>print(6 * 7)</python>
    and reads behind it   <result> 42 </result>

Only text that the model has just written is searched: neither the prompt nor a result can call a tool. This module is text
alone; `writing.py` joins it to the token loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

LIMIT_REACHED = "[tool limit] No tool call is left and this one was not run. Write the final answer now."
_CLOSING_RESULT = re.compile(r"<(?=/\s*result\s*>)", re.IGNORECASE)
CUT_NOTE_CHARS = 200  # room for the note of a tool that has cut its result itself, so that the note is not cut in turn


class ToolBox(Protocol):
    """The tools there are. `run` may be called by several threads, keeps to its own time limit, and raises for no failure."""

    names: tuple[str, ...]

    def run(self, name: str, body: str, row_id: str) -> tuple[str, bool]:
        """Tool `name` for the block's text: the result, and whether the call failed; `row_id` names the answer that asks."""


@dataclass(frozen=True)
class ToolUse:
    """Tools for the answers of one call of the system: calls an answer may make, and characters of a result."""

    box: ToolBox
    max_rounds: int = 5
    result_max_chars: int = 6000


@dataclass(frozen=True)
class Call:
    """A complete block in a text: the tool, its input, and the block's place."""

    name: str
    body: str
    start: int
    end: int


class Tags:
    """The blocks of some tools: `<name> ... </name>`, any letter case, any number of lines, one name at both ends."""

    def __init__(self, names: Sequence[str]) -> None:
        either = "|".join(map(re.escape, names))
        self._block = re.compile(rf"<({either})>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
        self._closing = re.compile(rf"</(?:{either})>", re.IGNORECASE)
        self._longest = max(map(len, names)) + len("</>")

    def find(self, text: str, new: int) -> Call | None:
        """The first complete block, if one was completed by the last `new` characters of `text`."""
        old = len(text) - new
        closed = self._closing.finditer(text, max(0, old - self._longest))
        if not any(match.end() > old for match in closed):
            return None
        match = self._block.search(text)
        return Call(match[1].lower(), _trimmed(match[2]), *match.span()) if match else None

    def remove(self, text: str) -> str:
        """The text without its complete blocks."""
        return self._block.sub("", text)


def _trimmed(body: str) -> str:
    """Without white space around it; but a first line of its own keeps its indentation, which is code's."""
    text = body.strip()
    margin = body[: body.find(text)].rpartition("\n")
    return margin[2] + text if margin[1] else text


def result_block(result: str, max_chars: int) -> str:
    """What the model reads of a result: cut at `max_chars`, and unable to close its own block."""
    if len(result) > max_chars + CUT_NOTE_CHARS:
        result = f"{result[:max_chars]}\n[cut: {len(result) - max_chars} more characters]"
    return f" <result> {_CLOSING_RESULT.sub('< ', result.strip())} </result>"


def unavailable(name: str) -> str:
    """The result of a tool that the role knows and this run does not have: no evidence, and said to be none."""
    return f"[{name} error] This tool is not available now. Go on without it."


def count(calls: Sequence[str]) -> Mapping[str, int]:
    """Calls by tool."""
    return {name: calls.count(name) for name in dict.fromkeys(calls)}
