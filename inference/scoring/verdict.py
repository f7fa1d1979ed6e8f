"""What every scorer returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The grade of one answer.

    `correct` counts in the accuracy; `extracted` is the answer found in the text (None if there is none); `status` is
    "ok", or why there is no answer ("no_answer", "no_code", "unclosed_reasoning", ...); `rule` names what decided.
    """

    correct: bool
    extracted: str | None
    status: str
    rule: str
