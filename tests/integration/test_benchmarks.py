"""The nine benchmarks end to end: real commands, data from a miniature hub by the real clients, agents that recite given texts.

What is recited is written down here row by row, with the numbers that follow from it by hand.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.mas.errors import exit_on_input_error
from inference.run import main
from inference.tools.errors import DataError
from tests.benchmarks.miniature import ROWS, SOLUTIONS, add_benchmarks, jsonl
from tests.integration.tiny_style import ROOT, command
from tests.local_server import LocalServer, Reply, Request
from tests.mini_hub import MiniHub
from tests.reciter import make_system

STYLE = "sequential_light"
NINE = ("math500", "gpqa", "medqa", "mbppplus", "aime25", "aime26", "livecodebench", "bamboogle", "hotpotqa")
NEVER_ENDING = "and so on"
QUESTION = {"gpqa": "Question", "bamboogle": "Question", "mbppplus": "prompt", "livecodebench": "question_content"}
JUDGE_VARIABLES = ("API_KEY", "API_BASE_URL", "API_MODEL")


def box(text: str) -> str:
    return f"Hence it is \\boxed{{{text}}}."


def code(text: str, tag: str = "python") -> str:
    return f"Here it is:\n```{tag}\n{text}\n```"


def plus(row: int) -> str:
    return ROWS["mbppplus"][row]["code"]


# For each benchmark what is recited for its rows, in order. A list: each draw takes one of its texts.
TEXTS: dict[str, list[str | list[str]]] = {
    "math500": [box("0.75"), box("8"), box("5\\sqrt{2}"), box("(-2, 2]"), "I cannot tell.", box("(3, \\pi/2)"), NEVER_ENDING],
    "gpqa": [box("The gluon"), box("Thymine"), box("sp3"), "Hard to say.", box("The mitochondrion"), box("Oxygen")],
    "medqa": [box("A"), "The answer is (C).", box("\\text{C}"), "Not sure at all.", "Who knows.", "Let me think.\n**B**"],
    "mbppplus": [
        code(plus(0)), code("def is_woodall(n):\n    return n in (1, 7)"), code(f"import sys\n\n{plus(2)}", "py"),
        code("import sys\nsys.exit(0)"), "I give up.", code(plus(5)),
    ],
    "aime25": [box("2"), box("7"), [box("24"), box("25")], "I give up.", box("720"), [box("5040"), box("5041")]],
    "aime26": [box("2"), box("6"), box("24"), box("120."), box("719"), box("5041")],
    "livecodebench": [
        code(SOLUTIONS["add"]), code(SOLUTIONS["lines"]), code("print(1.5)"), code("print(0)"), code(SOLUTIONS["double"]),
        code("def join(a, b):\n    return a + '-' + b"), "There is no such method.",
    ],
    "bamboogle": [box("Mara Quill"), box("in 1931"), box("Weal"), box("Tarnium"), box("Brandt"), "No idea."],
    "hotpotqa": [box("yes"), box("Loud Yard"), box("Kent county"), box("Moor House"), box("Sam O'Hara"), box("yes")],
}  # fmt: skip
FLAGS = {"math500": ("--max_new_tokens", "8"), "aime26": ("--num_rollouts", "2", "--pass_k", "1,2")}


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[MiniHub]:
    with MiniHub(tmp_path_factory.mktemp("hub")) as hub:
        add_benchmarks(hub.folder)
        yield hub


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Caches and runs of this file's tests."""
    return tmp_path_factory.mktemp("work")


def environment(hub: MiniHub, work: Path, **more: str) -> dict[str, str]:
    """A process that knows this hub only, keeps its caches in `work` and has no keys."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "API_", "TAVILY_"))}
    return {**kept, **hub.env(work / "hf"), "RECURSIVE_MAS_CACHE": str(work / "own"), "OMP_NUM_THREADS": "1", **more}


def recital(folder: Path, name: str, texts: list[str | list[str]]) -> tuple[str, ...]:
    """Flags that put agents in place which recite `texts`, one for each row."""
    column = QUESTION.get(name, "problem" if "problem" in ROWS[name][0] else "question")
    spoken = {row[column]: text for row, text in zip(ROWS[name], texts, strict=True)}
    return make_system(folder, STYLE, spoken, endless=[NEVER_ENDING])


def records(folder: Path) -> list[dict]:
    """Records in the order of the rows, without their seconds."""
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        {k: v for k, v in record.items() if k != "seconds"} for record in sorted(found, key=lambda r: r["sample_idx"])
    ]


@pytest.fixture(scope="module")
def runs(hub, work) -> dict[str, tuple[dict, list[dict]]]:
    """Summary and records of a run over each benchmark."""
    found = {}
    for name in NINE:
        agents = recital(work / "agents" / name, name, TEXTS[name])
        arguments = ("--style", STYLE, "--dataset", name, "--device", "cpu", "--ans", 0, "--latent_length", 2, *agents)
        done = subprocess.run(
            command(*arguments, *FLAGS.get(name, ()), "--output_dir", work / "runs" / name),
            cwd=ROOT, env=environment(hub, work), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found[name] = (json.loads(done.stdout.splitlines()[-1]), records(work / "runs" / name))
    return found


def entry(runs: dict, name: str) -> dict:
    """The one method's numbers."""
    return runs[name][0]["methods"]["latent"]


@pytest.mark.parametrize(
    "name, right, statuses",
    [
        ("math500", [1, 1, 1, 0, 0, 1, 0], {"ok": 5, "no_answer": 1, "truncated": 1}),
        ("gpqa", [1, 0, 1, 0, 1, 0], {"ok": 5, "no_answer": 1}),
        ("medqa", [1, 1, 0, 0, 0, 1], {"ok": 4, "no_answer": 2}),
        ("mbppplus", [1, 0, 1, 0, 0, 1], {"ok": 5, "no_code": 1}),
        ("aime26", [1, 1, 1, 1, 0, 0], {"ok": 12}),
        ("livecodebench", [1, 1, 0, 0, 1, 1, 0], {"ok": 6, "no_code": 1}),
        ("bamboogle", [1, 0, 1, 1, 0, 0], {"ok": 6}),
        ("hotpotqa", [1, 1, 0, 0, 1, 0], {"ok": 6}),
    ],
)  # fmt: skip
def test_the_summary_counts_what_was_recited(runs, name, right, statuses):
    told, found = entry(runs, name), runs[name][1]
    k = 2 if name == "aime26" else 1
    assert [record["correct"] for record in found] == [bool(one) for one in right]
    assert told["accuracy"] == pytest.approx(sum(right) / len(right))
    assert (told["num_correct"], told["num_answers"]) == (k * sum(right), k * len(right))
    assert told["statuses"] == statuses
    for record, text in zip(found, TEXTS[name], strict=True):
        whole = " ".join([NEVER_ENDING] * 8) if text == NEVER_ENDING else text
        assert [rollout["raw_output"] for rollout in record["rollouts"]] == [whole] * k


def test_costs(runs):
    """A text is one token and its end another; the one that never ends writes to the limit. Three rounds of three stages of
    two latent steps, of which the speaker's last is text."""
    told = entry(runs, "math500")
    assert told["generated_tokens"] == 6 * 2 + 8
    assert told["latent_steps"] == 7 * 2 * (3 * 3 - 1)
    assert told["prompt_tokens"] == sum(record["prompt_tokens"] for record in runs["math500"][1]) > 0


def test_where_the_data_came_from_is_told(runs):
    for name, (summary, _) in runs.items():
        assert summary["data_from"]["revision"] and len(summary["data_from"]["revision"]) == 40, name
    assert runs["medqa"][0]["data_from"]["source"] == "GBaker/MedQA-USMLE-4-options"
    assert runs["livecodebench"][0]["task"] == "code" and runs["hotpotqa"][0]["dataset_split"] == "validation"


def test_the_rule_of_the_reference_stands_beside_ours(runs):
    """It takes (-2, 2] for (-2, 2) and not 0.75 for 3/4; unread letters are "A" to it, which is right for one row by luck."""
    math_rows = [record["rollouts"][0]["reference_correct"] for record in runs["math500"][1]]
    assert math_rows == [False, True, True, True, False, True, False]
    letters = [record["rollouts"][0]["reference_correct"] for record in runs["medqa"][1]]
    assert letters == [True, False, False, False, True, False]
    assert entry(runs, "math500")["accuracy_reference_rule"] == pytest.approx(4 / 7)
    assert entry(runs, "medqa")["accuracy_reference_rule"] == pytest.approx(2 / 6)
    assert "accuracy_reference_rule" not in entry(runs, "mbppplus")


def test_short_text_has_em_and_f1(runs):
    told = entry(runs, "bamboogle")["qa"]
    assert told["em"] == pytest.approx(3 / 6)
    # "in 1931" and "Brandt" share one of two words with their gold answers: F1 = 2 * 1 * 0.5 / 1.5.
    assert told["f1"] == pytest.approx((1 + 2 / 3 + 1 + 1 + 2 / 3 + 0) / 6)
    assert entry(runs, "hotpotqa")["qa"]["f1"] == pytest.approx((1 + 1 + 2 / 3 + 0 + 1 + 0) / 6)


def test_code_is_graded_by_all_tests(runs):
    plus_evals = [record["rollouts"][0]["eval"] for record in runs["mbppplus"][1]]
    assert [one["all_passed"] for one in plus_evals] == [True, False, True, False, False, True]
    evals = [record["rollouts"][0]["eval"] for record in runs["livecodebench"][1]]
    assert [one["passed_tests"] for one in evals[:4]] == [3, 3, 1, 0], "1.5 is right for the public test alone"
    assert evals[2]["failed_test_index"] == 1 and evals[2]["error_type"] == "WA"
    assert evals[6]["error_type"] == "EMPTY_CODE"


def test_groups_have_accuracies_of_their_own(runs):
    levels = entry(runs, "hotpotqa")["groups"]["level"]
    assert {level: group["accuracy"] for level, group in levels.items()} == {"easy": 0.5, "hard": 1.0, "medium": 0.0}
    subjects = entry(runs, "math500")["groups"]["subject"]
    assert subjects["Algebra"]["accuracy"] == 1.0 and subjects["Number Theory"]["accuracy"] == 0.0


def test_ten_rollouts_of_aime(runs):
    """The recommended number; two rows are drawn from a right and a wrong text, so their counts are read off the texts."""
    told, found = entry(runs, "aime25"), runs["aime25"][1]
    golds = [row["answer"] for row in ROWS["aime25"]]
    counts = [
        sum(rollout["raw_output"] == box(gold) for rollout in record["rollouts"])
        for record, gold in zip(found, golds, strict=True)
    ]
    assert [len(record["rollouts"]) for record in found] == [10] * 6
    assert [counts[row] for row in (0, 1, 3, 4)] == [10, 0, 0, 10]
    assert 0 < counts[2] < 10 and 0 < counts[5] < 10, "both texts were drawn"
    assert told["num_correct"] == sum(counts) and told["accuracy"] == pytest.approx(sum(counts) / 60)
    for k in (1, 2, 5, 10):
        by_hand = sum(1 - math.comb(10 - c, k) / math.comb(10, k) for c in counts) / 6
        assert told["pass_at_k"][str(k)] == pytest.approx(by_hand)
    assert told["pass_at_k"]["10"] == pytest.approx(4 / 6)
    assert told["statuses"] == {"ok": 50, "no_answer": 10}
    assert runs["aime25"][0]["setting_sources"]["num_rollouts"] == "recommended"
    assert set(entry(runs, "aime26")["pass_at_k"]) == {"1", "2"}


def judge(request: Request) -> Reply:
    """Says yes to "in 1931", fails on "Brandt"."""
    text = json.dumps(request.json)
    if "Brandt" in text and "Ivo" not in text.split("answer")[-1]:
        return Reply(400, {"error": "bad request"})
    verdict = "yes" if "in 1931" in text else "no"
    content = json.dumps({"reason": "so", "verdict": verdict})
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return Reply(body={"choices": [{"message": {"role": "assistant", "content": content}}], "usage": usage})


def test_a_judge_stands_beside_exact_match(hub, work):
    agents = recital(work / "agents" / "judged", "bamboogle", TEXTS["bamboogle"])
    arguments = (
        "--style",
        STYLE,
        "--dataset",
        "bamboogle",
        "--device",
        "cpu",
        "--ans",
        0,
        "--latent_length",
        2,
        *agents,
    )

    def judged(folder: str, *more: object) -> dict:
        done = subprocess.run(
            command(*arguments, *more, "--output_dir", work / "runs" / folder),
            cwd=ROOT, env=environment(hub, work, **variables), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    with LocalServer(judge) as server:
        variables = dict(zip(JUDGE_VARIABLES, ("a-secret-key-1234", f"{server.url}/v1", "small-judge"), strict=True))
        summary = judged("judged")
        # Three answers match, so three are sent: "in 1931" (yes), "Brandt" (the service refuses) and "No idea." (no).
        assert len(server.requests) == 3
        told = summary["methods"]["latent"]
        assert told["accuracy"] == told["qa"]["em"] == pytest.approx(3 / 6), "a judge's word is no exact match"
        assert told["qa"]["judge_accuracy"] == pytest.approx(4 / 6) and told["qa"]["judged"] == 3
        assert (
            summary["settings"]["judge_model"] == "small-judge" and summary["setting_sources"]["judge"] == "environment"
        )
        judged("judged_again", "--seed", 43)
        # The verdict is known; only the request that failed is sent once more.
        assert len(server.requests) == 4
        off = judged("unjudged", "--judge", 0)["methods"]["latent"]["qa"]
        assert len(server.requests) == 4 and "judged" not in off
    by_row = [record["rollouts"][0].get("judge") for record in records(work / "runs" / "judged")]
    assert [one and one["verdict"] for one in by_row] == [None, True, None, None, None, False]
    assert by_row[4]["status"] == "refused"
    for path in work.rglob("*"):
        assert not path.is_file() or b"a-secret-key-1234" not in path.read_bytes(), path


def test_a_run_killed_inside_scoring_goes_on(hub, work):
    """Every program takes two seconds, so that the kill meets the second batch's at work."""
    texts = [code(f"import time\ntime.sleep(2)\n\n{plus(row) if row != 3 else plus(4)}") for row in range(6)]
    agents = recital(work / "agents" / "slow", "mbppplus", texts)
    base = (
        "--style",
        STYLE,
        "--dataset",
        "mbppplus",
        "--device",
        "cpu",
        "--latent_length",
        2,
        "--batch_size",
        3,
        *agents,
    )
    arguments = (*base, "--code_workers", 1, "--mbppplus_timeout_s", 60)
    quiet = {"cwd": ROOT, "env": environment(hub, work), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    path = work / "runs" / "killed" / "records.jsonl"
    with subprocess.Popen(command(*arguments, "--output_dir", path.parent), **quiet) as process:
        start = time.monotonic()
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert process.poll() is None and time.monotonic() < start + 240
            time.sleep(0.05)
        time.sleep(2)  # the next three are recited in no time and scored in six seconds
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and path.read_bytes().count(b"\n") == 3
    for folder in (path.parent, work / "runs" / "unbroken"):
        subprocess.run(command(*arguments, "--output_dir", folder), **quiet, timeout=300, check=True)
    assert records(path.parent) == records(work / "runs" / "unbroken")
    assert [record["correct"] for record in records(path.parent)] == [True, True, True, False, True, True]


def refused(capsys, monkeypatch, *arguments: object) -> str:
    """The one sentence that a command line ends with, and its exit code 2."""
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        exit_on_input_error(main, DataError)
    assert end.value.code == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    return told.removeprefix("error: ")


def test_bad_input_ends_with_one_sentence(tmp_path, capsys, monkeypatch):
    for name in (*JUDGE_VARIABLES, "TAVILY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RECURSIVE_MAS_CACHE", str(tmp_path / "cache"))
    files = {name: jsonl(tmp_path / f"{name}.jsonl", ROWS[name]) for name in NINE}

    def told(name: str, rows: list[dict] | None = None, *flags: object, style: str = STYLE) -> str:
        path = files[name] if rows is None else jsonl(tmp_path / f"bad_{name}.jsonl", rows)
        data = ("--dataset", name, "--dataset_file", path)
        return refused(
            capsys, monkeypatch, "--style", style, "--device", "cpu", "--output_dir", tmp_path / "out", *data, *flags
        )

    first, second = ROWS["math500"][:2]
    assert refused(capsys, monkeypatch, "--style", STYLE, "--dataset", "math5000").startswith("--dataset math5000: unknown dataset; expected one of pocket, pocket_loop, ")  # fmt: skip
    assert "line 2: no 'answer'; the row has problem" in told("math500", [first, {"problem": "1 + 1?"}])
    assert "line 2: id 'test/prealgebra/0.json' was used before" in told("math500", [first, first])
    assert "bad_math500.jsonl: no rows" in told("math500", [])
    assert "line 2: 'answer' is null" in told("math500", [first, {**second, "answer": None}])
    assert "line 1: 3 options; expected 4 (A to D)" in told("medqa", [{**ROWS["medqa"][0], "options": ["a", "b", "c"]}])
    poem = jsonl(tmp_path / "poem.jsonl", [{"task": "poem", "question": "a", "answer": "b"}])
    assert 'line 1: unknown task "poem"' in refused(capsys, monkeypatch, "--style", STYLE, "--dataset", poem)
    assert "needs the search tool" in told("bamboogle", style="deliberation")
    files["livecodebench"].unlink()
    assert "livecodebench.jsonl: no such file" in told("livecodebench")
    assert "--num_rollouts: '0': expected a whole number of at least 1" in told("math500", None, "--num_rollouts", 0)
    assert "--pass_k 5: more than --num_rollouts 4 answers" in told(
        "math500", None, "--num_rollouts", 4, "--pass_k", "1,5"
    )
    assert "--pass_k 2: more than --num_rollouts 1" in told("math500", None, "--pass_k", 2)
    assert "--lcb_timeout_s: '0': expected a number of at least 0.1" in told("math500", None, "--lcb_timeout_s", 0)
    assert "--judge 1: none of the variables API_KEY, API_BASE_URL, API_MODEL is set" in told(
        "bamboogle", None, "--judge", 1
    )
    monkeypatch.setenv("API_KEY", "a-secret-key-1234")
    half = told("bamboogle")
    assert "API_BASE_URL and API_MODEL not set, though API_KEY is" in half and "a-secret-key" not in half
    assert not (tmp_path / "out").exists()


DRY_RUNS = """
import json, sys
from inference.run import dry_run, make_parser
for style in json.loads(sys.argv[1]):
    for name in json.loads(sys.argv[2]):
        dry_run(vars(make_parser().parse_args(["--style", style, "--dataset", name, "--dry_run", "--device", "cpu"])))
"""
STYLES = ("sequential_light", "sequential_scaled", "mixture", "distillation", "deliberation")


@pytest.mark.parametrize("reached", [True, False])
def test_dry_runs_of_all_pairs(hub, work, tmp_path, reached):
    """With the benchmarks in reach (and prepared) and with nothing in reach; no models anywhere."""
    env = environment(hub, work) if reached else environment(hub, tmp_path, HF_HUB_OFFLINE="1")
    if reached:  # as a run does
        program = "from inference.benchmarks.registry import load_benchmark; load_benchmark('livecodebench')"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-c", DRY_RUNS, json.dumps(STYLES), json.dumps(NINE)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(report["style"], report["dataset"]) for report in reports] == [(s, d) for s in STYLES for d in NINE]
    shown = Counter(line.split()[0] for line in done.stdout.splitlines() if line.split())
    assert shown["latent_length"] == shown["max_new_tokens"] == 45, "every setting is shown with its source"
    for report in reports:
        rows = len(ROWS[report["dataset"]])
        assert report["num_samples"] == (rows if reached else None), report
        assert report["answers"] == (rows * report["settings"]["num_rollouts"] if reached else None)
        assert set(report["settings"]) - {"methods", "tools"} == set(report["setting_sources"])
        assert ("judge" in report["settings"]) == (report["dataset"] in {"bamboogle", "hotpotqa"})
        assert any(report["style"] in told for told in report["missing"]), "the models are not there"
    by_pair = {(report["style"], report["dataset"]): report for report in reports}
    assert by_pair["mixture", "livecodebench"]["settings"]["temperature"] == 0.2
    assert by_pair["mixture", "livecodebench"]["setting_sources"]["temperature"] == "recommended"
    assert by_pair["deliberation", "hotpotqa"]["settings"]["latent_length"] == 32
    assert any("needs the search tool" in told for told in by_pair["deliberation", "bamboogle"]["missing"])


def test_the_list_names_styles_and_benchmarks():
    done = subprocess.run(command("--list"), cwd=ROOT, capture_output=True, text=True, timeout=120)
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(STYLES) <= set(told["styles"]) and set(NINE) <= set(told["datasets"])
    assert told["recommended"]["distillation/medqa"]["latent_length"] == 64
    assert "  gpqa           choice  Idavidrein/gpqa gpqa_diamond  split train" in done.stdout.splitlines()
