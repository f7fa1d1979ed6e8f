"""Benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from inference.benchmarks import local, math500, pocket
from inference.benchmarks.base import Benchmark, Grade, Sample, choose
from inference.scoring import maths
from inference.tools.errors import DataError

Loader = Callable[[str, "str | None"], "tuple[tuple[Sample, ...], str | None]"]  # (split, revision) -> rows, commit

# name -> (where the rows are, splits with the default first, loader)
BENCHMARKS: dict[str, tuple[str, tuple[str, ...], Loader]] = {
    "pocket": ("inference/dataset/pocket.jsonl", ("test",), lambda split, revision: (pocket.load("pocket"), None)),
    "pocket_loop": ("inference/dataset/pocket_loop.jsonl", ("test",), lambda split, revision: (pocket.load("pocket_loop"), None)),
    "math500": (math500.HUB_ID, ("test",), math500.load),
}  # fmt: skip


@contextmanager
def maths_grader() -> Iterator[Grade]:
    """Grades maths answers, hard pairs in worker processes."""
    with maths.ComparePool() as pool:
        yield lambda sample, text: maths.grade(text, sample.gold, pool)


def load_benchmark(
    name: str,
    *,
    split: str = "",
    num_samples: int = -1,
    shuffle_seed: int | None = None,
    sample_ids: Sequence[str] = (),
    dataset_file: str | Path | None = None,
    revision: str | None = None,
) -> Benchmark:
    """Load a benchmark by name, or the file that `name` is the path of, and choose its samples.

    `dataset_file` gives a named benchmark's rows in a local file. `split` "" is the default one. Raises `DataError`.
    """
    if name in BENCHMARKS:
        source, splits, load = BENCHMARKS[name]
        if split and split not in splits:
            raise DataError(f"--dataset_split {split}: {name} has {', '.join(splits)}")
    elif Path(name).suffix in local.SUFFIXES:
        if dataset_file:
            raise DataError(f"--dataset_file {dataset_file}: --dataset {name} is already a file; give one of them")
        dataset_file = name
    else:
        raise DataError(
            f"--dataset {name}: unknown dataset; expected one of {', '.join(BENCHMARKS)}, or a .json or .jsonl file"
        )
    if dataset_file:
        if split or revision:
            flag = f"--dataset_split {split}" if split else f"--dataset_revision {revision}"
            raise DataError(
                f"{flag}: rows from the file {dataset_file} have no splits or revisions; leave the flag out"
            )
        name = name if name in BENCHMARKS else Path(name).stem
        source, split, commit, rows = str(dataset_file), "file", None, local.load_file(Path(dataset_file))
    else:
        split = split or splits[0]
        rows, commit = load(split, revision)
    samples = choose(rows, num_samples=num_samples, shuffle_seed=shuffle_seed, sample_ids=sample_ids, source=source)
    return Benchmark(name, split, source, commit, rows, samples, maths_grader)
