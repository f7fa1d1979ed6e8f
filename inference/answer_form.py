"""Which answers lack the form that was asked for, and how they go on (`--ans`).

A form is a box (maths, short text), a letter (choice) or a program (code). An answer without it goes on in its own context from a short
text that opens the form. The words are ours; what counts as missing, and how many tokens may follow, is the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inference.benchmarks.base import Sample
from inference.scoring.maths.extract import boxes, visible_text

if TYPE_CHECKING:
    from inference.mas.prompts import Question
    from inference.mas.writing import Suffix

SUFFIXES = {
    "math": "\n\nFinal Answer: \\boxed{",
    "choice": "\n\nFinal Choice: \\boxed{",
    "code": "\n\nThe program is still missing. Here it is, complete:\n```python\n",
}
ANSWER_TOKENS, CODE_TOKENS = 16, 256  # the reference's: room for a short answer, and for a short program
END_OF_THINKING = "\n</think>"


class AnswerForm:
    """The check for the samples of a run, called with a question and its answer's text."""

    def __init__(self, samples: Sequence[Sample], enable_thinking: bool = False) -> None:
        self._samples = {sample.id: sample for sample in samples}
        self._thinking = enable_thinking

    def __call__(self, question: Question, text: str) -> Suffix | None:
        """How the answer goes on; None if its form is there, or if none was asked for (free text)."""
        from inference.mas.writing import Suffix

        sample = self._samples[question.id]
        if sample.family not in SUFFIXES or has_form(sample, text):
            return None
        open_thinking = visible_text(text)[1] or (self._thinking and "</think>" not in text.lower())
        head = END_OF_THINKING if open_thinking else ""
        return Suffix(head + SUFFIXES[sample.family], CODE_TOKENS if sample.family == "code" else ANSWER_TOKENS)


def has_form(sample: Sample, text: str) -> bool:
    """True if a grader finds a box, a letter or a program in the text."""
    if sample.family == "code":
        from inference.scoring.code.extract import extract as program

        return program(text, sample.fn_name, "function" if sample.kind == "function" else "program").code is not None
    if sample.family == "choice":
        from inference.scoring import choice

        return choice.extract(text, options=sample.meta.get("options")).letter is not None
    visible, open_reasoning = visible_text(text)
    return not open_reasoning and bool(boxes(visible))
