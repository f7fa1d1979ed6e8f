"""The letter that a model chose, read from its whole output by a small grammar.

    from inference.scoring.choice import grade

    verdict = grade("Hence the answer is \\\\boxed{\\\\text{B}}.", "B")
    verdict = grade("Answer: the femur", "C", options=["the tibia", "the radius", "the femur", "the ulna"])

Only the text behind the last `</think>` counts. The grammar, with the strongest first; a later step is tried only where
the one before found nothing:

1. explicit statements: a box, an `<answer>` element, "answer: B", "the correct option is (B)", or a last line that is only a
   letter. The last statement decides, so that a model may correct itself;
2. "B is correct", "I choose B": counted only if all of them name the same letter;
3. a label in front of the first or last line: "(D) Alina", "b. 4". Lines with several different labels are a list of the
   options and say nothing;
4. a closing sentence: "So it is B.";
5. a last line that is exactly the text of one option.

Where a letter is expected, the exact text of one option counts too. "A or C", "none of the above" and a letter that is not
among the options are statements without an answer. There is no default letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference.scoring.maths.extract import boxes, visible_text
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

# Stand for the ends of a box while the text is read; private characters that are removed from the model's own text.
_BOX_START, _BOX_END = "\ue000", "\ue001"
_LONGEST_PHRASE = 400  # characters read after an anchor: room for an option's text, and hostile texts stay cheap
_MOST_STATEMENTS = 50  # of each kind, the last ones: more stand only in texts that repeat themselves
_LONGEST_BARE_LINE = 6  # words of a first line such as "A Peter"; longer ones are sentences that begin with an article

_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|cal)|operatorname|bold(?:symbol)?|bm|emph|underline|mbox|hbox|rm|bf|boxed|fbox)"
    r"\s*\{([^{}]*)\}|\{\\(?:rm|bf|it|sf|em)\s+([^{}]*)\}"
)
_MATHS_MARKS = re.compile(r"\\[()\[\],;!: ]|\\(?:left|right|quad|qquad|displaystyle)(?![A-Za-z])|\$|~")
_EMPHASIS = re.compile(r"\*+|`+|</?(?:b|strong|i|em|u)>|(?<!\w)(_{1,2})(?=[^\s_])([^_\n]{1,80})(?<=\S)\1(?!\w)")
_BULLET = re.compile(r"^(?:[ \t>#•·]|[+–—-](?=[ \t]))+(?=\S)", re.MULTILINE)

_NOUN = r"(?:option|choice|letter|alternative|response|selection)"
_IS = r"(?:(?:is|was|are)\b|(?:must|should|would|will|has\s+to|can\s+only)\s+be\b|[:=–—→⇒]|-(?=\s))"
_ANCHOR = re.compile(
    rf"\b(?:answer(?:\s+{_NOUN})?|(?:correct|right|best|final|chosen|selected)\s+{_NOUN})\b"
    r"(?:\s+(?:to|for)\s[^.:=\n]{1,80}?)?"
    r"(?:\s*\((?![A-Za-z]\))[^()\n]{1,60}\))?"
    rf"(?:[\"'”]?\s*(?P<verb>{_IS})(?:\s*:)?|\s+(?-i:(?=[(\[]?[A-Z][)\]]?(?:[\s.,;:!?]|$))))"
    r"|^(?:the\s+)?(?:(?:final|correct|best|my)\s+)?answer[ \t]*$"
    rf"|^{_NOUN}[ \t]*[:=]|<answer>|答案[应该]*[是为选]?",
    re.IGNORECASE | re.MULTILINE,
)
# A clause that only weighs an answer: "if the answer is A", "one might think the answer is A".
_WEIGHED = re.compile(
    r"\b(?:if|unless|whether|suppose|supposing|assum\w+|imagine|doubt|tempt\w+|otherwise|(?:do|does|did)(?:n't| not) (?:think|believe)"
    r"|not (?:think|believe|true|sure|certain|clear|that|the case)"
    r"|(?:one|you|they|people|students|some|many|someone|might|may|could) (?:\w+ ){0,2}(?:think|say|believe|conclude|guess|argue|assume|claim))\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\b(?:if|were|had|without|otherwise|unless)\b", re.IGNORECASE)

_FILLER = (
    r"for sure|definitely|clearly|certainly|surely|obviously|simply|therefore|thus|hence|so|probably|most likely|likely|indeed"
    r"|actually|really|just|then|still|now|again|in fact|apparently|undoubtedly|of course|is|I think|I believe|I guess|I'd say"
)
_HEAD = re.compile(
    rf"(?:[\s:=,…–—-]+|\b(?:{_FILLER})\b|[\"'“‘]?\b(?:the\s+)?(?:(?:correct|right|best)\s+)?(?:{_NOUN}|answer)\b(?:\s+(?:labell?ed|marked)\b)?)*",
    re.IGNORECASE,
)
_OPEN, _CLOSE = rf"[(\[{{<\"'“‘«{_BOX_START}\s]*", rf"(?:\s*[)\]}}>\"'”’»{_BOX_END}]+)?"
# A letter by itself: not the start of a word, a formula, a name such as B-cell, C=O or f(x).
_ALONE = r"(?![A-Za-z0-9_\u00c0-\u024f\\^°+({\[]|['’][A-Za-z]|-(?!\s+\S)|–\S|\s*[=≤≥≠×*^]|\s*<(?!/)|\s+>)"
_LABEL = re.compile(rf"(?P<open>{_OPEN})(?P<letter>[A-Za-z]){_ALONE}(?P<close>{_CLOSE})(?P<stop>[.:,;!?…。、，]*)")
_FURTHER = re.compile(
    rf"{_CLOSE}\s*(?P<joiner>,?\s*\b(?:and/or|and|or|to|through|versus|vs\.?|as well as)\b|[,/|;&、]|\s(?=[A-Z]\b)){_OPEN}"
    rf"(?:(?:also|either|maybe|possibly|perhaps|{_NOUN})\s+)?{_OPEN}(?P<letter>[A-Za-z])(?![A-Za-z0-9'’-])"
    r"(?P<clause>[)\]]*\s+(?:is|was|isn't|wasn't|has|does|doesn't|can|can't|cannot|would|being|fails|[a-z]{3,}s)\b)?"
)
_SEVERAL = re.compile(
    rf"(?:either|both|neither|all of|any of|one of|between)\b(?={_OPEN}(?:{_NOUN}\s+)?{_OPEN}[A-Z]\b|\s+(?:of|them|the|these)\b|\W*$)",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"(?:none|unknown|undetermined|unclear|n/a|all of the above|not (?:given|available|listed|possible|determinable|enough)|cannot|can't|could not"
    r"|impossible|I (?:don't|do not|cannot|can't))\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"(?:definitely |certainly )?(?:not|never|anything but)\b", re.IGNORECASE)
# Words that follow a letter but never an article or the first half of a name: "A because", not "A patient" or "B cells".
_AFTER_LETTER = re.compile(
    r"\s+(?:because|since|as|and|or|but|not|which|with|for|due|based|by|from|given|if|is|was|it|it's|that|when|where|while|on|at|to|the|this"
    r"|here|of|in|after|according|rather|instead|although|though|among|I|we|\w+ly)\b"
)
_TEXT_THEN_LETTER = re.compile(
    rf"[^()\n]{{1,200}}(?:\((?:{_NOUN}\s+)?([A-Z])\)|,\s*(?:which is\s+)?{_NOUN}\s+\(?([A-Z])\)?)\W*", re.IGNORECASE
)
# Words behind a letter that reject it: "B is wrong".
_REJECTED = re.compile(
    r"\s+(?:is|was|must be|seems)\s+(?:\w+ly\s+)?(?:not|wrong|incorrect|false|out|excluded|ruled out)\b|\s+isn['’]t\b",
    re.IGNORECASE,
)
# Behind "not A": what is chosen in its place.
_INSTEAD = re.compile(r"(?:\bbut(?:\s+rather)?|\brather|\b(?:it|that|this)(?:\s+is|['’]s)|\binstead)\s+", re.IGNORECASE)
_NAMED = re.compile(r"\s+(?:to\s+(?:denote|be|mean|represent|stand|name)|be)\b", re.IGNORECASE)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")
_REJECTION = re.compile(r"\b(?:not|nor|neither|or)\b|n't\b", re.IGNORECASE)
_TEXT_END = re.compile(r"[.!?;]\s|,?\s+(?:because|since|which|not|rather than)\b|\s\(", re.IGNORECASE)

_CHOSEN = re.compile(
    r"\b(?:I|we)(?:\s+(?:would|will|must|should|have to)|'d|'ll)?\s+(?:(?:therefore|thus|hence)\s+)?(?:choose|chose|pick|select|opt for|go with|going with)\b",
    re.IGNORECASE,
)
_IS_CORRECT = re.compile(
    rf"(?:^|[.,;:!?\n(]\s*|\b(?:so|thus|therefore|hence|that|only|{_NOUN}|answer)\s+)\(?(?-i:([A-Z]))\)?\s+(?:is|must be)\s+(?:therefore\s+|thus\s+)?"
    r"(?:(?:the\s+)?(?:only\s+)?(?:correct|right|best|most\s+\w+)|the\s+answer)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"(?:so|thus|therefore|hence|consequently|finally|in conclusion|we conclude)\b", re.IGNORECASE)
_VERB = re.compile(r"\b(?:is|be|are|it's)\b|:")
_LINE_LABEL = re.compile(rf"\(?([A-Za-z]){_ALONE}(?:[).:\]]|\s[-–—])(?=\s|$|[A-Z][a-z])")
_LISTED = re.compile(r"(?<![A-Za-z0-9])\(?([A-Z])[).:](?=\s)")


@dataclass(frozen=True)
class Found:
    """The letter found in a text (upper case) or None; `where` it stood or why there is none; `status` as in `Verdict`."""

    letter: str | None
    where: str
    status: str = "ok"


@dataclass(frozen=True)
class _Reading:
    """What a phrase states: a letter, not a certain letter (`negated`), or explicitly no single letter (None)."""

    letter: str | None
    reason: str = ""
    negated: bool = False


def grade(text: str, gold: str, letters: str = "ABCD", options: Sequence[str] | None = None) -> Verdict:
    """Grade a model's whole output against the letter `gold`. Never raises on any text.

    The status is "ok", "no_answer" or "unclosed_reasoning"; `rule` names where the letter stood. Raises `DataError` for
    a gold that is not one of the letters, and as `extract` does.
    """
    known = _Options.of(letters, options)
    wanted = gold.strip().upper()
    if len(wanted) != 1 or wanted not in known.letters:
        raise DataError(f"gold is {gold[:60]!r}; expected one of the letters {known.letters}")
    found = _find(text, known)
    return Verdict(found.letter == wanted, found.letter, found.status, found.where)


def extract(text: str, letters: str = "ABCD", options: Sequence[str] | None = None) -> Found:
    """The letter that a model's text chooses. Never raises on any text.

    `options` are the texts of the options in the order of `letters`; with fewer options than letters, the last letters are
    not valid. Raises `DataError` for letters that are not different ones of A to Z, and for more options than letters.
    """
    return _find(text, _Options.of(letters, options))


def unwrap(text: str) -> str:
    """A text without LaTeX font commands: \\text{B} becomes B, also when nested."""
    for _ in range(4):  # nobody nests deeper, and a hostile text must not cost a pass per level
        text, count = _WRAPPER.subn(lambda match: match.group(1) or match.group(2) or "", text)
        if not count:
            break
    return text


@dataclass(frozen=True)
class _Options:
    """The valid letters and the options' texts as `_form` gives them; they are compared with case first, then without."""

    letters: str
    texts: tuple[str, ...]

    @staticmethod
    def of(letters: str, options: Sequence[str] | None) -> _Options:
        letters = letters.strip().upper()
        if not re.fullmatch(r"[A-Z]+", letters) or len(set(letters)) != len(letters):
            raise DataError(f"letters are {letters[:60]!r}; expected different letters of A to Z, such as ABCD")
        if options is None:
            return _Options(letters, ())
        if not 0 < len(options) <= len(letters):
            raise DataError(
                f"{len(options)} options for the letters {letters}; expected at least one, and a letter for each"
            )
        texts = [_form(option) for option in options]
        # Options that carry their own labels ("A. Paris") are compared without them.
        labels = [re.match(rf"\(?{letter}[).:]\s*(?=\S)", text) for letter, text in zip(letters, texts, strict=False)]
        if texts and all(labels):
            texts = [text[label.end() :] for label, text in zip(labels, texts, strict=True) if label]
        return _Options(letters[: len(options)], tuple(texts))

    def by_text(self, phrase: str) -> str | None:
        """The letter of the only option that a phrase is, or begins a sentence with."""
        if not self.texts:
            return None
        end = _TEXT_END.search(phrase)
        for candidate in (phrase, phrase[: end.start()] if end else ""):
            form = _form(candidate)
            if form and not re.fullmatch("[A-Za-z]", form) and (letter := self._equal(form)):
                return letter
        # "C. difficile is common": the option's own text looks like a label, and must not be read as one.
        form = _form(phrase)
        return self._only(
            re.match(r"[A-Z]\.\s*[a-z]", text) is not None and re.match(rf"{re.escape(text)}\b", form) is not None
            for text in self.texts
        )

    def named(self, letter: str) -> str | None:
        """The letter of the only option whose whole text is another letter, such as the blood group O."""
        return self._equal(letter) if self.texts else None

    def _equal(self, form: str) -> str | None:
        folded = form.casefold()
        same_case = self._only(text == form for text in self.texts)
        return same_case or self._only(text.casefold() == folded for text in self.texts)

    def _only(self, hits: Iterator[bool]) -> str | None:
        matching = [letter for letter, hit in zip(self.letters, hits, strict=True) if hit]
        return matching[0] if len(matching) == 1 else None

    def fits(self, letter: str, rest: str) -> bool:
        """Whether the words behind a letter are the text of its option, or its beginning."""
        if letter not in self.letters or not self.texts:
            return False
        text, form = self.texts[self.letters.index(letter)].casefold(), _form(rest).casefold()
        begins = re.match(rf"{re.escape(text)}(?!\w)", form) is not None or text.startswith(form)
        return bool(form and text) and begins


def _form(text: str) -> str:
    """A text in the form that options are compared in: no markup, outer punctuation or leading article."""
    text = (
        " ".join(_without_marks(text).split())
        .strip(" \"'“”‘’" + _BOX_START + _BOX_END)
        .rstrip(" .,;:!?…\"'”’" + _BOX_END)
    )
    return re.sub(r"^(?:a|an|the)\s+(?=\S)", "", text, flags=re.IGNORECASE)


def _without_marks(text: str) -> str:
    """Plain text: Unicode compatibility forms, LaTeX and Markdown marks removed."""
    text = unwrap(unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)))
    return _EMPHASIS.sub(lambda match: match.group(2) or "", _MATHS_MARKS.sub(" ", text))


def _plain(visible: str) -> str:
    """The text that the grammar reads: boxes between two private characters, no markup, no bullets."""
    visible = re.sub(f"[{_BOX_START}{_BOX_END}]", "", visible)
    parts, position = [], 0
    for start, end, content in boxes(visible):
        parts += [visible[position:start], _BOX_START, " ".join(content.split()), _BOX_END]
        position = end
    return _BULLET.sub("", _without_marks("".join([*parts, visible[position:]]))).strip()


def _find(text: str, known: _Options) -> Found:
    visible, open_reasoning = visible_text(text)
    if open_reasoning:
        return Found(None, "none", "unclosed_reasoning")
    plain = _plain(visible)
    for step in (_explicit, _agreed, _labelled_line, _closing_sentence, _option_line):
        if found := step(plain, known):
            return found
    return Found(None, "none", "no_answer")


def _found(reading: _Reading, where: str) -> Found:
    if reading.letter is None or reading.negated:
        return Found(None, f"{where}: {reading.reason}", "no_answer")
    return Found(reading.letter, f"{where}, {reading.reason}" if reading.reason else where)


def _explicit(plain: str, known: _Options) -> Found | None:
    statements = sorted(_statements(plain, known), key=lambda statement: statement[0])
    for at in range(len(statements) - 1, -1, -1):
        _, where, reading = statements[at]
        if not reading.negated:
            if any(later.letter == reading.letter for _, _, later in statements[at + 1 :]):
                return Found(None, f"{where}: taken back", "no_answer")
            return _found(reading, where)
    return None


def _statements(plain: str, known: _Options) -> Iterator[tuple[int, str, _Reading]]:
    """(position, where, reading) of each explicit statement."""
    previous: tuple[int, str | None] | None = None
    for match in _last(re.compile(f"{_BOX_START}([^{_BOX_END}]*){_BOX_END}"), plain):
        content = match.group(1)[:_LONGEST_PHRASE]
        reading = _read(content, known) if content.strip() else _Reading(None, "empty")
        if reading is None:
            continue
        between = plain[previous[0] : match.start()] if previous else "."
        if previous and previous[1] != reading.letter and re.fullmatch(r"[\s,;/]*(?:and|or|&)?\s*", between):
            reading = _Reading(None, "several letters")
        previous = (match.end(), reading.letter)
        yield match.start(), "boxed", reading
    for match in _last(_ANCHOR, plain):
        clause = re.split(r"[.!?;,\n]", plain[max(0, match.start() - 160) : match.start()])[-1]
        sentence = re.split(r"[.!?\n]\s", plain[max(0, match.start() - 160) : match.start()])[-1]
        verb = (match.group("verb") or "").casefold()
        if _WEIGHED.search(clause) or (verb.startswith("would") and _CONDITION.search(sentence)):
            continue
        if reading := _read(_line(plain, match.end()), known):
            repeated = _is_repeated(plain, match.end(), reading.letter, known)
            yield match.start(), "answer line", _Reading(None, "several letters") if repeated else reading
    lines = _lines(plain)
    if lines and (reading := _letter_line(lines[-1], known, whole=len(lines) == 1)):
        before = _letter_line(lines[-2], known, whole=False) if len(lines) > 1 else None
        listed = before is not None and before != reading
        yield len(plain), "last line", _Reading(None, "several letters") if listed else reading


def _last(pattern: re.Pattern[str], plain: str) -> list[re.Match[str]]:
    return list(deque(pattern.finditer(plain), maxlen=_MOST_STATEMENTS))


def _line(plain: str, start: int) -> str:
    return plain[start : start + _LONGEST_PHRASE].lstrip().split("\n", 1)[0].split("</answer>", 1)[0]


def _lines(plain: str) -> list[str]:
    return [line.strip()[:_LONGEST_PHRASE] for line in plain.split("\n") if line.strip()]


def _letter_line(line: str, known: _Options, whole: bool) -> _Reading | None:
    """A line that is nothing but a letter. A small letter needs a bracket or stop, or to be the whole text."""
    match = _LABEL.fullmatch(re.sub(rf"^(?:the\s+)?{_NOUN}\s+", "", line, flags=re.IGNORECASE))
    if not match or match["open"].strip() == _BOX_START:
        return None
    if match["letter"].islower() and not (whole or match["close"].strip() or match["stop"]):
        return None
    return _letter(match["letter"], known)


def _letter(letter: str, known: _Options) -> _Reading:
    if letter.upper() in known.letters:
        return _Reading(letter.upper())
    if named := known.named(letter):
        return _Reading(named, "option text")
    return _Reading(None, f"{letter.upper()} is no option")


def _read(phrase: str, known: _Options) -> _Reading | None:
    """What the words behind an anchor, or in a box, state; None for words that state nothing about a letter."""
    if letter := known.by_text(phrase):
        return _Reading(letter, "option text")
    body = phrase[_HEAD.match(phrase).end() :]  # type: ignore[union-attr]  # the head may be empty, so it always matches
    if negation := _NOT.match(body):
        refused = body[negation.end() :]
        if instead := _INSTEAD.search(refused):
            return _read(refused[instead.end() :], known)
        reading = _read(refused, known)
        return _Reading(reading.letter, f"not {reading.letter}", negated=True) if reading and reading.letter else None
    if letter := known.by_text(body):
        return _Reading(letter, "option text")
    if _SEVERAL.match(body):
        return _Reading(None, "several letters")
    if _NOTHING.match(body):
        return _Reading(None, "no letter stated")
    if match := _LABEL.match(body):
        return _read_label(match, body, known)
    run = re.match(rf"{_OPEN}([A-Z]{{2,}})\b", body)
    if run and set(run.group(1)) <= set(known.letters) and len(set(run.group(1))) == len(run.group(1)):
        return _Reading(None, "several letters")
    return _trailing_letter(body, known)


def _read_label(match: re.Match[str], body: str, known: _Options) -> _Reading | None:
    written, rest = match["letter"], body[match.end() :]
    if _joined(body[match.end("letter") :], written) or _is_list(body, written.upper(), known):
        return _Reading(None, "several letters")
    if match["stop"].endswith((".", ":")) and re.match(r"[a-z0-9]|[A-Z](?![a-z])", rest):
        return None  # A.D., B.5, C:N
    bracketed = bool(match["close"].strip()) or any(char in "([" + _BOX_START for char in match["open"])
    if not rest.strip() or bracketed or match["stop"]:
        return _letter(written, known)
    # The letter stands bare before other words: it may be an article or a part of a name.
    letter = written.upper()
    if _REJECTED.match(rest):
        return _Reading(letter, f"not {letter}", negated=True)
    if known.fits(letter, rest):
        return _letter(letter, known)
    if known.by_text(rest):
        return _Reading(None, "letter and text differ")
    if _AFTER_LETTER.match(rest):
        return None if written in "ai" else _letter(letter, known)
    if written.isupper() and not re.match(r"\s+[a-zà-ÿ]", rest):
        return _letter(letter, known)
    return _trailing_letter(body, known)


def _joined(rest: str, written: str) -> bool:
    """Whether a further letter is joined to the one before: "A or C", "A, B", "A/B"; not "B, A is wrong"."""
    further = _FURTHER.match(rest)
    if not further or further["letter"].isupper() != written.isupper():
        return False
    if further["clause"] and "or" not in further["joiner"]:
        return False
    return further["letter"] != "I" or not re.match(r"\s+[a-z']", rest[further.end() :])  # "B, I think"


def _is_list(line: str, letter: str, known: _Options) -> bool:
    """Whether a line repeats all the options: "A) 3 B) 4 C) 5 D) 6"."""
    listed = "".join(_LISTED.findall(line))
    return len(known.letters) > 1 and letter == known.letters[0] and listed.startswith(known.letters)


def _is_repeated(plain: str, start: int, letter: str | None, known: _Options) -> bool:
    """Whether the options follow an anchor line by line, as in a question that the model repeats."""
    lines = _lines(plain[start : start + _LONGEST_PHRASE])
    if (
        letter != known.letters[0]
        or len(lines) < 2
        or "\n" not in plain[start : start + _LONGEST_PHRASE].split(lines[0])[0]
    ):
        return False
    second = _LINE_LABEL.match(lines[1])
    return second is not None and second.group(1).upper() == known.letters[1:2]


def _trailing_letter(body: str, known: _Options) -> _Reading | None:
    """The letter behind an option's text: "the answer is Paris (B)"."""
    match = _TEXT_THEN_LETTER.fullmatch(body)
    if not match or _REJECTION.search(body):
        return None
    return _letter(match.group(1) or match.group(2), known)


def _agreed(plain: str, known: _Options) -> Found | None:
    readings: list[_Reading] = []
    for match in _last(_CHOSEN, plain):
        line = _line(plain, match.end())
        label = _LABEL.match(line.lstrip())
        if label and _NAMED.match(line.lstrip()[label.end() :]):
            continue  # "we choose B to denote the base"
        if reading := _read(line, known):
            readings.append(reading)
    for match in _last(_IS_CORRECT, plain):
        clause = re.split(r"[.!?;\n]", plain[max(0, match.start() - 160) : match.end()])[-1]
        if not _WEIGHED.search(clause) and not _REJECTION.search(clause):
            readings.append(_letter(match.group(1), known))
    stated = {reading.letter for reading in readings if not reading.negated}
    if len(stated) > 1:
        return Found(None, "statement: several letters", "no_answer")
    return next((_found(reading, "statement") for reading in readings if not reading.negated), None)


def _labelled_line(plain: str, known: _Options) -> Found | None:
    lines = _lines(plain)
    labels = [_line_label(line, known, first=number == 0, only=len(lines) == 1) for number, line in enumerate(lines)]
    stated = {reading.letter for reading in labels if reading}
    if len(stated) > 1:
        return Found(None, "line label: several letters", "no_answer")
    reading = next((reading for reading in (labels[0], labels[-1]) if reading), None) if lines else None
    return _found(reading, "line label") if reading else None


def _line_label(line: str, known: _Options, first: bool, only: bool) -> _Reading | None:
    if match := _LINE_LABEL.match(line):
        letter, rest = match.group(1), line[match.end() :]
        other = _LABEL.fullmatch(rest.strip())  # "A: B" may be short for "answer: B"
        if other and other["letter"].upper() not in (letter.upper(), *known.texts):
            return _Reading(None, "several letters")
        if _is_list(line, letter.upper(), known):
            return _Reading(None, "several letters")
        # "B. pertussis causes ..." begins with a name; "D. it is ..." and the option's own text do not.
        named = match.group().endswith(".") and letter.isupper() and re.match(r"\s+[a-z]", rest)
        if named and not (known.fits(letter, rest) or _AFTER_LETTER.match(rest) or (only and not known.texts)):
            return None
        return _letter(letter, known)
    if not first:
        return None
    if re.match(r"[A-Z]\b", line) and _joined(line[1:], "A"):
        return _Reading(None, "several letters")
    if re.match(rf"(?:[B-HJ-Z]{_ALONE}\s+(?:because|since|as)\b|[A-HJ-Z],\s)", line):
        return _letter(line[0], known)
    bare = re.fullmatch(r"([A-Z])(\s+(?:[A-Z0-9]|\$)\S*(?:\s+\S+)*)", line)
    if bare and len(line.split()) <= _LONGEST_BARE_LINE and not line.endswith((".", "?", "!", ":")):
        if known.texts and not known.fits(bare.group(1), bare.group(2)):
            return None
        return _letter(bare.group(1), known)
    return None


def _closing_sentence(plain: str, known: _Options) -> Found | None:
    sentences = [part for part in re.split(r"(?<=[^\WA-Z])[.!?]\s+|\n", plain) if part.strip()]
    sentence = sentences[-1].strip() if sentences else ""
    if len(sentence) > _LONGEST_PHRASE:
        return None
    if _REJECTION.search(sentence):
        return None
    closing = _CLOSING.match(sentence)
    if closing and (reading := _letter_line(sentence[closing.end() :].lstrip(" ,:"), known, whole=False)):
        return _found(reading, "closing sentence")
    for match in reversed(list(_VERB.finditer(sentence))):
        phrase = sentence[match.end() :].strip()
        label = _LINE_LABEL.match(phrase)
        marked = label and (phrase.startswith("(") or known.fits(label.group(1).upper(), phrase[label.end() :]))
        if (closing or marked) and (reading := _read(phrase, known)):
            return _found(reading, "closing sentence")
    return None


def _option_line(plain: str, known: _Options) -> Found | None:
    lines = _lines(plain)
    if lines and (letter := known.by_text(lines[-1])):
        return Found(letter, "option text")
    return None
