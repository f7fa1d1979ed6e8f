"""Splits of hub datasets, with one-sentence errors."""

from __future__ import annotations

import re
from typing import Any

from inference.tools.errors import DataError

COMMIT = re.compile(r"[0-9a-f]{40}")


class UnreachableError(DataError):
    """A dataset that the hub does not give: no network, no such split or revision, or no access."""


def load_split(hub_id: str, *, split: str, revision: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
    """Rows of a split of a hub dataset and its commit (None where the hub client does not tell)."""
    import datasets  # takes seconds to import, and local files do not need it
    import httpx
    from huggingface_hub import HfApi

    try:
        if revision and not COMMIT.fullmatch(revision):
            # By its commit: for a revision that it cannot find, `load_dataset` takes any cached one instead.
            revision = HfApi().dataset_info(hub_id, revision=revision).sha
        data = datasets.load_dataset(hub_id, split=split, revision=revision)
    # RuntimeError: what the hub client raises when it tries again after a broken connection.
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError) as err:
        reason = " ".join(str(err).split())[:300] or type(err).__name__
        at = f" at revision {revision}" if revision else ""
        raise UnreachableError(
            f"dataset {hub_id}, split {split!r}{at}: cannot be loaded ({reason}); "
            "check the network and the revision, or give the rows with --dataset_file"
        ) from err
    found = [COMMIT.search(url) for url in data.info.download_checksums or {}]
    commit = next((match[0] for match in found if match), revision)
    return list(data), commit
