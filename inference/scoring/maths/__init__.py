"""Grading of free-form maths answers.

    from inference.scoring.maths import ComparePool, grade

    with ComparePool(workers=2) as pool:
        verdict = grade("... so the answer is \\\\boxed{\\\\frac{1}{2}}.", "0.5", pool)

Most pairs are decided as strings or fractions at once. The rest goes to a worker process: values at random points, then
exact confirmation with sympy objects built from an allow-listed grammar. No text of a model is ever evaluated. Without a
pool, a pair that needs a worker starts one of its own, which costs about a second.
"""

from __future__ import annotations

from inference.scoring.maths.compare import Outcome, compare_cheaply
from inference.scoring.maths.extract import find_answer
from inference.scoring.maths.latex import is_maths
from inference.scoring.maths.normalise import normalise
from inference.scoring.maths.pool import ComparePool
from inference.scoring.verdict import Verdict

__all__ = ["ComparePool", "Outcome", "equivalent", "find_answer", "grade", "normalise"]


def equivalent(left: str, right: str, pool: ComparePool | None = None) -> Outcome:
    """Whether two answers (without their surroundings) are the same. Symmetric and reflexive."""
    try:
        outcome = compare_cheaply(left, right)
    except Exception as error:  # a fault of the engine must not end a run; the status "error" is counted and shown
        return Outcome(False, type(error).__name__, "error")
    if outcome is not None:
        return outcome
    if pool is not None:
        return pool.compare(left, right)
    with ComparePool() as own:
        return own.compare(left, right)


def grade(text: str, gold: str, pool: ComparePool | None = None) -> Verdict:
    """Grade a model's whole output against a gold answer. Never raises on any text.

    The status is "ok", "no_answer", "unclosed_reasoning", "too_large", "timeout" or "error"; all but the first are wrong.
    The rule names where the answer stood and what decided, e.g. "boxed, rational".
    """
    found = find_answer(text)
    if found.status != "ok":
        return Verdict(False, None, found.status, found.where)
    if found.readings == ("",) and gold.strip():
        return Verdict(False, None, "no_answer", "boxed, empty")
    best: tuple[str, Outcome] | None = None
    for reading in found.readings:
        outcome = equivalent(reading, gold, pool)
        if outcome.equal:
            return Verdict(True, reading, "ok", f"{found.where}, {outcome.rule}")
        if best is None or (best[1].rule == "text" and is_maths(reading)):
            best = (reading, outcome)
    assert best is not None  # an answer that was found has at least one reading
    return Verdict(False, best[0], best[1].status, f"{found.where}, {best[1].rule}")
