"""Exact match and F1 of short answers by both rules; where the answer stands in a text."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.scoring import qa
from inference.tools.errors import DataError

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "em_cases.jsonl").read_text(encoding="utf-8").split("\n")
    if line
]
MEASURES = ("em", "f1", "official_em", "official_f1")
FOUND = [
    (r"so it is \boxed{\text{The Beatles}}", "The Beatles", "boxed"), (r"\boxed{Rome} no, \boxed{Oslo}", "Oslo", "boxed"),
    (r"\boxed{Oslo}. Answer: Rome", "Oslo", "boxed"), (r"\boxed{Simon \& Garfunkel}", "Simon & Garfunkel", "boxed"), (r"\boxed{50\%}", "50%", "boxed"),
    (r"\boxed{$\text{Oslo}$}", "Oslo", "boxed"), ("<answer> Oslo </answer> as said", "Oslo", "answer tag"), ("Final answer: Oslo", "Oslo", "answer line"),
    ("The answer is **Oslo**", "Oslo", "answer line"), ("**Answer:**\nOslo", "Oslo", "answer line"), ("Answer: Rome\nNo. Answer: Oslo", "Oslo", "answer line"),
    ("Answer: Oslo\n\nIt lies in Norway.", "Oslo", "answer line"), ("The answer to the question is Oslo", "Oslo", "answer line"), ("#### 42", "42", "answer line"),
    ("I thought\nfor long.\n\nOslo\n", "Oslo", "last line"), ("- Oslo", "Oslo", "last line"), ("-5", "-5", "last line"), ("_Oslo_", "Oslo", "last line"),
    ("snake_case_name", "snake_case_name", "last line"), ("$5", "$5", "last line"), (r"\boxed{\$5}", "$5", "boxed"), ("Between $5 and $7", "Between $5 and $7", "last line"), ("no idea</think>Oslo", "Oslo", "last line"), ("Oslo", "Oslo", "last line"),
]  # fmt: skip
MISSING = [
    ("", "last line, empty", "no_answer"), (" \n ", "last line, empty", "no_answer"), (r"\boxed{}", "boxed, empty", "no_answer"),
    ("**Answer:**", "last line, empty", "no_answer"), ("<think>Oslo", "none", "unclosed_reasoning"),
]  # fmt: skip
FRAGMENTS = st.sampled_from(
    ["a", "the", "The", "an", "1,000", "000", ",", "-5", "−5", ".5", "3.14", "C++", "#", "'", "’", "*", "-", "–", "&", "%", "$", "½", "ß", "İ", "ﷺ", "(", ")",
     '"', "“", " ", "x", ".", "U.S.", "J. K.", "é", "e\u0301", "\u0345", "ǰ", "\x00", "\n", "22", "yes", "no", "Answer: ", r"\boxed{", "}", "<answer>",
     "</answer>", r"\text{", "**", "_", "\ud800", "is"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(FRAGMENTS, max_size=12).map("".join), st.text(max_size=40))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['note']}: {case['pred']!r}")
def test_case(case: dict) -> None:
    verdict = qa.grade(case["pred"], case["gold"])
    assert {name: verdict.details[name] for name in MEASURES} == pytest.approx(
        {name: case[name] for name in MEASURES}, abs=1e-3
    )
    assert verdict.correct == bool(case["em"])


@pytest.mark.parametrize(("text", "answer", "rule"), FOUND)
def test_the_answer_is_found(text: str, answer: str, rule: str) -> None:
    verdict = qa.grade(text, answer)
    assert (verdict.correct, verdict.extracted, verdict.status, verdict.rule) == (True, answer, "ok", rule)
    assert qa.find_answer(text) == answer


@pytest.mark.parametrize(("text", "rule", "status"), MISSING)
def test_no_answer(text: str, rule: str, status: str) -> None:
    verdict = qa.grade(text, ["Oslo", "The"])
    assert (verdict.correct, verdict.extracted, verdict.status, verdict.rule) == (False, None, status, rule)
    assert verdict.details["em"] == verdict.details["f1"] == 0.0
    assert qa.find_answer(text) is None


def test_a_sentence_behind_the_answer() -> None:
    assert qa.grade("The answer is Oslo. It lies in Norway.", "Oslo").extracted == "Oslo"
    assert qa.grade("The answer is St. Louis.", "St. Louis").extracted == "St. Louis."
    assert not qa.grade("The answer is Oslo or Rome.", "Oslo").correct
    assert not qa.grade("It is not Oslo.\nRome", "Oslo").correct


@pytest.mark.parametrize(
    "gold", ["What Is the Answer: A Novel", "The answer is 42", "#1", "C#", "!!!", "The The", "M*A*S*H", "-5", "$5", "A", "1,000", "<answer>", "Two\nlines"]
)  # fmt: skip
def test_gold_against_gold(gold: str) -> None:
    verdict = qa.grade(gold, gold)
    assert verdict.correct and verdict.details["f1"] == 1.0
    assert qa.grade(f"Hence it is \\boxed{{{gold}}}.", gold).correct


def test_the_best_of_several_golds() -> None:
    details = qa.grade("New York", ["Boston", "New York City", "York"]).details
    assert details == pytest.approx({"em": 0.0, "f1": 0.8, "official_em": 0.0, "official_f1": 0.8})


@pytest.mark.parametrize("gold", ["", "  ", [], ["", " "]])
def test_a_blank_gold_is_an_error(gold: str | list[str]) -> None:
    with pytest.raises(DataError, match="expected an answer"):
        qa.grade("Oslo", gold)


@given(TEXTS)
@settings(max_examples=600, deadline=None)
def test_normal_forms_are_idempotent(text: str) -> None:
    words = qa.careful_words(text)
    assert qa.careful_words(" ".join(words)) == words
    normal = qa.official_normal(text)
    assert qa.official_normal(normal) == normal


@given(TEXTS, TEXTS)
@settings(max_examples=500, deadline=None)
def test_measures_are_symmetric_and_bounded(left: str, right: str) -> None:
    for measure in (qa.careful_em, qa.careful_f1, qa.official_em, qa.official_f1):
        assert 0.0 <= measure(left, right) == measure(right, left) <= 1.0
    assert qa.careful_f1(left, right) >= qa.careful_em(left, right)


@given(TEXTS)
@settings(max_examples=500, deadline=None)
def test_every_gold_matches_itself(gold: str) -> None:
    if words := qa.careful_words(gold):
        assert qa.careful_em(gold, gold) == qa.careful_f1(gold, gold) == qa.official_em(gold, gold) == 1.0
        assert qa.careful_em(" ".join(words), gold) == 1.0


@given(TEXTS, TEXTS)
@settings(max_examples=500, deadline=None)
def test_grading_never_raises(text: str, gold: str) -> None:
    if gold.strip():
        verdict = qa.grade(text, gold)
        assert (verdict.status == "ok") == (verdict.extracted is not None)
        assert all(0.0 <= verdict.details[name] <= 1.0 for name in MEASURES)


@pytest.mark.parametrize(
    "text",
    ["<answer>" * 9000, r"\boxed{" * 9000, "answer to " * 6000, "Answer: " * 8000, "**" * 30000, "_a" * 30000, "answer" + "*" * 60000, "1," * 30000,
     "1,000" * 12000, "." * 60000, "\ufdfa" * 20000, "\n" * 60000, "a. " * 20000, "A. B " * 12000],
    ids=lambda text: repr(text[:14]),
)  # fmt: skip
def test_hostile_texts_end(text: str) -> None:
    start = time.monotonic()
    qa.grade(text, "Oslo")
    qa.grade("Oslo", "." + text)
    assert time.monotonic() - start < 60, "work must not grow with the square of the text"
