"""Finding the final answer in a model's text.

In order: the last balanced box (boxes joined by a comma, "and" or "or" are one answer), an `<answer>` element, the last
line with "answer:", "answer is" (no denial before it) or "####", or the one below the heading "Final Answer", a closing
sentence ("Therefore ... is 7"), or a text that is nothing but one expression. Anything else is no answer: a number
somewhere in the prose gets no credit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference.scoring.maths.latex import is_maths, is_plain_quantity
from inference.scoring.maths.limits import MAX_ANSWER_CHARS

# \boxed, \fbox, \framebox, and the garbled \beginboxed that some models write.
_BOX = re.compile(r"\\(?:begin)?(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_BARE_BOX = re.compile(r"-?[A-Za-z0-9./]+")
_JOINER = re.compile(r"[\s$]*(?:,|;|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)[\s$]*(?:(?:and|or)\b[\s$]*)?")
_HEDGE = re.compile(r"\bor\b")
_SEVERAL = re.compile(r"[,;]|\band\b")
_MAX_JOINER = 40  # characters between two boxes that are one answer
_CHAT_TOKEN = re.compile(
    r"<\|[A-Za-z_]{2,40}\|>(?:(?:assistant|user|system)\b)?|</s>|<(?:end|start)_of_turn>(?:(?:model|user)\b)?"
)
_THINK = re.compile(r"<(/?)(?:think|thinking)>", re.IGNORECASE)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_ANSWER = re.compile(
    r"^[ \t#*_]{0,12}final answer[ \t*_]{0,12}$|"
    r"(?:\banswer(?:\s+(?:to|for)\s[^.:=\n]{1,80}?)?)[*_\s]*(?:(?:is|are)\b|:|=|：)[*_\s]*(?::\s*)?|^[ \t]*####[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
# "I do not think that the", "if the" before "answer is"
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|doubt|if|whether|unless)|n['’]t)"
    r"(?:\s+(?:really|think|believe|say|mean|claim|agree|follow|sure|certain|clear|know|true|the case|that|if|whether|conclude)\b){0,5}"
    r"\s+(?:(?:the|that|this|my|our|its|your)\s+)?(?:(?:final|correct|right)\s+)?$",
    re.IGNORECASE,
)
_MAX_DENIAL = 120  # characters before "answer is" that are looked at
_CLOSING = re.compile(
    r"(?:so|thus|therefore|hence|consequently|finally|in conclusion|we conclude|it follows|this means)\b[,:]?\s*",
    re.IGNORECASE,
)
_AFTERTHOUGHT = re.compile(r",\s*(?:and\s+)?not\b.*", re.DOTALL)  # "42, not 43"
_SENTENCE_END = re.compile(r"(?<=[^\d\s])[.!?](?=\s)|(?<=\d)[.!?](?=\s+[A-Z\\$*]|\s*$)|\n")
_VERB = re.compile(r"(?:\b(?:is|are|equals|be|equal\s+to|becomes|gives)\b|≈|\\approx)[:\s]*", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """An answer in a text: `readings` from the widest span to the narrowest, `where` it stood, or why there is none."""

    readings: tuple[str, ...]
    where: str
    status: str = "ok"


def brace_pairs(text: str) -> dict[int, int]:
    """Where each closed brace of a text closes, in one pass. Escaped braces do not count."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs


def boxes(text: str) -> list[tuple[int, int, str]]:
    """All outermost balanced boxes, as (start, end, content)."""
    found: list[tuple[int, int, str]] = []
    pairs = brace_pairs(text)
    position = 0
    while match := _BOX.search(text, position):
        position = match.end()
        if text[position : position + 1] == "{":
            # A box that never closes was cut off; an earlier box still counts, and a complete one inside it.
            if (end := pairs.get(position)) is not None:
                found.append((match.start(), end + 1, text[position + 1 : end].strip()))
                position = end + 1
        elif bare := _BARE_BOX.match(text, position):
            found.append((match.start(), bare.end(), bare.group()))
            position = bare.end()
    return found


def visible_text(text: str) -> tuple[str, bool]:
    """The text after the reasoning block and before any further chat turn; and whether the reasoning was left open."""
    text = text.replace("\x00", "")
    marks = list(_THINK.finditer(text))
    if marks:
        if not marks[-1].group(1):
            return "", True
        text = text[marks[-1].end() :]
    start = 0
    for match in _CHAT_TOKEN.finditer(text):
        if text[start : match.start()].strip():
            return text[start : match.start()].strip(), False
        start = match.end()
    return text[start:].strip(), False


def find_answer(text: str) -> Found:
    """The final answer of a model's text. Never raises."""
    visible, open_reasoning = visible_text(text)
    if open_reasoning:
        return Found((), "none", "unclosed_reasoning")
    found = boxes(visible)
    if found:
        last = len(found) - 1
        first = last
        while first > 0 and _joined(visible[found[first - 1][1] : found[first][0]]):
            first -= 1
        return Found((", ".join(content for _, _, content in found[first:]),), "boxed")
    tags = list(_TAG.finditer(visible))
    if len(tags) > 1 and tags[-1].group(1) and (readings := _narrow(visible[tags[-2].end() : tags[-1].start()])):
        return Found(readings, "answer tag")
    marks = list(_ANSWER.finditer(visible))
    for mark in reversed(marks):
        if _DENIED.search(visible[max(mark.start() - _MAX_DENIAL, 0) : mark.start()]):
            continue
        line = visible[mark.end() :].lstrip().split("\n", 1)[0]
        if readings := _narrow(line):
            return Found(readings, "answer line")
    sentences = [part for part in _SENTENCE_END.split(visible) if part and part.strip(" *_$.")]
    if sentences and (closing := _CLOSING.match(last_sentence := sentences[-1].strip(" *_"))):
        readings = _narrow(last_sentence[closing.end() :])
        if readings := readings if readings and is_maths(readings[0]) else readings[1:]:
            return Found(readings, "closing sentence")
    if _is_bare(visible):
        return Found((_trim(visible),), "whole text")
    return Found((), "none", "no_answer")


def _joined(between: str) -> bool:
    return len(between) <= _MAX_JOINER and _JOINER.fullmatch(between) is not None


def _trim(text: str) -> str:
    text = text.strip()
    for bold in ("**", "__"):
        if len(text) > 4 and text.startswith(bold) and text.endswith(bold):
            text = text.strip(bold[0]).strip()
    return text.strip("`").rstrip(".。").rstrip("*_").strip()


def _narrow(line: str) -> tuple[str, ...]:
    """A line as readings: all of it, what follows its last verb, its last formula, what follows its last equals sign."""
    line = _trim(line[-MAX_ANSWER_CHARS:])
    if not line or _BOX.search(line):  # a box that never closed is a cut answer
        return ()
    readings = [line]
    if _HEDGE.search(line):
        return (line,)  # "5 or 7" is one answer with two values; its last part alone gets no credit
    if shorter := _trim(_AFTERTHOUGHT.sub("", line)):
        readings.append(shorter)
    if parts := [match.end() for match in _VERB.finditer(readings[-1])]:
        readings.append(_trim(readings[-1][parts[-1] :]))
    formulas = re.findall(r"\$([^$]+)\$", readings[-1])
    if len(formulas) == 1:
        readings.append(formulas[0].strip())
    tail = readings[-1].rpartition("=")
    if tail[1] and tail[0][-1:] not in ("<", ">", "!") and not _SEVERAL.search(readings[-1]) and _may_be_asked(tail[0]):
        readings.append(_trim(tail[2].strip("$ ")))
    return tuple(dict.fromkeys(reading for reading in readings if reading))


def _may_be_asked(left: str) -> bool:
    """Whether what stands left of an equals sign may be what a question asks for: 256+37, m+n or words, but not x^2 or 2x."""
    term = left.rpartition("=")[2].strip("$ ")
    if not is_maths(term):  # words; their last one may be a formula
        term = (term.split() or [""])[-1].strip("$")
    return not is_maths(term) or is_plain_quantity(term)


def _is_bare(text: str) -> bool:
    """Whether the whole text is one word or one formula."""
    text = _trim(text)
    if not text or len(text) > 200 or _BOX.search(text):
        return False
    if re.fullmatch(r"\$\$?[^$]+\$\$?|\\\[.+\\\]|\\\(.+\\\)", text, re.DOTALL):
        return True
    if "\n" in text:
        return False
    return re.fullmatch(r"\w+", text) is not None or is_maths(text)
