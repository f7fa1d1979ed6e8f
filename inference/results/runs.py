"""A run read from its folder, finished or not, and its summary.

`load_run` reads any run's folder; it writes nothing and holds no texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from inference.results.folder import (
    FORMAT,
    MANIFEST,
    Condition,
    Record,
    essence,
    key_of,
    read_records,
)
from inference.results.summary import nest, summarise
from inference.tools.errors import DataError


@dataclass(frozen=True)
class Run:
    """A run: its folder, its manifest as stored there, and what is counted of its records (`essence`)."""

    folder: Path
    manifest: Mapping[str, Any]
    done: Mapping[tuple[Condition, str], Record]

    @property
    def style(self) -> str:
        return self.manifest["fingerprint"]["style"]["name"]

    @property
    def dataset(self) -> str:
        return self.data["name"]

    @property
    def data(self) -> dict[str, Any]:
        """Fingerprint of the data: name, split, hash of all rows, and which samples were asked for."""
        return self.manifest["fingerprint"]["data"]

    @property
    def asked(self) -> int:
        """How many samples were asked for."""
        return self.data["samples"]["count"]

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.manifest["fingerprint"]["settings"], **self.manifest["machine"]}

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Those with at least one record, in the order in which they were run."""
        return tuple(dict.fromkeys(condition for condition, _ in self.done))

    def records(self, condition: Condition) -> dict[str, Record]:
        """By sample id."""
        return {sample_id: record for (found, sample_id), record in self.done.items() if found == condition}

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """The numbers of each condition, over the records that are there."""
        ids = list(dict.fromkeys(sample_id for _, sample_id in self.done))
        return summarise(self.done, self.conditions, ids, _as_list(self.settings.get("pass_k", [])))

    @cached_property
    def unfinished(self) -> list[str]:
        """What is missing, in words; empty for a whole run."""
        pairs = zip(self.conditions, self.entries, strict=True)
        found = [
            f"{condition.title()}: {entry['num_samples']} of {self.asked} questions"
            for condition, entry in pairs
            if entry["num_samples"] < self.asked
        ]
        begun = {condition.name for condition in self.conditions}
        return found + [f"{name}: not begun" for name in self.settings["methods"] if name not in begun]

    def summary(self) -> dict[str, Any]:
        """All there is to tell about a run but its texts: numbers, settings, and what it was made from."""
        manifest = self.manifest
        rounds, lengths = (_as_list(self.settings[name]) for name in ("num_recursive_rounds", "latent_length"))
        return {
            "style": self.style,
            "dataset": self.dataset,
            "dataset_split": self.data["split"],
            "task": self.data["task"],
            "data_from": manifest["data_from"],
            "num_samples": self.asked,
            **nest(self.conditions, self.entries, rounds, lengths),
            **({"unfinished": self.unfinished} if self.unfinished else {}),
            "settings": self.settings,
            "setting_sources": manifest["setting_sources"],
            "data": self.data,
            "weights": manifest["fingerprint"]["weights"],
            "weights_from": manifest["weights_from"],
            "style_sha256": manifest["fingerprint"]["style"]["sha256"],
            "versions": manifest["versions"],
            "git_commit": manifest["git_commit"],
            **{name: manifest[name] for name in ("tools", "rescored") if name in manifest},
            "output_dir": str(self.folder),
        }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in a run's folder; `DataError` if it is none of this format."""
    path = folder / MANIFEST
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {found}; expected the folder of a run (--output_dir of inference/run.py)")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder}: holds no {MANIFEST}, so it is no run's folder; give one that run.py wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as err:
        raise DataError(f"{path}: cannot be read as JSON ({err}); give the folder of another run") from err
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise DataError(f"{path}: format {found!r}; expected {FORMAT}; read it with the version that wrote it")
    lacks = [name for name in _PARTS if not isinstance(_part(manifest, name), _PARTS[name])]
    if lacks:
        raise DataError(f"{path}: {lacks[0]} is missing or broken; restore the file or run again into a new folder")
    return manifest


# What is read of a manifest, and its type.
_PARTS: dict[str, type] = {
    "records": str, "machine": dict, "data_from": dict, "weights_from": dict, "setting_sources": dict, "versions": dict,
    "fingerprint.style.name": str, "fingerprint.style.sha256": str, "fingerprint.settings.methods": list,
    "fingerprint.data.name": str, "fingerprint.data.split": str, "fingerprint.data.task": str,
    "fingerprint.data.sha256": str,
    "fingerprint.data.samples.count": int, "fingerprint.weights": dict,
}  # fmt: skip


def _part(value: Any, name: str) -> Any:
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def records_path(folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Where a run's records are: in its folder, or where --result_jsonl put them."""
    return folder / manifest["records"]


def load_run(folder: Path) -> Run:
    """Read a run's folder. `DataError` if it is none, or if no record is finished."""
    manifest = read_manifest(folder)
    path = records_path(folder, manifest)
    done = {key_of(record): essence(record) for record in read_records(path)}
    if not done:
        raise DataError(f"{path}: no finished records; run the same command again to go on")
    return Run(folder, manifest, done)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
