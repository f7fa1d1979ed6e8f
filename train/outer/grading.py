"""Held-out accuracy of a system that is being trained: is the speaker's text right, by the scorers of the benchmarks?"""

from __future__ import annotations

from inference.scoring.maths import grade
from inference.scoring.maths.extract import boxes
from train.data.texts import Example

# Families whose answers can be compared with the gold text alone; code needs tests, which training rows do not have.
GRADED = ("math", "choice")


def gold_answer(text: str) -> str:
    """The answer in a gold text: its last box, else all of it."""
    found = boxes(text)
    return found[-1][2] if found else text


def is_right(text: str, example: Example, speaker: str, rounds: int) -> bool:
    """True if `text` gives the answer of the speaker's gold text in the last round."""
    return grade(text, gold_answer(example.text(speaker, rounds))).correct
