"""The letter a model chose: whole outputs, properties for every input, hostile texts, bad arguments."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.scoring.choice import extract, grade, unwrap
from inference.tools.errors import DataError

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "choice_cases.jsonl").read_text(encoding="utf-8").split("\n")
    if line
]
FRAGMENTS = st.sampled_from(
    ["A", "B", "C", "D", "E", "a", "b", "I", "(", ")", "[", "]", ".", ",", ":", " ", "\n", "**", "$", "_", "-", "=", "/", "'", '"', "?", r"\boxed{",
     r"\text{", "}", "Answer: ", "the answer is ", "answer", "is", "not ", "or ", "and ", "either ", "none of the above", "option ", "correct", "I choose ",
     "So ", "if ", "would be ", "<think>", "</think>", "<answer>", "</answer>", "Paris", "Rome", "C. difficile", "\ue000", "\ue001", "答案是", "Ａ", "\ud800"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(FRAGMENTS, max_size=20).map("".join), st.text(max_size=60))
OPTIONS = st.lists(st.one_of(st.sampled_from(["Paris", "Rome", "A", "E", "C. difficile", "7", ""]), st.text(max_size=8)), min_size=1, max_size=6)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['group']}: {case['pred'][:40]!r}")
def test_case(case: dict) -> None:
    found = extract(case["pred"], case["letters"], case.get("options"))
    assert found.letter == case["expected"], found
    assert (found.status == "ok") == (found.letter is not None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['group']}: {case['pred'][:40]!r}")
def test_no_gold_is_hit_without_an_answer(case: dict) -> None:
    letters = case["letters"][: len(case.get("options", case["letters"]))]
    hits = [gold for gold in letters if grade(case["pred"], gold, case["letters"], case.get("options")).correct]
    assert hits == ([case["expected"]] if case["expected"] else [])


@pytest.mark.parametrize("form", [r"\boxed{{{}}}", "Answer: {}", "({})", "{}", "The correct option is {}.", "**{}**", "{}. some text"])  # fmt: skip
def test_gold_against_gold(form: str) -> None:
    letters = "ABCDEFGHIJ"
    assert all(grade(form.format(letter), letter, letters).correct for letter in letters)


def test_gold_against_the_text_of_its_option() -> None:
    options = ["ampicillin", "C. difficile", "vitamin B", "T cells", "−5 °C", r"$\frac{1}{2}$"]
    for letter, option in zip("ABCDEF", options, strict=True):
        for form in ("{}", "Answer: {}", "The answer is {}.", "\\boxed{{{}}}", f"{letter}. {{}}", f"({letter}) {{}}"):
            verdict = grade(form.format(option), letter, "ABCDEF", options)
            assert verdict.correct, (form, option, verdict)


@pytest.mark.parametrize(
    ("text", "options", "rule"),
    [
        (r"\boxed{B}", None, "boxed"), ("Answer: B", None, "answer line"), ("Well.\nB", None, "last line"), ("I choose B", None, "statement"),
        ("B) some", None, "line label"), ("So it is B.", None, "closing sentence"), ("Well.\nsome", ["any", "some"], "option text"),
        ("Answer: some", ["any", "some"], "answer line, option text"), ("Answer: A or B", None, "answer line: several letters"),
        ("Answer: E", None, "answer line: E is no option"), ("Answer: B. So the answer is not B.", None, "answer line: taken back"),
        ("A is correct. B is correct.", None, "statement: several letters"), ("A) x\nB) y", None, "line label: several letters"), ("hm", None, "none"),
    ],
)  # fmt: skip
def test_the_rule_says_what_decided(text: str, options: list[str] | None, rule: str) -> None:
    assert extract(text, "AB" if options else "ABCD", options).where == rule


def test_reasoning() -> None:
    assert extract("Answer: A</think>Answer: B").letter == "B"
    verdict = grade("<think>Answer: A", "A")
    assert (verdict.correct, verdict.extracted, verdict.status) == (False, None, "unclosed_reasoning")


@pytest.mark.parametrize(
    ("gold", "letters", "options", "message"),
    [
        ("E", "ABCD", None, "expected one of the letters ABCD"), ("", "ABCD", None, "expected one of the letters ABCD"),
        ("AB", "ABCD", None, "expected one of the letters ABCD"), ("D", "ABCD", ["x", "y", "z"], "expected one of the letters ABC"),
        ("A", "", None, "expected different letters"), ("A", "AAB", None, "expected different letters"), ("1", "12", None, "expected different letters"),
        ("A", "AB", ["x", "y", "z"], "3 options for the letters AB"), ("A", "AB", [], "0 options"),
    ],
)  # fmt: skip
def test_bad_gold_letters_and_options(gold: str, letters: str, options: list[str] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        grade("Answer: A", gold, letters, options)


def test_small_gold_and_letters() -> None:
    assert grade("Answer: B", "b", "abcd").correct


@given(TEXTS, st.sampled_from(["A", "AB", "ABCD", "ABCDEFGHIJ", "XYZ"]))
@settings(max_examples=600, deadline=None)
def test_extraction_never_raises_or_leaves_the_letters(text: str, letters: str) -> None:
    found = extract(text, letters)
    assert found.letter is None or found.letter in letters
    assert found.status in ("ok", "no_answer", "unclosed_reasoning")
    assert (found.status == "ok") == (found.letter is not None)


@given(TEXTS, OPTIONS)
@settings(max_examples=600, deadline=None)
def test_never_a_letter_that_the_options_lack(text: str, options: list[str]) -> None:
    found = extract(text, "ABCDEF", options)
    assert found.letter is None or found.letter in "ABCDEF"[: len(options)]


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_only_the_text_behind_the_reasoning_counts(text: str) -> None:
    rest = text.replace("<think>", "").replace("</think>", "")
    assert extract(f"Answer: A\n\\boxed{{B}}</think>{rest}") == extract(f"</think>{rest}")


@given(st.recursive(st.text("AB{}\\ ", max_size=6), lambda inner: inner.map(lambda text: rf"\text{{{text}}}"), max_leaves=4))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_unwrapping_is_idempotent(text: str) -> None:
    assert unwrap(unwrap(text)) == unwrap(text)


@pytest.mark.parametrize(
    "text",
    [r"\boxed{" * 9000, "\n" * 60000, "answer" + " " * 60000, r" \boxed{A}" * 5000, "Answer: " + "**" * 30000, "<think>" * 9000, "<answer>" * 9000,
     "therefore " + "is " * 20000, "#### " * 12000, "answer to " * 6000, "answer to a b c " * 4000, "A, " * 20000, "(A) " * 15000, "A\n" * 30000,
     "so A is correct. " * 4000, "_a " * 20000, "`" * 60000, r"\text{" * 10000, "(" * 60000, "- " * 30000, "I choose " * 7000, "answer (a" * 6000,
     "Answer: " + "not " * 20000, "Answer: " + "definitely " * 6000, "\ufdfa" * 20000, "x" * 60000],
    ids=lambda text: repr(text[:14]),
)  # fmt: skip
def test_hostile_texts_end(text: str) -> None:
    start = time.monotonic()
    for options in (None, ["aa", "bb", "cc", "dd"]):
        extract(text, "ABCD", options)
    assert time.monotonic() - start < 60, "work must not grow with the square of the text"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: (A|B|C|D)", None),
        ("\\boxed{\\text{B is wrong}}", None),
        ("The answer is B, which is right; \\boxed{C is incorrect}", "B"),
        ("A: B", None),
        ("B: 5", "B"),
        ("We choose B to denote the base.", None),
        ("We choose B as the best option.", "B"),
        ("The answer is not A, it is B.", "B"),
        ("The answer is not A but rather (C).", "C"),
        ("The answer is not A.", None),
        ("Answer → B", "B"),
        ("The correct answer is:\n\nC) Mitral valve prolapse\n\nThis is because of the click.", "C"),
        ("The correct answer is:\n\n**C. Mitral valve prolapse**\n\n**Explanation:** a click.", "C"),
        ("Answer: \u200bB", "B"),
    ],
)
def test_rejected_named_and_replaced_letters(text, letter):
    assert extract(text).letter == letter
