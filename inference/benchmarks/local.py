"""Rows of a local file: `.jsonl` (one object a line), or `.json` (a list of objects, or {"data": [...]}).

What the rows of each benchmark hold, and those of a user's own, is told in inference/dataset/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference.tools.errors import DataError

SUFFIXES = (".json", ".jsonl")


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) of each row, `where` naming file and line (`.jsonl`) or row (`.json`); `DataError` for a broken file."""
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: expected a .json or .jsonl file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a .json or .jsonl file") from None
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {err}") from err
    for where, row in _lines(path, text) if path.suffix == ".jsonl" else _list(path, text):
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, found {type(row).__name__}")
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
    def refuse(name: str) -> Any:
        raise DataError(f"{where}: {name} is not JSON; expected a number or a text")

    try:
        value = json.loads(text, parse_constant=refuse)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text that a model can read
        return value
    except UnicodeEncodeError as err:
        raise DataError(f"{where}: {err.object[err.start]!a} is half of a surrogate pair; mend the text") from err
    except json.JSONDecodeError as err:
        place = where if ", line " in where else f"{where}, line {err.lineno}"
        raise DataError(f"{place}: broken JSON ({err.msg} at column {err.colno}); mend or remove it") from err
    except RecursionError as err:
        raise DataError(f"{where}: JSON nested too deeply") from err
