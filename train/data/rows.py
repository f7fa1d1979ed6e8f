"""Training rows: from the hub or from a local file, as a list of dictionaries.

load_rows("RecursiveMAS/Sequential-Math")            # a hub data set, split "train"
load_rows("my_rows.json")                            # {"data": [row, ...]} or a bare list
load_rows("my_rows.json", json_field="train")        # {"train": [row, ...]}
load_rows("my_rows.jsonl")                           # one row a line
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference.mas.errors import InputError

Row = dict[str, Any]


def load_rows(
    name: str, split: str = "train", json_field: str | None = None, limit: int = -1, config: str | None = None
) -> list[Row]:
    """All rows of a data set, or its first `limit`; `name` is a local .json or .jsonl file, or a hub id."""
    path = Path(name)
    if path.suffix in {".json", ".jsonl"} or path.is_file():
        rows = _read_jsonl(path) if path.suffix == ".jsonl" else _read_json(path, json_field)
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise InputError(f"{path}: row {number} is a {type(row).__name__}, expected an object of columns")
    else:
        rows = _read_hub(name, split, config)
    if limit >= 0:
        rows = rows[:limit]
    if not rows:
        raise InputError(f"--dataset_name {name}: no rows")
    return rows


def fingerprint(rows: Sequence[Row]) -> str:
    """A short hash of rows and their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def _text(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"--dataset_name {path}: no such file; expected a .json or .jsonl file, or a hub id")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as err:
        raise InputError(f"{path}: not UTF-8 text (byte {err.start}); save the file as UTF-8") from err


def _read_jsonl(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as err:
                raise InputError(f"{path}: line {number} is not JSON ({err.msg}); expected one row a line") from err
    return rows


def _read_json(path: Path, field: str | None) -> list[Row]:
    try:
        root = json.loads(_text(path))
    except json.JSONDecodeError as err:
        raise InputError(f"{path}: broken JSON at line {err.lineno}, column {err.colno} ({err.msg})") from err
    rows = root
    if isinstance(root, dict):
        wanted = field or "data"
        if wanted not in root:
            raise InputError(
                f"{path}: no field {wanted!r}; found {', '.join(root) or 'none'}; name the one that holds the rows "
                "with --dataset_json_field"
            )
        rows = root[wanted]
    elif field not in (None, "data"):
        raise InputError(f"--dataset_json_field {field}: {path} is a bare list; leave the flag out")
    if not isinstance(rows, list):
        raise InputError(f'{path}: expected {{"data": [row, ...]}} or a list of rows, found {type(rows).__name__}')
    return rows


def _read_hub(name: str, split: str, config: str | None) -> list[Row]:
    # Imported here: local files need neither the library nor its second of start-up.
    import datasets

    try:
        configs = datasets.get_dataset_config_names(name)
        if config is None:
            # Data sets with several configurations and no default among them usually call the plain one "main".
            config = next((c for c in ("default", "main") if c in configs), None)
            if config is None and len(configs) > 1:
                raise InputError(f"--dataset_name {name}: choose --dataset_config from {', '.join(configs)}")
        return datasets.load_dataset(name, config, split=split).to_list()
    except InputError:
        raise
    except Exception as err:  # the library raises a dozen unrelated kinds for "not there", "no such split", "offline"
        said = " ".join(str(err).split())[:200]
        if "client has been closed" in said:  # the client's second attempt, after the network failed the first
            said = "the hub cannot be reached"
        raise InputError(
            f"--dataset_name {name} (split {split}): cannot be loaded ({type(err).__name__}: {said}); "
            "expected a hub id or a local .json/.jsonl file"
        ) from err
