"""MATH-500 from the hub: 500 competition problems with short answers."""

from __future__ import annotations

from inference.benchmarks.base import Sample, check_rows
from inference.benchmarks.hub import load_split
from inference.benchmarks.local import to_sample

HUB_ID = "HuggingFaceH4/MATH-500"


def load(split: str, revision: str | None) -> tuple[tuple[Sample, ...], str | None]:
    """All rows of a split, and the commit they come from."""
    rows, commit = load_split(HUB_ID, split=split, revision=revision)
    places = ((f"{HUB_ID}, {split} row {n}", n, row) for n, row in enumerate(rows))
    return check_rows(((w, to_sample(row, n, w, f"math500-{n}")) for w, n, row in places), HUB_ID), commit
