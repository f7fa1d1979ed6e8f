"""Grade anybody's outputs, without a model.

    python -m inference.score outputs.jsonl --task math
    python -m inference.score outputs.jsonl --task choice --reference_rule > graded.jsonl
    cat outputs.jsonl | python -m inference.score - --task code --workers 4

A row of the file is one JSON object with `pred`, the model's whole output, and

    math     gold (text or number)
    choice   gold (a letter); letters (default ABCD, or as many as there are options); options (a list of their texts)
    qa       gold (text, number, or a list of them)
    code     entry_point and tests, both optional. tests: source text of asserts on the function entry_point; or a list of
             [input, output] texts, which are standard input and output, or, with an entry_point, arguments (one JSON value
             a line) and result. Without tests the program is only extracted, and `correct` is null.

Other fields are passed through; results replace fields of the same name. Standard output has one JSON object a row, in the
order of the input: correct, extracted, status, rule; for qa also em, f1, official_em, official_f1; for code with tests also
eval and extraction. The summary goes to standard error, its last line as one JSON object. Every row is checked before the first is graded.
"""

from __future__ import annotations

import argparse
import json
import os
import string
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from inference.mas.errors import exit_on_input_error
from inference.scoring.statistics import wilson
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

if TYPE_CHECKING:
    from inference.scoring.code import CodeRunner, CodeTask

_MAX_WORKERS = 8  # default limit: each worker for maths holds a computer algebra system, about 100 MB
_FIELDS = {
    "math": {"pred", "gold"},
    "choice": {"pred", "gold", "letters", "options"},
    "qa": {"pred", "gold"},
    "code": {"pred", "gold", "tests", "entry_point"},
}


@dataclass(frozen=True)
class Row:
    """A checked row. `gold`: text, or texts for qa; `extra`: the fields that are passed through."""

    pred: str
    extra: Mapping[str, Any]
    gold: str | tuple[str, ...] = ""
    letters: str = ""
    options: tuple[str, ...] | None = None
    code: CodeTask | None = None
    entry_point: str | None = None


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message.removeprefix('argument ')} (see --help)")


def make_parser() -> Parser:
    """All flags."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("file", help="file with one JSON object a line; - reads standard input")
    parser.add_argument("--task", required=True, choices=tuple(_FIELDS), help="how the rows are graded")
    parser.add_argument(
        "--workers", type=_workers, help="processes for maths and code (default: one a CPU core, at most 8)"
    )
    parser.add_argument(
        "--reference_rule",
        action="store_true",
        help="add reference_correct: what the reference's comparator, known to be wrong in both directions, would say",
    )
    return parser


def _workers(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def read_rows(file: str, task: str) -> list[Row]:
    """All rows of a file ("-": standard input), checked. Raises `DataError` that names the file and line."""
    name = "standard input" if file == "-" else file
    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{name}: no such file; expected a file with one JSON object a line, or -") from None
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{name}: cannot be read as UTF-8 text: {err}") from err
    rows = []
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{name}, line {number}"
            rows.append(_row(_parse(line, where), task, where))
    if not rows:
        raise DataError(f"{name}: no rows; expected one JSON object a line")
    return rows


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as err:
        raise DataError(f"{where}: broken JSON ({err.msg} at column {err.colno}); mend or remove it") from err
    except (ValueError, RecursionError) as err:  # NaN, a number of thousands of digits, a thousand brackets
        raise DataError(f"{where}: JSON that cannot be read ({err}); mend or remove it") from err
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with pred, found {_shown(row)}")
    return row


def _row(row: dict[str, Any], task: str, where: str) -> Row:
    if not isinstance(row.get("pred"), str):
        found = (
            f"pred is {_shown(row['pred'])}" if "pred" in row else f"no pred; the row has {', '.join(row) or 'nothing'}"
        )
        raise DataError(f"{where}: {found}; expected the model's output as text")
    extra = {key: value for key, value in row.items() if key not in _FIELDS[task]}
    if task == "code":
        return _code_row(row, extra, where)
    if "gold" not in row:
        raise DataError(f"{where}: no gold; the row has {', '.join(row)}")
    if task == "choice":
        return _choice_row(row, extra, where)
    gold = row["gold"]
    if task == "qa" and isinstance(gold, list):
        texts = tuple(_text(one, "a gold answer", where) for one in gold)
        if not any(text.strip() for text in texts):
            raise DataError(f"{where}: gold is {_shown(gold)}; expected at least one answer that is not empty")
        return Row(row["pred"], extra, texts)
    text = _text(gold, "gold", where)
    if not text.strip():
        raise DataError(f"{where}: gold is empty; expected an answer")
    return Row(row["pred"], extra, text)


def _choice_row(row: dict[str, Any], extra: dict[str, Any], where: str) -> Row:
    from inference.scoring.choice import grade

    options = row.get("options")
    if options is not None:
        if not isinstance(options, list) or not options:
            raise DataError(f"{where}: options is {_shown(options)}; expected a list of texts")
        options = tuple(_text(option, "an option", where) for option in options)
    letters = row.get("letters", string.ascii_uppercase[: len(options)] if options else "ABCD")
    if isinstance(letters, list) and all(isinstance(letter, str) for letter in letters):
        letters = "".join(letters)
    if not isinstance(letters, str):
        raise DataError(f"{where}: letters is {_shown(letters)}; expected a text such as ABCD")
    checked = Row(row["pred"], extra, _text(row["gold"], "gold", where), letters, options)
    try:
        grade("", checked.gold, letters, options)  # says what is wrong with gold, letters or options
    except DataError as err:
        raise DataError(f"{where}: {err}") from err
    return checked


def _code_row(row: dict[str, Any], extra: dict[str, Any], where: str) -> Row:
    entry_point, tests = row.get("entry_point"), row.get("tests")
    if entry_point is not None and not (isinstance(entry_point, str) and entry_point.isidentifier()):
        raise DataError(f"{where}: entry_point is {_shown(entry_point)}; expected the name of a function")
    if tests is None:
        return Row(row["pred"], extra, entry_point=entry_point)
    from inference.scoring.code import CodeTask

    if isinstance(tests, str) and tests.strip():
        if entry_point is None:
            raise DataError(
                f"{where}: tests are asserts, but there is no entry_point; expected the name of the tested function"
            )
        task = CodeTask(kind="function", entry_point=entry_point, tests=tests)
    elif isinstance(tests, list) and tests and all(_is_pair(test) for test in tests):
        cases = [(test[0], test[1]) for test in tests]
        task = CodeTask(kind="call" if entry_point else "stdin", entry_point=entry_point, cases=cases)
    else:
        raise DataError(
            f"{where}: tests is {_shown(tests)}; expected source text of asserts, or a list of [input, output] texts"
        )
    return Row(row["pred"], extra, code=task, entry_point=entry_point)


def _is_pair(test: Any) -> bool:
    return isinstance(test, list) and len(test) == 2 and all(isinstance(part, str) for part in test)


def _text(value: Any, what: str, where: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: {what} is {_shown(value)}; expected a text or a number")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value)[:60]


Result = tuple["bool | None", Verdict]  # (correct, or None where there is nothing to grade against; verdict)


def graded(rows: Sequence[Row], task: str, workers: int) -> Iterator[Result]:
    """The results of rows, in order; for maths and code with up to `workers` processes, which end with the iterator."""
    if task == "math":
        from inference.scoring import maths

        with maths.ComparePool(workers) as pool, ThreadPoolExecutor(workers) as threads:
            for verdict in threads.map(lambda row: maths.grade(row.pred, row.gold, pool), rows):
                yield verdict.correct, verdict
    elif task == "choice":
        from inference.scoring import choice

        for row in rows:
            verdict = choice.grade(row.pred, row.gold, row.letters, row.options)
            yield verdict.correct, verdict
    elif task == "qa":
        from inference.scoring import qa

        for row in rows:
            verdict = qa.grade(row.pred, row.gold)
            yield verdict.correct, verdict
    elif any(row.code for row in rows):
        from inference.scoring.code import CodeRunner

        with CodeRunner(workers) as runner, ThreadPoolExecutor(workers) as threads:
            yield from threads.map(lambda row: _grade_code(row, runner) if row.code else _extract_code(row), rows)
    else:
        yield from map(_extract_code, rows)


def _grade_code(row: Row, runner: CodeRunner) -> Result:
    assert row.code is not None
    verdict = runner.grade(row.pred, row.code)
    return verdict.correct, verdict


def _extract_code(row: Row) -> Result:
    from inference.scoring.code import extract

    found = extract(row.pred, row.entry_point, "function" if row.entry_point else "program")
    return None, Verdict(False, found.code, found.status, found.rule)


def reference_verdict(row: Row, task: str) -> bool:
    """What the reference's comparator says about a row; for several golds, whether any fits."""
    from inference.scoring.reference_rule import reference_correct

    golds = (row.gold,) if isinstance(row.gold, str) else row.gold
    return any(reference_correct(row.pred, gold, task) for gold in golds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Raises `DataError` before anything is written if a flag or row is bad."""
    args = make_parser().parse_args(argv)
    if args.reference_rule and args.task == "code":
        raise DataError("--reference_rule: the reference runs code, it has no comparator for it; leave the flag out")
    start = time.perf_counter()
    rows = read_rows(args.file, args.task)
    workers = args.workers or min(_MAX_WORKERS, os.cpu_count() or 1)
    statuses: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    with closing(graded(rows, args.task, workers)) as results:
        for row, (correct, verdict) in zip(rows, _progress(results, len(rows)), strict=True):
            result = {
                "correct": correct,
                "extracted": verdict.extracted,
                "status": verdict.status,
                "rule": verdict.rule,
            }
            result |= verdict.details
            if args.reference_rule:
                result["reference_correct"] = reference_verdict(row, args.task)
                counts["reference"] += result["reference_correct"]
            print(json.dumps({**row.extra, **result}), flush=True)
            statuses[verdict.status] += 1
            counts["graded"] += correct is not None
            counts["correct"] += bool(correct)
            if args.task == "qa":
                sums.update(verdict.details)
    _summarise(args, len(rows), counts, sums, statuses, time.perf_counter() - start)
    return 0


def _progress(results: Iterator[Result], total: int) -> Iterator[Result]:
    if not sys.stderr.isatty():
        return results
    from tqdm import tqdm

    return iter(tqdm(results, total=total, unit="row"))


def _summarise(
    args: argparse.Namespace, n: int, counts: Counter[str], sums: Counter[str], statuses: Counter[str], seconds: float
) -> None:
    graded, correct = counts["graded"], counts["correct"]
    summary: dict[str, Any] = {"task": args.task, "rows": n, "graded": graded, "correct": correct}
    text = f"{n} rows, nothing to grade against"
    summary |= {"accuracy": None, "interval": None}
    if graded:
        low, high = wilson(correct, graded)
        summary |= {"accuracy": correct / graded, "interval": [low, high]}
        text = f"{correct} of {graded} correct: {correct / graded:.1%}, 95 % interval {low:.1%} to {high:.1%}"
    summary |= {name: total / n for name, total in sums.items()}
    if args.reference_rule:
        summary["accuracy_reference_rule"] = counts["reference"] / n
    summary |= {"statuses": dict(statuses.most_common()), "seconds": round(seconds, 3)}
    print(
        f"{text}; {', '.join(f'{status} {count}' for status, count in statuses.most_common())}; {seconds:.1f} s",
        file=sys.stderr,
    )
    print(json.dumps(summary), file=sys.stderr)


def _program() -> int:
    try:
        return main()
    except BrokenPipeError:  # the reader of standard output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    exit_on_input_error(_program, DataError)
