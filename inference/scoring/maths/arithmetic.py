"""The arithmetic half of the grammar: sums, products, powers, functions, numbers and names."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction

from inference.scoring.maths.lexer import (
    ACCENTS,
    CLOSERS,
    END,
    FUNCTIONS,
    GREEK,
    OPENERS,
    TEXT_SEPARATORS,
    Token,
    TokenStream,
    tokens,
)
from inference.scoring.maths.limits import MAX_POSTFIX, LimitError, NotMathError
from inference.scoring.maths.tree import MINUS_ONE, Tree, constant, negated, number, scaled
from inference.scoring.maths.units import DEGREES, PERCENT, SCALES, canonical_unit, is_unit


class Arithmetic(TokenStream):
    """A recursive-descent parser over tokens. `latex.Parser` adds brackets, lists and relations."""

    def separated(self, closers: tuple[str, ...]) -> Tree:
        raise NotImplementedError

    def bracket(self, opener: str) -> Tree:
        raise NotImplementedError

    def environment(self) -> Tree:
        raise NotImplementedError

    # --- arithmetic ---------------------------------------------------------------------------------------------

    def expression(self) -> Tree:
        self.deeper()
        parts = [self.signed()]
        while self.peek().kind in ("op", "command") and self.peek().value in ("+", "-", "\\pm", "\\mp"):
            if self.peek().value == "-" or self.peek().value == "+":
                sign = self.take().value
                term = self.signed()
                parts.append(negated(term) if sign == "-" else term)
            else:
                parts.append(self.signed())
        self.depth -= 1
        ratio = [parts[0] if len(parts) == 1 else ("add", tuple(parts))]
        if self.peek() == Token("op", ":", self.peek().spaced) and self.peek(1) is not END and not self.bars:
            while self.accept(":"):
                ratio.append(self.term())
            return ("ratio", tuple(ratio))
        return ratio[0]

    def signed(self) -> Tree:
        sign, wrap = 1, []
        while self.peek().kind in ("op", "command") and self.peek().value in ("+", "-", "\\pm", "\\mp"):
            value = self.take().value
            if value == "-":
                sign = -sign
            elif value != "+":
                wrap.append(value[1:])
        term = self.term()
        if sign < 0:
            term = negated(term)
        for name in wrap[:1]:
            term = (name, term)
        return term

    def term(self) -> Tree:
        factors = [self.factor()]
        while True:
            token = self.peek()
            if token.kind in ("op", "command") and token.value in ("*", "\\cdot", "\\times", "\\ast"):
                self.at += 1
                factors.append(self.factor())
            elif token.kind in ("op", "command") and token.value in ("/", "\\div"):
                self.at += 1
                factors.append(("pow", self.factor(), MINUS_ONE))
            elif self.mixed_fraction(factors[-1]):
                factors[-1] = ("add", (factors[-1], self.factor_fraction()))
            elif self.starts_factor():
                factors.append(self.factor(implicit=True))
            elif self.text_is_factor():
                factors.append(self.power())
            else:
                break
        tree = factors[0] if len(factors) == 1 else scaled(tuple(factors))
        return self.with_units(tree)

    def mixed_fraction(self, before: Tree) -> bool:
        """Whether an integer literal is followed by a fraction of integers: 2\\frac{1}{2} or 2 1/2."""
        if before[0] != "num" or before[2] is not None or self.stream[self.at - 1].kind != "number":
            return False
        if self.peek().value == "\\frac":
            rest = [t.value for t in self.stream[self.at + 1 : self.at + 7]]
            match = re.match(r"\{(\d+)\}\{(\d+)\}|\{(\d+)\}(\d)|(\d)\{(\d+)\}|(\d)(\d)$|(\d) (\d)", "".join(rest))
            found = [int(group) for group in match.groups() if group] if match else []
            if not match and rest and re.fullmatch(r"\d\d", rest[0]):
                found = [int(rest[0][0]), int(rest[0][1])]
            return len(found) == 2 and found[0] < found[1]
        three = [self.peek(i) for i in range(3)]
        return [t.kind for t in three] == ["number", "op", "number"] and three[1].value == "/" and three[0].spaced

    def factor_fraction(self) -> Tree:
        if self.peek().value == "\\frac":
            return self.power()
        top, _, bottom = self.power(), self.take(), self.power()
        return ("mul", (top, ("pow", bottom, MINUS_ONE)))

    def text_is_factor(self) -> bool:
        """Whether a text after a factor is an unknown or pi: 5\\text{x}, not 5\\text{m}."""
        token = self.peek()
        single = re.fullmatch("[A-Za-z]", token.value) and not is_unit(token.value)
        return token.kind == "text" and bool(single or token.value.casefold() == "pi")

    def with_units(self, tree: Tree) -> Tree:
        """Percent signs, degrees, words such as "million" and unit words after a term."""
        words = []
        while self.peek().kind == "text" and not self.separator():
            word = self.take().value
            if self.accept("^", "**"):
                word += "^" + (self.group_text() if self.accept("{") else self.take().value)
            words.append(word)
        if self.accept("%"):
            return ("pct", tree)
        if not words:
            return tree
        text = " ".join(words)
        while (scale := SCALES.get(text.partition(" ")[0].casefold().removesuffix("s"))) is not None:
            tree, text = ("mul", (tree, constant(scale))), text.partition(" ")[2]
        if not text:
            return tree
        if text.casefold() in PERCENT:
            return ("pct", tree)
        if text.casefold() in DEGREES:
            return ("deg", tree)
        if not is_unit(text):
            raise NotMathError(f"the words {text!r}")
        following = self.peek(1)
        if self.peek().value == "/" and (following.kind == "text" or canonical_unit(f"{text}/{following.value}")):
            self.at += 2  # 5 m / s
            text += "/" + following.value
        return ("unit", tree, text)

    def group_text(self) -> str:
        words = []
        while self.peek() is not END and not self.accept("}"):
            words.append(self.take().value)
        return "".join(words)

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind in ("number", "letter"):
            return not (
                token.value == "U"
                and self.at
                and self.stream[self.at - 1].value in CLOSERS
                and self.peek(1).value in OPENERS
            )
        if token.kind == "op":
            return token.value in ("(", "{", "[") or (token.value == "|" and not self.bars)
        name = token.value[1:]
        return token.kind == "command" and (
            name in GREEK or name in FUNCTIONS or token.value in ACCENTS or token.value in OPENERS
            or name in ("frac", "sqrt", "cbrt", "binom", "pi", "infty", "begin", "mathbb")
        )  # fmt: skip

    def factor(self, implicit: bool = False) -> Tree:
        if not implicit and self.peek().kind in ("op", "command") and self.peek().value in ("+", "-", "\\pm"):
            return self.signed_factor()
        return self.power()

    def signed_factor(self) -> Tree:
        self.deeper()
        sign = self.take().value
        inner = self.factor()
        self.depth -= 1
        return negated(inner) if sign == "-" else inner if sign == "+" else ("pm", inner)

    def power(self) -> Tree:
        self.deeper()
        tree = self.atom()
        for count in itertools.count():
            if count > MAX_POSTFIX:
                raise LimitError(f"more than {MAX_POSTFIX} factorials, percent signs or powers in a row")
            if self.accept("!"):
                tree = ("call", "factorial", (tree,))
            elif self.accept("%"):
                tree = ("pct", tree)
            elif self.peek().value in ("^", "**") and self.peek(1).value == "\\circ":
                self.at += 2
                tree = ("deg", tree)
                if self.peek().kind == "letter" and self.peek().value in "CF" and self.peek(1) is END:
                    self.at += 1
            elif self.accept("^", "**"):
                if self.peek().value in ("\\prime", "\\ast"):
                    self.at += 1
                    continue
                tree = ("pow", tree, self.exponent())
            else:
                break
        self.depth -= 1
        return tree

    def exponent(self) -> Tree:
        if self.peek().kind == "op" and self.peek().value == "{":
            return self.power_of_group()
        if self.peek().kind == "op" and self.peek().value in ("+", "-"):
            return self.signed_factor()
        return self.power()

    def power_of_group(self) -> Tree:
        """{...}, with towers such as 2^{3}^{2} read from the right."""
        tree = self.argument()
        return ("pow", tree, self.exponent()) if self.accept("^", "**") else tree

    def argument(self, one_digit: bool = False) -> Tree:
        """The argument of a command: a group, or one token; of \\frac12 each digit is one."""
        token = self.peek()
        if token.kind == "number" and one_digit and re.fullmatch(r"\d{2,}", token.value):
            self.stream[self.at] = Token("number", token.value[1:], False)
            return number(token.value[0])
        self.deeper()
        if self.accept("{"):
            tree = self.expression()
            self.expect("}")
        else:
            tree = self.atom()
        self.depth -= 1
        return tree

    # --- atoms --------------------------------------------------------------------------------------------------

    def atom(self) -> Tree:
        token = self.take()
        if token.kind == "number":
            return self.after_number(token.value)
        if token.kind == "letter":
            return self.name(token.value)
        if token.kind == "text":
            if self.at > 1 and token.value.casefold() in TEXT_SEPARATORS:
                raise NotMathError("a separator where a value was expected")
            self.deeper()
            inner = type(self)(tokens(token.value, in_text=True))
            inner.depth = self.depth
            tree = inner.separated(())
            if inner.peek() is not END:
                raise NotMathError(f"the text {token.value!r}")
            self.depth -= 1
            return tree
        if token.kind == "op" or token.value in OPENERS:
            return self.bracket(token.value)
        return self.command(token.value[1:])

    def after_number(self, digits: str) -> Tree:
        if self.peek().value in ("\\overline", "\\bar") and "." in digits:
            self.at += 1
            self.accept("{")
            period = self.take().value
            self.accept("}")
            if not period.isdigit():
                raise NotMathError("an overline over something else than digits")
            shift = 10 ** len(digits.partition(".")[2])
            return ("num", Fraction(digits + "0") + Fraction(int(period), shift * (10 ** len(period) - 1)), None)
        if self.peek().value == "_" and digits.isdigit():
            self.at += 1
            base = self.group_text() if self.accept("{") else self.take().value
            return ("base", digits.lstrip("0") or "0", base)
        return number(digits)

    def name(self, letter: str) -> Tree:
        if self.accept("'"):
            letter += "'"
        subscript = ""
        if self.accept("_"):
            subscript = self.group_text() if self.accept("{") else self.take().value
            power = re.fullmatch(r"\d{1,9}", subscript) and letter == "C" and self.peek().value == "^"
            if power:  # C_{10}^{3}, a binomial coefficient
                self.at += 1
                return ("call", "binom", (number(subscript), self.argument()))
            return ("sym", f"{letter}_{subscript}")
        return ("const", letter) if letter in ("e", "i") else ("sym", letter)

    def command(self, name: str) -> Tree:
        if name == "frac":
            top = self.argument(one_digit=True)
            return ("mul", (top, ("pow", self.argument(one_digit=True), MINUS_ONE)))
        if name == "binom":
            return ("call", "binom", (self.argument(one_digit=True), self.argument(one_digit=True)))
        if name in ("sqrt", "cbrt"):
            index: Tree = number("2" if name == "sqrt" else "3")
            if self.accept("["):
                index = self.expression()
                self.expect("]")
            return ("call", "root", (self.argument(), index))
        if name == "pi":
            return ("const", "pi")
        if name == "infty":
            return ("const", "inf")
        if name in ("emptyset", "varnothing"):
            return ("set", ())
        if name == "mathbb":
            return ("space", self.group_text() if self.accept("{") else self.take().value)
        if name in GREEK:
            return self.name("\\" + name)
        if "\\" + name in ACCENTS:
            return (
                "sym",
                name.replace("overrightarrow", "vec")
                + " "
                + (self.group_text() if self.accept("{") else self.take().value),
            )
        if name in FUNCTIONS:
            return self.function(FUNCTIONS[name])
        if name == "begin":
            return self.environment()
        raise NotMathError(f"the command \\{name}")

    def function(self, name: str) -> Tree:
        base = power = None
        for _ in range(2):
            if self.accept("_"):
                base = self.argument()
            elif self.peek().value == "^" and self.peek(1).value != "\\circ":
                self.at += 1
                power = self.exponent()
        self.deeper()
        if self.peek().value == "(" or (self.peek().value == "{" and name not in ("min", "max")):
            self.at += 1
            inner = self.separated((")", "}"))
            self.expect(")", "}")
            arguments = inner[2] if inner[0] == "list" else (inner,)
            while self.peek().value in ("!", "^") and self.peek(1).value == "\\circ":
                self.at += 2
                arguments = (("deg", arguments[0]),)
        else:
            factors = [self.factor()]
            while self.starts_factor() and self.peek().value[1:] not in FUNCTIONS and self.peek().value != "(":
                factors.append(self.power())
            arguments = (factors[0] if len(factors) == 1 else ("mul", tuple(factors)),)
        self.depth -= 1
        if name == "lg":
            name, base = "log", number("10")
        tree: Tree = ("call", name, (*arguments, base) if name == "log" and base else arguments)
        if power == MINUS_ONE and name in ("sin", "cos", "tan"):
            return ("call", "a" + name, arguments)
        return tree if power is None else ("pow", tree, power)
