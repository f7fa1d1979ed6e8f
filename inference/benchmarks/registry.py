"""Benchmarks by name: where their rows are, how a row becomes a sample, and how answers are graded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inference.benchmarks import choice, code, hub, livecodebench, local, maths, own, qa
from inference.benchmarks.base import Benchmark, Options, Sample, check_rows, choose
from inference.benchmarks.grading import GRADERS
from inference.tools.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
DATASET = Path("inference") / "dataset"
Rows = list[tuple[str, dict[str, Any]]]  # (where, row) pairs; `where` names file and line, for errors
Build = Callable[[dict[str, Any], int, str, str, Options], Sample]  # (row, index, where, default id, options)


@dataclass(frozen=True)
class Spec:
    """A benchmark. `splits`: the first that the hub's dataset has is the default. `local`: a file of this project that
    holds the rows, or stands in for the hub's where it is there."""

    task: str
    build: Build
    hub_id: str = ""
    config: str | None = None
    splits: tuple[str, ...] = ("test",)
    local: Path | None = None

    @property
    def source(self) -> str:
        """For people: where rows come from."""
        return self.hub_id or str(self.local)


BENCHMARKS: dict[str, Spec] = {
    "pocket": Spec("math", maths.to_sample, local=DATASET / "pocket.jsonl"),
    "pocket_loop": Spec("math", maths.to_sample, local=DATASET / "pocket_loop.jsonl"),
    "pocket_mixture": Spec("math", maths.to_sample, local=DATASET / "pocket_mixture.jsonl"),
    "pocket_search": Spec("math", maths.to_sample, local=DATASET / "pocket_search.jsonl"),
    "math500": Spec("math", maths.to_sample, "HuggingFaceH4/MATH-500"),
    "aime24": Spec("math", maths.to_sample, "HuggingFaceH4/aime_2024", None, ("test", "train")),
    "aime25": Spec("math", maths.to_sample, "math-ai/aime25", None, ("test", "train")),
    "aime26": Spec("math", maths.to_sample, "MathArena/aime_2026", None, ("test", "train")),
    "gsm8k": Spec("math", maths.gsm8k_sample, "openai/gsm8k", "main"),
    "gpqa": Spec("choice", choice.gpqa_sample, "Idavidrein/gpqa", "gpqa_diamond", ("train",)),
    "medqa": Spec("choice", choice.medqa_sample, "GBaker/MedQA-USMLE-4-options", local=DATASET / "medqa.json"),
    "mbppplus": Spec("code", code.mbppplus_sample, "evalplus/mbppplus"),
    "livecodebench": Spec("code", livecodebench.to_sample, livecodebench.HUB_ID),
    "bamboogle": Spec("qa", qa.bamboogle_sample, "chiayewken/bamboogle", None, ("test", "validation", "train")),
    "hotpotqa": Spec("qa", qa.hotpot_sample, "hotpotqa/hotpot_qa", "distractor", ("validation",)),
}


def load_benchmark(
    name: str,
    *,
    split: str = "",
    num_samples: int = -1,
    shuffle_seed: int | None = None,
    sample_ids: Sequence[str] = (),
    dataset_file: str | Path | None = None,
    revision: str | None = None,
    options: Options | None = None,
    download: bool = True,
) -> Benchmark:
    """Load a benchmark by name, or the file that `name` is the path of, and choose its samples.

    `dataset_file` gives a named benchmark's rows in a local file, in the columns of its hub dataset. `split` "" is the default
    one. `download` False leaves out what is gigabytes. Raises `DataError`, and `UnreachableError` where the hub gives nothing.
    """
    options = options or Options()
    spec = BENCHMARKS.get(name)
    if spec is None:
        if Path(name).suffix not in local.SUFFIXES:
            raise DataError(
                f"--dataset {name}: unknown dataset; expected one of {', '.join(BENCHMARKS)}, or a .json or .jsonl file"
            )
        if dataset_file:
            raise DataError(f"--dataset_file {dataset_file}: --dataset {name} is already a file; give one of them")
        dataset_file = name
    if dataset_file and (split or revision):
        flag = f"--dataset_split {split}" if split else f"--dataset_revision {revision}"
        raise DataError(f"{flag}: rows from the file {dataset_file} have no splits or revisions; leave the flag out")
    if dataset_file:
        path, source, commit, used = Path(dataset_file), str(dataset_file), None, "file"
        raw = livecodebench.read_file(path, options) if name == "livecodebench" else list(local.read_rows(path))
    elif spec.local and (not spec.hub_id or ((ROOT / spec.local).is_file() and not (split or revision))):
        if split not in ("", *spec.splits):
            raise DataError(f"--dataset_split {split}: {name} has {', '.join(spec.splits)}")
        if revision:
            raise DataError(f"--dataset_revision {revision}: {name} is a file of this project; leave the flag out")
        path, source, commit, used = ROOT / spec.local, str(spec.local), None, spec.splits[0]
        raw = list(local.read_rows(path))
    else:
        path, source = None, spec.hub_id
        raw, commit, used = _from_hub(name, spec, split, revision, options, download)
    task, build = (spec.task, spec.build) if spec else (own.task_of(raw), own.to_sample)
    prefix = path.stem if path else name
    pairs = ((where, build(row, n, where, f"{prefix}-{n}", options)) for n, (where, row) in enumerate(raw))
    rows = check_rows(pairs, source)
    samples = choose(rows, num_samples=num_samples, shuffle_seed=shuffle_seed, sample_ids=sample_ids, source=source)
    name = name if spec else Path(name).stem
    return Benchmark(name, used, source, commit, rows, samples, partial(GRADERS[task], options), task)


def _from_hub(
    name: str, spec: Spec, split: str, revision: str | None, options: Options, download: bool
) -> tuple[Rows, str | None, str]:
    """Rows, commit and split of a hub dataset."""
    if name == "livecodebench":
        if split not in ("", *spec.splits):
            raise DataError(f"--dataset_split {split}: {name} has {', '.join(spec.splits)}; choose by --lcb_release")
        raw, commit = livecodebench.read_hub(revision, options, download)
        return raw, commit, spec.splits[0]
    splits = (split,) if split else spec.splits
    rows, commit, used = hub.load_split(spec.hub_id, splits=splits, config=spec.config, revision=revision)
    return [(f"{spec.hub_id}, {used} row {n}", row) for n, row in enumerate(rows)], commit, used
