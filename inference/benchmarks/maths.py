"""Rows with a question and a short answer that is graded as maths: MATH-500, AIME, GSM8K, the pocket files."""

from __future__ import annotations

from typing import Any

from inference.benchmarks.base import Options, Sample, text_of
from inference.tools.errors import DataError

QUESTION, ANSWER, ID = ("question", "problem"), ("answer",), ("id", "unique_id", "problem_idx")


def to_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """`question` or `problem`, `answer` (text or number), and an id where there is one; the rest is metadata."""
    known = {*QUESTION, *ANSWER, *ID}
    return Sample(
        index=index,
        id=text_of(row, ID, where) if any(key in row for key in ID) else default_id,
        question=text_of(row, QUESTION, where),
        gold=text_of(row, ANSWER, where),
        meta={key: value for key, value in row.items() if key not in known},
    )


def gsm8k_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """As above; the gold answer stands behind the last "####" of `answer`."""
    _, mark, gold = text_of(row, ANSWER, where).rpartition("####")
    if not mark or not gold.strip():
        raise DataError(f"{where}: 'answer' has no '#### number' at its end; expected rows of openai/gsm8k")
    return to_sample({**row, "answer": gold}, index, where, default_id, options)
