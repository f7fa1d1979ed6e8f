"""Questions with short text answers: Bamboogle, HotpotQA, and rows of a user's own."""

from __future__ import annotations

from typing import Any

from inference.benchmarks.base import Options, Sample, text_of
from inference.tools.errors import DataError


def bamboogle_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """Columns `Question`, `Answer`."""
    return Sample(index, default_id, text_of(row, ("Question",), where), text_of(row, ("Answer",), where))


def hotpot_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """Columns `id`, `question`, `answer`, `type`, `level`; with --hotpot_context `context` (titles and sentences) too."""
    stem = text_of(row, ("question",), where)
    meta = {"stem": stem} | {name: row[name] for name in ("type", "level") if row.get(name)}
    sample_id = text_of(row, ("id",), where) if "id" in row else default_id
    text = f"{_paragraphs(row, where)}\n\nQuestion: {stem}" if options.hotpot_context else stem
    return Sample(index, sample_id, text, text_of(row, ("answer",), where), meta=meta)


def _paragraphs(row: dict[str, Any], where: str) -> str:
    try:
        titles, sentences = row["context"]["title"], row["context"]["sentences"]
        pairs = list(zip(titles, sentences, strict=True))
        return "\n\n".join(f"{title}: {''.join(part).strip()}" for title, part in pairs)
    except (KeyError, TypeError, ValueError) as err:
        raise DataError(
            f"{where}: no 'context' with as many lists of sentences as titles; --hotpot_context needs it"
        ) from err
