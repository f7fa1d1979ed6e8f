"""The reference's comparator, mistakes included: it exists to reproduce published columns."""

from __future__ import annotations

import pytest

from inference.scoring.maths import grade
from inference.scoring.reference_rule import reference_correct


@pytest.mark.parametrize(
    ("answer", "gold", "reference", "ours"),
    [
        ("3/4", "1/4", True, False), ("x^2+1", "2", True, False), ("-0.5", "0.9", True, False), ("12", "12", True, True),
        ("1,000", "1000", True, True), ("7", "8", False, False), (r"\text{odd}", "odd", True, True), ("", "5", False, False),
        ("3/0", "3", False, False),
    ],
)  # fmt: skip
def test_maths(answer: str, gold: str, reference: bool, ours: bool) -> None:
    text = f"\\boxed{{{answer}}}"
    assert reference_correct(text, gold, "math") is reference
    assert grade(text, gold).correct is ours


def test_a_flat_box_beats_a_later_nested_one() -> None:
    assert reference_correct(r"\boxed{5} no, \boxed{\frac{7}{2}}", "5", "math")


def test_without_a_box_everything_is_compared() -> None:
    assert reference_correct("Step 1: I add.", "1", "math")


@pytest.mark.parametrize(("text", "gold", "expected"), [("no idea", "A", True), ("Answer: C", "C", True), (r"\boxed{D}", "D", True), ("answer a question", "A", True), ("B. because", "C", False)])  # fmt: skip
def test_choice(text: str, gold: str, expected: bool) -> None:
    assert reference_correct(text, gold, "choice") is expected


def test_words() -> None:
    assert reference_correct("Final Answer: The Eiffel Tower.", "eiffel tower", "qa")
    assert not reference_correct("Final Answer: Paris", "Rome", "qa")


def test_unknown_task() -> None:
    with pytest.raises(ValueError, match="expected math, choice or qa"):
        reference_correct("1", "1", "code")
