"""The tree of an answer: nested tuples, plain data. Nothing in a tree is ever executed.

Trees of values:
    ("num", Fraction, places)        places = digits after the point of a decimal literal, None for an integer
    ("sym", name)  ("const", "pi" | "e" | "i" | "inf")
    ("add", (a, ..))  ("mul", (a, ..))  ("pow", a, b)  ("call", name, (a, ..))
    ("pm", a)  ("mp", a)             plus-or-minus, minus-or-plus
    ("pct", a)  ("deg", a)  ("unit", a, text)  ("base", digits, base)
Trees of answers:
    ("list", "," | "or" | "and", items)  ("tuple", items)  ("square", items)  ("set", items)  ("builder", name, items, domain)
    ("interval", low, high, low_closed, high_closed)  ("union", items)  ("without", a, b)  ("space", letter)
    ("relation", operators, terms, labels)  ("matrix", rows)  ("ratio", items)
Added by `meaning`:
    ("named", label, value, relation)  x = 5; ("solutions", name, set)  x < 5, x \\in (0, 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from inference.scoring.maths.limits import MAX_DIGITS, LimitError

Tree = tuple
MINUS_ONE: Tree = ("num", Fraction(-1), None)
INFINITY: Tree = ("const", "inf")
MINUS_INFINITY: Tree = ("mul", (MINUS_ONE, INFINITY))


def number(digits: str) -> Tree:
    """A number literal: 12, 1.50, .5, 1.5e3."""
    if len(digits) > MAX_DIGITS:
        raise LimitError(f"a number of {len(digits)} digits (limit {MAX_DIGITS})")
    mantissa = re.split("[eE]", digits)
    places = len(mantissa[0].partition(".")[2]) if "." in mantissa[0] else None
    if len(mantissa) == 2:
        if abs(int(mantissa[1])) > MAX_DIGITS:
            raise LimitError(f"a number with the exponent {mantissa[1]} (limit {MAX_DIGITS})")
        places = None if places is None else max(places - int(mantissa[1]), 0)
    whole = mantissa[0].rstrip(".")
    return (
        "num",
        Fraction(whole if not whole.startswith(".") else "0" + whole) * Fraction(10) ** int((mantissa[1:] or ["0"])[0]),
        places,
    )


def negated(tree: Tree) -> Tree:
    """-tree; a sign goes inside percent, degrees and units, so that they stay outermost."""
    if tree[0] == "num":
        return ("num", -tree[1], tree[2])
    if tree[0] in ("pct", "deg"):
        return (tree[0], negated(tree[1]))
    if tree[0] == "unit":
        return ("unit", negated(tree[1]), tree[2])
    return scaled((MINUS_ONE, tree))


def scaled(factors: tuple[Tree, ...]) -> Tree:
    """The product of several factors; one matrix among them takes the others into its entries."""
    matrices = [i for i, factor in enumerate(factors) if factor[0] == "matrix"]
    if len(matrices) != 1:
        return ("mul", factors)
    at = matrices[0]
    others = factors[:at] + factors[at + 1 :]
    return ("matrix", tuple(tuple(("mul", (*others, entry)) for entry in row) for row in factors[at][1]))


def constant(value: Fraction | int) -> Tree:
    """The tree of an exact number."""
    return ("num", Fraction(value), None)


def difference(left: Tree, right: Tree) -> Tree:
    """left - right."""
    return ("add", (left, negated(right)))


def walk(tree: Tree) -> Iterator[Tree]:
    """All nodes of a tree, itself first. (The operators of a relation pass as a node of their own, harmlessly.)"""
    if tree and isinstance(tree[0], str):
        yield tree
    for part in tree:
        if isinstance(part, tuple):
            yield from walk(part)


def free_symbols(tree: Tree) -> set[str]:
    """The names of the unknowns in a tree."""
    return {node[1] for node in walk(tree) if node[0] == "sym"}
