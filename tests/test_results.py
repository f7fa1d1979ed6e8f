"""The run's folder: what is refused, repaired and shared; the numbers; the tables; published numbers."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from inference.results import Condition, RunFolder, finish, load_run, read_records, summarise, table_text
from inference.results.folder import essence
from inference.results.published import Published
from inference.results.report import markdown, report
from inference.results.summary import MAX_GROUPS, entry_of
from inference.results.tables import markdown_table, metric_cells
from inference.settings import recommended
from inference.tools.errors import DataError

MANIFEST = {
    "fingerprint": {"settings": {"seed": 42, "rounds": [1, 2]}, "weights": {"planner": "ab"}},
    "machine": {"batch_size": 8},
}
LATENT, SINGLE = Condition("latent", None, 1, 4), Condition("single", None, None, None)


def record(condition: Condition, index: int, correct: bool) -> dict:
    return {
        "sample_id": f"s{index}", "method": condition.method, "control": condition.control, "rounds": condition.rounds,
        "latent_length": condition.latent_length, "rollouts": [{"correct": correct, "status": "ok"}],
        "prompt_tokens": 10, "latent_steps": 4, "generated_tokens": 2, "seconds": {"solver.speak": 0.25},
        "tokens": {"planner.think": {"prompt_tokens": 8, "latent_steps": 4}, "solver.speak": {"prompt_tokens": 2, "generated_tokens": 2}},
    }  # fmt: skip


def opened(path, manifest=MANIFEST, **how) -> RunFolder:
    folder = RunFolder(path, manifest, **how)
    folder.read()
    folder.open()
    return folder


def test_reading_writes_nothing(tmp_path):
    RunFolder(tmp_path / "run", MANIFEST).read()
    assert not (tmp_path / "run").exists()


def test_a_run_continues_in_its_folder_only(tmp_path):
    folder = opened(tmp_path / "run")
    folder.append([record(LATENT, 0, True)])
    folder.close()
    again = opened(tmp_path / "run", {**MANIFEST, "machine": {"batch_size": 2}})
    assert list(again.done) == [(LATENT, "s0")]
    again.close()
    other = json.loads(json.dumps(MANIFEST))
    other["fingerprint"]["settings"]["seed"] = 43
    other["fingerprint"]["weights"]["critic"] = "cd"
    with pytest.raises(DataError) as err:
        RunFolder(tmp_path / "run", other).read()
    assert "settings.seed is 42 there and 43 here; weights.critic is null there" in str(err.value)
    with pytest.raises(DataError, match=r'result_jsonl is "records\.jsonl" there'):
        RunFolder(tmp_path / "run", MANIFEST, tmp_path / "elsewhere.jsonl").read()


def test_a_cut_line_is_removed_and_a_broken_one_refused(tmp_path):
    folder = opened(tmp_path / "run")
    folder.append([record(LATENT, i, True) for i in range(3)])
    folder.close()
    whole = folder.path.read_bytes()
    # The rest of a long line, longer than the block in which its start is searched.
    folder.path.write_bytes(whole + whole[:40] + b"x" * 200_000)
    again = opened(tmp_path / "run")
    again.close()
    assert again.path.read_bytes() == whole and len(again.done) == 3
    folder.path.write_bytes(b'{"sample')
    opened(tmp_path / "run").close()
    assert folder.path.read_bytes() == b""
    folder.path.write_bytes(whole + b"{broken}\n" + whole)
    with pytest.raises(DataError, match=r"records\.jsonl, line 4: not a record"):
        RunFolder(tmp_path / "run", MANIFEST).read()


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds todo\.txt but no manifest\.json"):
        RunFolder(tmp_path / "notes", MANIFEST).read()
    with pytest.raises(DataError, match="is a file"):
        RunFolder(tmp_path / "notes" / "todo.txt", MANIFEST).read()
    with pytest.raises(DataError, match="exists and belongs to another run"):
        RunFolder(tmp_path / "new", MANIFEST, tmp_path / "notes" / "todo.txt").read()
    (tmp_path / "notes" / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="not a run's manifest"):
        RunFolder(tmp_path / "notes", MANIFEST).read()


def test_two_writers(tmp_path):
    folder = opened(tmp_path / "run")
    with pytest.raises(DataError, match="another process is writing"):
        opened(tmp_path / "run")
    folder.close()
    opened(tmp_path / "run").close()


def test_table_and_ten_thousand_records():
    ids = [f"s{i}" for i in range(5000)]
    records = {
        (c, f"s{i}"): record(c, i, i % (2 if c is LATENT else 4) == 0) for c in (LATENT, SINGLE) for i in range(5000)
    }
    entries = summarise(records, (LATENT, SINGLE), ids)
    assert entries[1]["difference"]["value"] == -0.25
    assert (entries[1]["difference"]["better"], entries[1]["difference"]["worse"]) == (0, 1250)
    head, rule, first, second = table_text((LATENT, SINGLE), entries).split("\n")
    assert head.split()[:3] == ["method", "R", "m"] and set(rule) == {"-"}
    assert first.split()[:7] == ["latent", "1", "4", "50.0", "48.6", "to", "51.4"]
    assert second.split()[:8] == ["single", "-", "-", "25.0", "23.8", "to", "26.2", "-25.0"]
    assert first.split()[-5:] == ["10.0", "4.0", "2.0", "0.250", "0"]


def whole_manifest(count: int, style: str = "tiny", dataset: str = "toy", **settings) -> dict:
    """A manifest with all that a summary reads."""
    return {
        "format": 1,
        "fingerprint": {
            "style": {"name": style, "sha256": "ab"},
            "settings": {"methods": ["latent", "single"], "num_recursive_rounds": 1, "latent_length": 4, **settings},
            "data": {"name": dataset, "split": "test", "task": "math", "rows": count, "sha256": "cd",
                     "samples": {"count": count, "sha256": "ef"}},
            "weights": {"planner": "12"},
        },
        "machine": {"batch_size": 2, "device": "cpu", "offload": False},
        "data_from": {"source": "toy.jsonl", "revision": None},
        "weights_from": {"planner": "somewhere"},
        "setting_sources": {"latent_length": "flag"},
        "versions": {"python": "3"},
        "git_commit": "0123",
    }  # fmt: skip


def written(path, records, manifest) -> RunFolder:
    folder = opened(path, manifest)
    folder.append(records)
    folder.close()
    return folder


def test_memory_holds_no_texts(tmp_path):
    text = "step \\frac{1}{2} " * 2000

    def long_record(i: int) -> dict:
        full = record(LATENT, i, True)
        return {**full, "question": text, "rollouts": [{**full["rollouts"][0], "raw_output": text}]}

    folder = written(tmp_path / "run", (long_record(i) for i in range(1000)), whole_manifest(1000))
    assert folder.path.stat().st_size > 60e6
    tracemalloc.start()
    run = load_run(tmp_path / "run")
    assert len(run.done) == 1000 and run.entries[0]["num_samples"] == 1000
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()
    assert next(read_records(folder.path))["rollouts"][0]["raw_output"] == text


def with_rollouts(index: int, *rollouts: dict, **fields) -> dict:
    base = {"correct": False, "status": "ok"}
    return essence(
        {**record(LATENT, index, False), "rollouts": [{**base, **rollout} for rollout in rollouts], **fields}
    )


def test_several_rollouts():
    right, wrong = {"correct": True}, {"correct": False}
    records = [with_rollouts(0, right, wrong), with_rollouts(1, right, right), with_rollouts(2, wrong, wrong)]
    entry = entry_of(LATENT, records)
    assert entry["accuracy"] == 0.5 and entry["num_correct"] == 3 and entry["num_answers"] == 6
    assert entry["pass_at_k"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}
    assert entry["rollout_accuracy"] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert entry_of(LATENT, records, [2])["pass_at_k"] == {"2": pytest.approx(2 / 3)}
    shown = table_text([LATENT], [entry]).split("\n")
    assert "pass@2 %" in shown[0] and "66.7" in shown[2]
    assert "pass_at_k" not in entry_of(LATENT, [with_rollouts(0, right)])


def test_reference_rule_retry_and_tools():
    plain = entry_of(LATENT, [with_rollouts(0, {"correct": True})])
    assert not {"accuracy_reference_rule", "retry", "tools", "qa", "code", "groups"} & set(plain)
    entry = entry_of(
        LATENT,
        [
            with_rollouts(0, {"correct": True, "reference_correct": True, "retry": False, "tool_calls": {}}),
            with_rollouts(1, {"correct": True, "reference_correct": True, "retry": True, "tool_calls": {"python": 2},
                              "tool_failures": 1}),
            with_rollouts(2, {"correct": True, "retry": True, "correct_before_retry": True, "reference_correct": False,
                              "tool_calls": {"python": 1, "search": 1}}),
            with_rollouts(3, {"status": "error"}),
        ],
    )  # fmt: skip
    assert entry["accuracy"] == 0.75 and entry["statuses"] == {"ok": 3, "error": 1}
    assert entry["accuracy_reference_rule"] == 0.5, "an answer that it never saw counts as wrong"
    assert entry["retry"] == {"count": 2, "accuracy_with": 0.75, "accuracy_without": 0.5}
    assert entry["tools"] == {
        "calls": {"python": 3, "search": 1}, "answers_with_calls": 2, "failures": 1,
    }  # fmt: skip
    assert metric_cells(entry) == {
        "retried": "2", "accuracy without retry %": "50.0", "tool calls": "python 3, search 1", "failed calls": "1",
    }  # fmt: skip


def test_tokens_of_tools_are_a_cost():
    entry = entry_of(LATENT, [with_rollouts(0, {}, tool_tokens=30), with_rollouts(1, {}, tool_tokens=5)])
    assert entry["tool_tokens"] == 35 and entry["per_sample"]["tool_tokens"] == 17.5
    assert "tool tok" in table_text([LATENT], [entry]) and "tool_tokens" not in entry_of(LATENT, [with_rollouts(0, {})])


def test_short_text_and_judge():
    def answer(em: bool, f1: float, judge=None, **more) -> dict:
        asked = (
            {}
            if judge is None
            else {"judge": {"verdict": judge[0], "status": judge[1], "calls": 1, "prompt_tokens": 90}}
        )
        return {"em": em, "f1": f1, "official_em": em, "official_f1": f1, **asked, **more}

    records = [
        with_rollouts(0, answer(True, 1.0, correct=True)),
        with_rollouts(1, answer(False, 0.5, (True, "ok"), correct=True)),
        with_rollouts(2, answer(False, 0.0, (False, "ok"))),
        with_rollouts(3, answer(False, 0.25, (None, "timeout"), status="judge_timeout")),
        with_rollouts(4, {"status": "no_answer"}),
    ]
    entry = entry_of(LATENT, records)
    assert entry["accuracy"] == 0.4 and entry["qa"] == {
        "em": 0.2, "f1": pytest.approx(0.35), "official_em": 0.2, "official_f1": pytest.approx(0.35),
        "judged": 3, "judge_accuracy": 0.4, "judge_failures": {"timeout": 1},
        "judge_cost": {"calls": 3, "cache_hits": 0, "prompt_tokens": 270, "completion_tokens": 0},
    }  # fmt: skip
    assert metric_cells(entry)["judge failures"] == "1"
    assert "judge_accuracy" not in entry_of(LATENT, records[:1])["qa"]


def test_code():
    def tests(passed: int, total: int, error: str | None) -> dict:
        return {"eval": {"passed_tests": passed, "total_tests": total, "error_type": error, "detail": "x" * 99}}

    records = [
        with_rollouts(0, {**tests(4, 4, None), "correct": True}),
        with_rollouts(1, tests(1, 4, "WA")),
        with_rollouts(2, tests(0, 0, "EMPTY_CODE")),
        with_rollouts(3, {"status": "error"}),
    ]
    assert "detail" not in records[0]["rollouts"][0]["eval"]
    assert entry_of(LATENT, records)["code"] == {"tests_passed": 0.3125, "error_types": {"WA": 1, "EMPTY_CODE": 1}}


def test_groups():
    records = [
        with_rollouts(i, {"correct": i < 6}, groups={"level": i % 3 + 9, "one": "same", "many": i})
        for i in range(MAX_GROUPS + 2)
    ]
    groups = entry_of(LATENT, records)["groups"]
    assert list(groups) == ["level"], "one value tells nothing, and neither do dozens"
    assert list(groups["level"]) == ["9", "10", "11"]
    assert groups["level"]["9"]["num_samples"] == 14 and groups["level"]["9"]["accuracy"] == pytest.approx(2 / 14)
    low, high = groups["level"]["9"]["interval"]
    assert low < 2 / 14 < high


def test_what_the_sample_size_can_show():
    entry = entry_of(LATENT, [record(LATENT, i, i % 2 == 0) for i in range(500)])
    assert entry["smallest_difference"]["value"] == pytest.approx(0.0883, abs=2e-4)
    assert "With 500 questions, 8.8 points can be shown" in entry["smallest_difference"]["note"]
    few = entry_of(LATENT, [record(LATENT, 0, True)])["smallest_difference"]
    assert few["value"] is None and "no difference can be shown" in few["note"]


def test_summary_files(tmp_path):
    records = [record(c, i, i % 2 == 0) for c in (LATENT, SINGLE) for i in range(4)]
    for index, one in enumerate(records):
        one["groups"] = {"subject": "a | b" if index % 4 < 2 else "c"}
    folder = written(tmp_path / "run", records, whole_manifest(4))
    summary, table = finish(folder)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert {
        "style": "tiny", "dataset": "toy", "task": "math", "num_samples": 4, "git_commit": "0123",
        "weights": {"planner": "12"}, "versions": {"python": "3"}, "setting_sources": {"latent_length": "flag"},
    }.items() <= summary.items()  # fmt: skip
    assert summary["data"]["sha256"] == "cd" and summary["settings"]["batch_size"] == 2
    assert summary["methods"]["latent"]["seconds_by_stage"] == {"solver.speak": 1.0}
    assert summary["methods"]["latent"]["tokens_by_stage"] == {
        "planner.think": {"prompt_tokens": 32, "latent_steps": 16},
        "solver.speak": {"prompt_tokens": 8, "generated_tokens": 8},
    }
    assert "unfinished" not in summary and "With 4 questions, no difference can be shown" in table
    text = (tmp_path / "run" / "summary.md").read_text()
    assert text.startswith("# tiny on toy\n") and "## Accuracy by subject" in text and "a \\| b" in text
    assert "| latent_length" in text and "flag" in text and "- git_commit: 0123" in text
    assert "| solver.speak" in text


def test_an_unfinished_run_says_so(tmp_path):
    written(tmp_path / "run", [record(LATENT, i, True) for i in range(3)], whole_manifest(4))
    run = load_run(tmp_path / "run")
    assert run.unfinished == ["latent R=1 m=4: 3 of 4 questions", "single: not begun"]
    assert f"Unfinished: {tmp_path / 'run'}, latent R=1 m=4: 3 of 4 questions." in markdown(report([run]))


def test_runs_that_cannot_be_read(tmp_path):
    def told(path) -> str:
        with pytest.raises(DataError) as err:
            load_run(path)
        return str(err.value)

    assert "no such folder" in told(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    assert "is a file; expected the folder of a run" in told(tmp_path / "file")
    assert "holds no manifest.json" in told(tmp_path)
    folder = written(tmp_path / "run", [], whole_manifest(4))
    assert "records.jsonl: no finished records; run the same command again" in told(tmp_path / "run")
    folder.path.write_text('{"sample_id": "s0", "rollouts": [')
    assert "no finished records" in told(tmp_path / "run")
    line = json.dumps(record(LATENT, 0, True))
    for broken in (
        '{"a": 1}',
        "[]",
        line.replace('"correct": true', '"correct": null'),
        line.replace('"method"', '"m"'),
    ):
        folder.path.write_text(f"{line}\n{broken}\n")
        assert "records.jsonl, line 2: not a record" in told(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    good = json.loads(manifest.read_text())
    for content, sentence in [
        ("{", "cannot be read as JSON"),
        ("[]", "format None; expected 1"),
        (json.dumps({**good, "format": 2}), "format 2; expected 1; read it with the version that wrote it"),
        (json.dumps({**good, "fingerprint": {}}), "fingerprint.style.name is missing or broken"),
        (json.dumps({**good, "versions": 3}), "versions is missing or broken"),
    ]:
        manifest.write_text(content)
        assert sentence in told(tmp_path / "run")


def test_runs_are_paired_over_the_same_rows_only(tmp_path):
    def run(name: str, ids: range, **how):
        records = [record(SINGLE if name == "b" else LATENT, i, i % 2 == 0 or name == "b") for i in ids]
        written(tmp_path / name, records, whole_manifest(len(ids), **how))
        return load_run(tmp_path / name)

    a, b, c = run("a", range(8)), run("b", range(2, 12)), run("c", range(20, 24))
    told = report([a, b])
    (pair,) = told["paired"]
    assert (pair["num_samples"], pair["better"], pair["worse"], pair["value"]) == (6, 3, 0, 0.5)
    assert pair["first"] == f"{tmp_path / 'a'}: latent R=1 m=4" and told["unpaired"] == []
    assert "no sample in common" in report([a, c])["unpaired"][0]
    other = json.loads((tmp_path / "c" / "manifest.json").read_text())
    other["fingerprint"]["data"]["sha256"] = "xx"
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(other))
    told = report([a, load_run(tmp_path / "c")])
    assert told["paired"] == [] and "the rows of toy differ, so no paired test" in told["unpaired"][0]
    shown = markdown(told)
    assert "## What differs between the runs" in shown and "data.sha256" in shown


def test_published_numbers_stand_beside_what_they_measured(tmp_path):
    def lines(method: Condition, **how) -> dict:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        written(folder, [record(method, i, True) for i in range(4)], whole_manifest(4, **how))
        return report([load_run(folder)])

    def found(told: dict) -> list[tuple]:
        return [(row["source"], row["score"]) for row in told["runs"][0]["lines"][0]["published"]]

    three = Condition("latent", None, 3, 64)
    told = lines(three, style="sequential_scaled", dataset="math500")
    assert found(told) == [("paper, Table 2", 0.882), ("paper, Table 3", 0.88), ("release", 0.885)]
    shown = markdown(told)
    row = next(line for line in shown.split("\n") if line.startswith("| latent"))
    assert "88.2 [1,2,3,4,5] or 88.0 [1,2,3,4]" in row and "88.5 [6,2,3]" in row
    notes = told["notes"]
    assert "mean of 5 runs" in notes[0] and "demos" in notes[5] and f"6. {notes[5]}" in shown
    assert sum(row["system"] == "TextGrad" for row in told["published"]) == 1 and "| 16 latent steps" in shown
    # Four rounds, a control and an unknown benchmark have none; text messages have their own.
    four = Condition("latent", None, 4, 64)
    assert found(lines(four, style="sequential_light", dataset="math500")) == [("release", 0.78)]
    assert found(lines(Condition("latent", "zero", 3, 64), style="sequential_light", dataset="math500")) == []
    text = lines(Condition("text", None, 1, None), style="sequential_light", dataset="aime25")
    assert found(text) == [("paper, Table 2", 0.24)] and any("pass@10" in note for note in text["notes"])
    assert not any("AIME was run" in note for note in told["notes"])
    single = Condition("single", None, None, None)
    assert found(lines(single, style="distillation", dataset="medqa")) == [("paper, Tables 6-8", 0.779)]
    assert lines(three, style="mine", dataset="math500")["published"] == []


def test_published_file_is_whole():
    published = Published()
    seen = set()
    for row in published.rows:
        for dataset, score in row.scores.items():
            assert 0 < score < 100 and recommended(row.style, dataset), f"{row.style} has settings for {dataset}"
            assert published.caveats(row, dataset), "no number without a caveat"
            seen.add((row.source, row.system, row.style, row.rounds))
        assert set(row.seconds) <= set(row.scores) and set(row.tokens) <= set(row.scores)
    assert len(seen) == len(published.rows), "no row stands twice"
    release = {row.style: row.scores for row in published.rows if row.source == "release"}
    assert {style: len(scores) for style, scores in release.items()} == {
        "sequential_light": 6, "sequential_scaled": 6, "mixture": 4, "distillation": 5, "deliberation": 4,
    }  # fmt: skip
    # Means that the sources state, or that follow from them: Table 3, and what is gained from one round to three.
    by_system = {row.system: row.scores for row in published.rows if row.source == "paper, Table 3"}
    means = {system: sum(scores.values()) / 6 for system, scores in by_system.items()}
    assert means["RecursiveMAS"] == pytest.approx(74.97, abs=0.01) and means["LoopLM"] == pytest.approx(57.33, abs=0.01)
    assert means["single model + LoRA"] == pytest.approx(66.98, abs=0.06)
    assert means["single model + full fine-tuning"] == pytest.approx(68.60, abs=0.01)
    assert means["MoA"] == pytest.approx(55.87, abs=0.01) and means["TextGrad"] == pytest.approx(69.07, abs=0.01)
    assert means["Recursive-TextMAS"] == pytest.approx(68.28, abs=0.05)
    rounds = {
        (row.style, row.method, row.rounds): sum(row.scores.values()) / 6
        for row in published.rows
        if row.source == "paper, Table 2"
    }
    gains = {key[:2]: rounds[(*key[:2], 3)] - rounds[(*key[:2], 1)] for key in rounds}
    assert gains["sequential_light", "latent"] == pytest.approx(2.3, abs=0.06)
    assert gains["sequential_scaled", "latent"] == pytest.approx(3.1, abs=0.06)
    assert gains["sequential_light", "text"] == pytest.approx(-1.7, abs=0.06)
    assert gains["sequential_scaled", "text"] == pytest.approx(-0.4, abs=0.06)


def test_markdown_table():
    shown = markdown_table([{"name": "a", "x": "1"}, {"name": "b|\nc", "x": "22", "y": "z"}], ("name",))
    assert shown == "| name  |   x |   y |\n|-------|----:|----:|\n| a     |   1 |     |\n| b\\| c |  22 |   z |"
