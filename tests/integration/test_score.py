"""`python -m inference.score` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCORING = ROOT / "tests" / "scoring"
SECONDS = 300  # a run takes about one; the limit only ends a hang
ADD = "```python\ndef plus(a, b):\n    return a {} b\n```"


def score(
    *args: str | Path, rows: list[Any] | None = None, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; `rows` or `text` go to its standard input."""
    sent = "".join(json.dumps(row) + "\n" for row in rows) if rows is not None else text
    command = [sys.executable, "-m", "inference.score", *map(str, args)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        input=sent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        encoding="utf-8",
    )


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def graded(done: subprocess.CompletedProcess[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The graded rows and the summary."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], json.loads(done.stderr.splitlines()[-1])


def test_maths_cases() -> None:
    cases = read(SCORING / "math_cases.jsonl")
    rows, summary = graded(score(SCORING / "math_cases.jsonl", "--task", "math", "--workers", "2", "--reference_rule"))
    assert [row["correct"] for row in rows] == [case["expected"] for case in cases]
    assert [row["note"] for row in rows] == [case["note"] for case in cases]
    assert all("gold" not in row and "pred" not in row for row in rows)
    correct = sum(case["expected"] for case in cases)
    assert (summary["rows"], summary["graded"], summary["correct"]) == (len(cases), len(cases), correct)
    assert summary["accuracy"] == pytest.approx(correct / len(cases))
    assert 0 < summary["interval"][0] < summary["accuracy"] < summary["interval"][1] < 1
    assert summary["accuracy_reference_rule"] == pytest.approx(
        sum(row["reference_correct"] for row in rows) / len(rows)
    )
    assert sum(summary["statuses"].values()) == len(cases) and summary["seconds"] > 0


def test_choice_cases() -> None:
    cases = read(SCORING / "choice_cases.jsonl")
    rows, summary = graded(score("-", "--task", "choice", rows=[{**case, "gold": "A"} for case in cases]))
    assert [row["extracted"] for row in rows] == [case["expected"] for case in cases]
    assert [row["correct"] for row in rows] == [case["expected"] == "A" for case in cases]
    assert all((row["status"] == "ok") == (row["extracted"] is not None) and row["rule"] for row in rows)
    assert summary["correct"] == sum(case["expected"] == "A" for case in cases)


def test_qa_cases() -> None:
    cases = read(SCORING / "em_cases.jsonl")
    sent = [{"n": n, "gold": case["gold"], "pred": case["pred"]} for n, case in enumerate(cases)]
    rows, summary = graded(score("-", "--task", "qa", rows=sent))
    assert [row["n"] for row in rows] == list(range(len(cases)))
    for name in ("em", "f1", "official_em", "official_f1"):
        assert [row[name] for row in rows] == pytest.approx([case[name] for case in cases], abs=1e-3)
        assert summary[name] == pytest.approx(sum(case[name] for case in cases) / len(cases), abs=1e-3)
    assert [row["correct"] for row in rows] == [case["em"] == 1 for case in cases]


def test_programs_with_tests() -> None:
    sent = [
        {"id": "right", "pred": ADD.format("+"), "entry_point": "plus", "tests": "assert plus(1, 2) == 3\nassert plus(0, 5) == 5"},
        {"id": "wrong", "pred": ADD.format("-"), "entry_point": "plus", "tests": "assert plus(1, 2) == 3"},
        {"id": "stdin", "pred": "print(int(input()) + 1)", "tests": [["1\n", "2\n"], ["5\n", "6"]]},
        {"id": "call", "pred": "class Solution:\n    def f(self, x, y):\n        return x + y", "entry_point": "f", "tests": [["1\n2", "3"]]},
        {"id": "leaves", "pred": "import sys\nsys.exit(0)\ndef plus(a, b): ...", "entry_point": "plus", "tests": "assert plus(1, 2) == 3"},
        {"id": "prose", "pred": "I have no idea.", "entry_point": "plus", "tests": "assert plus(1, 2) == 3"},
        {"id": "no tests", "pred": ADD.format("+")},
    ]  # fmt: skip
    rows, summary = graded(score("-", "--task", "code", "--workers", "2", rows=sent))
    assert [(row["id"], row["correct"]) for row in rows] == [
        ("right", True), ("wrong", False), ("stdin", True), ("call", True), ("leaves", False), ("prose", False), ("no tests", None)
    ]  # fmt: skip
    assert rows[0]["eval"]["passed_tests"] == rows[0]["eval"]["total_tests"] == 2
    assert rows[5]["status"] == "no_code" and rows[5]["extracted"] is None
    assert "eval" not in rows[6] and rows[6]["extracted"] == "def plus(a, b):\n    return a + b"
    assert (summary["rows"], summary["graded"], summary["correct"]) == (7, 6, 3)


def test_programs_without_tests_are_only_extracted() -> None:
    rows, summary = graded(score("-", "--task", "code", rows=[{"pred": ADD.format("+")}, {"pred": ""}]))
    assert [row["correct"] for row in rows] == [None, None]
    assert rows[0]["extracted"].startswith("def plus") and rows[1]["extracted"] is None
    assert summary["accuracy"] is None and summary["interval"] is None


def test_several_golds_and_options() -> None:
    rows, _ = graded(
        score("-", "--task", "qa", "--reference_rule", rows=[{"gold": ["Rome", "Oslo"], "pred": "Answer: Oslo"}])
    )
    assert rows[0]["correct"] is True and rows[0]["reference_correct"] is False
    five = {"options": ["a1", "b1", "c1", "d1", 5], "pred": "Answer: 5"}
    rows, _ = graded(
        score("-", "--task", "choice", rows=[{**five, "gold": "E"}, {**five, "gold": "a", "letters": list("VWXYA")}])
    )
    assert [row["extracted"] for row in rows] == ["E", "A"] and all(row["correct"] for row in rows)


def test_results_replace_fields_of_the_same_name_and_order_is_kept() -> None:
    sent = [
        {"id": n, "correct": "?", "gold": n, "pred": rf"\boxed{{\sqrt{{{n * n}}}}}" if n % 2 else "no"}
        for n in range(60)
    ]
    rows, summary = graded(score("-", "--task", "math", "--workers", "2", rows=sent))
    assert [(row["id"], row["correct"]) for row in rows] == [(n, n % 2 == 1) for n in range(60)]
    assert summary["correct"] == 30


GOOD = {"gold": "1", "pred": "1"}


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        ("math", [GOOD, "{"], "standard input, line 2: broken JSON"), ("math", [GOOD, "[1]"], "line 2: expected an object with pred, found [1]"),
        ("math", [], "standard input: no rows"), ("math", [GOOD, {"gold": "1"}], "line 2: no pred; the row has gold"),
        ("math", [{}], "line 1: no pred; the row has nothing"), ("math", [GOOD, {"pred": None, "gold": "1"}], "line 2: pred is null; expected the model's output"),
        ("math", [GOOD, {"pred": "1"}], "line 2: no gold"), ("math", [{"pred": "1", "gold": " "}], "line 1: gold is empty"),
        ("math", [{"pred": "1", "gold": True}], "line 1: gold is true; expected a text or a number"), ("math", [{"pred": "1", "gold": ["1"]}], 'gold is ["1"]; expected'),
        ("math", ['{"pred": "1", "gold": NaN}'], "line 1: JSON that cannot be read (NaN is not JSON)"), ("math", ["[" * 100_000], "line 1: JSON that cannot be read"),
        ("qa", [{"pred": "1", "gold": []}], "expected at least one answer"), ("qa", [{"pred": "1", "gold": [None]}], "a gold answer is null"),
        ("choice", [GOOD], "line 1: gold is '1'; expected one of the letters ABCD"), ("choice", [{"pred": "A", "gold": "D", "options": ["x", "y"]}], "expected one of the letters AB"),
        ("choice", [{"pred": "A", "gold": "A", "letters": "AA"}], "line 1: letters are 'AA'"), ("choice", [{"pred": "A", "gold": "A", "letters": 4}], "letters is 4"),
        ("choice", [{"pred": "A", "gold": "A", "letters": "AB", "options": ["x", "y", "z"]}], "3 options for the letters AB"),
        ("choice", [{"pred": "A", "gold": "A", "options": "xyz"}], 'options is "xyz"; expected a list of texts'), ("choice", [{"pred": "A", "gold": "A", "options": [None]}], "an option is null"),
        ("code", [{"pred": "1", "tests": 5}], "line 1: tests is 5; expected source text"), ("code", [{"pred": "1", "tests": "assert f() == 1"}], "no entry_point"),
        ("code", [{"pred": "1", "entry_point": "f(x)"}], 'entry_point is "f(x)"'), ("code", [{"pred": "1", "tests": [["1", 2]]}], "expected source text"),
    ],
)  # fmt: skip
def test_a_bad_row_is_one_sentence_and_nothing_is_written(task: str, lines: list[Any], message: str) -> None:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = score("-", "--task", task, text=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["missing.jsonl", "--task", "math"], "missing.jsonl: no such file"), (["-", "--task", "poem"], "--task: invalid choice: 'poem'"), (["-"], "required: --task"),
        (["-", "--task", "math", "--workers", "0"], "--workers: '0': expected a whole number of at least 1"), ([".", "--task", "math"], ".: cannot be read as UTF-8 text"),
        (["-", "--task", "code", "--reference_rule"], "--reference_rule"),
    ],
)  # fmt: skip
def test_bad_arguments(args: list[str], message: str) -> None:
    done = score(*args, rows=[GOOD])
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"gold": "1", "pred": "1"}\r\n\n{"gold": "1"}\n')
    assert f"{path}, line 3: no pred" in score(path, "--task", "math").stderr
    path.write_bytes(b"\xff\xfe")
    assert f"{path}: cannot be read as UTF-8 text" in score(path, "--task", "math").stderr


def test_any_text_is_written_as_json() -> None:
    rows, _ = graded(score("-", "--task", "qa", rows=[{"id": "\ud800 é \u2028", "gold": "é", "pred": "é"}]))
    assert rows[0]["id"] == "\ud800 é \u2028" and rows[0]["extracted"] == "é"


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    rows = "".join(json.dumps({"gold": "Oslo", "pred": "Oslo", "pad": "x" * 2000}) + "\n" for _ in range(500))
    command = f"{sys.executable} -m inference.score - --task qa | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, input=rows, capture_output=True, text=True, timeout=SECONDS
    )
    assert len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr


LIGHT = """
import io, json, sys
sys.stdin = io.TextIOWrapper(io.BytesIO(json.dumps(json.loads(sys.argv[2])).encode()))
from inference.score import main
main(["-", "--task", sys.argv[1]])
heavy = {"torch", "transformers", "datasets", "numpy", "sympy"} & set(sys.modules)
print(*sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("task", "row"),
    [("math", GOOD), ("choice", {"gold": "A", "pred": "A"}), ("qa", GOOD), ("code", {"pred": "print(1)"}),
     ("code", {"pred": "print(1)", "tests": [["", "1"]]})],
)  # fmt: skip
def test_no_heavy_library_is_loaded(task: str, row: dict[str, Any]) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, task, json.dumps(row)], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    print(f"{task}: {time.monotonic() - start:.2f} s from start to end")  # not asserted: the machine may be busy
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == "ok", done.stderr
    assert done.stderr.splitlines()[-1] == ""
