"""LiveCodeBench: programs that read and print, and methods that are called, graded by tests.

The hub's repo holds one JSONL file a release (`test.jsonl`, `test2.jsonl`, ...), gigabytes in all, mostly private tests as base64 of
zlib of a pickle. A file is read once, line by line. What is kept of it lies in a folder of the user's (`cache_folder`):

    livecodebench/<key>.json                 the problems of a file without their tests, and the hash of each one's tests
    livecodebench/tests/<hash>.json.gz       the tests of a problem: {"public": [[input, output], ...], "private": [...]}
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from tqdm import tqdm

from inference.benchmarks import plain_pickle
from inference.benchmarks.base import Options, Sample, cache_folder, shown, text_of
from inference.benchmarks.hub import UnreachableError, fetch_file
from inference.tools.errors import DataError

HUB_ID = "livecodebench/code_generation_lite"
NEWEST = 6
MAX_TESTS_BYTES = 2**30
"""Unpacked tests of one problem: the released files hold a gigabyte for hundreds of problems, so more is an attack or a fault."""
SMALL = ("question_title", "question_content", "question_id", "starter_code", "platform", "difficulty", "contest_date")
_RELEASE = re.compile(r"release_(?:v([1-9])|(latest))|v([1-9])(?:_v([1-9]))?")
Test = tuple[str, str]


def release_files(release: str) -> list[str]:
    """Files of a release: `release_vN` is all up to the N-th, `vN` or `vN_vM` those slices alone."""
    match = _RELEASE.fullmatch(release)
    if match:
        upto, latest, first, last = match.groups()
        low, high = (1, NEWEST if latest else int(upto)) if first is None else (int(first), int(last or first))
        if low <= high <= NEWEST:
            return [f"test{n if n > 1 else ''}.jsonl" for n in range(low, high + 1)]
    raise DataError(f"--lcb_release {release}: expected release_v1 to release_v{NEWEST}, release_latest, vN or vN_vM")


def read_hub(
    revision: str | None, options: Options, download: bool
) -> tuple[list[tuple[str, dict[str, Any]]], str | None]:
    """(where, row) of every problem of the release, and the commit. Raises `DataError`, `UnreachableError`."""
    rows, commit = [], None
    for name in release_files(options.lcb_release):
        # One commit for all files, also if the branch moves meanwhile.
        path, commit = fetch_file(HUB_ID, name, revision=commit or revision, download=download)
        key = f"{HUB_ID}@{commit}/{name}"
        if not download and _read_index(key) is None:
            raise UnreachableError(f"dataset {HUB_ID}, file {name}: not prepared yet; a run prepares it")
        rows += _problems(path, key, f"{HUB_ID}, {name}")
    return _in_window(rows, HUB_ID, options), commit


def read_file(path: Path, options: Options) -> list[tuple[str, dict[str, Any]]]:
    """(where, row) of every problem of a local file in the hub's format."""
    if path.suffix != ".jsonl":
        raise DataError(f"{path}: expected a .jsonl file in the format of {HUB_ID}")
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a .jsonl file in the format of {HUB_ID}") from None
    rows = _problems(path, f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}", str(path))
    return _in_window(rows, str(path), options)


def to_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """A sample of an indexed row; `meta["tests_sha256"]` names its tests."""
    question = text_of(row, ("question_content",), where)
    if row["starter_code"].strip():
        question += f"\n\nStart from this code:\n```python\n{row['starter_code'].rstrip()}\n```"
    meta = {name: row[name] for name in ("platform", "difficulty", "contest_date", "tests_sha256") if row.get(name)}
    kind = "function" if row["fn_name"] else "program"
    sample_id = text_of(row, ("question_id",), where)
    return Sample(index, sample_id, question, "", "code", kind, row["fn_name"] or None, meta)


def _in_window(
    rows: list[tuple[str, dict[str, Any]]], source: str, options: Options
) -> list[tuple[str, dict[str, Any]]]:
    """The problems of contests within the dates asked for; none is a `DataError`."""
    start = _date(options.lcb_start_date, "--lcb_start_date") if options.lcb_start_date else date.min
    end = _date(options.lcb_end_date, "--lcb_end_date") if options.lcb_end_date else date.max
    if (start, end) == (date.min, date.max):
        return rows

    def day(where: str, row: dict[str, Any]) -> date:
        return _date(text_of(row, ("contest_date",), where)[:10], f"{where}: 'contest_date'")

    found = [(where, row) for where, row in rows if start <= day(where, row) <= end]
    if not found:
        days = sorted(day(where, row) for where, row in rows)
        told = f"its contests lie between {days[0]} and {days[-1]}" if days else "it has no problems"
        raise DataError(f"--lcb_start_date, --lcb_end_date: no problem of {source} is within the dates; {told}")
    return found


def _date(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise DataError(f"{where} {shown(text)}: expected a date as YYYY-MM-DD") from None


def load_tests(sample: Sample, private: bool) -> list[Test]:
    """The (input, output) pairs of a sample: public ones first, then private ones."""
    path = _tests_path(sample.meta["tests_sha256"])
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            tests = json.load(file)
        return [tuple(test) for part in (("public", "private") if private else ("public",)) for test in tests[part]]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: the prepared tests of {sample.id} cannot be read ({type(err).__name__}); "
            f"remove {cache_folder() / 'livecodebench'} and run again"
        ) from err


def _tests_path(digest: str) -> Path:
    return cache_folder() / "livecodebench" / "tests" / f"{digest}.json.gz"


def _index_path(key: str) -> Path:
    return cache_folder() / "livecodebench" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _read_index(key: str) -> list[dict[str, Any]] | None:
    """The prepared problems of a file; None if they are not there, or some of their tests are not."""
    try:
        rows = json.loads(_index_path(key).read_text(encoding="ascii"))["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if all(_tests_path(row["tests_sha256"]).is_file() for row in rows) else None


def _problems(path: Path, key: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    rows = _read_index(key)
    if rows is None:
        rows = []
        with tqdm(
            total=path.stat().st_size, unit="B", unit_scale=True, desc=f"preparing {path.name}", file=sys.stderr
        ) as bar:
            for where, size, row in _lines(path, name):
                rows.append(_prepare(row, where))
                bar.update(size)
        _write(_index_path(key), json.dumps({"file": key, "rows": rows}).encode("ascii"))
    return [(f"{name}, problem {row['question_id']}", row) for row in rows]


def _lines(path: Path, name: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{name}, line {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as err:
                raise DataError(f"{where}: broken JSON ({str(err)[:80]}); fetch the file anew") from err
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected an object, found {type(row).__name__}")
            yield where, len(line), row


def _prepare(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The row without its tests, which go to a file of their own."""
    text_of(row, ("question_id",), where)
    where = f"{where} ({row['question_id']})"
    text_of(row, ("question_content",), where)
    fn_name = _fn_name(row, where)
    public = _tests(_json_list(row, "public_test_cases", where), fn_name, f"{where}: 'public_test_cases'")
    private = _tests(_private(row, where), fn_name, f"{where}: 'private_test_cases'")
    if not public and not private:
        raise DataError(f"{where}: no tests; expected some in 'public_test_cases' or 'private_test_cases'")
    data = json.dumps({"public": public, "private": private}).encode("ascii")
    digest = hashlib.sha256(data).hexdigest()[:32]
    if not _tests_path(digest).is_file():
        # Level 1: gigabytes are packed once, and the time is the user's.
        _write(_tests_path(digest), gzip.compress(data, compresslevel=1, mtime=0))
    small = {name: "" if row.get(name) is None else str(row[name]) for name in SMALL}
    return {**small, "fn_name": fn_name, "tests_sha256": digest}


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; another process may write the same."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as err:
        raise DataError(
            f"{path}: cannot be written ({err.strerror}); set RECURSIVE_MAS_CACHE to another folder"
        ) from err


def _fn_name(row: dict[str, Any], where: str) -> str:
    metadata = row.get("metadata") or {}
    try:
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        name = metadata.get("func_name") or ""
    except (ValueError, AttributeError) as err:
        raise DataError(f"{where}: 'metadata' is {shown(row['metadata'])}; expected a JSON object") from err
    if not isinstance(name, str) or (name and not name.isidentifier()):
        raise DataError(f"{where}: 'metadata' has the func_name {shown(name)}; expected a name")
    return name


def _json_list(row: dict[str, Any], column: str, where: str) -> Any:
    if column not in row:
        raise DataError(f"{where}: no {column!r}; the row has {', '.join(map(str, row))}")
    value = row[column]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as err:
        raise DataError(f"{where}: {column!r} is not JSON ({str(err)[:80]})") from err


def _private(row: dict[str, Any], where: str) -> Any:
    """Private tests: JSON, or packed as in the released files."""
    value = row.get("private_test_cases")
    if isinstance(value, str) and value.strip() and not value.lstrip().startswith("["):
        return unpack(value, f"{where}: 'private_test_cases'")
    return _json_list({"private_test_cases": value or []}, "private_test_cases", where)


def unpack(text: str, where: str, limit: int = MAX_TESTS_BYTES) -> Any:
    """The value in base64 of zlib of a pickle (of JSON text, in the released files); plain values of at most `limit` bytes."""
    try:
        machine = zlib.decompressobj()
        data = machine.decompress(base64.b64decode(text, validate=True), limit)
        if not machine.eof and len(data) < limit:
            raise ValueError("cut short")
        if machine.eof:
            value = plain_pickle.loads(data)
            return json.loads(value) if isinstance(value, str) else value
    except plain_pickle.RefusedPickle as err:
        raise DataError(
            f"{where} holds a pickle with more than plain values ({err}); refused, as such pickles run code; "
            "check where the file is from"
        ) from err
    except (zlib.error, binascii.Error, ValueError, RecursionError) as err:
        raise DataError(
            f"{where} is neither JSON nor base64 of zlib of a pickle ({str(err)[:80]}); fetch the file anew"
        ) from err
    raise DataError(f"{where} unpacks to more than {limit} bytes; refused")


def _tests(value: Any, fn_name: str, where: str) -> list[Test]:
    """Checked (input, output) pairs of tests of the problem's type."""
    expected = "functional" if fn_name else "stdin"
    if not isinstance(value, (list, tuple)):
        raise DataError(f"{where}: expected a list of tests, found {type(value).__name__}")
    found, size = [], 0
    for number, test in enumerate(value):
        if not isinstance(test, dict) or not all(isinstance(test.get(name), str) for name in ("input", "output")):
            raise DataError(f"{where}: test {number} has no texts 'input' and 'output'")
        if test.get("testtype", expected) != expected:
            raise DataError(
                f"{where}: test {number} is {shown(test['testtype'])}; expected {expected!r} as its func_name says"
            )
        size += len(test["input"]) + len(test["output"])
        if size > MAX_TESTS_BYTES:
            raise DataError(f"{where}: more than {MAX_TESTS_BYTES} characters; refused")
        found.append((test["input"], test["output"]))
    return found
