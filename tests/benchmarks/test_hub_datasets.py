"""The nine benchmarks (and two more) through the real clients, in processes of their own, from a miniature hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.miniature import ROWS, SOLUTIONS, add_benchmarks, jsonl, medqa_local, packed
from tests.mini_hub import MiniHub, commit_of

ROOT = Path(__file__).resolve().parents[2]
NAMES = tuple(ROWS)
SOURCES = {
    "math500": "HuggingFaceH4/MATH-500", "aime24": "HuggingFaceH4/aime_2024", "aime25": "math-ai/aime25", "aime26": "MathArena/aime_2026",
    "gsm8k": "openai/gsm8k", "gpqa": "Idavidrein/gpqa", "medqa": "GBaker/MedQA-USMLE-4-options", "mbppplus": "evalplus/mbppplus",
    "livecodebench": "livecodebench/code_generation_lite", "bamboogle": "chiayewken/bamboogle", "hotpotqa": "hotpotqa/hotpot_qa",
}  # fmt: skip
SPLITS = dict.fromkeys(NAMES, "test") | {
    "aime24": "train",
    "aime26": "train",
    "gpqa": "train",
    "hotpotqa": "validation",
}
PROGRAM = """
import json, sys
from inference.benchmarks.base import Options
from inference.benchmarks.registry import load_benchmark
from inference.tools.errors import DataError

def boxed(sample):
    return f"So it is \\\\boxed{{{sample.gold}}}."

for job in json.loads(sys.argv[1]):
    solutions = job.pop("solutions", None)
    try:
        b = load_benchmark(**{**job, "options": Options(**job.get("options", {}))})
    except DataError as err:
        print(json.dumps({"error": str(err)}))
        continue
    found = {"name": b.name, "task": b.task, "split": b.split, "source": b.source, "revision": b.revision, "data": b.fingerprint()}
    found["samples"] = [[s.id, s.question, s.gold, s.family, s.kind, s.fn_name, dict(s.meta), s.groups] for s in b.samples]
    if solutions is not None:
        with b.grader() as grade:
            texts = [f"```python\\n{solutions.get(s.id, s.gold)}\\n```" if b.task == "code" else boxed(s) for s in b.samples]
            verdicts = grade(list(zip(b.samples, texts)))
            found["verdicts"] = [[v.correct, v.status, v.rule, dict(v.details)] for v in verdicts]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[MiniHub]:
    with MiniHub(tmp_path_factory.mktemp("hub")) as hub:
        add_benchmarks(hub.folder)
        yield hub


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A cache that the tests of this file share."""
    return tmp_path_factory.mktemp("cache")


def load(hub: MiniHub, cache: Path, jobs: list[dict], **env: str) -> list[dict]:
    """What a fresh process makes of each benchmark."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGINGFACE_"))}
    own = {"RECURSIVE_MAS_CACHE": str(cache / "own"), "OMP_NUM_THREADS": "1", "HF_HUB_ETAG_TIMEOUT": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(jobs)],
        cwd=ROOT,
        env={**kept, **hub.env(cache), **own, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def loaded(hub, cache) -> dict[str, dict]:
    """Every benchmark, its gold answers graded against themselves."""
    found = load(hub, cache, [{"name": name, "solutions": SOLUTIONS} for name in NAMES])
    return dict(zip(NAMES, found, strict=True))


def test_where_rows_come_from(hub, loaded):
    for name in NAMES:
        found = loaded[name]
        assert "error" not in found, found
        assert (found["source"], found["split"]) == (SOURCES[name], SPLITS[name]), name
        assert len(found["samples"]) == len(ROWS[name]) == found["data"]["rows"] >= 6, name
        assert found["revision"] == commit_of(hub.repo(SOURCES[name], "datasets")), name


@pytest.mark.parametrize("name", NAMES)
def test_gold_against_gold_is_always_right(loaded, name):
    assert [verdict[:2] for verdict in loaded[name]["verdicts"]] == [[True, "ok"]] * len(ROWS[name]), loaded[name]


def test_what_samples_are_made_of(loaded):
    by_name = {name: found["samples"] for name, found in loaded.items()}
    first = by_name["math500"][0]
    assert first[:4] == [ROWS["math500"][0]["unique_id"], ROWS["math500"][0]["problem"], "\\frac{3}{4}", "math"]
    assert first[7] == {"subject": "Prealgebra", "level": 1}
    assert [s[0] for s in by_name["aime26"]] == ["1", "2", "3", "4", "5", "6"] and by_name["aime26"][0][2] == "2"
    assert [s[0] for s in by_name["aime25"]][:2] == ["0", "1"] and by_name["aime24"][1][2] == "006"
    assert by_name["gsm8k"][0][:3] == ["gsm8k-0", ROWS["gsm8k"][0]["question"], "6"]
    for sample, row in zip(by_name["gpqa"], ROWS["gpqa"], strict=True):
        options = sample[6]["options"]
        assert sample[1] == row["Question"] + "\n\n" + "\n".join(
            f"{k}. {v}" for k, v in zip("ABCD", options, strict=True)
        )
        assert options["ABCD".index(sample[2])] == row["Correct Answer"].strip()
        assert sample[0] == row["Record ID"] and sample[7] == {"subject": row["High-level domain"]}
    medqa = by_name["medqa"][0]
    assert (medqa[0], medqa[2], medqa[3], medqa[7]) == ("medqa-0", "A", "choice", {"type": "step2&3"})
    assert medqa[1].endswith("\n\nA. Croup\nB. Asthma\nC. C. difficile colitis\nD. Measles")
    plus, row = by_name["mbppplus"][1], ROWS["mbppplus"][1]
    assert (plus[0], plus[2], plus[4], plus[5]) == ("3", row["code"], "function", "is_woodall")
    assert plus[1] == row["prompt"] + "\n\nYour code must pass these tests:\n" + "\n".join(row["test_list"][:3])
    assert plus[6]["tests"] == row["test"].strip()
    assert [s[5] for s in by_name["mbppplus"]][-1] == "digits_sum", "the helper that stands first is not under test"
    add, double = by_name["livecodebench"][0], by_name["livecodebench"][4]
    assert (add[0], add[1], add[4], add[5]) == ("add", ROWS["livecodebench"][0]["question_content"], "program", None)
    assert (double[4], double[5]) == ("function", "double") and "def double(self, xs" in double[1]
    assert add[7] == {"difficulty": "easy", "platform": "atcoder"}
    assert by_name["bamboogle"][0][:4] == ["bamboogle-0", *ROWS["bamboogle"][0].values(), "math"]
    assert by_name["hotpotqa"][1][1] == ROWS["hotpotqa"][1]["question"], "the question only"
    assert by_name["hotpotqa"][1][7] == {"level": "hard", "type": "bridge"}


def test_options_change_rows(hub, cache, loaded):
    jobs = [
        {"name": "hotpotqa", "options": {"hotpot_context": True}},
        {"name": "mbppplus", "options": {"mbppplus_num_prompt_tests": 0}},
        {"name": "gpqa", "options": {"seed": 7}},
        {"name": "livecodebench", "options": {"lcb_release": "release_v2"}},
        {"name": "livecodebench", "options": {"lcb_release": "v5_v6"}},
        {"name": "livecodebench", "options": {"lcb_start_date": "2024-02-15", "lcb_end_date": "2024-04-15"}},
        {"name": "livecodebench", "options": {"lcb_start_date": "2025-01-01"}},
        {"name": "livecodebench", "options": {"lcb_end_date": "spring"}},
        {"name": "livecodebench", "options": {"lcb_release": "release_v9"}},
        {"name": "livecodebench", "options": {"lcb_release": "v6_v5"}},
        {"name": "livecodebench", "split": "train"},
    ]
    hotpot, plus, gpqa, two, slices, window, late, spring, nine, back, split = load(hub, cache, jobs)
    assert (
        hotpot["samples"][0][1]
        == "Page 0: Fact 0. More.\n\nOther: Nothing here.\n\nQuestion: " + ROWS["hotpotqa"][0]["question"]
    )
    assert hotpot["samples"][0][6]["stem"] == ROWS["hotpotqa"][0]["question"]
    assert plus["samples"][0][1] == ROWS["mbppplus"][0]["prompt"]
    assert [s[2] for s in gpqa["samples"]] != [s[2] for s in loaded["gpqa"]["samples"]]
    names = [row["question_id"] for row in ROWS["livecodebench"]]
    assert [s[0] for s in two["samples"]] == names[:2] and [s[0] for s in slices["samples"]] == names[4:]
    assert [s[0] for s in window["samples"]] == names[1:4]
    assert (
        "no problem of livecodebench/code_generation_lite is within the dates; its contests lie between 2024-01-15"
        in late["error"]
    )
    assert spring["error"] == '--lcb_end_date "spring": expected a date as YYYY-MM-DD'
    assert nine["error"].startswith("--lcb_release release_v9: expected release_v1 to release_v6")
    assert back["error"].startswith("--lcb_release v6_v5: expected")
    assert split["error"].startswith("--dataset_split train: livecodebench has test")


def test_pinned_revisions_and_repeats(hub, cache, loaded):
    jobs = [{"name": name, "revision": loaded[name]["revision"]} for name in ("math500", "livecodebench")]
    jobs += [{"name": name, "revision": "nope"} for name in ("math500", "livecodebench")]
    math, lcb, unknown, unknown_lcb = load(hub, cache, jobs)
    assert (math["data"], lcb["data"]) == (loaded["math500"]["data"], loaded["livecodebench"]["data"])
    assert "HuggingFaceH4/MATH-500, split 'test' at revision nope: cannot be loaded" in unknown["error"]
    assert "test.jsonl at revision nope: cannot be loaded" in unknown_lcb["error"]


def test_tests_of_livecodebench_are_prepared_once(hub, cache, loaded):
    """The second time neither the hub nor its files are read; the packed tests are JSON in the user's cache."""
    folder = cache / "own" / "livecodebench"
    assert len(list(folder.glob("*.json"))) == 6 and len(list((folder / "tests").iterdir())) == 7
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    (again,) = load(hub, cache, [{"name": "livecodebench", "download": False}])
    assert again["data"] == loaded["livecodebench"]["data"]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_public_tests_alone_let_a_lucky_program_pass(hub, cache):
    lucky = {"add": "print(3)"}
    jobs = [
        {
            "name": "livecodebench",
            "sample_ids": ["add"],
            "solutions": lucky,
            "options": {"lcb_use_private_tests": private},
        }
        for private in (True, False)
    ]
    strict, public = load(hub, cache, jobs)
    assert (strict["verdicts"][0][0], public["verdicts"][0][0]) == (False, True)
    assert public["verdicts"][0][3]["eval"]["total_tests"] == 1 and strict["verdicts"][0][3]["eval"]["total_tests"] == 3


def test_medqa_from_the_file_of_the_reference(hub, cache, loaded, tmp_path):
    (local,) = load(hub, cache, [{"name": "medqa", "dataset_file": str(_json(tmp_path / "medqa.json", medqa_local()))}])
    assert local["source"].endswith("medqa.json") and local["revision"] is None
    assert [s[2] for s in local["samples"]] == [s[2] for s in loaded["medqa"]["samples"]]
    assert local["samples"][0][1] == medqa_local()[0]["query"], "the query shows all options and is taken as it is"


def _json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_troubles_are_sentences(hub, tmp_path):
    """A hub that is gated, incomplete, broken or away."""
    repos = {name: hub.repo(SOURCES[name], "datasets") for name in ("livecodebench", "bamboogle", "mbppplus")}
    missing = repos["livecodebench"] / "test3.jsonl"
    text = missing.read_bytes()
    columns = hub.repo("chiayewken/bamboogle@old", "datasets")
    jsonl(columns / "data" / "test.jsonl", [{"Question": "Who?", "Reply": "Me"}])
    jobs = [{"name": "gpqa"}, {"name": "livecodebench"}, {"name": "bamboogle", "revision": "old"}]
    hub.gated.add("Idavidrein/gpqa")
    missing.unlink()
    try:
        gated, lacks, column = load(hub, tmp_path / "cache", jobs)
    finally:
        hub.gated.clear()
        missing.write_bytes(text)
        shutil.rmtree(columns)
    assert (
        "gated; accept its terms" in gated["error"]
        and "hf auth login" in gated["error"]
        and "--dataset_file" in gated["error"]
    )
    assert "has no file test3.jsonl" in lacks["error"]
    assert "row 0: no 'Answer'; the row has Question, Reply" in column["error"]
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # a port that nothing listens on
    down = load(hub, tmp_path / "cache2", [{"name": "bamboogle"}, {"name": "livecodebench"}], **nowhere)
    for told in down:
        assert "cannot be loaded" in told["error"] and "--dataset_file" in told["error"]
    (dry,) = load(hub, tmp_path / "cache2", [{"name": "livecodebench", "download": False}])
    assert "not in the hub client's cache; a run downloads it" in dry["error"]


def test_a_pickled_object_is_refused_and_not_run(tmp_path):
    """In the released form, with an object where the tests should be."""
    from inference.benchmarks.registry import load_benchmark
    from inference.tools.errors import DataError

    flag = tmp_path / "ran"

    class Run:
        def __reduce__(self):
            return (os.mkdir, (str(flag),))

    row = {**ROWS["livecodebench"][1], "private_test_cases": packed([Run()], as_text=False)}
    path = jsonl(tmp_path / "test.jsonl", [row])
    with pytest.raises(
        DataError, match=r"test\.jsonl, line 1 \(lines\): 'private_test_cases' holds a pickle .*refused"
    ):
        load_benchmark("livecodebench", dataset_file=path)
    assert not flag.exists()
