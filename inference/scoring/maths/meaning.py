"""What an answer says: relations become values and solution sets, plus-or-minus becomes two values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from inference.scoring.maths.exact import exact
from inference.scoring.maths.limits import MAX_SIGNS, LimitError
from inference.scoring.maths.tree import (
    INFINITY,
    MINUS_INFINITY,
    Tree,
    constant,
    difference,
    free_symbols,
    negated,
    walk,
)

_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_REALS: Tree = ("space", "R")


def meaning(tree: Tree) -> Tree:
    """The tree with relations, builders and plus-or-minus resolved, member by member."""
    kind = tree[0]
    if kind == "list":
        items = [meaning(item) for item in tree[2]]
        if (
            tree[1] == "or"
            and items
            and all(item[0] == "solutions" for item in items)
            and len({item[1] for item in items}) == 1
        ):
            return ("solutions", items[0][1], ("union", tuple(item[2] for item in items)))
        return ("list", tree[1], _spread(items))
    if kind in ("tuple", "square"):
        return (kind, tuple(meaning(item) for item in tree[1]))
    if kind in ("set", "union"):
        return (kind, _spread([meaning(item) for item in tree[1]]))
    if kind == "builder":
        items = tuple(meaning(item) for item in tree[2])
        if len(items) == 1 and items[0][0] == "solutions":
            # Over the integers, {x | x > 2} is another set than the interval.
            return items[0][2] if tree[3] in ("", "R") else ("builder", "", (items[0][2],), tree[3])
        return ("builder", tree[1], items, tree[3])
    if kind == "relation":
        return _relation(tree)
    kinds = [node[0] for node in walk(tree)]
    count = kinds.count("pm")
    if not (count or "mp" in kinds) or "relation" in kinds or "matrix" in kinds:
        return tree
    if "mp" in kinds or count == 1:  # minus-or-plus says that the signs go together
        return ("list", "or", tuple(_signs(tree, itertools.repeat(sign)) for sign in (1, -1)))
    if count > MAX_SIGNS:
        raise LimitError(f"more than {MAX_SIGNS} signs that are plus or minus")
    return ("list", "or", tuple(_signs(tree, iter(signs)) for signs in itertools.product((1, -1), repeat=count)))


def _spread(items: list[Tree]) -> tuple[Tree, ...]:
    """Members, with the two values of a plus-or-minus as two members."""
    flat: list[Tree] = []
    for item in items:
        flat.extend(item[2] if item[0] == "list" else [item])
    return tuple(flat)


def _signs(tree: Tree, signs: Iterator[int]) -> Tree:
    """The tree with each plus-or-minus read as the next of `signs`, each minus-or-plus as its opposite."""
    if tree and tree[0] in ("pm", "mp") and len(tree) == 2:
        positive = (next(signs) > 0) == (tree[0] == "pm")
        inner = _signs(tree[1], signs)
        return inner if positive else negated(inner)
    return tuple(_signs(part, signs) if isinstance(part, tuple) else part for part in tree)


def _relation(tree: Tree) -> Tree:
    _, operators, terms, labels = tree
    kinds = set(operators)
    if kinds == {"="}:
        return _equation(tree)
    if operators == ("in",):
        return ("solutions", labels[0] or "", meaning(terms[1]))
    if operators == ("!=",):
        for label, other in ((labels[0], terms[1]), (labels[1], terms[0])):
            if label is not None and not free_symbols(other):
                return ("solutions", label, ("without", _REALS, ("set", _spread([meaning(other)]))))
        return tree
    if kinds <= {"<", "<="}:
        return _inequality(tree)
    if kinds <= {">", ">="}:
        turned = tuple(_TURNED[operator] for operator in reversed(operators))
        return _inequality(("relation", turned, terms[::-1], labels[::-1]))
    return tree


def _equation(tree: Tree) -> Tree:
    _, operators, terms, labels = tree
    last = terms[-1]
    if last[0] in ("pm", "mp") or any(node[0] in ("pm", "mp") for node in walk(last)):
        last = meaning(last)
    constants = [not free_symbols(term) for term in terms]
    # f(x) = 2x may use x on the right; x = 2x may not.
    defined = {labels[0].partition("(")[0]} if labels[0] else set()
    if labels[0] is not None and not (defined or free_symbols(terms[0])) & free_symbols(last):
        equation = ("relation", ("=",), (terms[0], last), (labels[0], None))
        return ("named", labels[0], meaning(last), equation)
    if (constants[0] and constants[-1]) or (len(terms) > 2 and constants[-1] and constants[-2]):
        return meaning(last)
    if len(operators) == 1 and labels[1] is not None and constants[0]:  # 5 = x
        return ("named", labels[1], meaning(terms[0]), tree)
    return tree


def _inequality(tree: Tree) -> Tree:
    """A chain of < and <= in one unknown as its solution set; other chains stay."""
    _, operators, terms, labels = tree
    closed = [operator == "<=" for operator in operators]
    fixed = [not free_symbols(term) for term in terms]
    if len(terms) == 2:
        if (split := _even(terms, fixed, operators[0])) is not None:
            return split
        if labels[0] is not None and fixed[1]:
            return ("solutions", labels[0], ("interval", MINUS_INFINITY, terms[1], False, closed[0]))
        if labels[1] is not None and fixed[0]:
            return ("solutions", labels[1], ("interval", terms[0], INFINITY, closed[0], False))
        line = _linear(difference(terms[0], terms[1]))
        if line is None:
            return tree
        name, slope, offset = line  # slope * x + offset < 0
        bound = constant(-offset / slope)
        if slope > 0:
            return ("solutions", name, ("interval", MINUS_INFINITY, bound, False, closed[0]))
        return ("solutions", name, ("interval", bound, INFINITY, closed[0], False))
    if len(terms) == 3 and fixed[0] and fixed[2] and not fixed[1]:
        if labels[1] is not None:
            return ("solutions", labels[1], ("interval", terms[0], terms[2], closed[0], closed[1]))
        line, ends = _linear(terms[1]), [exact(terms[0]), exact(terms[2])]
        if line is None or None in ends:
            return tree
        name, slope, offset = line
        low, high = ((end - offset) / slope for end in ends)
        flags = tuple(closed)
        if slope < 0:
            low, high, flags = high, low, flags[::-1]
        return ("solutions", name, ("interval", constant(low), constant(high), *flags))
    return tree


def _even(terms: tuple[Tree, ...], fixed: list[bool], operator: str) -> Tree | None:
    """|u| < c and u^2 < c as -b < u < b, the turned ones as u < -b or u > b; None for any other inequality."""
    if fixed[0] == fixed[1]:
        return None
    body, limit = terms if fixed[1] else terms[::-1]
    bound = exact(limit)
    if bound is None or bound <= 0:
        return None
    if body[:2] == ("call", "abs"):
        inner, end = body[2][0], limit
    elif body[0] == "pow" and body[2] == constant(2):
        inner, end = body[1], ("call", "root", (limit, constant(2)))
    else:
        return None
    label = inner[1] if inner[0] == "sym" else None
    if fixed[1]:
        solved = _inequality(("relation", (operator,) * 2, (negated(end), inner, end), (None, label, None)))
        return solved if solved[0] == "solutions" else None
    sides = [
        _inequality(("relation", (operator,), (inner, negated(end)), (label, None))),
        _inequality(("relation", (operator,), (end, inner), (None, label))),
    ]
    if any(side[0] != "solutions" for side in sides):
        return None
    return ("solutions", sides[0][1], ("union", (sides[0][2], sides[1][2])))


def _linear(tree: Tree) -> tuple[str, Fraction, Fraction] | None:
    """(unknown, slope, offset) of an expression that is linear in its only unknown."""
    names = free_symbols(tree)
    if len(names) != 1:
        return None
    name = names.pop()
    values = [exact(_replaced(tree, name, constant(x))) for x in (0, 1, 2, 5)]
    if None in values:
        return None
    offset, slope = values[0], values[1] - values[0]
    straight = slope and values[2] == offset + 2 * slope and values[3] == offset + 5 * slope
    # Straight at four points is straight everywhere only for polynomials; other nodes are left alone.
    plain = all(node[0] in ("num", "sym", "add", "mul", "pow") for node in walk(tree))
    degree = all(node[0] != "pow" or not free_symbols(node) for node in walk(tree))
    return (name, slope, offset) if straight and plain and degree else None


def _replaced(tree: Tree, name: str, value: Tree) -> Tree:
    if tree and tree[0] == "sym":
        return value if tree[1] == name else tree
    return tuple(_replaced(part, name, value) if isinstance(part, tuple) else part for part in tree)
