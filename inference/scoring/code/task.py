"""What a code answer is graded against, and the grades' error types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.scoring.code.oracles import MBPPPLUS, Oracle
from inference.tools.errors import DataError

TaskKind = Literal["function", "stdin", "call"]

# The reference's names. BAD_TEST_FORMAT, EVAL_CRASH and EVAL_BAD_OUTPUT are ours to repair, not the program's fault.
ERROR_TYPES = (
    "EMPTY_CODE",
    "NO_TESTS",
    "TLE",
    "RE",
    "WA",
    "CE",
    "NO_FUNC",
    "BAD_TEST_FORMAT",
    "EVAL_CRASH",
    "EVAL_BAD_OUTPUT",
)
OUR_FAULTS = frozenset({"BAD_TEST_FORMAT", "EVAL_CRASH", "EVAL_BAD_OUTPUT"})


@dataclass(frozen=True)
class CodeTask:
    """One task's tests.

    - "function": `tests` is the source of asserts that call `entry_point` (MBPP+ `test`); a function `check(candidate)` in it
      is called. `oracle` replaces the comparison of MBPP+ tests; "reference" needs the `reference` solution's source.
    - "stdin": `cases` are (stdin, expected stdout); the program is run as a script for each.
    - "call": `cases` are (arguments, expected), as LiveCodeBench's functional tests: one JSON value a line, and one JSON value.
    """

    kind: TaskKind
    entry_point: str | None = None
    tests: str = ""
    cases: Sequence[tuple[str, str]] = field(default_factory=tuple)
    oracle: Oracle | None = None
    reference: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("function", "stdin", "call"):
            raise DataError(f"code task of kind {self.kind!r}; expected function, stdin or call")
        if self.kind != "stdin" and not (self.entry_point or "").isidentifier():
            raise DataError(
                f"code task of kind {self.kind} with entry point {self.entry_point!r}; expected a Python name"
            )
        if self.oracle and (self.kind != "function" or (self.oracle == "reference" and not self.reference)):
            raise DataError(
                f"code task with oracle {self.oracle!r}; it needs kind function, and 'reference' a solution"
            )


def mbppplus_task(task_id: int, entry_point: str, tests: str, reference: str) -> CodeTask:
    """A row of evalplus/mbppplus (`task_id`, `test`, `code`), with the oracle of that task if it needs one."""
    oracle = MBPPPLUS[task_id][0] if task_id in MBPPPLUS else None
    return CodeTask("function", entry_point, tests, oracle=oracle, reference=reference if oracle else "")


@dataclass(frozen=True)
class Evaluation:
    """The grade of one program, field for field what the record keeps under `eval`. A test is one call or one run; grading
    stops at the first that fails."""

    passed_tests: int
    total_tests: int
    error_type: str | None = None
    detail: str = ""
    failed_test_index: int | None = None

    def __post_init__(self) -> None:
        assert self.error_type is None or self.error_type in ERROR_TYPES, self.error_type

    @property
    def all_passed(self) -> bool:
        return self.error_type is None and self.total_tests > 0 and self.passed_tests == self.total_tests

    def record(self) -> dict[str, Any]:
        return {
            "all_passed": self.all_passed,
            "passed_tests": self.passed_tests,
            "total_tests": self.total_tests,
            "failed_test_index": self.failed_test_index,
            "error_type": self.error_type,
            "detail": self.detail,
        }
