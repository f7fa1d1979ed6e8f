"""From rows to samples: GPQA's permutation, gold letters, functions under test, a user's own rows, broken rows."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import zlib
from pathlib import Path

import pytest

from inference.benchmarks import choice, livecodebench
from inference.benchmarks.base import Options
from inference.benchmarks.code import code_task, function_name
from inference.benchmarks.registry import load_benchmark
from inference.tools.errors import DataError
from tests.benchmarks.miniature import ROWS, jsonl, medqa_local, packed


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    """Prepared tests go into a folder of the test."""
    monkeypatch.setenv("RECURSIVE_MAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(path: Path, rows: list) -> Path:
    return jsonl(path / "rows.jsonl", rows)


@pytest.mark.parametrize(
    "stem, start, draws, order",
    [
        # Python's shuffle swaps places 3, 2, 1 with a draw below 4, 3, 2: the first of the generator's 3-, 2- and 2-bit
        # numbers that is small enough. Bits below were read off the generator; the order follows by hand.
        ("What is the unit of charge?", "26eaf9e4f8323f14", [(3, 4), (3, 0), (2, 2), (2, 2), (2, 1)], [3, 1, 2, 0]),
        ("Which gas do plants take in?", "1afef16bbab67824", [(3, 6), (3, 7), (3, 0), (2, 2), (2, 3), (2, 0)], [1, 3, 2, 0]),
    ],
)  # fmt: skip
def test_the_permutation_of_gpqa(stem, start, draws, order):
    assert hashlib.md5(f"42::{stem}".encode()).hexdigest()[:16] == start
    generator = random.Random(int(start, 16))
    assert [(bits, generator.getrandbits(bits)) for bits, _ in draws] == draws
    assert choice.permutation(42, stem) == order
    assert choice.permutation(42, stem) == order, "no global state"
    row = {"Question": stem, "Correct Answer": "c", **{f"Incorrect Answer {n}": f"w{n}" for n in (1, 2, 3)}}
    sample = choice.gpqa_sample(row, 0, "row 0", "gpqa-0", Options())
    assert sample.meta["options"] == [("c", "w1", "w2", "w3")[n] for n in order]
    assert sample.gold == "ABCD"[order.index(0)]


def test_gold_letters_by_exact_match():
    options = ["Croup", "Answer A", "C. difficile  colitis", "croup"]
    assert choice.gold_letter("C. difficile colitis", options, "row 1") == "C"
    assert choice.gold_letter("croup", options, "row 1") == "D"
    with pytest.raises(DataError, match=r'row 1: no option is the answer "difficile"; expected exactly one'):
        choice.gold_letter("difficile", options, "row 1")
    with pytest.raises(DataError, match=r"row 1: options A and D are the answer"):
        choice.gold_letter("x", ["x", "y", "z", "x"], "row 1")


@pytest.mark.parametrize(
    "change, told",
    [
        ({"options": ["a", "b", "c"]}, r"rows\.jsonl, line 2: 3 options; expected 4 \(A to D\)"),
        ({"options": ["a", "b", "c", "d", "e"]}, "line 2: 5 options"),
        ({"options": "abcd"}, "line 2: 'options' is \"abcd\"; expected a list of 4 texts"),
        ({"options": ["a", "b", "c", ""]}, "line 2: 'options' is \"\""),
        ({"options": {"A": "a", "B": "b", "C": "c"}}, "line 2: 'options' has the letters A, B, C"),
        ({"answer": "Coup"}, "line 2: no option is the answer"),
        ({"options": ["Anthrax", "Anthrax", "c", "d"], "answer": "Anthrax"}, "line 2: options A and B are the answer"),
        ({"answer_idx": "E"}, "line 2: 'answer_idx' is \"E\"; expected A, B, C or D"),
        ({"answer_idx": "A", "answer": "Measles"}, "line 2: 'answer' is \"Measles\", but 'answer_idx' A names another option"),
    ],
)  # fmt: skip
def test_bad_rows_of_medqa(tmp_path, change, told):
    rows = medqa_local()
    with pytest.raises(DataError, match=told):
        load_benchmark("medqa", dataset_file=file_of(tmp_path, [rows[0], {**rows[1], **change}]))


def test_a_query_without_its_options_gets_them(tmp_path):
    row = {**medqa_local()[0], "query": "What is it?"}
    (sample,) = load_benchmark("medqa", dataset_file=file_of(tmp_path, [row])).samples
    assert sample.question == "What is it?\n\nA. Croup\nB. Asthma\nC. C. difficile colitis\nD. Measles"


def test_the_function_under_test():
    code = "def helper(x):\n    return x\n\ndef solve(x):\n    return helper(x)"
    assert function_name(["assert set(solve([1])) == set([1])"], code) == "solve"
    assert function_name(["assert math.isclose(helper(1), 1)"], code) == "helper"
    assert function_name(["assert other(1) == 1"], code) == "other", "as the tests call it, whatever the code says"
    assert function_name([], code) == function_name(["not python ("], code) == "solve"
    assert function_name(["assert sum([1]) == 1"], "def sum(x):\n    return 1") == "sum"
    assert function_name([], "x = 1") is None


OWN = {
    "math": {"task": "math", "question": "1 + 1?", "answer": 2, "level": 1},
    "choice": {"task": "choice", "question": "Which?", "options": ["w", "x", "y", "z"], "answer": "y"},
    "qa": {"task": "qa", "question": "Who?", "answer": ["Mara Quill", "M. Quill"]},
    "function": {"task": "code", "question": "Add.", "entry_point": "add", "tests": "assert add(1, 2) == 3", "answer": "def add(a, b): return a + b"},
    "program": {"task": "code", "question": "Echo.", "cases": [{"input": "1\n", "output": "1"}]},
    "call": {"task": "code", "question": "Add.", "entry_point": "add", "cases": [{"input": "1\n2", "output": "3"}]},
}  # fmt: skip


def test_rows_of_a_users_own(tmp_path):
    def one(name: str):
        benchmark = load_benchmark(str(file_of(tmp_path, [OWN[name]])))
        return benchmark, benchmark.samples[0]

    benchmark, sample = one("math")
    assert (benchmark.task, sample.gold, sample.family, sample.groups) == ("math", "2", "math", {"level": 1})
    benchmark, sample = one("choice")
    assert (benchmark.task, sample.gold, sample.family) == ("choice", "C", "choice")
    assert sample.question == "Which?\n\nA. w\nB. x\nC. y\nD. z"
    benchmark, sample = one("qa")
    assert (benchmark.task, sample.gold, sample.family) == ("qa", "Mara Quill", "math")
    assert sample.meta["answers"] == ["Mara Quill", "M. Quill"]
    for name, kind, fn_name, task_kind in [
        ("function", "function", "add", "function"), ("program", "program", None, "stdin"), ("call", "function", "add", "call"),
    ]:  # fmt: skip
        benchmark, sample = one(name)
        assert (benchmark.task, sample.family, sample.kind, sample.fn_name) == ("code", "code", kind, fn_name)
        assert code_task(sample, Options()).kind == task_kind


@pytest.mark.parametrize(
    "rows, told",
    [
        ([{"task": "poem", "question": "a", "answer": "b"}], r'line 1: unknown task "poem"; expected one of math, choice, code, qa'),
        ([OWN["math"], OWN["qa"]], r"line 2: task qa, but .*line 1 is math; put each task into a file of its own"),
        ([{**OWN["choice"], "options": ["a", "b"]}], "line 1: 2 options; expected 4"),
        ([{"task": "choice", "question": "a", "answer": "A"}], "line 1: no 'options'"),
        ([{**OWN["choice"], "options": ["B", "A", "C", "D"], "answer": "A"}], "line 1: the answer A is a letter and the text of option B"),
        ([{**OWN["qa"], "answer": []}], "line 1: 'answer' is an empty list"),
        ([{**OWN["qa"], "answer": ["x", ""]}], "line 1: 'answer' is \"\""),
        ([{**OWN["function"], "entry_point": "not a name"}], "line 1: 'entry_point' is \"not a name\""),
        ([{**OWN["function"], "cases": []}], "line 1: expected either 'tests'"),
        ([{"task": "code", "question": "a"}], "line 1: expected either 'tests'"),
        ([{"task": "code", "question": "a", "tests": "assert f()"}], "line 1: 'tests' without 'entry_point'"),
        ([{**OWN["program"], "cases": [{"input": "1"}]}], "line 1: case 0 has no texts 'input' and 'output'"),
        ([{**OWN["program"], "cases": []}], r"line 1: 'cases' is \[\]"),
    ],
)  # fmt: skip
def test_bad_rows_of_a_users_own(tmp_path, rows, told):
    with pytest.raises(DataError, match=told):
        load_benchmark(str(file_of(tmp_path, rows)))


@pytest.mark.parametrize("name", ["gpqa", "mbppplus", "bamboogle", "hotpotqa", "gsm8k", "aime26", "medqa"])
def test_a_missing_column_is_named(tmp_path, name):
    """Every column that a benchmark cannot do without."""
    needed = {
        "gpqa": ["Question", "Correct Answer", "Incorrect Answer 3"], "mbppplus": ["prompt", "code", "test", "test_list"],
        "bamboogle": ["Question", "Answer"], "hotpotqa": ["question", "answer"], "gsm8k": ["question", "answer"],
        "aime26": ["problem", "answer"], "medqa": ["question", "options"],
    }[name]  # fmt: skip
    for column in needed:
        row = {key: value for key, value in ROWS[name][1].items() if key != column}
        with pytest.raises(
            DataError,
            match=rf"rows\.jsonl, line 2: .*{'query' if column == 'question' and name == 'medqa' else column}",
        ):
            load_benchmark(name, dataset_file=file_of(tmp_path, [ROWS[name][0], row]))


def test_the_context_of_hotpotqa_must_be_there(tmp_path):
    rows = [{**ROWS["hotpotqa"][0], "context": {"title": ["a", "b"], "sentences": [["one"]]}}]
    with pytest.raises(DataError, match="line 1: no 'context' with as many lists of sentences as titles"):
        load_benchmark("hotpotqa", dataset_file=file_of(tmp_path, rows), options=Options(hotpot_context=True))


@pytest.mark.parametrize(
    "change, told",
    [
        ({"private_test_cases": "!!!"}, "'private_test_cases' is neither JSON nor base64 of zlib of a pickle"),
        ({"private_test_cases": base64.b64encode(b"abc").decode()}, "is neither JSON nor base64"),
        ({"private_test_cases": base64.b64encode(zlib.compress(b"\x80\x04K\x01."))[:-4].decode()}, "is neither JSON nor base64"),
        ({"private_test_cases": base64.b64encode(zlib.compress(b"cos\nsystem\n.")).decode()}, "more than plain values .opcode GLOBAL"),
        ({"private_test_cases": "[{]"}, "'private_test_cases' is not JSON"),
        ({"private_test_cases": packed({"a": 1})}, "'private_test_cases': expected a list of tests, found dict"),
        ({"private_test_cases": packed([{"input": "1"}])}, "test 0 has no texts 'input' and 'output'"),
        ({"private_test_cases": packed([{"input": "1", "output": "1", "testtype": "functional"}])}, "test 0 is \"functional\"; expected 'stdin'"),
        ({"public_test_cases": None}, "'public_test_cases': expected a list of tests, found NoneType"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "no tests; expected some"),
        ({"metadata": "x"}, "'metadata' is \"x\"; expected a JSON object"),
        ({"metadata": '{"func_name": "a b"}'}, "the func_name \"a b\"; expected a name"),
        ({"question_content": ""}, "'question_content' is \"\""),
        ({"contest_date": "soon"}, "'contest_date' \"soon\": expected a date"),
    ],
)  # fmt: skip
def test_bad_rows_of_livecodebench(tmp_path, change, told):
    rows = [ROWS["livecodebench"][0], {**ROWS["livecodebench"][1], **change}]
    with pytest.raises(DataError, match=told):
        load_benchmark(
            "livecodebench", dataset_file=file_of(tmp_path, rows), options=Options(lcb_start_date="2023-01-01")
        )


def test_files_of_livecodebench(tmp_path, own_cache):
    path = file_of(tmp_path, ROWS["livecodebench"])
    first = load_benchmark("livecodebench", dataset_file=path)
    assert len(first.rows) == 7 and first.split == "file"
    sample = first.samples[0]
    assert livecodebench.load_tests(sample, private=False) == [("1 2\n", "3")]
    assert livecodebench.load_tests(sample, private=True) == [("1 2\n", "3"), ("-5 5\n", "0"), ("10 20\n", "30")]
    # The file may be somewhere else: the tests are found by what they are.
    again = load_benchmark("livecodebench", dataset_file=jsonl(tmp_path / "moved.jsonl", ROWS["livecodebench"]))
    assert again.fingerprint() == first.fingerprint()
    tests = own_cache / "livecodebench" / "tests" / f"{sample.meta['tests_sha256']}.json.gz"
    tests.write_bytes(tests.read_bytes()[:-9])
    with pytest.raises(DataError, match="the prepared tests of add cannot be read"):
        livecodebench.load_tests(sample, private=True)
    tests.unlink()
    assert livecodebench.load_tests(load_benchmark("livecodebench", dataset_file=path).samples[0], private=False)
    with pytest.raises(
        DataError, match=r"none\.jsonl: no such file; expected a \.jsonl file in the format of livecodebench"
    ):
        load_benchmark("livecodebench", dataset_file=tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"rows\.json: expected a \.jsonl file"):
        load_benchmark("livecodebench", dataset_file=tmp_path / "rows.json")
    path.write_text(json.dumps(ROWS["livecodebench"][0]) + "\n{broken\n")
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: broken JSON"):
        load_benchmark("livecodebench", dataset_file=path)


def test_tests_that_unpack_to_too_much_are_refused():
    text = packed([{"input": "0" * 10**7, "output": "1", "testtype": "stdin"}])
    assert len(text) < 20_000
    assert len(livecodebench.unpack(text, "here")[0]["input"]) == 10**7
    with pytest.raises(DataError, match="here unpacks to more than 1000000 bytes; refused"):
        livecodebench.unpack(text, "here", limit=10**6)
