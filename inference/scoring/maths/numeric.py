"""Floating-point values of trees at many digits, with every operation guarded against sizes that would not end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from inference.scoring.maths.limits import (
    DIGITS,
    MAX_ANGLE,
    MAX_LOG2,
    MORE_DIGITS,
    POINTS,
    TRIES,
    LimitError,
    NotMathError,
)
from inference.scoring.maths.tree import Tree, free_symbols, walk

_ANGLE_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc"}
_PLAIN_FUNCTIONS = {"asin", "acos", "atan", "tanh"}


class UndefinedError(ArithmeticError):
    """No value at this point: a division by zero, a function outside its domain."""


def points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Random rational points, the same ones on every call; every other one has positive coordinates only."""
    draw = random.Random("points of comparison")
    for attempt in range(TRIES if names else 1):
        yield {
            name: Fraction(draw.randrange(300, 3000), 997) * (1 if attempt % 2 == 0 else draw.choice((1, -1)))
            for name in names
        }


def evaluate(tree: Tree, env: dict[str, Fraction], mp: Any, complex_ok: bool) -> Any:
    """The value of a tree in the context `mp` (mpmath). UndefinedError, LimitError or NotMathError where there is none."""
    try:
        value = _evaluate(tree, env, mp)
        if not mp.isfinite(value):
            raise UndefinedError
    except (ZeroDivisionError, OverflowError, ValueError, TypeError) as error:
        if isinstance(error, (LimitError, NotMathError)):
            raise
        raise UndefinedError from None
    if not complex_ok and abs(mp.im(value)) > mp.mpf(10) ** (-mp.dps // 2) * (1 + abs(value)):
        raise UndefinedError
    return value


def _evaluate(tree: Tree, env: dict[str, Fraction], mp: Any) -> Any:
    kind = tree[0]
    if kind == "num":
        return mp.mpf(tree[1].numerator) / tree[1].denominator
    if kind == "sym":
        return mp.mpf(env[tree[1]].numerator) / env[tree[1]].denominator
    if kind == "const" and tree[1] != "inf":
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[tree[1]]
    if kind == "add":
        return mp.fsum([_evaluate(part, env, mp) for part in tree[1]])
    if kind == "mul":
        product = mp.mpf(1)
        for part in tree[1]:
            product = _sized(product * _evaluate(part, env, mp), mp)
        return product
    if kind == "pow":
        return _power(_evaluate(tree[1], env, mp), _evaluate(tree[2], env, mp), mp)
    if kind == "pct":
        return _evaluate(tree[1], env, mp) / 100
    if kind == "deg":
        return _evaluate(tree[1], env, mp) * mp.pi / 180
    if kind == "call":
        return _call(tree[1], [_evaluate(argument, env, mp) for argument in tree[2]], mp)
    raise NotMathError(f"a {kind} inside an expression")


def _sized(value: Any, mp: Any) -> Any:
    if value and abs(mp.mag(value)) > MAX_LOG2:
        raise LimitError(f"a magnitude beyond 2^(10^{len(str(int(MAX_LOG2))) - 1})")
    return value


def _real(value: Any, mp: Any) -> Any:
    if mp.im(value):
        raise UndefinedError
    return mp.re(value)


def _power(base: Any, exponent: Any, mp: Any) -> Any:
    if not base:
        if mp.re(exponent) <= 0:
            raise UndefinedError
        return mp.mpf(0)
    if mp.mag(exponent) > 60 or (abs(mp.mag(base)) + 1) * abs(exponent) > MAX_LOG2:
        raise LimitError(f"a power beyond 2^(10^{len(str(int(MAX_LOG2))) - 1})")
    return mp.power(base, exponent)


def _call(name: str, values: list[Any], mp: Any) -> Any:
    x = values[0]
    if name == "root":
        index = _real(values[1], mp)
        if index == int(index) and int(index) % 2 and not mp.im(x) and mp.re(x) < 0:
            return -_power(-mp.re(x), 1 / index, mp)  # the real cube root of -8, as schools have it
        return mp.sqrt(x) if index == 2 else _power(x, 1 / index, mp)
    if name in _ANGLE_FUNCTIONS or name in ("sinh", "cosh", "exp"):
        if abs(x) > (MAX_ANGLE if name in _ANGLE_FUNCTIONS else MAX_LOG2) or abs(mp.im(x)) > MAX_LOG2:
            raise LimitError(f"an argument of {name} that is too large")
        below = {"tan": mp.cos, "sec": mp.cos, "cot": mp.sin, "csc": mp.sin}.get(name)
        if below and abs(below(x)) < mp.mpf(10) ** (5 - mp.dps):  # a pole, if for rounding
            raise UndefinedError
        if name in ("cot", "sec", "csc") and abs(x) < mp.mpf(10) ** -mp.dps:
            return 1 / mp.cos(x) if name == "sec" else 1 / x
        return getattr(mp, name)(x)
    if name in _PLAIN_FUNCTIONS:
        return getattr(mp, name)(x)
    if name == "log":
        if not x or (len(values) > 1 and values[1] in (0, 1)):
            raise UndefinedError
        return mp.log(x) / mp.log(values[1]) if len(values) > 1 else mp.log(x)
    if name == "abs":
        return abs(x)
    reals = [_real(value, mp) for value in values]
    if name in ("floor", "ceil"):
        return getattr(mp, name)(reals[0])
    if name in ("min", "max"):
        return min(reals) if name == "min" else max(reals)
    if name in ("factorial", "binom") and all(abs(value) < 10**9 for value in reals):
        return mp.factorial(*reals) if name == "factorial" else mp.binomial(*reals)
    if name in ("gcd", "lcm"):
        raise NotMathError(f"{name} of something else than integers")
    raise LimitError(f"an argument of {name} that is too large")


def same_value(left: Tree, right: Tree, mp: Any) -> bool:
    """Whether two expressions have the same value at every random point where both are defined and real.

    Each point is computed twice, at DIGITS and at MORE_DIGITS digits: the rounding noise of two equal values shrinks with
    the digits, a true difference stays however small it is. Where an `i` occurs, complex values count as well.
    """
    left, right = _without_common_terms(left, right)
    names = sorted(free_symbols(left) | free_symbols(right))
    complex_ok = any(node == ("const", "i") for tree in (left, right) for node in walk(tree))
    if not names:
        # Of two constants one may be imaginary without naming i: \sqrt{-4} and 2i.
        complex_ok = True
    return _holds_at_points(
        names, mp, lambda env: (evaluate(left, env, mp, complex_ok), evaluate(right, env, mp, complex_ok))
    )


def _without_common_terms(left: Tree, right: Tree) -> tuple[Tree, Tree]:
    """Two sums without the terms of both: beside a term of more digits than are computed, no other one would be seen."""
    rest = [list(tree[1]) if tree[0] == "add" else [tree] for tree in (left, right)]
    for term in list(rest[0]):
        if term in rest[1]:
            rest[0].remove(term)
            rest[1].remove(term)
    return tuple(("add", tuple(terms)) if terms else ("num", Fraction(0), None) for terms in rest)


def _holds_at_points(names: list[str], mp: Any, sides: Callable[[dict[str, Fraction]], tuple[Any, Any]]) -> bool:
    agreed = 0
    for env in points(names):
        try:
            mp.dps = DIGITS
            a, b = sides(env)
            rough = abs(a - b)
            size = max(abs(a), abs(b))
            if rough > size * mp.mpf(10) ** (-DIGITS // 2) and size > mp.mpf(10) ** (-DIGITS // 2):
                return False
            mp.dps = MORE_DIGITS
            a, b = sides(env)
            fine = abs(a - b)
            if fine > max(abs(a), abs(b)) * mp.mpf(10) ** (-MORE_DIGITS * 2 // 3) and fine > rough * mp.mpf(10) ** (
                -DIGITS
            ):
                return False
        except UndefinedError:
            continue
        agreed += 1
        if agreed == POINTS:
            return True
    return agreed > 0 if not names else agreed >= 2


def ratio(top: Tree, bottom: Tree, mp: Any) -> Any:
    """The constant `top / bottom`, or None where it is no constant (or zero, or not real)."""
    names = sorted(free_symbols(top) | free_symbols(bottom))
    mp.dps = DIGITS
    first, agreed = None, 0
    for env in points(names):
        try:
            a, b = evaluate(top, env, mp, False), evaluate(bottom, env, mp, False)
        except UndefinedError:
            continue
        if not a or not b:
            return None
        value = mp.re(a) / mp.re(b)
        if first is None:
            first = value
        elif abs(value - first) > abs(first) * mp.mpf(10) ** (-DIGITS // 2):
            return None
        agreed += 1
        if agreed == POINTS:
            break
    return first if agreed >= 2 else None
