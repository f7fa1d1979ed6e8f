"""The comparison rule of the reference implementation, as a second column beside ours. Too lenient and too strict at once.

It is here for one purpose: published numbers were made with it, so `accuracy_reference_rule` can stand beside them. Known
to be wrong: numbers with the same integer part count as equal (3/4 and 1/4), a choice that cannot be read counts as "A".
Rebuilt from a description of its behaviour; the date rule, which needs a further package, is left out.
"""

from __future__ import annotations

import re
import string
from fractions import Fraction

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_WRAPPERS = re.compile(r"\\(?:text|mathrm|mathbf|left|right|displaystyle|,|;|!|:|\s)|[${}]|\\[()\[\]]")
_CHOICE_WORD = re.compile(r"(?:answer|option|choice)\s*:?\s*\(?([A-D])\b", re.IGNORECASE)
_CHOICE_START = re.compile(r"\s*\(?([A-D])\b", re.IGNORECASE)
_MAX_DIGITS = 1_000  # a longer first number is cut: Python's own limit for reading integers is 4,300


def reference_correct(text: str, gold: str, task: str) -> bool:
    """Whether the reference would count a text as right. `task` is "math", "choice" (gold: a letter) or "qa"."""
    if task == "choice":
        return _choice(text) == _choice(gold)
    answer = _free_answer(text)
    if task == "math":
        rules = (_integer_part, _bare_latex, _without_blanks, _digits)
    elif task == "qa":
        rules = (_exact_match, lambda value: value.strip().lower())
    else:
        raise ValueError(f"task is {task!r}; expected math, choice or qa")
    return any(rule(answer) == rule(gold) != "" for rule in rules)


def _free_answer(text: str) -> str:
    """The last box without inner braces; else up to the last brace of its line; else the "Final Answer:" line; else all."""
    if flat := re.findall(r"\\boxed\{([^{}]*)\}", text):
        return flat[-1].strip()
    for line in reversed(text.splitlines()):
        if match := re.search(r"\\boxed\{(.*)\}", line):
            return match.group(1).strip()
    if lines := re.findall(r"final answer\s*:(.*)", text, re.IGNORECASE):
        return lines[-1].strip()
    return text.strip()


def _integer_part(value: str) -> str:
    match = _NUMBER.search(value)
    if not match:
        return ""
    number = match.group().replace(",", "")[:_MAX_DIGITS]
    try:
        return str(int(Fraction(number)))
    except (ValueError, ZeroDivisionError):  # 3/0, or a fraction cut in the middle
        return ""


def _bare_latex(value: str) -> str:
    return _WRAPPERS.sub("", value).strip()


def _without_blanks(value: str) -> str:
    return re.sub(r"\s", "", value)


def _digits(value: str) -> str:
    return re.sub(r"\D", "", value)


def _exact_match(value: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    value = "".join(char for char in value.lower() if char not in string.punctuation)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", value).split())


def _choice(text: str) -> str:
    lines = text.strip().splitlines()
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    for part in (*boxed[-1:], *lines[-1:], text):
        if match := _CHOICE_WORD.search(part) or _CHOICE_START.match(part):
            return match.group(1).upper()
    return "A"
