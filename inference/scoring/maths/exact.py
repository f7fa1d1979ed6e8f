"""Exact rational arithmetic on trees: decides most pairs without any computer algebra."""

from __future__ import annotations

import math
from fractions import Fraction

from inference.scoring.maths.limits import APPROX_DIGITS, MAX_EXACT_BITS, MAX_EXACT_FACTORIAL
from inference.scoring.maths.tree import Tree


def exact(tree: Tree) -> Fraction | None:
    """The value of a tree as a fraction; None where it is not rational, not exact, or too large to write out."""
    value = _value(tree)
    if value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_EXACT_BITS:
        return None
    return value


def _value(tree: Tree) -> Fraction | None:
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind in ("add", "mul"):
        total = Fraction(kind == "mul")
        for part in tree[1]:
            value = exact(part)
            if value is None:
                return None
            total = total + value if kind == "add" else total * value
            if max(total.numerator.bit_length(), total.denominator.bit_length()) > MAX_EXACT_BITS:
                return None
        return total
    if kind == "pow":
        base, exponent = exact(tree[1]), exact(tree[2])
        return None if base is None or exponent is None else _power(base, exponent)
    if kind == "pct":
        value = exact(tree[1])
        return None if value is None else value / 100
    if kind == "call":
        values = [exact(argument) for argument in tree[2]]
        return None if None in values else _call(tree[1], values)
    return None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _root(base, exponent.denominator) if base >= 0 else None
        return None if root is None else _power(root, Fraction(exponent.numerator))
    if base in (0, 1):
        return None if base == 0 and exponent <= 0 else base
    if base == -1:
        return Fraction(-1 if exponent.numerator % 2 else 1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    return base**exponent.numerator if abs(exponent.numerator) * bits <= MAX_EXACT_BITS else None


def _root(value: Fraction, index: int) -> Fraction | None:
    """The exact root of a fraction, where there is one."""
    if not 1 <= index <= 64:
        return None
    if value < 0:
        root = _root(-value, index) if index % 2 else None
        return None if root is None else -root
    parts = []
    for part in (value.numerator, value.denominator):
        if index == 2:
            root = math.isqrt(part)
        elif part.bit_length() > 512:  # floats guess the root of a number of ordinary size only
            return None
        else:
            root = round(part ** (1 / index))
        if root**index != part:
            return None
        parts.append(root)
    return Fraction(parts[0], parts[1])


def _call(name: str, values: list[Fraction]) -> Fraction | None:
    first = values[0]
    whole = all(value.denominator == 1 for value in values)
    if name == "root" and values[1].denominator == 1:
        return _root(first, values[1].numerator)
    if name == "abs":
        return abs(first)
    if name in ("floor", "ceil"):
        return Fraction(math.floor(first) if name == "floor" else math.ceil(first))
    if name in ("min", "max"):
        return min(values) if name == "min" else max(values)
    if name == "factorial" and whole and 0 <= first <= MAX_EXACT_FACTORIAL:
        return Fraction(math.factorial(first.numerator))
    if name == "binom" and whole and 0 <= values[1] <= first <= MAX_EXACT_FACTORIAL:
        return Fraction(math.comb(first.numerator, values[1].numerator))
    if name in ("gcd", "lcm") and whole:
        numbers = [value.numerator for value in values]
        return Fraction(math.gcd(*numbers) if name == "gcd" else math.lcm(*numbers))
    return None


def decimal_literal(tree: Tree) -> tuple[Fraction, int] | None:
    """(value, places) of a decimal literal with enough significant digits to stand for the number it rounds."""
    if tree[0] != "num" or not tree[2]:
        return None
    value, places = tree[1], tree[2]
    digits = len(str(abs(value.numerator * 10**places // value.denominator)).lstrip("0"))
    return (value, places) if digits >= APPROX_DIGITS else None


def is_rounding(literal: tuple[Fraction, int], value: Fraction) -> bool:
    """Whether the literal is `value`, rounded or cut at the literal's last place."""
    short, places = literal
    unit = Fraction(1, 10**places)
    return abs(short - value) * 2 <= unit or (short * value > 0 and 0 <= abs(value) - abs(short) < unit)
