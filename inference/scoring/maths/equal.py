"""Whether two answers are the same: lists, sets, tuples, intervals, matrices, relations; members by a `Judge` of scalars."""

from __future__ import annotations

from inference.scoring.maths.exact import decimal_literal, exact, is_rounding
from inference.scoring.maths.limits import NotMathError
from inference.scoring.maths.tree import INFINITY, MINUS_INFINITY, Tree, constant, difference
from inference.scoring.maths.units import canonical_unit, unit_ratio

_SCALARS = {"num", "sym", "const", "add", "mul", "pow", "call", "pct", "deg", "unit", "base", "ratio"}
_SETLIKE = {"interval", "union", "without", "space", "set"}
# Operands are put into this order, so that equality is symmetric by construction.
_ORDER = ("solutions", "named", "relation", "list", "set", "tuple", "square", "interval", "union", "without", "space")
Piece = tuple[Tree, bool, Tree, bool]  # low end, closed, high end, closed


class UndecidedError(Exception):
    """This pair needs floating point or computer algebra."""


class Judge:
    """Decides what fractions cannot. This one decides nothing: it marks the pairs that a worker has to look at."""

    def start(self) -> None:
        """A new pair of readings: what earlier ones agreed on no longer counts."""

    def same(self, left: Tree, right: Tree) -> bool:
        raise UndecidedError

    def same_relation(self, left: Tree, right: Tree) -> bool:
        raise UndecidedError

    def order(self, tree: Tree) -> float:
        """A number to sort the ends of intervals by."""
        raise UndecidedError


def equal(left: Tree, right: Tree, judge: Judge) -> bool:
    """Whether two trees (after `meaning`) are the same answer."""
    if left == right:
        return True
    ranks = [_ORDER.index(tree[0]) if tree[0] in _ORDER else len(_ORDER) for tree in (left, right)]
    if ranks[0] > ranks[1] or (ranks[0] == ranks[1] and repr(left) > repr(right)):
        left, right = right, left
    a, b = left[0], right[0]
    if a == "solutions":
        if b == "solutions":
            known = left[1] and right[1] and left[1] != right[1]
            return not known and _same_sets(left[2], right[2], judge)
        if b == "named":
            return right[1] in ("", left[1]) and _same_sets(left[2], right[2], judge)
        if b == "list" and any(item[0] == "named" for item in right[2]):  # x \\in {1, 2} and x = 1 or x = 2
            names = {item[1] for item in right[2] if item[0] == "named"}
            right = ("list", right[1], tuple(item[2] if item[0] == "named" else item for item in right[2]))
            return len(names | {left[1]} - {""}) < 2 and equal(left[2], right, judge)
        return b != "relation" and _same_sets(left[2], right, judge)
    if a == "named":
        return _named(left, right, judge)
    if a == "relation":
        return b == "relation" and _same_relations(left, right, judge)
    if a == "list":
        return _list(left, right, judge)
    if a == "set":
        if b == "set":
            return _same_members(_distinct(left[1], judge), _distinct(right[1], judge), judge)
        if b in _SETLIKE:
            return _same_sets(left, right, judge)
        # {5} for 5: the solution set of an equation with one solution.
        return len(left[1]) == 1 and b in _SCALARS | {"tuple", "matrix"} and equal(left[1][0], right, judge)
    if {a, b} <= {"tuple", "square"}:
        # [a, b] and (a, b) are a closed and an open interval; of three and more members both are a vector.
        return (a == b or len(left[1]) != 2) and _in_order(left[1], right[1], judge)
    if b == "matrix" and a == "square" and all(row[0] == "square" for row in left[1]):
        return _same_rows(tuple(row[1] for row in left[1]), right[1], judge)
    if b == "matrix" and a in ("tuple", "square"):
        return _in_order(left[1], _vector(right), judge)
    if a in _SETLIKE | {"tuple", "square"} and b in _SETLIKE:
        return _same_sets(left, right, judge)
    if a == b == "matrix":
        return _same_rows(left[1], right[1], judge)
    if a == b == "builder":
        return left[1] == right[1] and left[3] == right[3] and _same_members(left[2], right[2], judge)
    return a in _SCALARS and b in _SCALARS and _scalars(left, right, judge)


def _named(left: Tree, right: Tree, judge: Judge) -> bool:
    """x = 5 against another answer: against a bare value the name is dropped, against an equation it is not."""
    _, label, value, relation = left
    if right[0] == "relation":
        return _same_relations(relation, right, judge)
    if right[0] != "named":
        return equal(value, right, judge)
    if label == right[1] or not label or not right[1]:
        return equal(value, right[2], judge)
    return _same_relations(relation, right[3], judge)


def _list(left: Tree, right: Tree, judge: Judge) -> bool:
    items, kind = left[2], right[0]
    names = _names(items)
    if kind == "list":
        others, other_names = right[2], _names(right[2])
        if names and other_names:
            if set(names) == set(other_names):
                others = tuple(others[other_names.index(name)] for name in names)
            return _in_order(items, others, judge)
        if names or other_names:
            return _in_order(items, others, judge)
        return _same_members(list(items), list(others), judge)
    if kind == "set":
        return _same_members(_distinct(items, judge), _distinct(right[1], judge), judge)
    if kind == "tuple":  # 3, 2 or x = 3, y = 2 for the point (3, 2)
        return left[1] != "or" and _in_order(items, right[1], judge)
    if kind == "union":
        return _same_sets(("union", items), right, judge)
    if left[1] == "or":  # "1/2 or 0.5" is one value
        values = _distinct(items, judge)
        return len(values) == 1 and equal(values[0], right, judge)
    return False


def _names(items: tuple[Tree, ...]) -> list[str]:
    """The different names of a list such as AB = 4, CD = 5: such a list has an order."""
    names = [item[1] for item in items if item[0] in ("named", "solutions")]
    return names if len(names) == len(items) > 1 and len(set(names)) == len(names) and all(names) else []


def _in_order(left: tuple[Tree, ...], right: tuple[Tree, ...], judge: Judge) -> bool:
    return len(left) == len(right) and all(equal(x, y, judge) for x, y in zip(left, right, strict=True))


def _same_rows(left: tuple[Tree, ...], right: tuple[Tree, ...], judge: Judge) -> bool:
    return len(left) == len(right) and all(_in_order(x, y, judge) for x, y in zip(left, right, strict=True))


def _same_members(left: list[Tree] | tuple[Tree, ...], right: list[Tree] | tuple[Tree, ...], judge: Judge) -> bool:
    """Whether the members match one to one, in any order. Identical trees and rationals are paired first, cheaply."""
    if len(left) != len(right):
        return False
    rest = list(right)
    open_items = []
    for item in left:
        if item in rest:
            rest.remove(item)
        else:
            open_items.append(item)
    for item in open_items:
        match = next((other for other in rest if equal(item, other, judge)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _distinct(items: tuple[Tree, ...], judge: Judge) -> list[Tree]:
    kept: list[Tree] = []
    for item in dict.fromkeys(items):
        if not any(equal(item, other, judge) for other in kept):
            kept.append(item)
    return kept


def _vector(matrix: Tree) -> tuple[Tree, ...]:
    rows = matrix[1]
    return rows[0] if len(rows) == 1 else tuple(row[0] for row in rows) if len(rows[0]) == 1 else ()


# --- sets of real numbers ---------------------------------------------------------------------------------------


def _same_sets(left: Tree, right: Tree, judge: Judge) -> bool:
    pieces = [_pieces(tree, judge) for tree in (left, right)]
    if pieces[0] is None or pieces[1] is None:
        return left == right or (left[0] == right[0] == "list" and equal(left, right, judge))
    first, second = (_merged(part, judge) for part in pieces)
    return len(first) == len(second) and all(
        x[1] == y[1] and x[3] == y[3] and _same_end(x[0], y[0], judge) and _same_end(x[2], y[2], judge)
        for x, y in zip(first, second, strict=True)
    )


def _same_end(left: Tree, right: Tree, judge: Judge) -> bool:
    ends = [_infinite(tree) for tree in (left, right)]
    return ends[0] == ends[1] if any(ends) else equal(left, right, judge)


def _infinite(tree: Tree) -> int:
    return 1 if tree == INFINITY else -1 if tree == MINUS_INFINITY else 0


def _pieces(tree: Tree, judge: Judge) -> list[Piece] | None:
    """A set of real numbers as intervals; None where it is none."""
    kind = tree[0]
    if kind == "interval":
        return [(tree[1], tree[3], tree[2], tree[4])]
    if kind in ("tuple", "square") and len(tree[1]) == 2:
        closed = kind == "square"
        return [(tree[1][0], closed, tree[1][1], closed)]
    if kind == "space" and tree[1] == "R":
        return [(MINUS_INFINITY, False, INFINITY, False)]
    if kind == "solutions":
        return _pieces(tree[2], judge)
    points = tree[1] if kind == "set" else tree[2] if kind == "list" else (tree,)
    if all(item[0] in _SCALARS for item in points):
        return [(item, True, item, True) for item in points]
    if kind == "union":  # each member is a set
        parts = [_pieces(item, judge) for item in tree[1]]
        return None if None in parts else [piece for part in parts for piece in part]
    if kind == "without":
        whole, holes = _pieces(tree[1], judge), tree[2]
        if whole is None or holes[0] != "set":
            return None
        for hole in holes[1]:
            whole = [part for piece in whole for part in _cut(piece, hole, judge)]
        return whole
    return None


def _cut(piece: Piece, hole: Tree, judge: Judge) -> list[Piece]:
    low, low_closed, high, high_closed = piece
    at, start, end = _position(hole, judge), _position(low, judge), _position(high, judge)
    if at < start or at > end:
        return [piece]
    return [part for part in ((low, low_closed and at > start, hole, False), (hole, False, high, high_closed and at < end))
            if _position(part[0], judge) < _position(part[2], judge)]  # fmt: skip


def _position(tree: Tree, judge: Judge) -> float:
    if sign := _infinite(tree):
        return sign * float("inf")
    value = exact(tree)
    try:
        return judge.order(tree) if value is None else float(value)
    except OverflowError:
        raise NotMathError("the end of an interval beyond floating point") from None


def _merged(pieces: list[Piece], judge: Judge) -> list[Piece]:
    """Pieces in order, those that touch or overlap made one."""
    pieces = sorted(pieces, key=lambda piece: (_position(piece[0], judge), not piece[1]))
    merged: list[Piece] = []
    for piece in pieces:
        low, low_closed, high, high_closed = piece
        if merged:
            last = merged[-1]
            start, end = _position(low, judge), _position(last[2], judge)
            if start < end or (start == end and (low_closed or last[3])):
                stop = _position(high, judge)
                if stop > end:
                    merged[-1] = (last[0], last[1], high, high_closed)
                elif stop == end:
                    merged[-1] = (*last[:3], last[3] or high_closed)
                continue
        merged.append((low, low_closed, high, high_closed))
    return merged


# --- relations and scalars ---------------------------------------------------------------------------------------


def _same_relations(left: Tree, right: Tree, judge: Judge) -> bool:
    """Chains of relations: the same terms in one or the other direction, or (of two terms) the same up to a factor."""
    forms = [
        left[1:3],
        (tuple({"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op) for op in reversed(left[1])), left[2][::-1]),
    ]
    for operators, terms in forms:
        if operators == right[1] and terms == right[2]:
            return True
    if len(left[2]) != len(right[2]) or "in" in (*left[1], *right[1]):
        return False
    if len(left[2]) > 2:
        return any(operators == right[1] and _in_order(terms, right[2], judge) for operators, terms in forms)
    if not all(term[0] in _SCALARS for term in (*left[2], *right[2])):
        return any(operators == right[1] and _in_order(terms, right[2], judge) for operators, terms in forms)
    return judge.same_relation(left, right)


def _scalars(left: Tree, right: Tree, judge: Judge) -> bool:
    if "unit" in (left[0], right[0]):
        units = [canonical_unit(tree[2]) if tree[0] == "unit" else "" for tree in (left, right)]
        bare = [tree[1] if tree[0] == "unit" else tree for tree in (left, right)]
        factor = unit_ratio(*units)
        if factor is None:
            return False
        return equal(("mul", (constant(factor), bare[0])) if factor != 1 else bare[0], bare[1], judge)
    for kind in ("pct", "deg"):
        marked = [tree[0] == kind for tree in (left, right)]
        if all(marked):
            return equal(left[1], right[1], judge)
        if any(marked):
            # 20 % is 20 where the question asks "what percent", and 0.2 elsewhere; 90 degrees are 90 or pi/2.
            inner, plain = (left[1], right) if marked[0] else (right[1], left)
            return equal(inner, plain, judge) or _plain((kind, inner), plain, judge)
    if "base" in (left[0], right[0]):
        return left[0] == right[0] and left[1:] == right[1:]
    if "ratio" in (left[0], right[0]):
        return _ratios(left, right, judge)
    return _plain(left, right, judge)


def _ratios(left: Tree, right: Tree, judge: Judge) -> bool:
    parts = [tree[1] if tree[0] == "ratio" else (tree, constant(1)) for tree in (left, right)]
    if len(parts[0]) != len(parts[1]):
        return False
    pairs = zip(parts[0][1:], parts[1][1:], strict=True)
    return all(_plain(("mul", (parts[0][0], y)), ("mul", (parts[1][0], x)), judge) for x, y in pairs)


def _plain(left: Tree, right: Tree, judge: Judge) -> bool:
    """Two expressions without unit or percent: fractions, then decimals that round the other side, then the judge."""
    values = [exact(tree) for tree in (left, right)]
    literals = [decimal_literal(tree) for tree in (left, right)]
    if values[0] is not None and values[1] is not None:
        if values[0] == values[1]:
            return True
        return any(
            literal and is_rounding(literal, value) for literal, value in zip(literals, values[::-1], strict=True)
        )
    return judge.same(left, right)


def gap(tree: Tree) -> Tree:
    """left - right of a two-term relation."""
    return difference(tree[2][0], tree[2][1])
