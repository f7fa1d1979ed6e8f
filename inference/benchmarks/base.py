"""What every benchmark is made of: samples, a task, a fingerprint and a grader; and how samples are chosen.

A loader reads *all* rows of a split; `choose` then takes the samples asked for. `Sample.index` is the row's place in the whole
split, so it does not change with the choice or its order. A benchmark has one task, which says how its answers are graded:
"math", "choice" (a letter A to D), "code" (tests) or "qa" (short text).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

# Task -> family, which picks prompts and links: short answers of text are asked for as those of maths, in a box.
FAMILY = {"math": "math", "choice": "choice", "code": "code", "qa": "math"}
# What the rows of some benchmarks say about a question's kind; accuracies are told by these, too.
GROUPS = ("subject", "level", "difficulty", "platform", "type")


@dataclass(frozen=True)
class Sample:
    """One question. `family` picks prompts (math, code, choice); `meta` is all else that is known, as plain JSON values.

    Code tasks have a `kind`, "function" (`fn_name`: what to define, if it is known) or "program" (input to output).
    """

    index: int
    id: str
    question: str
    gold: str
    family: str = "math"
    kind: str | None = None
    fn_name: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, str | int]:
        """What of `meta` accuracies are told by."""
        return {name: self.meta[name] for name in GROUPS if isinstance(self.meta.get(name), (str, int))}


@dataclass(frozen=True)
class Options:
    """What flags say about rows and grading; the defaults are the reference's where it has the flag.

    `seed` permutes GPQA's options. `lcb_*`: which LiveCodeBench problems (release, contest dates as YYYY-MM-DD, both
    inclusive, "" = open), which tests, and seconds for each of them; `mbppplus_timeout_s`: seconds for all tests of a
    function. `code_workers`: programs side by side (0: one a CPU). `judge*`: the LLM judge of short text answers.
    """

    seed: int = 42
    hotpot_context: bool = False
    mbppplus_num_prompt_tests: int = 3
    mbppplus_timeout_s: float = 10.0
    lcb_release: str = "release_v6"
    lcb_start_date: str = ""
    lcb_end_date: str = ""
    lcb_use_private_tests: bool = True
    lcb_timeout_s: float = 6.0
    code_workers: int = 0
    judge: bool = False
    judge_all: bool = False
    max_judge_calls: int = -1


# Verdicts on many model outputs at once, in their order: so that programs and requests run side by side.
Grade = Callable[[Sequence[tuple[Sample, str]]], "list[Verdict]"]


@dataclass(frozen=True)
class Benchmark:
    """Rows of one split and the samples chosen from them. `revision`: commit of the hub dataset, None for local files.

    `grader()` is a context in which outputs are graded; it owns what the scorer needs meanwhile, such as worker processes.
    """

    name: str
    split: str
    source: str
    revision: str | None
    rows: tuple[Sample, ...]
    samples: tuple[Sample, ...]
    grader: Callable[[], AbstractContextManager[Grade]]
    task: str = "math"

    def fingerprint(self) -> dict[str, Any]:
        """What the data is, for the manifest: its name, size and a hash of every row, wherever it was read from."""
        digest = hashlib.sha256()
        for row in self.rows:
            line = [row.id, row.question, row.gold, row.family, row.kind, row.fn_name, dict(row.meta)]
            digest.update(json.dumps(line, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        told = {"name": self.name, "split": self.split, "task": self.task, "rows": len(self.rows)}
        return {**told, "sha256": digest.hexdigest()[:16]}


def shown(value: Any) -> str:
    """A value for an error sentence."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def cache_folder() -> Path:
    """Where prepared data and paid replies are kept: RECURSIVE_MAS_CACHE, else a folder in the user's cache."""
    own = os.environ.get("RECURSIVE_MAS_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recursive_mas"


def text_of(row: Mapping[str, Any], columns: Sequence[str], where: str) -> str:
    """The first of `columns` that the row has, as text; numbers count as text, anything else or nothing is a `DataError`."""
    for column in columns:
        if column not in row:
            continue
        value = row[column]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {column!r} is {shown(value)}; expected a non-empty text or a number")
        return value.strip()
    raise DataError(
        f"{where}: no {' or '.join(map(repr, columns))}; the row has {', '.join(map(str, row)) or 'nothing'}"
    )


def check_rows(rows: Iterable[tuple[str, Sample]], source: str) -> tuple[Sample, ...]:
    """The samples of (where, sample) pairs; no rows or an id seen twice is a `DataError`."""
    seen: dict[str, str] = {}
    samples = []
    for where, sample in rows:
        if sample.id in seen:
            raise DataError(f"{where}: id {sample.id!r} was used before, by {seen[sample.id]}; ids must be unique")
        seen[sample.id] = where
        samples.append(sample)
    if not samples:
        raise DataError(f"{source}: no rows; expected at least one question with its answer")
    return tuple(samples)


def choose(
    rows: Sequence[Sample],
    *,
    num_samples: int = -1,
    shuffle_seed: int | None = None,
    sample_ids: Sequence[str] = (),
    source: str = "",
) -> tuple[Sample, ...]:
    """The samples asked for: by id in the order given, else the first `num_samples` (<= 0: all), shuffled before if seeded."""
    if sample_ids:
        if num_samples > 0 or shuffle_seed is not None:
            raise DataError("--sample_ids: names the samples by itself; leave out --num_samples and --shuffle_seed")
        by_id = {row.id: row for row in rows}
        unknown = [wanted for wanted in sample_ids if wanted not in by_id]
        if unknown:
            raise DataError(f"--sample_ids: {source} has no id {unknown[0]!r}; its first is {rows[0].id!r}")
        if len(set(sample_ids)) != len(sample_ids):
            raise DataError("--sample_ids: an id stands twice; name each sample once")
        return tuple(by_id[wanted] for wanted in sample_ids)
    order = list(rows)
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(order)
    return tuple(order[:num_samples] if num_samples > 0 else order)
