"""Whole model outputs against gold answers, and gold answers against themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.scoring.maths import ComparePool, equivalent, grade

HERE = Path(__file__).parent
CASES = [json.loads(line) for line in (HERE / "math_cases.jsonl").read_text(encoding="utf-8").splitlines()]
GOLDS = [json.loads(line)["gold"] for line in (HERE / "math_golds.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def pool() -> Iterator[ComparePool]:
    with ComparePool() as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['group']}: {case['pred'][:40]}")
def test_case(case: dict, pool: ComparePool) -> None:
    verdict = grade(case["pred"], case["gold"], pool)
    assert verdict.correct == case["expected"], verdict


@pytest.mark.parametrize("gold", GOLDS)
def test_gold_equals_itself(gold: str, pool: ComparePool) -> None:
    verdict = grade(f"Hence the answer is \\boxed{{{gold}}}.", gold, pool)
    assert verdict.correct and verdict.status == "ok"


def test_golds_differ_from_each_other(pool: ComparePool) -> None:
    for left, right in zip(GOLDS, GOLDS[1:] + GOLDS[:1], strict=True):
        assert not equivalent(left, right, pool).equal, (left, right)


def test_one_pair_without_a_pool() -> None:
    assert grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").correct
    assert not grade(r"\boxed{\sqrt{8}}", r"3\sqrt{2}").correct
