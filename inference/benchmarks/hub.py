"""Rows and files of hub datasets, with one-sentence errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference.tools.errors import DataError

COMMIT = re.compile(r"[0-9a-f]{40}")


class UnreachableError(DataError):
    """A dataset that the hub does not give: no network, no such split or revision, or no access."""


def load_split(
    hub_id: str, *, splits: Sequence[str], config: str | None = None, revision: str | None = None
) -> tuple[list[dict[str, Any]], str | None, str]:
    """Rows of the first of `splits` that a hub dataset has, its commit (None where the client does not tell), and that split."""
    import datasets  # takes seconds to import, and local files do not need it
    import httpx

    try:
        revision = _pinned(hub_id, revision)
        for split in splits:
            try:
                data = datasets.load_dataset(hub_id, config, split=split, revision=revision)
                break
            except ValueError as err:
                if split == splits[-1] or "Unknown split" not in str(err):
                    raise
    # RuntimeError: what the hub client raises when it tries again after a broken connection.
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError) as err:
        raise _unreachable(f"dataset {hub_id}, split {' or '.join(map(repr, splits))}", hub_id, revision, err) from err
    found = [COMMIT.search(url) for url in data.info.download_checksums or {}]
    commit = next((match[0] for match in found if match), revision)
    return list(data), commit, split


def fetch_file(
    hub_id: str, name: str, *, revision: str | None = None, download: bool = True
) -> tuple[Path, str | None]:
    """A file of a dataset's repo in the client's cache, and its commit. `download` False looks in the cache only."""
    import httpx
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        revision = _pinned(hub_id, revision) if download else revision
        path = Path(
            hf_hub_download(hub_id, name, repo_type="dataset", revision=revision, local_files_only=not download)
        )
    except LocalEntryNotFoundError as err:
        if download:
            raise _unreachable(f"dataset {hub_id}, file {name}", hub_id, revision, err) from err
        raise UnreachableError(
            f"dataset {hub_id}, file {name}: not in the hub client's cache; a run downloads it"
        ) from err
    except EntryNotFoundError as err:
        raise UnreachableError(
            f"dataset {hub_id}: has no file {name}{_at(revision)}; choose another release or revision, or give --dataset_file"
        ) from err
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, HfHubHTTPError) as err:
        raise _unreachable(f"dataset {hub_id}, file {name}", hub_id, revision, err) from err
    commit = COMMIT.search(str(path))
    return path, commit[0] if commit else revision


def _pinned(hub_id: str, revision: str | None) -> str | None:
    """The commit of a branch or tag."""
    from huggingface_hub import HfApi

    if not revision or COMMIT.fullmatch(revision):
        return revision
    # By its commit: for a revision that it cannot find, `load_dataset` takes any cached one instead.
    return HfApi().dataset_info(hub_id, revision=revision).sha


def _at(revision: str | None) -> str:
    return f" at revision {revision}" if revision else ""


def _unreachable(what: str, hub_id: str, revision: str | None, err: Exception) -> UnreachableError:
    reason = " ".join(str(err).split())[:300] or type(err).__name__
    if (
        "client has been closed" in reason
    ):  # what the hub client says of a second attempt, when the network failed the first
        reason = "the hub cannot be reached"
    if "gated" in reason.lower():
        return UnreachableError(
            f"{what}: the dataset is gated; accept its terms on the hub's page of {hub_id} and log in (`hf auth login`, or "
            "HF_TOKEN), or give the rows with --dataset_file"
        )
    return UnreachableError(
        f"{what}{_at(revision)}: cannot be loaded ({reason}); "
        "check the network and the revision, or give the rows with --dataset_file"
    )
