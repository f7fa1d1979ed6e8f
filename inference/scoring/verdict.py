"""What every scorer returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """The grade of one answer.

    `correct` counts in the accuracy; `extracted` is the answer found in the text (None if there is none); `status` is
    "ok", or why there is no answer ("no_answer", "no_code", "unclosed_reasoning", ...); `rule` names what decided;
    `details` are plain JSON values that a scorer adds to the record (EM and F1, tests passed, ...).
    """

    correct: bool
    extracted: str | None
    status: str
    rule: str
    details: Mapping[str, Any] = field(default_factory=dict)
