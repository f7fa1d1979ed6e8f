"""The grammar of answers: a normalised text -> a tree (see `tree`). Only what the grammar names is understood."""

from __future__ import annotations

import re

from inference.scoring.maths.arithmetic import Arithmetic
from inference.scoring.maths.lexer import ACCENTS, CLOSERS, END, GREEK, OPENERS, RELATIONS, Token, tokens
from inference.scoring.maths.limits import MAX_ANSWER_CHARS, MAX_ITEMS, LimitError, NotMathError
from inference.scoring.maths.normalise import normalise
from inference.scoring.maths.tree import MINUS_ONE, Tree, free_symbols, walk

_MATRICES = {name + "matrix" for name in ("", "p", "b", "B", "small")} | {"array"}


def parse(source: str) -> Tree:
    """The tree of a normalised answer. NotMathError where it is not mathematics, LimitError beyond the limits."""
    if re.fullmatch(r"(\(\w\)){2,}", source.replace(" ", "")):
        raise NotMathError("a list of item numbers such as (1)(3)")
    parser = Parser(tokens(source))
    parser.accept("\\approx", "\\therefore")
    if parser.peek() is END:
        raise NotMathError("no tokens")
    tree = parser.separated(())
    if parser.peek() is not END:
        raise NotMathError(f"{parser.peek().value!r} left over")
    return tree


def is_maths(answer: str) -> bool:
    """Whether the grammar reads an answer."""
    try:
        parse(normalise(answer[: MAX_ANSWER_CHARS + 1]))
    except (NotMathError, LimitError, RecursionError):
        return False
    return len(answer) <= MAX_ANSWER_CHARS


def is_plain_quantity(answer: str) -> bool:
    """Whether an answer that the grammar reads is a number, or unknowns joined by +, -, products and fractions only."""
    tree = parse(normalise(answer))
    kinds = {node[0] for node in walk(tree)}
    if not free_symbols(tree):
        return not kinds & {"relation", "list"}
    numbers = {abs(node[1]) for node in walk(tree) if node[0] == "num"}
    powers = [node[2] for node in walk(tree) if node[0] == "pow"]
    return kinds <= {"sym", "const", "add", "mul", "pow", "num"} and numbers <= {1} and set(powers) <= {MINUS_ONE}


class Parser(Arithmetic):
    """Lists, relations, unions, brackets, set builders and matrices over the arithmetic."""

    def separated(self, closers: tuple[str, ...]) -> Tree:
        """Items between commas, semicolons, "and", "or"; one item stands for itself."""
        self.deeper()
        items, kinds = [self.relation()], set()
        while kind := self.separator():
            kinds.add(kind)
            self.at += 1
            if self.separator() in ("and", "or"):  # ", and"
                kinds.add(self.separator())
                self.at += 1
            if self.peek() is END or (self.peek().value in closers and self.peek().kind != "text"):
                break  # a comma at the end
            items.append(self.relation())
            if len(items) > MAX_ITEMS:
                raise LimitError(f"more than {MAX_ITEMS} items")
        self.depth -= 1
        if len(items) == 1:
            return items[0]
        return ("list", "or" if "or" in kinds else "," if "," in kinds else "and", tuple(items))

    def relation(self) -> Tree:
        operators, terms, labels = [], [], []
        while True:
            start = self.at
            label = self.label()
            if (
                label is None
                or (self.peek().kind == "text" and not self.separator())
                or self.peek().value not in RELATIONS
            ):
                self.at, label = start, None
            if label is not None and not _reads_as_value(self.stream[start : self.at]):
                terms.append(("sym", label))
            else:
                self.at = start
                terms.append(self.union())
            labels.append(label)
            if self.peek().kind == "text" or self.peek().value not in RELATIONS:
                break
            operators.append(RELATIONS[self.take().value])
            if len(terms) > MAX_ITEMS:
                raise LimitError(f"a chain of more than {MAX_ITEMS} relations")
        if not operators:
            return terms[0]
        return ("relation", tuple(operators), tuple(terms), tuple(labels))

    def label(self) -> str | None:
        """A name that may stand left of a relation: x, f(x), AB, \\angle ABC, (p, q), |z|, a text. Moves past it."""
        start = self.at
        while self.peek().kind != "end" and self.peek().value not in RELATIONS and self.at - start < 24:
            if self.separator() and "(" not in [token.value for token in self.stream[start : self.at]]:
                break
            self.at += 1
        words = self.stream[start : self.at]
        if not words:
            return None
        if all(token.kind == "text" for token in words):
            return ""  # a description: no name to compare
        shape = "".join(
            "T" if t.kind == "text" else "x" * len(t.value) if t.kind == "letter" else "x" if t.value[1:] in GREEK else "n" if t.kind == "number"
            else "A" if t.value in ("\\angle", "\\triangle", "\\measuredangle") else "O" if t.value in ACCENTS else t.value
            for t in words
        )  # fmt: skip
        name = "".join(
            t.value
            for t in words
            if t.value not in ("|", "\\angle", "\\measuredangle", "{", "}") and t.value not in ACCENTS
        )
        patterns = (
            r"x'*(?:_(?:x|n|\{[xn,]+\}))?'*",  # x, a_n, x'
            r"[xn]?(?:\^\{?\(?n\)?\}?)?x(?:_(?:x|n|\{[xn]+\}))?'*\((?:x|n|T|A?x{1,3})(?:,(?:x|n))*\)",  # f(x), P(A)
            r"\|?x?A?x{1,4}\|?|O\{?x{1,3}\}?|x\|x\|",  # \angle ABC, |AB|
            r"\(x(?:_(?:x|n|\{[xn]+\}))?(?:,x(?:_(?:x|n|\{[xn]+\}))?)+\)",  # (p, q)
            r"(?:x|T)+_?\{?T\}?|T[x ]{1,3}",
        )
        if any(re.fullmatch(pattern, shape) for pattern in patterns):
            # A run of small letters is a product (xy = 5), a run of capitals names a segment.
            if re.fullmatch("x{2,4}", shape) and not name.isupper():
                return None
            if words[0].value == "|" and not name.isupper():
                return f"|{name}|"  # an absolute value; |AB| is the length of AB
            return "" if "T" in shape else name
        return None

    def union(self) -> Tree:
        left = self.expression()
        while True:
            closing = self.at > 0 and self.stream[self.at - 1].value in CLOSERS
            if self.accept("\\cup") or (
                self.peek() == Token("letter", "U", self.peek().spaced) and closing and self.peek(1).value in OPENERS
            ):
                if self.peek().value == "U" and self.peek().kind == "letter":
                    self.at += 1
                right = self.expression()
                left = ("union", (*(left[1] if left[0] == "union" else (left,)), right))
            elif self.accept("\\setminus", "\\backslash"):
                if left[0] == "without":
                    raise NotMathError("a chain of set differences")
                left = ("without", left, self.expression())
            else:
                return left

    def bracket(self, opener: str) -> Tree:
        if opener in ("|", "\\lvert", "\\lfloor", "\\lceil"):
            self.bars += opener == "|"
            inner = self.expression()
            self.bars -= opener == "|"
            self.expect({"|": "|", "\\lvert": "\\rvert", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}[opener])
            return ("call", {"\\lfloor": "floor", "\\lceil": "ceil"}.get(opener, "abs"), (inner,))
        if opener not in OPENERS:
            raise NotMathError(f"{opener!r} where a value was expected")
        bars, self.bars = self.bars, 0
        try:
            return self.items(opener)
        finally:
            self.bars = bars

    def items(self, opener: str) -> Tree:
        braces = opener in ("\\{", "\\lbrace", "{")
        if braces and (builder := self.builder()):
            return builder
        if braces and self.accept("\\}", "\\rbrace", "}"):
            return ("set", ())
        inner = self.separated(tuple(CLOSERS))
        closer = self.take().value
        if closer not in CLOSERS:
            raise NotMathError(f"{closer!r} where a bracket should close")
        items = inner[2] if inner[0] == "list" else (inner,)
        if braces:
            if opener == "{":
                return inner if len(items) == 1 else ("set", items)
            return ("set", items)
        round_open, round_close = opener == "(", closer == ")"
        if opener == "\\langle":
            return ("tuple", items)
        if round_open and round_close:
            return inner if len(items) == 1 else ("tuple", items)
        if not round_open and not round_close:
            return ("square", items)
        if len(items) != 2:
            raise NotMathError("brackets that do not match")
        return ("interval", items[0], items[1], not round_open, not round_close)

    def builder(self) -> Tree | None:
        """{x | conditions} or {x : conditions} after its opening brace."""
        depth = 0
        for i in range(self.at, min(self.at + 12, len(self.stream))):
            value = self.stream[i].value
            depth += (value in OPENERS - {"|"}) - (value in CLOSERS)
            if depth < 0 or self.separator_at(i):
                return None
            if depth == 0 and value in ("|", "\\mid", "\\vert", ":") and i > self.at:
                head = self.stream[self.at : i]
                if not all(
                    t.kind == "letter" or t.value in ("\\in", "\\mathbb", "{", "}", "(", ")", ",", "^", "+")
                    for t in head
                ):
                    return None
                self.at = i + 1
                inner = self.separated(tuple(CLOSERS))
                self.expect("\\}", "\\rbrace", "}")
                names = "".join(t.value for t in head if t.value not in ("\\mathbb", "{", "}"))
                return (
                    "builder",
                    head[0].value,
                    inner[2] if inner[0] == "list" else (inner,),
                    names.partition("\\in")[2],
                )
        return None

    def separator_at(self, index: int) -> bool:
        return self.stream[index].value in (",", ";") and self.stream[index].kind == "op"

    def environment(self) -> Tree:
        self.expect("{")
        name = self.group_text()
        if name == "array" and self.accept("{"):
            self.group_text()
        if name not in _MATRICES and name != "cases":
            raise NotMathError(f"the environment {name!r}")
        rows: list[tuple[Tree, ...]] = []
        row: list[Tree] = []
        while not self.accept("\\end"):
            row.append(self.separated(("\\\\", "&")) if name == "cases" else self.expression())
            if self.accept("\\\\") or self.peek().value == "\\end":
                rows.append(tuple(row))
                row = []
            elif not self.accept("&"):
                raise NotMathError(f"{self.peek().value!r} in a matrix")
            if len(rows) * len(rows[0] if rows else row) > MAX_ITEMS:
                raise LimitError(f"a matrix of more than {MAX_ITEMS} entries")
        self.expect("{")
        self.group_text()
        if name == "cases":
            if any(len(row) != 1 for row in rows):
                raise NotMathError("a definition by cases")
            return ("list", "and", tuple(row[0] for row in rows))
        if not rows or len({len(row) for row in rows}) != 1:
            raise NotMathError("a matrix with rows of different length")
        return ("matrix", tuple(rows))


def _reads_as_value(words: list[Token]) -> bool:
    """Whether a label is also an expression (x, f(x), AB): then its tree is kept, for comparison as an equation."""
    return all(
        t.kind in ("letter", "number") or t.value in ("(", ")", "_", "{", "}", ",", "'", "|") or t.value[1:] in GREEK
        for t in words
    )
