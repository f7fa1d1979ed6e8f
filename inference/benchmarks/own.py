"""Rows of a user's own: `task` says how they are graded ("math" if it is absent); all rows of a file have the same task.

The fields of each task are told in inference/dataset/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.benchmarks import choice
from inference.benchmarks.base import FAMILY, Options, Sample, shown, text_of
from inference.benchmarks.maths import ID, QUESTION
from inference.tools.errors import DataError

ROW_FIELDS = {
    "math": {"answer"},
    "choice": {"answer", "options"},
    "code": {"answer", "entry_point", "tests", "cases"},
    "qa": {"answer"},
}


def task_of(rows: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The task of a file's rows."""
    first = "math"
    for number, (where, row) in enumerate(rows):
        task = row.get("task", "math")
        if task not in FAMILY:
            raise DataError(f"{where}: unknown task {shown(task)}; expected one of {', '.join(FAMILY)}")
        if number == 0:
            first = task
        if task != first:
            raise DataError(f"{where}: task {task}, but {rows[0][0]} is {first}; put each task into a file of its own")
    return first


def to_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """The sample of a row."""
    task = row.get("task", "math")
    sample_id = text_of(row, ID, where) if any(key in row for key in ID) else default_id
    question = text_of(row, QUESTION, where)
    known = {"task", *ID, *QUESTION, *ROW_FIELDS[task]}
    meta = {key: value for key, value in row.items() if key not in known}
    if task == "choice":
        return _choice(row, index, where, sample_id, question, meta)
    if task == "code":
        return _code(row, index, where, sample_id, question, meta)
    if task == "qa" and isinstance(row.get("answer"), list):
        answers = [text_of({"answer": answer}, ("answer",), where) for answer in row["answer"]]
        if not answers:
            raise DataError(f"{where}: 'answer' is an empty list; expected at least one text")
        return Sample(index, sample_id, question, answers[0], meta={**meta, "answers": answers})
    return Sample(index, sample_id, question, text_of(row, ("answer",), where), meta=meta)


def _choice(row: dict[str, Any], index: int, where: str, sample_id: str, question: str, meta: dict[str, Any]) -> Sample:
    """The answer is a letter, or the text of exactly one option."""
    if "options" not in row:
        raise DataError(f"{where}: no 'options'; a choice row needs a list of 4 texts, or an object with A to D")
    texts = choice.option_texts(row["options"], where)
    answer = text_of(row, ("answer",), where)
    letter = answer if answer in tuple(choice.LETTERS) else None
    same = [choice.LETTERS[n] for n, text in enumerate(texts) if text == answer]
    if letter and same and same != [letter]:
        raise DataError(f"{where}: the answer {answer} is a letter and the text of option {same[0]}; give another text")
    return choice.make_sample(
        index,
        sample_id,
        question,
        texts,
        letter or choice.gold_letter(answer, texts, where),
        {**meta, "stem": question},
    )


def _code(row: dict[str, Any], index: int, where: str, sample_id: str, question: str, meta: dict[str, Any]) -> Sample:
    """`tests` (asserts on `entry_point`), or `cases` ({"input", "output"}: of a program, or of calls of `entry_point`)."""
    name = row.get("entry_point")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise DataError(f"{where}: 'entry_point' is {shown(name)}; expected the name of a function")
    if ("tests" in row) == ("cases" in row):
        raise DataError(f"{where}: expected either 'tests' (text of asserts) or 'cases' (a list of input and output)")
    if "tests" in row:
        if name is None:
            raise DataError(f"{where}: 'tests' without 'entry_point'; name the function that they test")
        meta = {**meta, "tests": text_of(row, ("tests",), where)}
    else:
        meta = {**meta, "cases": _cases(row["cases"], where)}
    gold = text_of(row, ("answer",), where) if "answer" in row else ""
    return Sample(index, sample_id, question, gold, "code", "function" if name else "program", name, meta)


def _cases(cases: Any, where: str) -> list[list[str]]:
    if not isinstance(cases, list) or not cases:
        raise DataError(f"{where}: 'cases' is {shown(cases)}; expected a list of objects with input and output")
    for number, case in enumerate(cases):
        if not isinstance(case, dict) or not all(isinstance(case.get(key), str) for key in ("input", "output")):
            raise DataError(f"{where}: case {number} has no texts 'input' and 'output'")
    return [[case["input"], case["output"]] for case in cases]
