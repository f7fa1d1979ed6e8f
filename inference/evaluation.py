"""A system over a benchmark: which conditions, in which batches, what is recorded, and how a broken run goes on.

Batches are fixed before anything runs, from all samples by length of the question (the longest first, so that memory runs out at
once or not at all). A batch of which some records are missing is run again as a whole and only those are written, so
that a resumed run computes what an unbroken one does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from inference.benchmarks.base import Benchmark, Grade, Sample
from inference.mas.styles import CONTROLS
from inference.results import Condition, Record, RunFolder
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

if TYPE_CHECKING:
    from inference.mas.decoding import Generation, Sampling
    from inference.mas.recursion import Answer, MultiAgentSystem


@dataclass(frozen=True)
class Plan:
    """All that decides the answers of a run, checked. `seed` is the base of every random draw."""

    style: str
    mas_shape: str
    benchmark: Benchmark
    conditions: tuple[Condition, ...]
    sampling: Sampling
    num_rollouts: int
    seed: int
    enable_thinking: bool


def make_conditions(names: Sequence[str], rounds: Sequence[int], lengths: Sequence[int]) -> tuple[Condition, ...]:
    """Every combination of methods or controls with rounds and latent lengths, each only with what it depends on.

    A control is a latent run with other messages. `single` has neither rounds nor latent steps, `text` no latent steps.
    """
    found: dict[Condition, None] = {}
    for name in names:
        control = name if name in CONTROLS else None
        method = "latent" if control else name
        for r in rounds:
            for m in lengths:
                condition = Condition(
                    method, control, None if method == "single" else r, m if method == "latent" else None
                )
                found.setdefault(condition)
    return tuple(found)


def shuffle_donors(rows: Sequence[Sample], samples: Sequence[Sample]) -> dict[str, Sample]:
    """For each sample the next row of the whole split, going round, with another question and another answer.

    The whole split, not the chosen samples, so that a sample's donor does not depend on the choice.
    """
    if len({row.gold for row in rows}) < 2:
        raise DataError(
            "control shuffle: all answers of the dataset are the same; it needs a question with another answer"
        )
    donors = {}
    for sample in samples:
        for step in range(1, len(rows)):
            row = rows[(sample.index + step) % len(rows)]
            if row.gold != sample.gold and row.question != sample.question:
                donors[sample.id] = row
                break
        else:
            raise DataError(
                f"control shuffle: sample {sample.id!r} has no donor, a row of the dataset with another question and answer"
            )
    return donors


def make_batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Batches of similar length, the longest questions first."""
    ordered = sorted(samples, key=lambda sample: (-len(sample.question), sample.index))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def pending(plan: Plan, folder: RunFolder) -> int:
    """How many records are missing."""
    return sum((c, s.id) not in folder.done for c in plan.conditions for s in plan.benchmark.samples)


def evaluate(plan: Plan, folder: RunFolder, system: MultiAgentSystem, batch_size: int) -> None:
    """Answer, grade and record all that is missing in `folder`, which must be open."""
    batches = make_batches(plan.benchmark.samples, batch_size)
    donors: dict[str, Sample] = {}
    if any(condition.control == "shuffle" for condition in plan.conditions):
        donors = shuffle_donors(plan.benchmark.rows, plan.benchmark.samples)
    total = len(plan.conditions) * len(plan.benchmark.samples)
    with (
        plan.benchmark.grader() as grade,
        tqdm(total=total, initial=total - pending(plan, folder), unit="sample", file=sys.stderr) as bar,
    ):
        for condition in plan.conditions:
            bar.set_description(condition.title())
            for batch in batches:
                missing = {sample.id for sample in batch if (condition, sample.id) not in folder.done}
                if not missing:
                    continue
                answers = _answers(plan, condition, batch, donors, system)
                pairs = [pair for pair in zip(batch, answers, strict=True) if pair[0].id in missing]
                folder.append([make_record(plan, condition, sample, answer, grade) for sample, answer in pairs])
                bar.update(len(pairs))


def _answers(
    plan: Plan, condition: Condition, batch: Sequence[Sample], donors: dict[str, Sample], system: MultiAgentSystem
) -> list[Answer]:
    return system.answer(
        [_question(sample) for sample in batch],
        rounds=1 if condition.rounds is None else condition.rounds,
        latent_steps=condition.latent_length or 0,
        method=condition.method,
        control=condition.control,
        donors=[_question(donors[sample.id]) for sample in batch] if condition.control == "shuffle" else None,
        sampling=plan.sampling,
        num_rollouts=plan.num_rollouts,
        seed=plan.seed,
        enable_thinking=plan.enable_thinking,
    )


def _question(sample: Sample) -> Any:
    from inference.mas.prompts import Question

    return Question(sample.question, sample.id, sample.family, sample.kind, sample.fn_name)


def make_record(plan: Plan, condition: Condition, sample: Sample, answer: Answer, grade: Grade) -> Record:
    """The record of one answer; its fields are described in `results`."""
    rollouts = [_rollout(grade, sample, index, written) for index, written in enumerate(answer.rollouts)]
    return {
        "sample_idx": sample.index,
        "sample_id": sample.id,
        "dataset": plan.benchmark.name,
        "dataset_split": plan.benchmark.split,
        "style": plan.style,
        "mas_shape": plan.mas_shape,
        "method": condition.method,
        "control": condition.control,
        "rounds": condition.rounds,
        "latent_length": condition.latent_length,
        "question": sample.question,
        "gold_answer_raw": sample.gold,
        **{name: rollouts[0][name] for name in ("pred_answer_parsed", "correct", "status")},
        "pass_at_k_correct": any(rollout["correct"] for rollout in rollouts),
        "rollouts": rollouts,
        "prompt_tokens": answer.prompt_tokens,
        "latent_steps": answer.latent_steps,
        "generated_tokens": answer.generated_tokens,
        "seconds": {stage: round(seconds, 6) for stage, seconds in answer.seconds.items()},
    }


def _rollout(grade: Grade, sample: Sample, index: int, written: Generation) -> dict[str, Any]:
    try:
        verdict = grade(sample, written.text)
    except Exception as err:
        # The text took time to make and is kept with its fault: a scorer's bug must not end a long run.
        verdict = Verdict(False, None, "error", f"{type(err).__name__}: {err}")
    cut = verdict.extracted is None and verdict.status != "error" and written.finish == "length"
    return {
        "rollout_idx": index,
        "sample_seed": written.seed,
        "raw_output": written.text,
        "finish": written.finish,
        "generated_tokens": len(written.tokens),
        "pred_answer_parsed": verdict.extracted,
        "correct": verdict.correct,
        "status": "truncated" if cut else verdict.status,
        "rule": verdict.rule,
    }
