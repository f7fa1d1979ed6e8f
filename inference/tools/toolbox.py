"""The tools of one run together: which the speaker may call, and what they need while they run.

    settings = ToolSettings(("python", "search"), search=search_settings(keys_file="keys.txt"))
    with settings.open() as box:
        box.run("python", "print(1 + 1)", row_id="question-7:0")

A tool that needs something which is not there (search without a key or recorded searches) is not offered: prompts do not name it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from inference.tools.errors import DataError, FailedResult
from inference.tools.python_tool import PythonTool
from inference.tools.sandbox import Sandbox
from inference.tools.search_tool import SearchSettings, SearchTool, check_search

KNOWN = ("python", "search")


class ToolBox:
    """Tools by name: functions from a block's text to a result's text. Safe for threads."""

    def __init__(self, tools: Mapping[str, Callable[[str], str]]) -> None:
        self._tools = dict(tools)
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The tools there are."""
        return tuple(self._tools)

    def run(self, name: str, body: str, row_id: str) -> tuple[str, bool]:
        """The result of tool `name` for the answer `row_id`, and whether the call failed."""
        with self._lock:
            self._calls[name] += 1
        result = self._tools[name](body)
        return result, isinstance(result, FailedResult)

    def counts(self) -> dict[str, int]:
        """Calls by tool."""
        with self._lock:
            return dict(self._calls)


@dataclass(frozen=True)
class ToolSettings:
    """What a speaker's tools may use. `declared` are those of its style; `python_timeout` is in seconds."""

    declared: tuple[str, ...]
    max_rounds: int = 5
    python_timeout: float = 10.0
    result_max_chars: int = 6000
    search: SearchSettings = field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        for name in self.declared:
            if name not in KNOWN:
                raise DataError(f"tool {name!r}: unknown; a style's tools are some of {', '.join(KNOWN)}")

    @property
    def offered(self) -> tuple[str, ...]:
        """The declared tools that can run."""
        return tuple(name for name in self.declared if name != "search" or self.search.available)

    @cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox()  # finds out what this machine offers, by running something

    def check(self, needs_search: str = "") -> None:
        """`DataError` for what would fail later; `needs_search` names what cannot do without search, if anything."""
        if "search" in self.declared and (needs_search or self.search.available):
            check_search(self.search, needs_search or "the search tool")

    def describe(self) -> dict[str, Any]:
        """For the manifest: the tools, the sandbox's layer on this machine, and where searches go."""
        told: dict[str, Any] = {"offered": list(self.offered)}
        if "python" in self.offered:
            told["sandbox"] = self._sandbox.layer
        if "search" in self.offered:
            told["search"] = self.search.describe()
        return told

    @contextmanager
    def open(self, cache_file: Path | None = None) -> Iterator[ToolBox]:
        """The tools, ready to run. What searches answer is kept in `cache_file` (None: in memory)."""
        with ExitStack() as stack:
            tools: dict[str, Callable[[str], str]] = {}
            if "python" in self.offered:
                tools["python"] = PythonTool(self._sandbox, self.python_timeout, self.result_max_chars)
            if "search" in self.offered:
                tools["search"] = stack.enter_context(SearchTool(replace(self.search, cache_file=cache_file)))
            yield ToolBox(tools)
