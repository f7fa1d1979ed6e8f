"""Exact confirmation with sympy. Objects are built node by node from an allow-list; no text reaches sympy's parsers."""

from __future__ import annotations

from typing import Any

import sympy

from inference.scoring.maths.limits import MAX_EXACT_BITS, NotMathError
from inference.scoring.maths.tree import Tree, free_symbols

_FUNCTIONS: dict[str, Any] = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "asin": sympy.asin, "acos": sympy.acos, "atan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "tanh": sympy.tanh, "exp": sympy.exp, "log": sympy.log, "abs": sympy.Abs, "floor": sympy.floor,
    "ceil": sympy.ceiling, "min": sympy.Min, "max": sympy.Max, "factorial": sympy.factorial, "binom": sympy.binomial,
}  # fmt: skip
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
_MAX_NODES = 150  # simplification is far more than linear; larger expressions keep their numeric verdict


def build(tree: Tree, symbols: dict[str, Any]) -> Any:
    """The sympy expression of a tree. NotMathError for what has no exact form here."""
    kind = tree[0]
    if kind == "num":
        return sympy.Rational(tree[1].numerator, tree[1].denominator)
    if kind == "sym":
        return symbols[tree[1]]
    if kind == "const" and tree[1] in _CONSTANTS:
        return _CONSTANTS[tree[1]]
    if kind in ("add", "mul"):
        return (sympy.Add if kind == "add" else sympy.Mul)(*(build(part, symbols) for part in tree[1]))
    if kind == "pow":
        return _power(build(tree[1], symbols), build(tree[2], symbols))
    if kind == "pct":
        return build(tree[1], symbols) / 100
    if kind == "deg":
        return build(tree[1], symbols) * sympy.pi / 180
    if kind == "call":
        arguments = [build(argument, symbols) for argument in tree[2]]
        if tree[1] == "root":
            if arguments[0].is_negative and arguments[1].is_odd:
                return -_power(-arguments[0], 1 / arguments[1])
            return _power(arguments[0], 1 / arguments[1])
        if tree[1] in ("factorial", "binom") and not all(a.is_number and abs(a) < 3000 for a in arguments):
            raise NotMathError("a factorial too large to write out")
        if tree[1] in _FUNCTIONS:
            return _FUNCTIONS[tree[1]](*arguments)
    raise NotMathError(f"no exact form of {tree[1] if kind == 'call' else kind}")


def _power(base: Any, exponent: Any) -> Any:
    if base.is_Rational and exponent.is_Rational:
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())
        if abs(exponent) * bits > MAX_EXACT_BITS:
            raise NotMathError("a power too large to write out")
    return sympy.Pow(base, exponent)


def confirm_equal(left: Tree, right: Tree) -> bool | None:
    """Whether left - right is exactly zero; None where sympy cannot tell. Unknowns are taken as positive."""
    symbols = {
        name: sympy.Symbol(f"v{i}", positive=True)
        for i, name in enumerate(sorted(free_symbols(left) | free_symbols(right)))
    }
    try:
        gap = build(left, symbols) - build(right, symbols)
    except NotMathError:
        return None
    if gap.is_zero or gap.expand() == 0:
        return True
    if gap.is_Rational:
        return False
    if sympy.count_ops(gap) > _MAX_NODES:
        return None
    simple = sympy.simplify(gap)
    if simple == 0:
        return True
    return False if simple.is_Rational else None


def proportional(left: Tree, right: Tree) -> bool:
    """Whether two equations `left = 0` and `right = 0` have numerators that differ by a constant factor only."""
    names = sorted(free_symbols(left) | free_symbols(right))
    symbols = {name: sympy.Symbol(f"v{i}") for i, name in enumerate(names)}
    try:
        tops = [sympy.expand(sympy.fraction(sympy.together(build(tree, symbols)))[0]) for tree in (left, right)]
    except NotMathError:
        return False
    if any(sympy.count_ops(top) > _MAX_NODES for top in tops) or 0 in tops:
        return False
    quotient = sympy.cancel(tops[0] / tops[1])
    return bool(quotient.is_number and quotient.is_finite and quotient != 0)
