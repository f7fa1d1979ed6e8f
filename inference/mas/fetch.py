"""Folders that hold models and links: on this machine, or on the Hugging Face hub.

A `Folder` is asked for files by name and brings them (`need`), so that manifests can be read before anything large is
downloaded. The hub's own client does the work and owns its cache; nothing else is ever written there. The client returns
an incomplete snapshot without complaint when a download broke before and the hub is out of reach now, and it does not
verify sizes of what lies in the cache: `complete_weights` therefore checks every file of a model by itself.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inference.mas.errors import InputError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# Configs, manifests, indexes, tokenizers and chat templates: everything of a repo but weights.
SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
# Names under which transformers looks for weights, in its order.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# A safetensors header of a large model takes some hundred KB; a length beyond this is garbage.
MAX_HEADER_BYTES = 100 * 2**20
MIB = 2**20


@dataclass(frozen=True)
class Folder:
    """A directory of files. `id` is what the user wrote; `revision` the commit of a hub snapshot, None if local."""

    id: str
    path: Path
    revision: str | None = None
    cache_dir: str | None = None
    download: bool = True

    @property
    def origin(self) -> str:
        """ "hub" or "local"."""
        return "local" if self.revision is None else "hub"

    def has(self, name: str) -> bool:
        """True if the file is here (in a hub folder: already downloaded)."""
        return (self.path / name).is_file()

    def need(self, *names: str) -> list[str]:
        """Bring these files if the folder has them; returns the names of those now here, in the order asked."""
        if self.revision is not None and not all(self.has(name) for name in names):
            _snapshot(self.id, [glob.escape(name) for name in names], self.revision, self.cache_dir, self.download)
        return [name for name in names if self.has(name)]

    def file(self, name: str, named_by: str) -> Path:
        """The path of a file that must be here; `named_by` says in the error who asks for it."""
        if not self.need(safe_name(name, named_by)):
            raise InputError(f"{self}: incomplete, {name} is missing ({named_by} names it); {self.remedy}")
        return self.path / name

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file; {} if there is no such file."""
        if not self.has(name):
            return {}
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except ValueError as err:
            raise InputError(f"{self.path / name}: not valid JSON ({err}); {self.remedy}") from err
        if not isinstance(value, dict):
            raise InputError(f"{self.path / name}: expected a JSON object, found {type(value).__name__}")
        return value

    @property
    def remedy(self) -> str:
        """What to do about a missing or broken file."""
        if self.origin == "local":
            return "copy or train it again"
        return "run again with the hub in reach, or delete the file from the cache if it is broken"

    def __str__(self) -> str:
        return f"{self.id} at {self.path}" if self.origin == "hub" else str(self.path)


def safe_name(name: Any, named_by: str) -> str:
    """A file name read from a file: relative, and inside its folder; `InputError` if it leads elsewhere."""
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{named_by}: expected a file name, found {name!r}")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise InputError(f"{named_by}: the file name {name!r} leaves its folder; expected a name inside it")
    return name


def open_folder(
    where: str,
    source: str | Path,
    patterns: Sequence[str] = SMALL_FILES,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    download: bool = True,
) -> Folder:
    """The folder `source`: a directory if there is one of that name, else a hub id whose small files are fetched.

    `where` names the role or flag in errors. `revision` (branch, tag or commit) applies to hub ids; the folder is then
    pinned to the commit it stood for. `download=False` looks in the cache only.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return Folder(str(source), path.resolve())
    if path.exists():
        raise InputError(f"{where}: {source} is a file; expected a directory or a hub id")
    if not HUB_ID.fullmatch(str(source)):
        raise InputError(f"{where}: no directory {source}; expected a directory or a hub id such as ORG/NAME")
    cache = None if cache_dir is None else str(cache_dir)
    snapshot = _snapshot(str(source), list(patterns), revision, cache, download, where=f"{where}: ")
    return Folder(str(source), snapshot, snapshot.name, cache, download)


def _snapshot(
    repo: str, patterns: list[str], revision: str | None, cache_dir: str | None, download: bool, where: str = ""
) -> Path:
    """`snapshot_download` of the files in the repo's root that match, with failures told as sentences."""
    at = f"{where}{repo}" + (f" (revision {revision})" if revision else "")
    try:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                cache_dir=cache_dir,
                local_files_only=not download,
                allow_patterns=patterns,
                # Checkpoints of a training run and other formats lie in subfolders.
                ignore_patterns=[] if any("/" in pattern for pattern in patterns) else ["*/*"],
            )
        )
    except GatedRepoError as err:
        raise InputError(f"{at}: the repo is gated; accept its terms on the hub and log in (hf auth login)") from err
    except RevisionNotFoundError as err:
        raise InputError(f"{at}: the repo has no such revision; give a branch, tag or commit of it") from err
    except RepositoryNotFoundError as err:
        raise InputError(f"{at}: no such directory here and no such repo on the hub (or no access to it)") from err
    except LocalEntryNotFoundError as err:
        raise InputError(
            f"{at}: no such directory here, not in the cache, and the hub is out of reach (or switched off)"
        ) from err
    except (HfHubHTTPError, httpx.HTTPError, OSError) as err:
        first_line = (str(err).splitlines() or [type(err).__name__])[0]
        raise InputError(
            f"{at}: the download failed ({first_line}); run again to continue it, or point HF_HUB_CACHE to a folder with room that can be written"
        ) from err


def complete_weights(folder: Folder) -> list[str]:
    """Names of the files that hold a model's weights, fetched and checked.

    Raises `InputError` naming the file if one is missing (also a shard that the index names), or shorter or longer than
    its own header says.
    """
    # An index comes with the small files: where it is here, a sharded model costs the hub no needless question.
    here = next((name for name in WEIGHTS if name.startswith("model.") and folder.has(name)), None)
    name = here or next((name for name in WEIGHTS if folder.need(name)), None)
    if name is None:
        raise InputError(f"{folder}: no weights; expected {WEIGHTS[0]} or {WEIGHTS[1]} and its shards; {folder.remedy}")
    names = [name]
    if name.endswith(".index.json"):
        shards = folder.json(name).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise InputError(f"{folder.path / name}: no weight_map; {folder.remedy}")
        names = sorted({safe_name(shard, str(folder.path / name)) for shard in shards.values()})
        folder.need(*names)
    for file in names:
        _check_size(folder.file(file, name), folder)
    return names


def _check_size(path: Path, folder: Folder) -> None:
    """Compare a safetensors file's size with the one that its header adds up to."""
    size = path.stat().st_size
    if path.suffix != ".safetensors":
        if size == 0:
            raise InputError(f"{path}: empty; {folder.remedy}")
        return
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, MAX_HEADER_BYTES):
                raise ValueError("header length")
            header = json.loads(file.read(length))
        expected = (
            8
            + length
            + max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as err:
        raise InputError(
            f"{path}: not a whole safetensors file ({size} bytes, no readable header); {folder.remedy}"
        ) from err
    if size != expected:
        raise InputError(f"{path}: {size} bytes, but its header says {expected}; {folder.remedy}")


def check_tokenizer(folder: Folder) -> None:
    """`InputError` if the folder has no tokenizer file."""
    if not any(folder.has(name) for name in TOKENIZERS):
        raise InputError(f"{folder}: no tokenizer; expected one of {', '.join(TOKENIZERS)}; {folder.remedy}")


def sample_hash(files: Sequence[Path], blocks: int = 16, block_bytes: int = 64 * 1024) -> str:
    """A hash over samples of files: name, size, first and last MiB and `blocks` blocks spread evenly between.

    Takes milliseconds for a model of any size. It tells trained from untrained weights and one model from another, but
    not a change of a few bytes in the middle of a large file.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        starts = [0, max(0, size - MIB)] + [size * i // blocks for i in range(1, blocks)] if size > MIB else [0]
        with path.open("rb") as file:
            for index, start in enumerate(starts):
                file.seek(start)
                digest.update(file.read(MIB if index < 2 else block_bytes))
    return digest.hexdigest()[:16]
