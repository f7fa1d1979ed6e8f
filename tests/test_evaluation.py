"""Conditions, donors, batches and records, with a system that recites given texts."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from inference.benchmarks.base import Benchmark, Options, Sample
from inference.benchmarks.grading import maths_grader
from inference.evaluation import Plan, evaluate, make_batches, make_conditions, pending, shuffle_donors
from inference.mas.decoding import Generation, Sampling
from inference.mas.recursion import Answer
from inference.results import Condition, RunFolder, key_of, nest, read_records, summarise
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError


def rows(count: int) -> tuple[Sample, ...]:
    return tuple(Sample(i, f"s{i}", "x" * (i * 5 % 7) + f" {i}", str(i)) for i in range(count))


class Reciter:
    """Answers right in rollout r where (index + r) is even; counts its calls and keeps the donors."""

    def __init__(self, finish: str = "eos", text: str = "\\boxed{{{}}}") -> None:
        self.calls, self.donors = [], {}
        self.finish, self.text = finish, text

    def answer(self, questions, **how) -> list[Answer]:
        self.calls.append([q.id for q in questions])
        if how["control"] == "shuffle":
            self.donors.update((q.id, donor.id) for q, donor in zip(questions, how["donors"], strict=True))
        found = []
        for question in questions:
            index = int(question.id[1:])
            texts = [self.text.format(index + (index + r) % 2) for r in range(how["num_rollouts"])]
            rollouts = [Generation(text, [1, 2, 3], self.finish, 7) for text in texts]
            found.append(Answer(question.id, rollouts, 10, how["latent_steps"], 3, {"solver.speak": 0.5}))
        return found


def maths() -> AbstractContextManager:
    return maths_grader(Options())


def plan_of(samples, conditions, all_rows=None, rollouts=1, grader=maths) -> Plan:
    benchmark = Benchmark("toy", "test", "toy.jsonl", None, tuple(all_rows or samples), tuple(samples), grader)
    return Plan("tiny", "chain", benchmark, conditions, Sampling(), rollouts, 42, False)


def run(plan: Plan, folder: Path, system: Reciter, batch_size: int = 3) -> RunFolder:
    run_folder = RunFolder(folder, {"fingerprint": {}})
    run_folder.read()
    run_folder.open()
    evaluate(plan, run_folder, system, batch_size)
    run_folder.close()
    return run_folder


LATENT = Condition("latent", None, 1, 4)


def test_conditions_depend_only_on_what_matters():
    found = make_conditions(["latent", "text", "single", "zero"], [1, 2], [3, 4])
    assert [condition.title() for condition in found] == [
        "latent R=1 m=3", "latent R=1 m=4", "latent R=2 m=3", "latent R=2 m=4", "text R=1", "text R=2", "single",
        "zero R=1 m=3", "zero R=1 m=4", "zero R=2 m=3", "zero R=2 m=4",
    ]  # fmt: skip
    assert found[-1] == Condition("latent", "zero", 2, 4)


def test_methods_stand_at_the_level_of_what_they_depend_on():
    conditions = make_conditions(["latent", "text", "single"], [1, 2], [3, 4])
    tree = nest(conditions, [{"title": condition.title()} for condition in conditions], [1, 2], [3, 4])
    assert tree["methods"]["single"]["title"] == "single"
    assert tree["rounds"]["2"]["methods"]["text"]["title"] == "text R=2"
    assert tree["rounds"]["2"]["latent_lengths"]["4"]["methods"]["latent"]["title"] == "latent R=2 m=4"
    one = make_conditions(["latent", "single"], [1, 2], [3])
    tree = nest(one, [{"title": condition.title()} for condition in one], [1, 2], [3])
    assert list(tree["rounds"]["1"]["methods"]) == ["latent"] and list(tree["methods"]) == ["single"]
    flat = make_conditions(["latent", "single"], [1], [3])
    assert list(nest(flat, [{}, {}], [1], [3])) == ["methods"]


def test_batches_are_of_like_length_and_lose_nothing():
    samples = rows(10)
    batches = make_batches(samples, 4)
    lengths = [len(sample.question) for batch in batches for sample in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(sample.index for batch in batches for sample in batch) == list(range(10))
    assert make_batches(samples[::-1], 4) == batches


def test_donors_differ_in_question_and_answer():
    golds = ["1", "1", "2", "1"]
    data = tuple(Sample(i, f"s{i}", f"q{i % 3}", gold) for i, gold in enumerate(golds))
    donors = shuffle_donors(data, data)
    assert {key: donor.id for key, donor in donors.items()} == {"s0": "s2", "s1": "s2", "s2": "s3", "s3": "s2"}
    assert shuffle_donors(data, data[1:2])["s1"].id == "s2", "the choice of samples changes no donor"
    with pytest.raises(DataError, match="all answers of the dataset are the same"):
        shuffle_donors(data[:2], data[:2])
    programs = tuple(Sample(i, f"s{i}", f"q{i}", "", "code") for i in range(3))
    assert shuffle_donors(programs, programs)["s2"].id == "s0", "without gold texts another question is enough"
    same = (Sample(0, "a", "q", "1"), Sample(1, "b", "q", "2"))
    with pytest.raises(DataError, match="'a' has no donor"):
        shuffle_donors(same, same)


def test_summary_equals_hand_computed_numbers(tmp_path):
    samples = rows(5)
    conditions = (LATENT, Condition("single", None, None, None))
    done = run(plan_of(samples, conditions, rollouts=2), tmp_path / "run", Reciter()).done
    latent, single = summarise(done, conditions, [sample.id for sample in samples])
    # Each question has one right and one wrong rollout.
    assert (latent["accuracy"], latent["num_correct"], latent["num_answers"]) == (0.5, 5, 10)
    assert latent["pass_at_k"] == {"1": 0.5, "2": 1.0}
    assert latent["statuses"] == {"ok": 10}
    assert (latent["prompt_tokens"], latent["latent_steps"], latent["generated_tokens"]) == (50, 20, 15)
    assert latent["seconds_by_stage"] == {"solver.speak": 2.5} and latent["per_sample"]["seconds"] == 0.5
    assert single["latent_steps"] == 0 and single["difference"]["value"] == 0 and single["difference"]["p"] == 1
    record = done[LATENT, "s3"]
    assert record["correct"] is False and record["pass_at_k_correct"] is True
    assert [rollout["correct"] for rollout in record["rollouts"]] == [False, True]


def test_statuses_and_no_free_credit(tmp_path):
    def status(system: Reciter, grader=maths) -> dict:
        plan = plan_of(rows(2), (LATENT,), grader=grader)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return summarise(run(plan, folder, system).done, plan.conditions, ["s0", "s1"])[0]

    assert status(Reciter(text="no idea"))["statuses"] == {"no_answer": 2}
    assert status(Reciter(text="no idea", finish="length"))["statuses"] == {"truncated": 2}
    assert status(Reciter(finish="length"))["statuses"] == {"ok": 2}

    def divide(pairs) -> list[Verdict]:
        """Fails on one sample, as a scorer with a bug does."""
        if any(sample.id == "s1" for sample, _ in pairs):
            raise ZeroDivisionError("oops")
        return [Verdict(True, "0", "ok", "test") for _ in pairs]

    def broken() -> AbstractContextManager:
        return nullcontext(divide)

    told = status(Reciter(), broken)
    assert told["statuses"] == {"ok": 1, "error": 1}, "the fault of one text costs the others of its batch nothing"
    assert told["num_correct"] == 1 and told["num_answers"] == 2

    def unusable(pairs) -> list[Verdict]:
        raise DataError("the tests are gone")

    with pytest.raises(DataError, match="the tests are gone"):
        status(Reciter(), lambda: nullcontext(unusable))


def test_outputs_are_graded_batch_by_batch_and_land_in_their_records(tmp_path):
    sizes = []

    def grade(pairs) -> list[Verdict]:
        sizes.append(len(pairs))
        return [
            Verdict(sample.id == "s2", text, "ok", "test", {"eval": {"passed": len(text)}}) for sample, text in pairs
        ]

    plan = plan_of(rows(4), (LATENT,), rollouts=2, grader=lambda: nullcontext(grade))
    folder = run(plan, tmp_path / "run", Reciter())
    done = {key_of(record): record for record in read_records(folder.path)}
    assert sizes == [6, 2], "batches of 3 and 1 samples with 2 rollouts each"
    for sample in plan.benchmark.samples:
        record = done[LATENT, sample.id]
        for rollout in record["rollouts"]:
            assert rollout["pred_answer_parsed"] == rollout["raw_output"] and rollout["eval"] == {"passed": 9}
            assert rollout["correct"] == (sample.id == "s2")
        assert [r["reference_correct"] for r in record["rollouts"]] == [sample.index % 2 == 0, sample.index % 2 == 1]


@pytest.mark.parametrize("kept, cut", [(0, 0), (1, 0), (4, 9), (7, 0), (13, 30)])
def test_an_interrupted_run_goes_on(tmp_path, kept, cut):
    """Whatever part of the records is on disk, the rerun writes the rest: the same bytes, no batch answered in vain."""
    conditions = (LATENT, Condition("latent", "shuffle", 1, 4))
    plan = plan_of(rows(7), conditions)
    whole = run(plan, tmp_path / "whole", Reciter())
    lines = whole.path.read_bytes().splitlines(keepends=True)
    run(plan, tmp_path / "part", Reciter())
    part = tmp_path / "part" / "records.jsonl"
    part.write_bytes(b"".join(lines[:kept]) + (lines[kept][:cut] if cut else b""))
    system = Reciter()
    again = run(plan, tmp_path / "part", system)
    assert part.read_bytes() == whole.path.read_bytes()
    assert pending(plan, again) == 0
    everything = [batch for _ in conditions for batch in make_batches(plan.benchmark.samples, 3)]
    done_batches = sum(sum(len(b) for b in everything[: i + 1]) <= kept for i in range(len(everything)))
    assert len(system.calls) == len(everything) - done_batches


def test_broken_text_is_kept_as_it_is(tmp_path):
    plan = plan_of(rows(1), (LATENT,))
    folder = run(plan, tmp_path / "run", Reciter(text="half \ud800 of a pair, \u2028 and \0 \\boxed{{0}}"))
    record = json.loads(folder.path.read_text(encoding="utf-8").split("\n")[0])
    assert record["rollouts"][0]["raw_output"] == "half \ud800 of a pair, \u2028 and \0 \\boxed{0}"
