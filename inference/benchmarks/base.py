"""What every benchmark is made of: samples, a fingerprint, and a scorer; and how samples are chosen.

A loader reads *all* rows of a split; `choose` then takes the samples asked for. `Sample.index` is the row's place in the whole
split, so it does not change with the choice or its order.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError


@dataclass(frozen=True)
class Sample:
    """One question. `family` picks prompts (math, code, choice, reasoning); `kind` and `fn_name` belong to code tasks."""

    index: int
    id: str
    question: str
    gold: str
    family: str = "math"
    kind: str | None = None
    fn_name: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


Grade = Callable[[Sample, str], Verdict]  # the verdict on one model output


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

    def fingerprint(self) -> dict[str, Any]:
        """What the data is, for the manifest: its name, size and a hash of every row, wherever it was read from."""
        digest = hashlib.sha256()
        for row in self.rows:
            line = [row.id, row.question, row.gold, row.family, row.kind, row.fn_name, dict(row.meta)]
            digest.update(json.dumps(line, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        return {"name": self.name, "split": self.split, "rows": len(self.rows), "sha256": digest.hexdigest()[:16]}


def text_of(row: Mapping[str, Any], columns: Sequence[str], where: str) -> str:
    """The first of `columns` that the row has, as text; numbers count as text, anything else or nothing is a `DataError`."""
    for column in columns:
        if column not in row:
            continue
        value = row[column]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {column!r} is {json.dumps(value)[:60]}; expected a non-empty text or a number")
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
