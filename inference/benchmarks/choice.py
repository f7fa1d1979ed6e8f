"""Questions with four options: GPQA, MedQA, and rows of a user's own. The gold answer is a letter, A to D.

A question's text ends with its options as lines "A. text". `meta["options"]` holds their texts in the order of the letters.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from inference.benchmarks.base import Options, Sample, shown, text_of
from inference.tools.errors import DataError

LETTERS = "ABCD"


def make_sample(
    index: int,
    sample_id: str,
    stem: str,
    options: Sequence[str],
    gold: str,
    meta: Mapping[str, Any],
    question: str = "",
) -> Sample:
    """A choice sample; `question` is the whole text where the data has it, else stem and option lines."""
    lines = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=True))
    text = question or f"{stem}\n\n{lines}"
    return Sample(index, sample_id, text, gold, "choice", meta={**meta, "options": list(options)})


def option_texts(value: Any, where: str) -> list[str]:
    """The four options of a row: a list, or an object with the letters as keys."""
    if isinstance(value, Mapping):
        # Arrow gives every key that any row has, empty ones as None.
        value = {letter: text for letter, text in value.items() if text is not None}
        if list(map(str, sorted(value))) != list(LETTERS):
            raise DataError(f"{where}: 'options' has the letters {', '.join(sorted(value))}; expected A, B, C, D")
        value = [value[letter] for letter in LETTERS]
    if not isinstance(value, (list, tuple)):
        raise DataError(f"{where}: 'options' is {shown(value)}; expected a list of 4 texts, or an object with A to D")
    if len(value) != len(LETTERS):
        raise DataError(f"{where}: {len(value)} options; expected 4 (A to D)")
    return [text_of({"options": text}, ("options",), where) for text in value]


def gold_letter(answer: str, options: Sequence[str], where: str) -> str:
    """The letter of the one option that is the answer's text, blanks aside; none or several is a `DataError`."""
    wanted = " ".join(answer.split())
    found = [letter for letter, text in zip(LETTERS, options, strict=True) if " ".join(text.split()) == wanted]
    if len(found) != 1:
        told = f"options {' and '.join(found)} are" if found else "no option is"
        raise DataError(f"{where}: {told} the answer {shown(answer)}; expected exactly one")
    return found[0]


def permutation(seed: int, stem: str) -> list[int]:
    """The order of GPQA's answers (0: the correct one) under the letters A to D, as the reference draws it.

    [0, 1, 2, 3] shuffled by Python's generator, seeded with the first 16 hex digits of the md5 of "seed::stem"
    (reference, GPQA question building).
    """
    digest = hashlib.md5(f"{seed}::{stem}".encode(), usedforsecurity=False).hexdigest()
    order = [0, 1, 2, 3]
    random.Random(int(digest[:16], 16)).shuffle(order)
    return order


def gpqa_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """Columns `Question`, `Correct Answer`, `Incorrect Answer 1` to 3; `Record ID` and domains where there are some."""
    stem = text_of(row, ("Question",), where)
    answers = [
        text_of(row, (name,), where) for name in ("Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)))
    ]
    order = permutation(options.seed, stem)
    meta = {"stem": stem}
    for name, column in (("subject", "High-level domain"), ("subdomain", "Subdomain")):
        if row.get(column):
            meta[name] = text_of(row, (column,), where)
    sample_id = text_of(row, ("Record ID",), where) if row.get("Record ID") else default_id
    return make_sample(index, sample_id, stem, [answers[n] for n in order], LETTERS[order.index(0)], meta)


def medqa_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """The hub's columns (`question`, `options` by letter, `answer_idx`) or the reference's file (`query`, `options`, `answer`).

    The file's `query` is the question's whole text where it shows every option.
    """
    texts = option_texts(row.get("options"), where)
    stem = text_of(row, ("question",), where) if row.get("question") else text_of(row, ("query",), where)
    sample_id = text_of(row, ("idx",), where) if row.get("idx") is not None else default_id
    meta = {"stem": stem}
    if row.get("meta_info"):
        meta["type"] = text_of(row, ("meta_info",), where)
    if row.get("answer_idx") is not None:
        gold = text_of(row, ("answer_idx",), where)
        if gold not in LETTERS or len(gold) != 1:
            raise DataError(f"{where}: 'answer_idx' is {shown(gold)}; expected A, B, C or D")
        if row.get("answer") and " ".join(row["answer"].split()) != " ".join(texts[LETTERS.index(gold)].split()):
            raise DataError(
                f"{where}: 'answer' is {shown(row['answer'])}, but 'answer_idx' {gold} names another option"
            )
        return make_sample(index, sample_id, stem, texts, gold, meta)
    gold = gold_letter(text_of(row, ("answer",), where), texts, where)
    query = text_of(row, ("query",), where) if row.get("query") else ""
    whole = query if all(text in query for text in texts) else ""
    return make_sample(index, sample_id, query or stem, texts, gold, meta, whole)
