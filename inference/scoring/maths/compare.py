"""Two answers as texts -> the same or not, as cheaply as possible: strings, then words, then fractions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from inference.scoring.maths.equal import Judge, UndecidedError, equal
from inference.scoring.maths.latex import parse
from inference.scoring.maths.limits import MAX_ANSWER_CHARS, LimitError, NotMathError
from inference.scoring.maths.meaning import meaning
from inference.scoring.maths.normalise import compact, normalise, plain_text
from inference.scoring.maths.tree import Tree

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_THOUSANDS_BLANK = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,/])")
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?\s*(?:\\text)?\s*\{?\s*([ap])\.?\s*m\.?\s*\}?", re.IGNORECASE)

_MONTHS = "january february march april may june july august september october november december".split()
_DATE = re.compile(
    r"(?:(?P<day>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<month>[a-z]+)|(?P<first>[a-z]+) (?P<second>\d{1,2})(?:st|nd|rd|th)?)"
    r"(?:,? (?P<year>\d{4}))?"
)
_WORDS = re.compile(r"no|[a-z]{3,}(?: [a-z]+)*")  # shorter words may be products, where case matters
_LEAD = re.compile(
    r"(?P<text>\\text\s*\{)?\s*(?:the |final |correct )*answer(?: is\b|:)\s*:?\s*(?P<end>\})?", re.IGNORECASE
)
_NUMBER_AND_LETTER = re.compile(r"([-+]?[\d.]+) ([msgLNJWVh](?:\^\{?[23]\}?)?(?:/(?:s|h|min)(?:\^\{?2\}?)?)?)")
_PHRASES: dict[str, Tree] = {
    **dict.fromkeys(["no solution", "no solutions", "no real solution", "no real solutions", "empty set"], ("set", ())),
    **dict.fromkeys(["all real numbers", "all reals", "all real x", "set of all real numbers"], ("space", "R")),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison. `status` is "ok", or which limit stopped it; then `equal` is False."""

    equal: bool
    rule: str
    status: str = "ok"


def trees(answer: str) -> list[Tree]:
    """The readings of an answer: "1,234" is a number, or a list of two. Empty where it is no mathematics."""
    if len(answer) > MAX_ANSWER_CHARS:
        raise LimitError(f"{MAX_ANSWER_CHARS} characters")
    if phrase := _PHRASES.get(plain_text(answer)):
        return [phrase]
    source = _THOUSANDS_BLANK.sub(lambda match: match.group().replace(" ", ""), normalise(answer))
    if lead := _LEAD.match(source):  # \\boxed{\\text{The answer is } 42}
        source = ("\\text{" if lead["text"] and not lead["end"] else "") + source[lead.end() :]
    found: list[Tree] = []
    for reading in dict.fromkeys(_thousands_readings(source)):
        try:
            tree = meaning(parse(reading))
        except NotMathError:
            continue
        if tree not in found:
            found.append(tree)
    return found


def _thousands_readings(source: str) -> Iterator[str]:
    bracketed = source[:1] in ("(", "[") or source[:2] == "\\{" or (source[:1] == "{" and source[-1:] == "}")
    if not bracketed:
        yield _THOUSANDS.sub(lambda match: match.group().replace(",", ""), source)
    # "000" is no member of a list, so 1,000 has one reading only.
    if bracketed or not re.search(r"(?<!\d)\d{1,3}(?:,\d{3})*,0\d\d(?!\d)", source):
        yield source
    if match := _NUMBER_AND_LETTER.fullmatch(source):  # "5 m" is 5 metres, or 5 times m
        yield f"{match[1]}\\text{{ {match[2]}}}"


def compare_cheaply(left: str, right: str) -> Outcome | None:
    """Decide without any library; None where floating point or computer algebra is needed."""
    if left.strip() == right.strip():
        return Outcome(True, "string")
    if max(len(left), len(right)) > MAX_ANSWER_CHARS:
        return Outcome(False, f"limit: {MAX_ANSWER_CHARS} characters", "too_large")
    if (form := compact(left)) == compact(right):
        return Outcome(bool(form), "string")
    words = [plain_text(text) for text in (left, right)]
    if words[0] == words[1] and _WORDS.fullmatch(words[0]) and not any(_has_signs(text) for text in (left, right)):
        return Outcome(True, "text")
    if (dates := [_date(text) for text in words]) and any(dates):
        return Outcome(dates[0] == dates[1], "date")
    if (clocks := [_clock(text) for text in (left, right)]) and any(clocks):
        return Outcome(clocks[0] == clocks[1], "time of day")
    return compare_trees(left, right, Judge())


def compare_trees(left: str, right: str, judge: Judge) -> Outcome | None:
    """Compare all readings of both texts with a judge; None where the judge cannot decide."""
    try:
        sides = [trees(text) for text in (left, right)]
    except LimitError as error:
        return Outcome(False, f"limit: {error}", "too_large")
    except RecursionError:
        return Outcome(False, "limit: nesting", "too_large")
    if not sides[0] or not sides[1]:
        return Outcome(same_words(left, right), "text")
    undecided = limit = None
    for a in sides[0]:
        for b in sides[1]:
            judge.start()
            try:
                if equal(a, b, judge):
                    return Outcome(True, "rational")
            except UndecidedError:
                undecided = True
            except NotMathError:
                continue
            except (LimitError, RecursionError) as error:
                limit = str(error)
    if undecided:
        return None
    if limit:
        return Outcome(False, f"limit: {limit}", "too_large")
    return Outcome(False, "rational")


def same_words(left: str, right: str) -> bool:
    """Whether two answers in words are the same, up to case, punctuation, articles; lists of words in any order."""
    words = [plain_text(text) for text in (left, right)]
    if words[0] == words[1]:
        return bool(words[0])
    lists = [sorted(part for part in re.split(r"\s*(?:,|;|\band\b)\s*", text) if part) for text in words]
    return len(lists[0]) > 1 and lists[0] == lists[1]


def _clock(text: str) -> tuple[int, int, str] | None:
    match = _TIME.fullmatch(normalise(text))
    return (int(match.group(1)), int(match.group(2) or 0), match.group(3).lower()) if match else None


def _date(words: str) -> tuple[int, int, str | None] | None:
    """(month, day, year) of "20 June" or "June 20, 1999" in plain text."""
    match = _DATE.fullmatch(words)
    month = match["month"] or match["first"] if match else ""
    return (
        (_MONTHS.index(month), int(match["day"] or match["second"]), match["year"])
        if match and month in _MONTHS
        else None
    )


def _has_signs(text: str) -> bool:
    """Whether a text holds braces or commands other than those that set text: {\\emptyset} is not \\emptyset."""
    return re.search(r"\\(?!text)", normalise(text)) is not None
