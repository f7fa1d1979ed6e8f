"""Short text answers: exact match and F1, by the official rule and by ours.

    from inference.scoring.qa import grade

    verdict = grade("So the answer is \\\\boxed{The Beatles}.", ["Beatles"])
    verdict.details  # {"em": 1.0, "f1": 1.0, "official_em": 1.0, "official_f1": 1.0}

The official rule is that of the SQuAD and HotpotQA scripts: lower case, ASCII punctuation deleted, articles dropped. It
counts -5 as 5, 3.14 as 314, an empty answer as "The", and misses curly quotes and full-width digits. Our rule reads
Unicode (compatibility forms, any punctuation), keeps signs and decimal points, reads 1,000 as 1000, "&" as "and" and "%"
as "percent", drops an article only in front of another word, and matches words with or without a blank or hyphen between
them ("Spider-Man", "Spiderman"). Accents count in both. An empty answer never scores in ours.

The answer in a model's text is the last balanced box, else an `<answer>` element, else what follows the last "answer:"
or "answer is", else the last line that is not empty. A whole text that is itself a gold answer is taken as it is.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from inference.scoring.choice import unwrap
from inference.scoring.maths.extract import boxes, visible_text
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

_MAX_ANSWER = (
    2_000  # characters of an answer that are compared: far beyond any short answer, and a bound on hostile texts
)
_CLOSED_ANSWERS = ("yes", "no", "noanswer")  # the HotpotQA script gives no partial credit for these
_ARTICLES = ("a", "an", "the")
_ANSWER = re.compile(
    r"\banswer(?:\s+(?:to|for)\s[^.:=\n]{1,80}?)?[*_\s]*(?:\bis\b|:|=)[*_\s]*(?::\s*)?|^[ \t]*####[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z])")
_MARKS = re.compile(r"\\([&%$#_{}])|\\(?:left|right|quad|displaystyle)(?![A-Za-z])|\\[,;:! ]")
_PAIRED = re.compile(r"(?<!\w)(\*\*|__|\*|`|_|\$)(?=\S)([^$]{1,300}?)(?<=\S)\1(?!\w)")
_BULLET = re.compile(r"^[ \t>#•·]+|^[-*][ \t]+")

_DASHES = "‐‑‒–—―−﹘﹣－"
_DELETED = "'’‘ʼ`´*"  # O'Neal, O’Neal and ONeal are one word, so are M*A*S*H and MASH
_TABLE = {
    **dict.fromkeys(map(ord, _DASHES), "-"),
    **dict.fromkeys(map(ord, _DELETED), ""),
    ord("&"): " and ",
    ord("%"): " percent ",
}
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)")
_SIGN = re.compile(r"(?<![^\s(\[{\"“«])-(?=\.?\d)")
_TOKEN = re.compile(r"\x00?(?:[^\s\x00.+#]+(?:(?<=\d)\.(?=\d)[^\s\x00.+#]+)*(?:(?<=[^\W\d])[+#]+(?!\w))?|(?<!\d)\.\d+)")


def official_normal(text: str) -> str:
    """The official normal form: lower case, no ASCII punctuation, no articles, single blanks."""
    text = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def careful_words(text: str) -> list[str]:
    """Our normal form, as words. Applied to its own words joined by blanks, it changes nothing."""
    text = text[:_MAX_ANSWER].replace("\x00", "")
    for _ in range(2):  # folding case can make letters that fold again
        text = unicodedata.normalize("NFKC", text).casefold()
    folded = unicodedata.normalize("NFKC", text)
    text = _GROUPED.sub(lambda match: match.group().replace(",", ""), folded.translate(_TABLE))
    text = _SIGN.sub("\x00", text)  # no sign of punctuation, so that the next line keeps it
    text = "".join(char if char in ".+#\x00" or unicodedata.category(char)[0] in "LNM" else " " for char in text)
    words = [word.replace("\x00", "-") for word in _TOKEN.findall(text)]
    if not words:
        return folded.split()  # an answer of marks alone, such as the name "!!!"
    words = ["0" + word if word.startswith(".") else word.replace("-.", "-0.") for word in words]
    return [word for at, word in enumerate(words) if word not in _ARTICLES or at == len(words) - 1]


def official_em(answer: str, gold: str) -> float:
    """Official exact match, 0 or 1."""
    return float(official_normal(answer) == official_normal(gold))


def official_f1(answer: str, gold: str) -> float:
    """Official F1 over words, 0 to 1; "yes", "no" and "noanswer" get no partial credit."""
    return _f1(official_normal(answer).split(), official_normal(gold).split())


def careful_em(answer: str, gold: str) -> float:
    """Our exact match, 0 or 1."""
    key = _key(careful_words(answer))
    return float(key != "" and key == _key(careful_words(gold)))


def careful_f1(answer: str, gold: str) -> float:
    """Our F1 over words, 0 to 1; 1 wherever our exact match is."""
    return careful_em(answer, gold) or _f1(careful_words(answer), careful_words(gold))


def grade(text: str, gold: str | Sequence[str]) -> Verdict:
    """Grade a model's whole output against one or several gold answers, of which the best counts. Never raises on any text.

    `correct` is our exact match; `details` are em, f1, official_em and official_f1, each 0 to 1. The status is "ok",
    "no_answer" or "unclosed_reasoning". Raises `DataError` where every gold answer is blank.
    """
    golds = [one for one in ([gold] if isinstance(gold, str) else gold) if one.strip()]
    if not golds:
        raise DataError(f"gold is {str(gold)[:60]!r}; expected an answer, or a list with at least one")
    readings, where, status = _answers(text)
    answer = readings[0] if readings else ""
    for reading in readings:
        if _best(careful_em, reading, golds):
            answer = reading
            break
    details = {
        "em": _best(careful_em, answer, golds),
        "f1": _best(careful_f1, answer, golds),
        "official_em": _best(official_em, answer, golds),
        "official_f1": _best(official_f1, answer, golds),
    }
    return Verdict(bool(details["em"]), answer if readings else None, status, where, details)


def find_answer(text: str) -> str | None:
    """The short answer in a model's text, without markup; None if there is none. Never raises."""
    readings, _, _ = _answers(text)
    return readings[0] if readings else None


def _answers(text: str) -> tuple[list[str], str, str]:
    """(readings, where, status): the answer as it stands, its first sentence, and the whole text."""
    visible, open_reasoning = visible_text(text)
    if open_reasoning:
        return [], "none", "unclosed_reasoning"
    lines = [line for line in visible.splitlines() if line.strip()]
    where, span = _span(visible, lines)
    answer = _clean(span)
    if not answer:
        return [], f"{where}, empty", "no_answer"
    readings = [answer]
    if where in ("answer line", "last line") and (end := _SENTENCE_END.search(answer)):
        readings.append(answer[: end.start()])
    if len(visible) <= _MAX_ANSWER:
        readings += [_clean(visible), " ".join(visible.split())]
    return [reading for reading in dict.fromkeys(readings) if reading], where, "ok"


def _span(visible: str, lines: list[str]) -> tuple[str, str]:
    if found := boxes(visible):
        return "boxed", found[-1][2]
    tags = list(_TAG.finditer(visible))
    if len(tags) > 1 and tags[-1].group(1):
        return "answer tag", visible[tags[-2].end() : tags[-1].start()]
    for mark in reversed(list(_ANSWER.finditer(visible))):
        if line := visible[mark.end() : mark.end() + _MAX_ANSWER].lstrip().split("\n", 1)[0].strip(" \t\r*_"):
            return "answer line", line
    last = lines[-1].strip() if lines else ""
    return "last line", "" if _ANSWER.fullmatch(last.strip("*_# ")) else last


def _clean(text: str) -> str:
    """An answer without LaTeX and Markdown marks, on one line."""
    text = _MARKS.sub(lambda match: match.group(1) or " ", unwrap(text[:_MAX_ANSWER]))
    text = _BULLET.sub("", _PAIRED.sub(r"\2", text))
    return " ".join(text.split())


def _key(words: Sequence[str]) -> str:
    """Words without the blanks between them, except between digits: "acdc" is "ac dc", but 3-2 is not 32."""
    return re.sub(r"(?<!\d) | (?![\d-])", "", " ".join(words))


def _f1(answer: Sequence[str], gold: Sequence[str]) -> float:
    if answer != gold and any(" ".join(words) in _CLOSED_ANSWERS for words in (answer, gold)):
        return 0.0
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold)) if common else 0.0


def _best(measure: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    return max(measure(answer, gold) for gold in golds)
