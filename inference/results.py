"""What a run leaves on disk, and what is told about it at the end.

A run is a folder (`--output_dir`):

    manifest.json    fingerprint (settings, conditions, data, style, weights: all that decides answers), versions, git commit
    records.jsonl    one line for each (condition, sample), appended and synced after every batch
    summary.json     the summary, which is also the last line of stdout

A rerun into the folder continues; another fingerprint is refused with the fields that differ. A record:

    sample_idx, sample_id      place in the whole split, and id
    dataset, dataset_split, style, mas_shape
    method, control            latent, text or single; control none, zero, noise or shuffle (null: true messages)
    rounds, latent_length      m steps a stage; null where the method does not depend on it
    question, gold_answer_raw
    rollouts                   [{rollout_idx, sample_seed, raw_output, finish (eos or length), generated_tokens,
                               pred_answer_parsed, correct, status, rule}], one or more, always a list
    pred_answer_parsed, correct, status    those of rollout 0
    pass_at_k_correct          whether any rollout is correct
    prompt_tokens, latent_steps, generated_tokens    over all agents, rounds and rollouts of the sample
    seconds                    {stage: share of the batch's time}

Status: ok; no_answer; truncated (no answer, and the text stopped at --max_new_tokens); error (the scorer failed, `rule` says how);
or another reason that a scorer gives. Every sample asked for counts in the accuracy, whatever its status.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.scoring import statistics
from inference.tools.errors import DataError

try:
    import fcntl
except ImportError:  # not on Windows, where two runs in one folder go unnoticed
    fcntl = None

MANIFEST, RECORDS, SUMMARY = "manifest.json", "records.jsonl", "summary.json"
Record = dict[str, Any]
COSTS = ("prompt_tokens", "latent_steps", "generated_tokens", "seconds")


@dataclass(frozen=True)
class Condition:
    """What is varied within a run. `rounds` and `latent_length` are None for methods that do not depend on them."""

    method: str
    control: str | None
    rounds: int | None
    latent_length: int | None

    @property
    def name(self) -> str:
        """The method, or the control that replaces its messages."""
        return self.control or self.method

    def title(self) -> str:
        """For people: name, rounds, latent length."""
        parts = [self.name]
        parts += [f"R={self.rounds}"] if self.rounds is not None else []
        parts += [f"m={self.latent_length}"] if self.latent_length is not None else []
        return " ".join(parts)


def key_of(record: Record) -> tuple[Condition, str]:
    """The condition and sample id that a record belongs to."""
    names = ("method", "control", "rounds", "latent_length")
    return Condition(*(record[name] for name in names)), record["sample_id"]


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all: a kill leaves the old one."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def short_hash(value: Any) -> str:
    """Ten hex digits over a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:10]


class RunFolder:
    """A run's folder. `read` looks without writing; `open` makes it this process's own, to `append` to.

    `done` maps (condition, sample id) to the record.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], records: Path | None = None) -> None:
        self.folder = folder
        self.path = records or folder / RECORDS
        # Through JSON, so that a fresh manifest and one read back compare equal.
        self.manifest = json.loads(json.dumps({**manifest, "records": self._records_name()}))
        self.done: dict[tuple[Condition, str], Record] = {}
        self._file: Any = None

    def _records_name(self) -> str:
        inside = self.path.resolve().parent == self.folder.resolve()
        return self.path.name if inside else str(self.path.resolve())

    def read(self) -> None:
        """Check that the folder is new or this run's, and read its records; `DataError` says what differs."""
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError(f"--output_dir {self.folder}: is a file; expected a folder")
        path = self.folder / MANIFEST
        if path.is_file():
            self._compare(path)
        else:
            strange = (
                [p.name for p in self.folder.iterdir() if p.name != f"{MANIFEST}.tmp"] if self.folder.is_dir() else []
            )
            if strange:
                raise DataError(
                    f"--output_dir {self.folder}: holds {strange[0]} but no {MANIFEST}, so it is no run's folder; give a new one"
                )
            if self.path.is_file() and self.path.stat().st_size:
                raise DataError(f"--result_jsonl {self.path}: exists and belongs to another run; give a new file")
        self.done = {key_of(record): record for record in self._read_records()}

    def _compare(self, path: Path) -> None:
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            theirs = {**_flat(old["fingerprint"]), "result_jsonl": old["records"]}
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise DataError(f"{path}: not a run's manifest; give another --output_dir") from err
        ours = {**_flat(self.manifest["fingerprint"]), "result_jsonl": self.manifest["records"]}
        differ = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        if differ:
            shown = "; ".join(
                f"{n} is {_brief(theirs.get(n))} there and {_brief(ours.get(n))} here" for n in differ[:6]
            )
            more = f"; and {len(differ) - 6} more" if len(differ) > 6 else ""
            raise DataError(
                f"--output_dir {self.folder}: belongs to another run ({shown}{more}); give another folder or the same settings"
            )

    def _read_records(self) -> Iterable[Record]:
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # cut by a kill; `open` removes it
                try:
                    record = json.loads(line)
                    key_of(record)
                except (ValueError, KeyError, TypeError) as err:
                    raise DataError(f"{self.path}, line {number}: not a record; remove the line or the folder") from err
                yield record

    def open(self) -> None:
        """Make the folder, write its manifest, take the lock on the records and cut off a line that was not finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not (self.folder / MANIFEST).is_file():
            write_json(self.folder / MANIFEST, self.manifest)
        self._file = self.path.open("a+b")
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"--output_dir {self.folder}: another process is writing to this run; wait for it"
                ) from None
        self._cut_unfinished_line()
        self.done = {key_of(record): record for record in self._read_records()}

    def _cut_unfinished_line(self) -> None:
        end = size = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            self._file.seek(start)
            newline = self._file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            self._file.truncate(end)

    def append(self, records: Sequence[Record]) -> None:
        """Write records as lines and wait until they are on disk."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        # A lone surrogate (half a pair in broken model text) has no UTF-8 form; it is kept as an escape.
        self._file.write(lines.encode("utf-8", errors="backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.update((key_of(record), record) for record in records)

    def close(self) -> None:
        """Release the records."""
        if self._file is not None:
            self._file.close()


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested objects as {"a.b": leaf}."""
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else key)
    return flat


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def summarise(
    done: Mapping[tuple[Condition, str], Record], conditions: Sequence[Condition], ids: Sequence[str]
) -> list[dict]:
    """One entry for each condition, in order: accuracy, interval, statuses, cost, and the difference to the first one.

    `num_correct`, tokens, latent steps and seconds are sums over samples; `per_sample` holds their means. `num_correct` counts
    rollouts, of which there are `num_answers`.
    """
    entries, tables = [], []
    for condition in conditions:
        records = [done[condition, sample_id] for sample_id in ids]
        table = [[bool(rollout["correct"]) for rollout in record["rollouts"]] for record in records]
        entry = _entry(condition, records, table)
        if tables:
            difference = asdict(statistics.paired_difference(tables[0], table))
            low, high = difference.pop("low"), difference.pop("high")
            entry["difference"] = {"to": conditions[0].title(), "interval": [low, high], **difference}
        tables.append(table)
        entries.append(entry)
    return entries


def _entry(condition: Condition, records: Sequence[Record], table: Sequence[Sequence[bool]]) -> dict[str, Any]:
    stages: Counter[str] = Counter()
    for record in records:
        stages.update(record["seconds"])
    total = {name: sum(record[name] for record in records) for name in COSTS if name != "seconds"}
    total["seconds"] = sum(stages.values())
    k = len(table[0])
    entry: dict[str, Any] = {
        "accuracy": statistics.mean_at_k(table),
        "interval": list(statistics.interval(table)),
        "num_correct": sum(map(sum, table)),
        "num_answers": sum(map(len, table)),
        "statuses": dict(Counter(r["status"] for record in records for r in record["rollouts"]).most_common()),
        **{name: round(value, 3) for name, value in total.items()},
        "seconds_by_stage": {stage: round(value, 3) for stage, value in stages.items()},
        "per_sample": {name: round(value / len(records), 4) for name, value in total.items()},
        "control": condition.control,
        "rounds": condition.rounds,
        "latent_length": condition.latent_length,
    }
    if k > 1:
        entry["pass_at_k"] = {str(j): statistics.mean_pass_at_k(table, j) for j in range(1, k + 1)}
    return entry


def nest(
    conditions: Sequence[Condition], entries: Sequence[dict], rounds: Sequence[int], lengths: Sequence[int]
) -> dict[str, Any]:
    """Entries by name, under the axes that have several values: {"rounds": {R: {"latent_lengths": {M: {"methods": ...}}}}}.

    An axis with one value is no level. A method stands at the level of the axes that it depends on, so `single` is found in
    the outermost `methods`, and `text` below `rounds` only.
    """
    tree: dict[str, Any] = {}
    for condition, entry in zip(conditions, entries, strict=True):
        node = tree
        for axis, values, value in (
            ("rounds", rounds, condition.rounds),
            ("latent_lengths", lengths, condition.latent_length),
        ):
            if len(values) > 1 and value is not None:
                node = node.setdefault(axis, {}).setdefault(str(value), {})
        node.setdefault("methods", {})[condition.name] = entry
    return tree


def table_text(conditions: Sequence[Condition], entries: Sequence[dict]) -> str:
    """The table for people: percent, means a sample. Differences are to the first row, over the same samples."""
    paired = len(entries) > 1
    head = ["method", "R", "m", "accuracy %", "95 % interval"]
    head += ["difference", "95 % interval", "McNemar p"] if paired else []
    head += ["prompt tok", "latent steps", "gen. tok", "seconds", "no answer"]
    rows = [head]
    for condition, entry in zip(conditions, entries, strict=True):
        row = [condition.name, *("-" if v is None else str(v) for v in (condition.rounds, condition.latent_length))]
        row += [f"{100 * entry['accuracy']:.1f}", _percents(entry["interval"])]
        if paired:
            other = entry.get("difference")
            row += (
                [f"{100 * other['value']:+.1f}", _percents(other["interval"], "+"), f"{other['p']:.3g}"]
                if other
                else ["", "", ""]
            )
        cost = entry["per_sample"]
        row += [f"{cost['prompt_tokens']:.1f}", f"{cost['latent_steps']:.1f}", f"{cost['generated_tokens']:.1f}"]
        row += [f"{cost['seconds']:.3f}", str(entry["num_answers"] - entry["statuses"].get("ok", 0))]
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(line.rstrip() for line in lines)


def _percents(interval: Sequence[float], sign: str = "") -> str:
    return "{:{s}.1f} to {:{s}.1f}".format(*(100 * limit for limit in interval), s=sign)
