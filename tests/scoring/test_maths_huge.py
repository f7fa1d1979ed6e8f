"""Values of more digits than are computed, and values that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference.scoring.maths import ComparePool, equivalent


@pytest.fixture(scope="module")
def pool() -> Iterator[ComparePool]:
    with ComparePool() as made:
        yield made


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (r"2005^{2005}-1", r"2005^{2005}+1", False),
        (r"2005^{2005}-1", r"-1+2005^{2005}", True),
        (r"2^{100000}", r"2^{100000}+1", False),
        (r"3^{50000}+x", r"3^{50000}+x+1", False),
        (r"3^{50000}+x", r"x+3^{50000}", True),
        (r"\frac{1}{2004!}", r"\frac{1}{2004!}+\frac{1}{3000!}", False),
        (r"10^{10^{10}}", r"10^{10^{10}}+1", False),
        (r"2\cdot3^{5000}", r"3^{5000}+3^{5000}", True),
        (r"\tan 90^\circ", r"\tan 90^\circ+1", False),
        (r"\csc 180^\circ", r"\sec 90^\circ", False),
        (r"\cot 90^\circ", "0", True),
        (r"\sec x", r"\frac{1}{\cos x}", True),
    ],
)
def test_no_value_hides_beside_a_larger_one(pool: ComparePool, left: str, right: str, same: bool) -> None:
    assert equivalent(left, right, pool).equal is same
    assert equivalent(right, left, pool).equal is same
