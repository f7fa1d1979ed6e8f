"""Published numbers of the released styles, to stand beside a run's: `published.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("published.yaml")
RELEASE = "release"


@dataclass(frozen=True)
class Row:
    """One row of a published table. `method` and `rounds` say which runs it stands beside (see `published.yaml`)."""

    source: str
    system: str
    style: str
    scores: Mapping[str, float]
    caveats: tuple[str, ...]
    method: str | None = None
    rounds: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)


class Published:
    """All rows, and the caveats in words."""

    def __init__(self, path: Path = FILE) -> None:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self.rows = [Row(**{**row, "caveats": tuple(row["caveats"])}) for row in content["scores"]]
        self._caveats = content["caveats"]

    def of(self, style: str, dataset: str) -> list[Row]:
        """The rows with a score of a style on a benchmark."""
        return [row for row in self.rows if row.style == style and dataset in row.scores]

    def beside(self, style: str, dataset: str, method: str, rounds: int | None) -> list[Row]:
        """Those that measured what a run with this method and so many rounds measures."""
        return [row for row in self.of(style, dataset) if row.method == method and row.rounds in (None, rounds)]

    def caveats(self, row: Row, dataset: str) -> list[str]:
        """The caveats of a row's score on a benchmark, in words."""
        found = [self._caveats[name] for name in row.caveats]
        return [caveat["text"] for caveat in found if dataset in caveat.get("datasets", [dataset])]
