"""Text of an answer -> the same answer without its dress: spacing, delimiters, font commands, look-alike characters."""

from __future__ import annotations

import functools
import re

_CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "∙": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ",
    "√": r"\sqrt ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∖": r"\setminus ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "∠": r"\angle ", "°": r"^\circ ", "º": r"^\circ ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
    "γ": r"\gamma ", "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "σ": r"\sigma ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⁄": "/", "∕": "/", "¬": r"\neg ", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "％": "%", "，": ", ", "；": "; ",
    "：": ":", "（": "(", "）": ")", "＝": "=", "＋": "+", "。": ".", "、": ", ", "\u00a0": " ", "\u202f": " ", "\u2009": " ",
    "€": "", "£": "", "¥": "", "\u200b": "",
}  # fmt: skip
_TRANSLATE = str.maketrans(_CHARACTERS)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FUNCTIONS = [
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "arcsin",
    "arccos",
    "arctan",
    "ln",
    "log",
    "lg",
    "exp",
    "sqrt",
    "min",
    "max",
    "gcd",
    "lcm",
    "det",
]

_RULES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern, re.DOTALL), replacement)
    for pattern, replacement in [
        (r"\\\\\s*\[-?[\d.]+\s*(?:pt|em|ex|mm|cm)\]", r"\\\\"),  # row distance
        (r"(?<=\d)\s*\{\s*,\s*\}\s*(?=\d)|(?<=\d)\s*,\s*(?:\\!\s*)+(?=\d)|(?<=\d)\s*(?:\\!\s*)+,\s*(?=\d)", ""),  # 14{,}916
        (r"\\\$", ""),  # currency
        (r"\$", ""),
        (r"(?<!\\)\\[()]|(?<!\\)\\[\[\]]", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|mathstrut|strut|hfill)(?![A-Za-z])", " "),
        (r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge)(?![A-Za-z])", " "),
        (r"\\(?:text)?color\s*\{[^{}]*\}", " "),
        (r"\\(?:f?boxed|fbox)(?=\s*\{)", ""),
        (r"\\(?:text(?:bf|it|rm|normal|sf|tt|sc|up)|mbox|hbox|emph|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname\*?)(?![A-Za-z])\s*", r"\\text"),
        (r"\\text\s*\{\s*(e|i|d|" + "|".join(_FUNCTIONS) + r")\s*\}", r" \1 "),
        (r"\\text\s*\{\s*\}", " "),
        (r"(?<=\d)\s*(?:\^\s*\{\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}|\^\s*\{\s*th\s*\}|\^?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\})", " "),
        (r"\\text\s*\{\s*(?:minus|negative)\s*\}|\b(?:minus|negative)\s+(?=[\d.])", "-"),
        (r"(?<=[\di}])\s*(?:\\[,;:> ]|~)\s*([msgLNJWVh](?:\s*\^\s*\{?[23]\}?)?)\s*$", r"\\text{ \1}"),  # 576\pi\;m^2
        (r"(?<!\\)\\(?:[,;:> !/]|q?quad(?![A-Za-z])|thinspace(?![A-Za-z])|enspace(?![A-Za-z]))|~|(?<!\\)\\\s", " "),
        (r"\\(?:leq|leqslant|lt?e)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geq|geqslant|gt?e)(?![A-Za-z])", r"\\ge "),
        (r"\\neq(?![A-Za-z])", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\%", "%"),
        (r"\^?\s*\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\s+", " "),
    ]
]  # fmt: skip


@functools.lru_cache(maxsize=64)  # one comparison asks for the same two texts several times
def normalise(text: str) -> str:
    """One plain form of an answer. Idempotent: the rules run until nothing changes (each one shortens or settles)."""
    while True:
        new = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+", lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
        new = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", new)
        new = re.sub("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]", lambda m: chr(ord(m.group()) - 0xFEE0), new)
        new = new.translate(_TRANSLATE)
        for pattern, replacement in _RULES:
            new = pattern.sub(replacement, new)
        new = new.lstrip(" :=").rstrip(" .,;:")
        if new.startswith("**") and new.endswith("**"):  # bold
            new = new.strip("*")
        if new == text:
            return new
        text = new


def compact(text: str) -> str:
    """`normalise` without the blanks that separate nothing; blanks between letters or digits stay ("2 1/2" is not 21/2)."""
    text = re.sub(r"(?<=\d) (?=\d{3}(?:[^\d/]|$))", "", normalise(text))
    return re.sub(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) ", "", text)


def plain_text(text: str) -> str:
    """An answer in words: no text commands, no case, no punctuation at the ends."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", normalise(text))
    marks = " .,;:?\"'()" + ("!" if re.search(r"[^\W\d_]", text) else "")  # 5! is not 5
    text = re.sub(r"[\s\\{}]+", " ", text).strip(marks).casefold()
    return re.sub(r"^(?:the|a|an) ", "", text)
