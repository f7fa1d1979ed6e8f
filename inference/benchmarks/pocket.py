"""The pocket benchmarks: made-up rules that no single agent of the pocket system knows.

`pocket` needs one round; `pocket_loop` needs a second one. Both are files of this repository.
"""

from __future__ import annotations

from pathlib import Path

from inference.benchmarks.base import Sample
from inference.benchmarks.local import load_file

FOLDER = Path(__file__).resolve().parents[1] / "dataset"


def load(name: str) -> tuple[Sample, ...]:
    """The test rows of `pocket` or `pocket_loop`."""
    return load_file(FOLDER / f"{name}.jsonl")
