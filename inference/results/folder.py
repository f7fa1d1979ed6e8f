"""The folder of a run: one writer, whole lines, and what may be continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.tools.errors import DataError

try:
    import fcntl
except ImportError:  # not on Windows, where two runs in one folder go unnoticed
    fcntl = None

MANIFEST, RECORDS = "manifest.json", "records.jsonl"
FORMAT = 1  # of the manifest and the records; a change that old readers misread raises it
Record = dict[str, Any]

# What is kept in memory of a record and of each of its rollouts: what is counted, and no text. So the memory of a long
# run does not grow with the length of its answers.
_KEPT = (
    "correct", "pass_at_k_correct", "groups", "prompt_tokens", "latent_steps", "generated_tokens", "tool_tokens",
    "seconds", "tokens",
)  # fmt: skip
_KEPT_OF_ROLLOUT = (
    "correct", "status", "reference_correct", "em", "f1", "official_em", "official_f1", "retry",
    "correct_before_retry", "tool_calls", "tool_failures",
)  # fmt: skip
# Requests that the judge was sent, replies that an earlier run had paid for, and the tokens of both.
JUDGE_COST = ("calls", "cache_hits", "prompt_tokens", "completion_tokens")
_KEPT_OF_PARTS = {"eval": ("passed_tests", "total_tests", "error_type"), "judge": ("verdict", "status", *JUDGE_COST)}


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
    return Condition(record["method"], record["control"], record["rounds"], record["latent_length"]), record[
        "sample_id"
    ]


def essence(record: Record) -> Record:
    """What a summary needs of a record, under the same names."""
    kept = {name: record[name] for name in _KEPT if name in record}
    kept["rollouts"] = [_essence_of_rollout(rollout) for rollout in record["rollouts"]]
    return kept


def _essence_of_rollout(rollout: Record) -> Record:
    kept = {name: rollout[name] for name in _KEPT_OF_ROLLOUT if name in rollout}
    for name, parts in _KEPT_OF_PARTS.items():
        if rollout.get(name):
            kept[name] = {part: rollout[name].get(part) for part in parts}
    return kept


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: a kill leaves the old one."""
    draft = path.with_name(path.name + ".tmp")
    # A lone surrogate (half a pair in broken model text) has no UTF-8 form; it is kept as an escape.
    draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    draft.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def short_hash(value: Any) -> str:
    """Ten hex digits over a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:10]


def record_line(record: Record) -> bytes:
    """A record as a line of the file."""
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", errors="backslashreplace")


def read_records(path: Path) -> Iterator[Record]:
    """The whole records of a file, one at a time. A last line cut by a kill is left out; a broken one: `DataError`."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                key_of(record)
                if not all(rollout["status"] and rollout["correct"] in (True, False) for rollout in record["rollouts"]):
                    raise ValueError("a rollout without a verdict")
                if not record["rollouts"]:
                    raise ValueError("no rollout")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
                raise DataError(f"{path}, line {number}: not a record; remove the line or the folder") from err
            yield record


class RunFolder:
    """A run's folder. `read` looks without writing; `open` makes it this process's own, to `append` to.

    `done` maps (condition, sample id) to what is counted of the record (`essence`).
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
                    f"--output_dir {self.folder}: holds {strange[0]} but no {MANIFEST}, so it is no run's folder; "
                    "give a new one"
                )
            if self.path.is_file() and self.path.stat().st_size:
                raise DataError(f"--result_jsonl {self.path}: exists and belongs to another run; give a new file")
        self._read_done()

    def _compare(self, path: Path) -> None:
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            theirs = {**flat(old["fingerprint"]), "result_jsonl": old["records"]}
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise DataError(f"{path}: not a run's manifest; give another --output_dir") from err
        ours = {**flat(self.manifest["fingerprint"]), "result_jsonl": self.manifest["records"]}
        differ = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        if differ:
            shown = "; ".join(
                f"{n} is {_brief(theirs.get(n))} there and {_brief(ours.get(n))} here" for n in differ[:6]
            )
            more = f"; and {len(differ) - 6} more" if len(differ) > 6 else ""
            raise DataError(
                f"--output_dir {self.folder}: belongs to another run ({shown}{more}); "
                "give another folder or the same settings"
            )

    def _read_done(self) -> None:
        self.done = {key_of(record): essence(record) for record in read_records(self.path)}

    def open(self) -> None:
        """Make the folder, write its manifest, take the lock on the records and cut off an unfinished line."""
        for folder in (self.folder, self.path.parent):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise DataError(f"--output_dir {folder}: cannot be made ({err.strerror}); give another place") from err
        if not (self.folder / MANIFEST).is_file():
            write_json(self.folder / MANIFEST, self.manifest)
        self._file = self.path.open("a+b")
        lock(self._file, f"--output_dir {self.folder}")
        self._cut_unfinished_line()
        self._read_done()

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
        self._file.write(b"".join(map(record_line, records)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.update((key_of(record), essence(record)) for record in records)

    def close(self) -> None:
        """Release the records."""
        if self._file is not None:
            self._file.close()


def lock(file: Any, where: str) -> None:
    """Take the records of a run for this process until the file is closed; `DataError` if another one has them."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{where}: another process is writing to this run; wait for it") from None


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested objects as {"a.b": leaf}."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else key)
    return found


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
