"""Normalised answer text -> tokens, and the cursor that the grammar moves over them."""

from __future__ import annotations

import re
from typing import NamedTuple

from inference.scoring.maths.limits import MAX_DEPTH, MAX_DIGITS, LimitError, NotMathError
from inference.scoring.maths.units import DEGREES, PERCENT, is_unit_word

GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma", "Delta", "Theta",
    "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell",
}  # fmt: skip
FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "ln": "log", "log": "log", "lg": "lg", "exp": "exp", "abs": "abs", "floor": "floor", "ceil": "ceil", "min": "min",
    "max": "max", "gcd": "gcd", "lcm": "lcm",
}  # fmt: skip
RELATIONS = {
    "=": "=", "==": "=", "\\approx": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "\\le": "<=", "\\ge": ">=",
    "!=": "!=", "\\ne": "!=", "\\in": "in", "\\coloneqq": "=", ":=": "=",
}  # fmt: skip
ACCENTS = {"\\" + name for name in ["vec", "overrightarrow", "overline", "bar", "hat", "widehat", "tilde", "dot"]}
OPENERS = {"(", "[", "{", "\\{", "\\lbrace", "|", "\\lvert", "\\lfloor", "\\lceil", "\\langle", "\\lbrack"}
CLOSERS = {")", "]", "}", "\\}", "\\rbrace", "\\rangle", "\\rbrack"}
_SEPARATORS = {",": ",", ";": ",", "\\land": "and", "\\lor": "or", "\\vee": "or", "\\wedge": "and"}
TEXT_SEPARATORS = {"and": "and", "or": "or", ",": ",", ", and": "and", ", or": "or", "&": "and"}
_NAME = re.compile("[A-Z]{3,}|[IVXL]{2,}")  # HTH, triangle ABC, IX: the order of the letters counts
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4}(?![\d.A-Za-z]))?)
    |(?P<command>\\(?:[A-Za-z]+|.))
    |(?P<word>[A-Za-z]+)
    |(?P<op>\*\*|<=|>=|!=|==|:=|[-+*/^_(){}\[\]|,;:=<>!%&'])""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """One token: kind "number", "command" (with its backslash), "letter", "op" or "text" (content of \\text)."""

    kind: str
    value: str
    spaced: bool  # a blank stood before it


END = Token("end", "", False)


def tokens(source: str, in_text: bool = False) -> list[Token]:
    """The tokens of a normalised answer. NotMathError for characters that mathematics does not use.

    In a text command letters side by side are a word ("red", "SE", "M4") and no product.
    """
    result: list[Token] = []
    position, spaced = 0, False
    while position < len(source):
        match = _TOKEN.match(source, position)
        if not match:
            raise NotMathError(f"the character {source[position]!r}")
        kind, value = match.lastgroup or "", match.group()
        position = match.end()
        if kind == "space":
            spaced = True
            continue
        if kind == "number" and len(value) > MAX_DIGITS:
            raise LimitError(f"a number of {len(value)} digits (limit {MAX_DIGITS})")
        if in_text and kind == "number" and not spaced and result and result[-1].kind == "letter":
            raise NotMathError(f"the word {result[-1].value + value!r}")
        if value == "\\text":
            content, position = _braced(source, position)
            result.append(Token("text", content, spaced))
        elif kind == "word" and [token.value for token in result[-2:]] in (["\\begin", "{"], ["\\end", "{"]):
            result.append(Token("letter", value, spaced))
        elif kind == "word":
            parts = _split_word(value, spaced, result)
            if in_text and len(parts) == len(value) > 1:
                raise NotMathError(f"the word {value!r}")
            result += parts
        else:
            result.append(Token(kind, value, spaced))
        spaced = False
    return result


def _braced(source: str, position: int) -> tuple[str, int]:
    while position < len(source) and source[position] == " ":
        position += 1
    depth = 0
    for i in range(position, len(source)):
        depth += (source[i] == "{") - (source[i] == "}")
        if depth == 0 and i > position:
            return source[position + 1 : i].strip(), i + 1
        if depth == 0:
            break
    raise NotMathError("a text command without braces")


def _split_word(word: str, spaced: bool, before: list[Token]) -> list[Token]:
    """A run of letters: a known name, a unit or word, a name in capitals, or a product of one-letter unknowns."""
    lower = word.lower()
    if len(word) == 1:
        return [Token("letter", word, spaced)]
    after_value = bool(before) and (before[-1].kind in ("number", "letter") or before[-1].value in (")", "}", "\\pi"))
    if lower == "in" and before and before[-1].kind != "number":
        return [Token("command", "\\in", spaced)]
    if after_value and (is_unit_word(word) or lower in DEGREES | PERCENT or lower in ("am", "pm")):
        return [Token("text", word, spaced)]
    if lower in ("pi", "infinity", "infty", "inf", "oo", "sqrt", "cbrt", "binom", "choose"):
        name = {"infinity": "infty", "inf": "infty", "oo": "infty"}.get(lower, lower)
        return [Token("command", "\\" + name, spaced)]
    if word in FUNCTIONS or word in GREEK:
        return [Token("command", "\\" + word, spaced)]
    if lower in ("and", "or"):
        return [Token("text", lower, spaced)]
    if before and before[-1].kind == "text":  # "square cm", "miles per hour"
        return [Token("text", word, spaced)]
    for name in ("sqrt", "pi", "sin", "cos", "tan", "log", "ln"):
        # "2pix", "sinx": a known name and one unknown, in either order.
        if lower == name + lower[-1] and len(word) == len(name) + 1:
            return [*_split_word(word[:-1], spaced, before), Token("letter", word[-1], False)]
        if lower == lower[0] + name and len(word) == len(name) + 1:
            return [Token("letter", word[0], spaced), *_split_word(word[1:], False, before)]
    if len(word) >= 4 and re.search("[aeiouyAEIOUY]", word):
        if after_value and spaced and before[-1].kind == "number":
            return [Token("text", word, spaced)]
        raise NotMathError(f"the word {word!r}")
    if _NAME.fullmatch(word):
        return [Token("letter", word, spaced)]
    return [Token("letter", letter, spaced and i == 0) for i, letter in enumerate(word)]


class TokenStream:
    """Tokens under a cursor, with a count of the open rules of the grammar."""

    def __init__(self, stream: list[Token]) -> None:
        self.stream = stream
        self.at = 0
        self.depth = 0
        self.bars = 0  # open |...|

    # --- tokens -------------------------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> Token:
        index = self.at + ahead
        return self.stream[index] if index < len(self.stream) else END

    def take(self) -> Token:
        token = self.peek()
        if token is END:
            raise NotMathError("an end in the middle")
        self.at += 1
        return token

    def accept(self, *values: str) -> bool:
        if self.peek().kind in ("op", "command") and self.peek().value in values:
            self.at += 1
            return True
        return False

    def expect(self, *values: str) -> None:
        if not self.accept(*values):
            raise NotMathError(f"{self.peek().value!r} where {values[0]!r} was expected")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise LimitError(f"nesting of more than {MAX_DEPTH}")

    def separator(self) -> str | None:
        token = self.peek()
        if token.kind == "text":
            return TEXT_SEPARATORS.get(token.value.casefold())
        return _SEPARATORS.get(token.value) if token.kind in ("op", "command") else None
