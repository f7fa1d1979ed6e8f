"""Link files: finding them in a folder by its manifests, and reading them safely.

An agent's folder holds an inner link, an outer folder the outer links. Two layouts are read: the released one, where
manifests (`innerlink_config.json`, `outerlink_config.json`) name a file for each task family's set of links, and the
trainers', where the files are `adapter.pt` and `<key>.pt`. Either may be `.safetensors`.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from inference.mas.errors import InputError
from inference.mas.fetch import Folder, safe_name
from inference.mas.styles import Link, Style

# Paradigms have two names each: one in manifests, one in training flags.
PARADIGMS = {
    "sequential": "sequential",
    "chain": "sequential",
    "mixture": "mixture",
    "hie": "mixture",
    "distillation": "distillation",
    "distill": "distillation",
    "deliberation": "deliberation",
}


@dataclass(frozen=True)
class LinkFile:
    """A link's file with what its manifest says of it (None = nothing)."""

    path: Path
    type: str | None = None
    in_dim: int | None = None
    out_dim: int | None = None


def recorded_base(folder: Folder) -> str | None:
    """The base model that a folder's link says it was trained on."""
    for name, field in (
        ("adapter_config.json", "backbone"),
        ("innerlink_config.json", "backbone"),
        ("train_args.json", "model_name_or_path"),
    ):
        if folder.json(name).get(field):
            return str(folder.json(name)[field])
    return None


def inner_file(folder: Folder, link_set: str, where: str) -> LinkFile:
    """The inner link in an agent's folder: by manifest, then `adapter(<set>)`, then `adapter`."""
    config = folder.json("adapter_config.json")
    if "peft_type" in config:
        raise InputError(f"{folder}: adapter_config.json is that of a PEFT adapter; expected a link's (adapter_type)")
    tasks = folder.json("innerlink_config.json").get("tasks")
    declared = config.get("adapter_type")
    if isinstance(tasks, dict) and isinstance(tasks.get(link_set), dict):
        named_by = f"{folder.path / 'innerlink_config.json'}: tasks.{link_set}"
        if "adapter.pt" in tasks[link_set]:
            return LinkFile(folder.file(tasks[link_set]["adapter.pt"], named_by), declared)
    found = folder.need(*_variants(f"adapter({link_set})"), *_variants("adapter"))
    if found:
        return LinkFile(folder.path / found[0], declared)
    listed = f" (innerlink_config.json has tasks {', '.join(tasks)})" if isinstance(tasks, dict) else ""
    raise InputError(f"{folder}: no inner link for {where}{listed}; expected adapter({link_set}).pt or adapter.pt")


def _variants(stem: str) -> list[str]:
    """A link's file in either format; `.safetensors` first, as it can hold nothing but tensors."""
    return [f"{stem}.safetensors", f"{stem}.pt"]


def outer_files(folder: Folder, style: Style, link_set: str) -> dict[str, LinkFile]:
    """The file of every outer link of the style: by manifest, else `<key>.pt`."""
    manifest = folder.json("outerlink_config.json")
    path = folder.path / "outerlink_config.json"
    legacy = folder.json(f"outer_adapter_config({link_set}).json") or folder.json("outer_adapter_config.json")
    theirs, ours = (PARADIGMS.get(str(name)) for name in (manifest.get("paradigm"), style.paradigm))
    if theirs and ours and theirs != ours:
        raise InputError(f"{path}: links of paradigm {theirs}, but style {style.name} is {ours}; give another folder")
    entries = _manifest_entries(manifest, path, link_set)
    found = {}
    for link in style.links:
        entry: Mapping[str, Any] = {}
        if entries is not None:
            entry = _entry_of(link, entries, style, path)
            names = [entry.get("filename"), entry.get("legacy_filename")]
            names = [safe_name(name, str(path)) for name in names if name is not None] or _variants(link.key)
        else:
            names = _variants(link.key)
        here = folder.need(*names)
        if not here:
            told = "named by outerlink_config.json" if entries is not None else "there is no outerlink_config.json"
            raise InputError(f"{folder}: no file for outer link {link.key}; expected {' or '.join(names)} ({told})")
        found[link.key] = LinkFile(
            folder.path / here[0],
            entry.get("adapter_type") or legacy.get(f"{link.key}_type"),
            entry.get("in_dim") or legacy.get(f"{link.key}_in_dim"),
            entry.get("out_dim") or legacy.get(f"{link.key}_out_dim"),
        )
    return found


def _manifest_entries(manifest: Mapping[str, Any], path: Path, link_set: str) -> list[Mapping[str, Any]] | None:
    """The manifest's list of links for a set; None if there is no manifest."""
    if not manifest:
        return None
    if "tasks" in manifest:
        tasks = manifest["tasks"]
        if not isinstance(tasks, dict) or link_set not in tasks:
            have = ", ".join(tasks) if isinstance(tasks, dict) else type(tasks).__name__
            raise InputError(f"{path}: no links for task {link_set!r}; tasks has {have}")
        manifest = tasks[link_set] if isinstance(tasks[link_set], dict) else {}
    entries = manifest.get("adapters")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path}: expected a list `adapters` of objects, found {type(entries).__name__}")
    return entries


def _entry_of(link: Link, entries: Sequence[Mapping[str, Any]], style: Style, path: Path) -> Mapping[str, Any]:
    """The entry of a link: by `legacy_key`, or by the labels of its roles where there is no key."""
    ends = (style.role(link.source).label.lower(), style.role(link.target).label.lower())
    found = []
    for entry in entries:
        labels = (str(entry.get("source_role", "")).lower(), str(entry.get("target_role", "")).lower())
        if entry.get("legacy_key") == link.key or ("legacy_key" not in entry and labels == ends):
            found.append(entry)
    if len(found) > 1:
        raise InputError(f"{path}: {len(found)} entries for outer link {link.key}; expected one")
    if found:
        return found[0]
    have = ", ".join(str(entry.get("legacy_key") or entry.get("filename")) for entry in entries)
    raise InputError(f"{path}: no entry for outer link {link.key} ({' to '.join(ends)}); it has {have or 'none'}")


def read_state(path: Path) -> Any:
    """The state dict in a `.pt` (tensors only: no other object is unpickled) or `.safetensors` file."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as err:
        # Also raised for bytes that are no pickle at all; both are refused in the same way.
        raise InputError(
            f"{path}: holds objects other than tensors, or is no PyTorch file; expected a plain state dict, "
            "and nothing else is loaded because unpickling runs code"
        ) from err
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError) as err:
        raise InputError(
            f"{path}: cannot be read, probably cut short ({path.stat().st_size} bytes); copy it again"
        ) from err
