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
    ("So 42.", "42"),
    ("Thus $42$.", "42"),
    ("**Final Answer**\n42", "42"),
    ("### Final Answer\n\n$42$", "42"),
    ("#### Final Answer\n42", "42"),
    ("####\n42", "42"),
    ("The answer is 42, not 43", "42"),
    ("x is not zero, so the answer is 42", "42"),
    ("I don't think the answer is 42.", None),
    ("I am not sure that the answer is 42", None),
    ("If the answer is 42, we are wrong.", None),
    ("Answer: 5\nBut I do not believe the answer is 6", "5"),
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


@pytest.mark.parametrize(
    "text",
    ["Answer: x^2 = 2", "Therefore x^2 = 2.", "So, x^2 + 1 = 2", "The answer is $2x = 2$", r"Answer: \sqrt{x} = 2", "Therefore x > 2.", "The answer is 3, not 2"],
)  # fmt: skip
def test_the_right_hand_side_of_an_equation_is_no_answer(text: str) -> None:
    assert not grade(text, "2").correct


@pytest.mark.parametrize(
    "text",
    ["Answer: m+n = 2", "Answer: $x+y=2$", r"Answer: \frac{a}{b} = 2", "Answer: f(3) = 2", "Thus, we get x = 2.", "So the sum is 1 + 1 = 2"],
)  # fmt: skip
def test_the_value_of_what_was_asked_is_an_answer(text: str) -> None:
    assert grade(text, "2").correct
