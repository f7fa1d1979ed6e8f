"""Questions from a local file: `.jsonl` (one object a line), or `.json` (a list of objects, or {"data": [...]}).

Fields of a row: `question` (or `problem`), `answer` (text or number), and `id` (or `unique_id`; default: name of the file and number of the
row, from 0). Other fields are kept as metadata. Answers are graded as maths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference.benchmarks.base import Sample, check_rows, text_of
from inference.tools.errors import DataError

SUFFIXES = (".json", ".jsonl")
QUESTION, ANSWER, ID = ("question", "problem"), ("answer",), ("id", "unique_id")


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) of each row, `where` naming file and line (`.jsonl`) or row (`.json`); `DataError` for a broken file."""
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: expected a .json or .jsonl file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a .json or .jsonl file with question and answer") from None
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {err}") from err
    for where, row in _lines(path, text) if path.suffix == ".jsonl" else _list(path, text):
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with question and answer, found {type(row).__name__}")
        yield where, row


def _lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}, line {number}", _parse(line, f"{path}, line {number}")


def _list(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    data = _parse(text, str(path))
    if isinstance(data, dict):
        data = data.get("data")
    if not isinstance(data, list):
        raise DataError(f'{path}: expected a list of objects, or {{"data": [...]}}')
    for number, row in enumerate(data):
        yield f"{path}, row {number}", row


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as err:
        place = where if ", line " in where else f"{where}, line {err.lineno}"
        raise DataError(f"{place}: broken JSON ({err.msg} at column {err.colno}); mend or remove it") from err
    except RecursionError as err:
        raise DataError(f"{where}: JSON nested too deeply") from err


def to_sample(row: dict[str, Any], index: int, where: str, default_id: str) -> Sample:
    """A maths sample of a row with question and answer."""
    known = {*QUESTION, *ANSWER, *ID}
    return Sample(
        index=index,
        id=text_of(row, ID, where) if any(key in row for key in ID) else default_id,
        question=text_of(row, QUESTION, where),
        gold=text_of(row, ANSWER, where),
        meta={key: value for key, value in row.items() if key not in known},
    )


def load_file(path: Path) -> tuple[Sample, ...]:
    """All rows of a file."""
    rows = ((where, to_sample(row, n, where, f"{path.stem}-{n}")) for n, (where, row) in enumerate(read_rows(path)))
    return check_rows(rows, str(path))
