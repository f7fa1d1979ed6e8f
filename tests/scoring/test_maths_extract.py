"""Where the final answer of a text is found, and where there is none."""

from __future__ import annotations

import pytest

from inference.scoring.maths import find_answer, grade

FOUND = [
    (r"so \boxed{1} and then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"it is \boxed{3} , \boxed{5}", "3, 5"),
    (r"$\boxed{6}$ and $\boxed{8}$", "6, 8"),
    (r"done: \boxed{7}. Then I stop in \boxed{8", "7"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{a\}", None),
    (r"\boxed 12 is it", "12"),
    (r"\fbox{9}", "9"),
    ("**Final Answer:** 34", "34"),
    ("Final answer:\n\n 12", "12"),
    ("work\n#### 72", "72"),
    ("<answer>4</answer>", "4"),
    ("The answer to the second part is 17.", "17"),
    ("Thus $x = \\frac{3}{4}$.", r"\frac{3}{4}"),
    ("So there are 12.", "12"),
    ("<|im_start|>assistant\n\\boxed{5}<|im_end|>\n<|im_start|>user\n\\boxed{6}", "5"),
    ("it was \\boxed{1}</think>\\boxed{2}", "2"),
    ("42", "42"),
    ("$$x^2$$", "$$x^2$$"),
    ("The perimeter is 7.", None),
    ("Step 1: add 3 and 4.", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), FOUND)
def test_find_answer(text: str, answer: str | None) -> None:
    found = find_answer(text)
    assert found.readings[-1:] == (() if answer is None else (answer,))
    assert found.status == ("no_answer" if answer is None else "ok")


def test_reasoning_that_never_ends_has_no_answer() -> None:
    verdict = grade(r"<think> I believe \boxed{5}", "5")
    assert (verdict.correct, verdict.extracted, verdict.status) == (False, None, "unclosed_reasoning")


def test_empty_box_is_no_answer() -> None:
    assert grade(r"\boxed{}", "5").status == "no_answer"


@pytest.mark.parametrize(
    "text", ["Answer: 5 or 7", "Answer: x = 5 or x = 7", r"\boxed{5} or \boxed{7}", "Answer: x = 5, y = 7"]
)
def test_two_values_are_not_one(text: str) -> None:
    assert not grade(text, "7").correct
