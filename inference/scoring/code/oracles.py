"""What is compared where a task's published tests cannot be used as they stand.

MBPP+ tests compare by a function `assertion(out, exp, atol)` of their own, which knows absolute tolerances and set equality task
by task. An oracle is put right behind it and takes its place. A task gets one when its *reference solution* fails its tests, not
when a model does.
"""

from __future__ import annotations

import ast
from typing import Literal

Oracle = Literal["close", "sequence", "set", "reference"]

# numbers within an absolute tolerance, wherever they stand
_CLOSE = """
def assertion(out, exp, atol):
    def close(one, other):
        if isinstance(one, (list, tuple)) and type(one) is type(other):
            return len(one) == len(other) and all(map(close, one, other))
        if isinstance(one, (int, float)) and isinstance(other, (int, float)):
            return one == other or abs(one - other) <= max(atol, 1e-6)
        return one == other
    assert close(exp, out), f"out: {out}, exp: {exp}"
"""
# lists and tuples alike, at every depth
_SEQUENCE = """
def assertion(out, exp, atol):
    def plain(value):
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
    assert plain(exp) == plain(out), f"out: {out}, exp: {exp}"
"""
# the order and number of equal items are free
_SET = """
def assertion(out, exp, atol):
    assert isinstance(out, (list, tuple, set, frozenset)) and set(exp) == set(out), f"out: {out}, exp: {exp}"
"""
# right is also what the task's own reference solution returns for the same input; an input that it fails on decides nothing
_REFERENCE = """
_published_assertion = assertion
def assertion(out, exp, atol):
    try:
        return _published_assertion(out, exp, atol)
    except Exception as published:
        try:
            told = _reference_result()
        except Exception:
            return
        try:
            _published_assertion(out, told, atol)
        except Exception:
            raise published from None
"""
_SOURCES = {"close": _CLOSE, "sequence": _SEQUENCE, "set": _SET, "reference": _REFERENCE}

# Tasks of evalplus/mbppplus whose `test` raises for the `code` of the same row.
MBPPPLUS: dict[int, tuple[Oracle, str]] = {
    143: (
        "reference",
        "find_lists counts the lists of a tuple; the published inputs lost the difference of tuple and list",
    ),
    164: ("reference", "are_equivalent: the published results disagree with the reference's sums of divisors"),
    229: ("reference", "re_arrange_array: the published results are not the arrays that the reference returns"),
}


def with_oracle(tests: str, oracle: Oracle) -> str | None:
    """The tests with another `assertion`; None if they define none or don't parse."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    places = [node.end_lineno for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "assertion"]
    if not places or places[-1] is None:
        return None
    lines = tests.split("\n")
    return "\n".join([*lines[: places[-1]], _SOURCES[oracle], *lines[places[-1] :]])
