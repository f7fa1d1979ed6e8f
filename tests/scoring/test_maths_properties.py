"""Properties that hold for every input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.scoring.maths import ComparePool, equivalent, find_answer, grade, normalise

FRAGMENTS = st.sampled_from(
    [r"\frac", "{", "}", r"\sqrt", "[", "]", "(", ")", "1", "23", "0.5", "x", "y", "pi", r"\pi", "+", "-", "*", "/", "^", "_", ",", ";", "=",
     "<", r"\le", r"\pm", r"\{", r"\}", "|", "%", "!", r"^\circ", r"\text{ cm}", r"\text{or}", " ", r"\boxed{", r"\left", r"\right", r"\\", "&",
     r"\begin{pmatrix}", r"\end{pmatrix}", r"\cup", r"\in", "$", r"\,", r"\!", "**", "Answer: ", "is", "<think>", "</think>", "°", "½", "²", "：",
     "infty", r"\infty", r"\sin", r"\log", ".", r"\overline{3}", r"\mathbb{R}", ":", "and", "5 apples", r"\angle", "1,000", "e", "i",
     r"\text{ million}", r"\text{x}", "ABC", r"\mathbb{Z}", "|x|", r"\text{minus }", r"\mp", "the answer is ", r"\color{red}", r"\{x\in\mathbb{Z}|", "km/h", "4th"]
)  # fmt: skip
MATHS_TEXT = st.lists(FRAGMENTS, max_size=25).map("".join)
TEXTS = st.one_of(MATHS_TEXT, st.text(max_size=60))
ATOMS = st.one_of(
    st.integers(-30, 30).map(str),
    st.sampled_from(["x", "y", r"\pi", "0.25", r"\frac{3}{7}", r"\sqrt{5}", "e", r"\sqrt[3]{2}"]),
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", r"\cdot "]), inner).map(lambda t: f"({t[0]}){t[1]}({t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"\\frac{{{t[0]}}}{{({t[1]})^2+11}}"),
        st.tuples(inner, st.integers(2, 3)).map(lambda t: f"({t[0]})^{{{t[1]}}}"),
    ),
    max_leaves=5,
)
ANSWERS = st.one_of(
    EXPRESSIONS,
    st.tuples(
        st.sampled_from(["(", "[", r"\{", ""]), EXPRESSIONS, EXPRESSIONS, st.sampled_from([")", "]", r"\}", ""])
    ).map(lambda t: f"{t[0]}{t[1]},{t[2]}{t[3]}"),
    st.tuples(st.sampled_from(["x=", "y<", r"x\in ", r"\pm "]), EXPRESSIONS).map("".join),
    st.tuples(EXPRESSIONS, st.sampled_from([r"\%", r"^\circ", r"\text{ cm}", " apples"])).map("".join),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ComparePool]:
    with ComparePool() as opened:
        yield opened


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_normalise_is_idempotent(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_extraction_never_raises(text: str) -> None:
    found = find_answer(text)
    assert (found.status == "ok") == bool(found.readings)


@given(TEXTS, TEXTS)
@settings(max_examples=300, deadline=None)
def test_grading_never_raises(pool: ComparePool, text: str, gold: str) -> None:
    verdict = grade(f"\\boxed{{{text}}}", gold, pool)
    assert verdict.status in ("ok", "no_answer", "unclosed_reasoning", "too_large")


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_equivalence_is_reflexive(pool: ComparePool, text: str) -> None:
    assert equivalent(text, text, pool).equal


@given(st.one_of(TEXTS, ANSWERS), st.one_of(TEXTS, ANSWERS))
@settings(max_examples=300, deadline=None)
def test_equivalence_is_symmetric(pool: ComparePool, left: str, right: str) -> None:
    assert equivalent(left, right, pool).equal == equivalent(right, left, pool).equal


@given(EXPRESSIONS, EXPRESSIONS)
@settings(max_examples=100, deadline=None)
def test_rewriting_keeps_an_expression_and_adding_one_does_not(pool: ComparePool, left: str, right: str) -> None:
    total = f"({left})+({right})"
    assert equivalent(total, f"{{{right}}}-(-({left}))", pool).equal
    assert not equivalent(total, f"{total}+1", pool).equal
