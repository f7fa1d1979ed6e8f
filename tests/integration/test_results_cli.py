"""`python -m inference.results` as a user runs it: tables, paired runs, grading again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.benchmarks.registry import load_benchmark
from inference.evaluation import Plan, evaluate
from inference.mas.decoding import Generation, Sampling
from inference.mas.recursion import Answer
from inference.results import Condition, RunFolder, finish, read_records
from tests.integration.tiny_style import ROOT, environment
from tests.integration.tiny_style import run as run_evaluation

SINGLE = Condition("single", None, None, None)


def results(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "inference.results", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)


def shown(*arguments: object) -> str:
    done = results(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: object) -> str:
    """The one sentence that ends a command."""
    done = results(*arguments)
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def pocket(tmp_path_factory) -> Path:
    """The folder of a real run: two methods, two answers to each of twelve questions."""
    folder = tmp_path_factory.mktemp("pocket") / "run"
    done = run_evaluation(
        "--style", "pocket_sequential", "--dataset", "pocket", "--device", "cpu", "--num_samples", 12,
        "--compare", "latent,single", "--num_rollouts", 2, "--output_dir", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def run(pocket, tmp_path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copytree(pocket, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_table_of_a_run_is_its_summary(pocket):
    before = contents(pocket)
    assert shown(pocket) == (pocket / "summary.md").read_text()
    (told,) = json.loads(shown(pocket, "--json"))["runs"]
    summary = json.loads((pocket / "summary.json").read_text())
    for line in told["lines"]:
        entry = summary["methods"][line["method"]]
        assert entry.items() <= line.items() and line["published"] == []
    assert told["git_commit"] == summary["git_commit"] and told["weights"] == summary["weights"] != {}
    assert summary["methods"]["latent"]["pass_at_k"].keys() == {"1", "2"}
    assert summary["task"] == "math" and summary["data"]["samples"]["count"] == 12
    assert contents(pocket) == before, "looking changes nothing"


def test_starts_without_torch(pocket):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['results', {str(pocket)!r}]\n"
        "try:\n    runpy.run_module('inference.results', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "print({'torch', 'transformers', 'datasets', 'sympy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_runs_are_joined_and_paired(pocket, run):
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:10]) + lines[10][:50])
    text = shown(pocket, run)
    rows = [line for line in text.split("\n") if line.startswith(f"| {run} ")]
    assert len(rows) == 1 and "|        10 |" in rows[0]
    assert f"Unfinished: {run}, latent R=1 m=16: 10 of 12 questions." in text
    assert f"Unfinished: {run}, single: not begun." in text
    told = json.loads(shown(pocket, run, "--json"))
    assert [pair["num_samples"] for pair in told["paired"]] == [12, 10]
    assert (told["paired"][1]["value"], told["paired"][1]["p"]) == (0, 1) and told["unpaired"] == []
    assert told["paired"][1]["second"] == f"{run}: latent R=1 m=16"


def old_verdicts(folder: Path, places: list[int]) -> None:
    """Turn the verdict of some first rollouts round, as a scorer with a fault may have left them."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    for place in places:
        record = json.loads(lines[place])
        record["rollouts"][0]["correct"] = record["correct"] = not record["correct"]
        record["pass_at_k_correct"] = any(rollout["correct"] for rollout in record["rollouts"])
        lines[place] = json.dumps(record)
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")


def test_grading_again(pocket, run):
    good = contents(run)
    text = shown(run, "--rescore")
    assert "48 answers graded again, 0 verdicts changed, 0 other changes" in text and len(text.splitlines()) == 1
    assert contents(run) == good, "nothing changed, so nothing is written"
    right = next(place for place, record in enumerate(read_records(run / "records.jsonl")) if record["correct"])
    assert right < 12, "of the latent method, whose records come first"
    old_verdicts(run, [right, 20])
    old = contents(run)["records.jsonl"]
    text = shown(run, "--rescore")
    assert "48 answers graded again, 2 verdicts changed" in text and "old records: records.before-rescore.jsonl" in text
    (latent,) = [line for line in text.splitlines() if line.startswith("  latent R=1 m=16, ")]
    assert "rollout 0: wrong " in latent and "-> right " in latent and "(ok; boxed, " in latent
    new = contents(run)
    assert new["records.before-rescore.jsonl"] == old
    assert list(read_records(run / "records.jsonl")) == list(read_records(pocket / "records.jsonl"))
    assert json.loads(new["manifest.json"])["rescored"] == {
        "answers": 48, "changed": 2, "old_records": "records.before-rescore.jsonl",
    }  # fmt: skip
    summaries = [json.loads((folder / "summary.json").read_text())["methods"] for folder in (pocket, run)]
    assert summaries[0] == summaries[1]
    assert f"{run}: graded again, 2 verdicts changed." in (run / "summary.md").read_text()
    # The run still is what it was: the same command finds it whole.
    again = run_evaluation(
        "--style", "pocket_sequential", "--dataset", "pocket", "--device", "cpu", "--num_samples", 12,
        "--compare", "latent,single", "--num_rollouts", 2, "--output_dir", run,
    )  # fmt: skip
    assert "24 records are there, 0 are missing" in again.stdout, again.stderr[-2000:]
    # A further time: the older records are kept under a name of their own.
    old_verdicts(run, [2])
    told = json.loads(shown(run, "--rescore", "--json"))
    assert told["old_records"] == "records.before-rescore-2.jsonl" and len(told["changed"]) == 1
    assert told["accuracy_before"] != told["accuracy_after"]
    assert contents(run)["records.before-rescore.jsonl"] == old


def test_what_a_model_did_not_write_itself_is_not_graded(run):
    """A retry is graded before and after; where tools were called, `answer_text` is graded, even an empty one."""
    path = run / "records.jsonl"
    records = [record for record in read_records(path) if all(rollout["correct"] for rollout in record["rollouts"])][:3]
    assert {record["method"] for record in records} == {"latent"}
    gold = records[0]["gold_answer_raw"]
    tool, retried, late = (record["rollouts"][0] for record in records)
    tool |= {"raw_output": f" <result> \\boxed{{{gold}}} </result>", "answer_text": "", "tool_calls": {"python": 1}}
    retried |= {"retry": True, "text_before_retry": "no box", "correct_before_retry": True, "suffix_tokens": 3}
    late |= {"retry": True, "text_before_retry": late["raw_output"], "correct_before_retry": False}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    shown(run, "--rescore")
    new = [record["rollouts"][0] for record in read_records(path)]
    assert (new[0]["correct"], new[0]["status"], new[0]["tool_calls"]) == (False, "no_answer", {"python": 1})
    assert (new[1]["correct"], new[1]["correct_before_retry"], new[1]["suffix_tokens"]) == (True, False, 3)
    assert (new[2]["correct"], new[2]["correct_before_retry"]) == (True, True)
    retry = json.loads((run / "summary.json").read_text())["methods"]["latent"]["retry"]
    assert retry == {"count": 2, "accuracy_with": pytest.approx(5 / 6), "accuracy_without": pytest.approx(4 / 6)}


def test_grading_is_not_mixed_with_writing(run):
    manifest = json.loads((run / "manifest.json").read_text())
    folder = RunFolder(run, {name: manifest[name] for name in manifest if name != "records"})
    folder.open()
    assert "another process is writing to this run" in refused(run, "--rescore")
    folder.close()
    shown(run, "--rescore")


class Reciter:
    """Answers with given texts, by sample id."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def answer(self, questions, **how) -> list[Answer]:
        texts = [self.texts[question.id] for question in questions]
        return [
            Answer(q.id, [Generation(text, [1], "eos", 7)], 5, 0, 1, {"speak": 0.5})
            for q, text in zip(questions, texts, strict=True)
        ]


def recite(folder: Path, rows: Path, texts: dict[str, str]) -> Path:
    """A finished run over a file of rows."""
    benchmark = load_benchmark(str(rows))
    data = {**benchmark.fingerprint(), "samples": {"count": len(benchmark.samples), "sha256": "ab"}}
    manifest = {
        "format": 1,
        "fingerprint": {
            "style": {"name": "tiny", "sha256": "ab"},
            "settings": {"methods": ["single"], "num_recursive_rounds": 1, "latent_length": 0},
            "data": data,
            "weights": {},
        },
        "machine": {"batch_size": 2, "code_workers": 2},
        "data_from": {"source": benchmark.source, "revision": None},
        "weights_from": {},
        "setting_sources": {},
        "versions": {},
        "git_commit": None,
    }
    run_folder = RunFolder(folder, manifest)
    run_folder.open()
    evaluate(Plan("tiny", "chain", benchmark, (SINGLE,), Sampling(), 1, 42, False), run_folder, Reciter(texts), 2)
    run_folder.close()
    finish(run_folder)
    return folder


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


OPTIONS = ["red", "green", "blue", "yellow"]
FIELDS = {
    "choice": {"options": OPTIONS, "answer": "B"},
    "qa": {"answer": ["Ada Lovelace", "Countess"]},
    "code": {"entry_point": "together", "tests": "assert together(1, 2) == 3"},
}
ROWS = {
    task: [{"id": f"{task}{i}", "task": task, "question": f"question {i}?", **fields} for i in range(3)]
    for task, fields in FIELDS.items()
}
PROGRAM = "```python\ndef together(a, b):\n    return {}\n```"
TEXTS = {
    "choice": ["\\boxed{B}", "The answer is green.", "The answer is C."],
    "qa": ["\\boxed{Ada Lovelace}", "\\boxed{countess}", "\\boxed{Grace Hopper}"],
    "code": [PROGRAM.format("a + b"), PROGRAM.format("b + a"), PROGRAM.format("a - b")],
}


@pytest.mark.parametrize("task", list(ROWS))
def test_other_tasks_are_graded_again(tmp_path, task):
    """Letters by the options that the question shows, short text and programs by the rows."""
    rows = write_rows(tmp_path / f"{task}.jsonl", ROWS[task])
    ids = [row["id"] for row in ROWS[task]]
    run = recite(tmp_path / "run", rows, dict(zip(ids, TEXTS[task], strict=True)))
    records = list(read_records(run / "records.jsonl"))
    assert [record["correct"] for record in sorted(records, key=lambda r: r["sample_idx"])] == [True, True, False]
    assert "0 verdicts changed, 0 other changes" in shown(run, "--rescore")
    old_verdicts(run, [0, 1, 2])
    assert "3 verdicts changed" in shown(run, "--rescore")
    assert list(read_records(run / "records.jsonl")) == records
    rows.rename(tmp_path / "moved.jsonl")
    if task == "choice":
        assert "0 verdicts changed" in shown(run, "--rescore")
        return
    assert "no such file" in refused(run, "--rescore")
    assert "0 verdicts changed" in shown(run, "--rescore", "--dataset_file", tmp_path / "moved.jsonl")
    write_rows(rows, [{**row, "question": "another one"} for row in ROWS[task]])
    assert "has other rows than the run had (sha256 " in refused(run, "--rescore")


def test_killed_while_grading_again(tmp_path):
    """kill -9 leaves the old records, and the next time goes through."""
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"id": f"q{i}", "question": f"{i}", "answer": str(i)} for i in range(400)]
    )
    run = recite(tmp_path / "run", rows, {f"q{i}": f"\\boxed{{{i}+0}}" for i in range(400)})
    old_verdicts(run, list(range(400)))
    before = contents(run)
    command = [sys.executable, "-m", "inference.results", str(run), "--rescore"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL) as process:
        start = time.monotonic()
        while not (run / "records.jsonl.tmp").exists():
            assert process.poll() is None and time.monotonic() < start + 120
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert {name: content for name, content in contents(run).items() if name in before} == before
    assert "400 answers graded again, 400 verdicts changed" in shown(run, "--rescore")
    assert (
        not list(run.glob("*.tmp")) and (run / "records.before-rescore.jsonl").read_bytes() == before["records.jsonl"]
    )
    assert json.loads((run / "summary.json").read_text())["methods"]["single"]["accuracy"] == 1.0


def test_bad_input(run, tmp_path):
    assert "DIR" in refused()
    assert f"{tmp_path / 'none'}: no such folder" in refused(tmp_path / "none")
    assert "holds no manifest.json" in refused(tmp_path)
    assert "a folder stands twice" in refused(run, f"{run}/../run")
    assert "is for --rescore" in refused(run, "--dataset_file", "x.jsonl")
    assert "unrecognized arguments: --rescor " in refused(run, "--rescor")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "format": 7}))
    assert "format 7; expected 1" in refused(run) and "format 7; expected 1" in refused(run, "--rescore")
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "records.jsonl").write_text("")
    assert "no finished records" in refused(run) and "no finished records" in refused(run, "--rescore")
