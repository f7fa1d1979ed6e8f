"""Rows from local files: what is read, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.benchmarks.registry import load_benchmark
from inference.tools.errors import DataError

ROWS = [{"question": f"What is {i} plus one?", "answer": i + 1} for i in range(6)]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def jsonl(path: Path, rows: list) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def test_the_three_forms_of_a_file_read_alike(tmp_path):
    lines = load_benchmark(str(jsonl(tmp_path / "rows.jsonl", ROWS)))
    as_list = load_benchmark(str(write(tmp_path / "rows.json", json.dumps(ROWS))))
    as_data = load_benchmark(str(write(tmp_path / "rows.json", "\ufeff" + json.dumps({"data": ROWS}))))
    assert lines.rows == as_list.rows == as_data.rows
    assert lines.fingerprint() == as_list.fingerprint()
    assert [sample.id for sample in lines.samples[:2]] == ["rows-0", "rows-1"]
    assert lines.samples[0].gold == "1" and lines.samples[0].family == "math"


def test_hub_columns_and_line_separators_inside_text(tmp_path):
    row = {"problem": "one\u2028two", "answer": "\\frac12", "unique_id": "a/1", "level": 3}
    sample = load_benchmark("math500", dataset_file=jsonl(tmp_path / "m.jsonl", [row])).samples[0]
    assert (sample.id, sample.question, sample.meta) == ("a/1", "one\u2028two", {"level": 3})


def test_choice_of_samples(tmp_path):
    path = str(jsonl(tmp_path / "rows.jsonl", ROWS))

    def chosen(**how):
        return [sample.index for sample in load_benchmark(path, **how).samples]

    assert chosen(num_samples=2) == [0, 1]
    assert chosen(num_samples=0) == chosen(num_samples=99) == list(range(6))
    assert chosen(sample_ids=["rows-4", "rows-1"]) == [4, 1]
    shuffled = chosen(shuffle_seed=1)
    assert sorted(shuffled) == list(range(6)) != shuffled
    assert chosen(shuffle_seed=1, num_samples=3) == shuffled[:3]
    whole, part = load_benchmark(path), load_benchmark(path, num_samples=2)
    assert whole.fingerprint() == part.fingerprint(), "the fingerprint is that of the data, not of the choice"


@pytest.mark.parametrize(
    "text, told",
    [
        ('{"question": "a", "answer": "1"}\n{"question": "b", "answer": \n', r"rows\.jsonl, line 2: broken JSON"),
        ('{"question": "a \\ud800 b", "answer": "1"}\n', r"rows\.jsonl, line 1: '.ud800' is half of a surrogate pair"),
        ('{"question": "a", "answer": NaN}\n', r"rows\.jsonl, line 1: NaN is not JSON"),
        ('{"question": "a", "answer": "1"}\n\n{"question": "b"}\n', r"rows\.jsonl, line 3: no 'answer'"),
        ('{"question": "a", "answer": ""}\n', r"line 1: 'answer' is \"\"; expected a non-empty text"),
        ('{"question": "a", "answer": null}\n', r"line 1: 'answer' is null"),
        ('{"question": "a", "answer": true}\n', r"line 1: 'answer' is true"),
        ('{"text": "a", "answer": "1"}\n', r"line 1: no 'question' or 'problem'; the row has text, answer"),
        (
            '{"id": 7, "question": "a", "answer": 1}\n{"id": "7", "question": "b", "answer": 1}\n',
            r"line 2: id '7' .* line 1",
        ),
        ("[1]\n", r"line 1: expected an object"),
        ("\n \n", r"rows\.jsonl: no rows"),
    ],
)
def test_bad_lines(tmp_path, text, told):
    with pytest.raises(DataError, match=told):
        load_benchmark(str(write(tmp_path / "rows.jsonl", text)))


@pytest.mark.parametrize(
    "text, told",
    [
        ('[{"question": "a", "answer": "1"},\n{"question": }]', r"rows\.json, line 2: broken JSON"),
        ('[{"question": "a"}]', r"rows\.json, row 0: no 'answer'"),
        ('{"rows": []}', r"expected a list of objects"),
        ("[" * 100_000, r"nested too deeply|broken JSON"),
    ],
)
def test_bad_json_files(tmp_path, text, told):
    with pytest.raises(DataError, match=told):
        load_benchmark(str(write(tmp_path / "rows.json", text)))


def test_bad_names_and_flags(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9", "answer": "1"}')
    for name, how, told in [
        ("mathh500", {}, "--dataset mathh500: unknown dataset; expected one of pocket"),
        (str(tmp_path / "none.jsonl"), {}, "no such file"),
        (str(tmp_path / "latin.jsonl"), {}, "cannot be read as UTF-8"),
        (str(path), {"split": "test"}, "--dataset_split test: rows from the file"),
        (str(path), {"dataset_file": path}, "give one of them"),
        ("pocket", {"split": "train"}, "--dataset_split train: pocket has test"),
        ("math500", {"dataset_file": tmp_path / "rows.csv"}, r"rows\.csv: expected a \.json or \.jsonl"),
        (str(path), {"sample_ids": ["x"]}, "has no id 'x'"),
        (str(path), {"sample_ids": ["rows-1", "rows-1"]}, "an id stands twice"),
        (str(path), {"sample_ids": ["rows-1"], "num_samples": 1}, "leave out --num_samples"),
    ]:
        with pytest.raises(DataError, match=told):
            load_benchmark(name, **how)


def test_pocket_files_ship_with_the_project():
    for name in ("pocket", "pocket_loop"):
        benchmark = load_benchmark(name)
        assert len(benchmark.rows) == 400
        with benchmark.grader() as grade:
            verdicts = grade([(row, f"so \\boxed{{{row.gold}}}") for row in benchmark.rows])
            assert all(verdict.correct for verdict in verdicts)
