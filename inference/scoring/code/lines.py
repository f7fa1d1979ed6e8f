"""Comparing what a program printed with what it should have printed."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?")
_MAX_NUMBER_CHARS = 10_000  # beyond this two lines are equal only as text


def first_difference(printed: str, expected: str) -> str | None:
    """None if the outputs are equal: line by line, blanks at the ends of lines and empty lines at the ends of the whole
    ignored; two lines of numbers only are compared as decimals (1.0 is 1, 0.30 is 0.3, exactly)."""
    # Not `splitlines`, which ends lines at form feeds and Unicode's separators, too.
    left, right = printed.strip().split("\n"), expected.strip().split("\n")
    for number, (mine, theirs) in enumerate(zip(left, right, strict=False), 1):
        mine, theirs = mine.strip(), theirs.strip()
        if mine != theirs and not _same_numbers(mine, theirs):
            return f"line {number}: expected {theirs[:200]!r}, got {mine[:200]!r}"
    if len(left) != len(right):
        return f"expected {len(right)} lines, got {len(left)}"
    return None


def _same_numbers(left: str, right: str) -> bool:
    if len(left) > _MAX_NUMBER_CHARS or len(right) > _MAX_NUMBER_CHARS:
        return False
    mine, theirs = left.split(), right.split()
    if len(mine) != len(theirs) or not all(_NUMBER.fullmatch(word) for word in mine + theirs):
        return False
    return all(Decimal(one) == Decimal(other) for one, other in zip(mine, theirs, strict=True))
