"""The judge that runs in a worker: floating point first, exact confirmation of what agrees."""

from __future__ import annotations

from fractions import Fraction

from mpmath.ctx_mp import MPContext

from inference.scoring.maths.equal import Judge, gap
from inference.scoring.maths.exact import decimal_literal, exact, is_rounding
from inference.scoring.maths.limits import DIGITS, NotMathError
from inference.scoring.maths.numeric import UndefinedError, evaluate, ratio, same_value
from inference.scoring.maths.symbolic import confirm_equal, proportional
from inference.scoring.maths.tree import Tree, free_symbols

_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


class NumericJudge(Judge):
    """Compares by value at random points; `agreed` collects the pairs that an exact confirmation may still overturn."""

    def __init__(self) -> None:
        self.mp = MPContext()  # a context of our own: mpmath's shared one is global state
        self.agreed: list[tuple[Tree, Tree]] = []

    def start(self) -> None:
        self.agreed.clear()

    def same(self, left: Tree, right: Tree) -> bool:
        for literal, other in ((decimal_literal(left), right), (decimal_literal(right), left)):
            if literal and not free_symbols(other) and is_rounding(literal, self._fraction(other)):
                return True
        if same_value(left, right, self.mp):
            self.agreed.append((left, right))
            return True
        return False

    def same_relation(self, left: Tree, right: Tree) -> bool:
        operator = left[1][0]
        if {operator, right[1][0]} & {"=", "!="}:
            if operator != right[1][0]:
                return False
            return ratio(gap(left), gap(right), self.mp) is not None or proportional(gap(left), gap(right))
        factor = ratio(gap(left), gap(right), self.mp)
        if factor is None:
            return False
        return right[1][0] == (operator if factor > 0 else _TURNED[operator])

    def order(self, tree: Tree) -> float:
        if free_symbols(tree):
            raise NotMathError("an interval with unknown ends")
        return float(self._fraction(tree))

    def confirm(self) -> bool | None:
        """True or False where sympy proves it for the agreed pairs, None where the numeric verdict stands alone."""
        verdicts = [confirm_equal(left, right) for left, right in self.agreed]
        return False if False in verdicts else None if None in verdicts else True

    def _fraction(self, tree: Tree) -> Fraction:
        value = exact(tree)
        if value is not None:
            return value
        self.mp.dps = DIGITS
        try:
            number = evaluate(tree, {}, self.mp, False)
        except UndefinedError:
            raise NotMathError("a number that is not real") from None
        if abs(self.mp.mag(number)) > 2000:
            raise NotMathError("a number beyond floating point")
        return Fraction(self.mp.nstr(self.mp.re(number), DIGITS))
