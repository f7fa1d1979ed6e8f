"""A system over a benchmark: which conditions, in which batches, what is recorded, and how a broken run goes on.

Batches are fixed before anything runs, from all samples by length of the question (the longest first, so that memory runs out at
once or not at all). A batch of which some records are missing is run again as a whole and only those are written, so
that a resumed run computes what an unbroken one does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from inference.answer_form import AnswerForm
from inference.benchmarks.base import Benchmark, Grade, Sample
from inference.mas.styles import CONTROLS
from inference.results import Condition, Record, RunFolder
from inference.scoring.reference_rule import reference_correct
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

if TYPE_CHECKING:
    from inference.mas.decoding import Generation, Sampling
    from inference.mas.recursion import Answer, MultiAgentSystem
    from inference.mas.tools import ToolUse
    from inference.tools.toolbox import ToolSettings

SEARCHES = "search.jsonl"  # in the run's folder: what searches answered

# Tasks that the reference's comparison of texts applies to; code is run, there and here.
REFERENCE_TASKS = ("math", "choice", "qa")


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
    ans: bool = False
    tools: ToolSettings | None = None


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
    golds = {row.gold for row in rows}
    if len(golds) < 2 and golds != {""}:  # programs have no gold text: there another question is another answer
        raise DataError(
            "control shuffle: all answers of the dataset are the same; it needs a question with another answer"
        )
    donors = {}
    for sample in samples:
        for step in range(1, len(rows)):
            row = rows[(sample.index + step) % len(rows)]
            if row.question != sample.question and (row.gold != sample.gold or not row.gold):
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
    with ExitStack() as stack:
        tools = _open_tools(plan, folder, stack)
        grade = stack.enter_context(plan.benchmark.grader())
        bar = stack.enter_context(
            tqdm(total=total, initial=total - pending(plan, folder), unit="sample", file=sys.stderr)
        )
        for condition in plan.conditions:
            bar.set_description(condition.title())
            for batch in batches:
                missing = {sample.id for sample in batch if (condition, sample.id) not in folder.done}
                if not missing:
                    continue
                answers = _answers(plan, condition, batch, donors, system, tools)
                pairs = [pair for pair in zip(batch, answers, strict=True) if pair[0].id in missing]
                folder.append(make_records(plan, condition, pairs, grade))
                bar.update(len(pairs))


def _open_tools(plan: Plan, folder: RunFolder, stack: ExitStack) -> ToolUse | None:
    """The speaker's tools, for as long as `stack` lives; searches are kept in the run's folder."""
    if plan.tools is None:
        return None
    from inference.mas.tools import ToolUse

    box = stack.enter_context(plan.tools.open(folder.folder / SEARCHES))
    return ToolUse(box, plan.tools.max_rounds, plan.tools.result_max_chars)


def _answers(
    plan: Plan,
    condition: Condition,
    batch: Sequence[Sample],
    donors: dict[str, Sample],
    system: MultiAgentSystem,
    tools: ToolUse | None,
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
        tools=tools,
        needs_suffix=AnswerForm(batch, plan.enable_thinking) if plan.ans else None,
    )


def _question(sample: Sample) -> Any:
    from inference.mas.prompts import Question

    return Question(sample.question, sample.id, sample.family, sample.kind, sample.fn_name)


def make_records(
    plan: Plan, condition: Condition, pairs: Sequence[tuple[Sample, Answer]], grade: Grade
) -> list[Record]:
    """The records of answers to several samples, graded together; their fields are described in `results`."""
    outputs = [(sample, text) for sample, answer in pairs for written in answer.rollouts for text in _texts(written)]
    verdicts = iter(verdicts_on(grade, outputs))
    return [
        _record(plan, condition, sample, answer, [[next(verdicts) for _ in _texts(w)] for w in answer.rollouts])
        for sample, answer in pairs
    ]


def _texts(written: Generation) -> list[str]:
    """What is graded of an answer: its text without tools' results; and its text before a retry, if there was one."""
    return [written.answer] + ([written.text_before_retry] if written.retry else [])


def _record(
    plan: Plan, condition: Condition, sample: Sample, answer: Answer, verdicts: Sequence[Sequence[Verdict]]
) -> Record:
    rollouts = [
        _rollout(plan, condition, sample, index, written, own)
        for index, (written, own) in enumerate(zip(answer.rollouts, verdicts, strict=True))
    ]
    return {
        "sample_idx": sample.index,
        "sample_id": sample.id,
        "dataset": plan.benchmark.name,
        "dataset_split": plan.benchmark.split,
        "groups": sample.groups,
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
        **({"tool_tokens": answer.tool_tokens} if plan.tools else {}),
        "tokens": answer.tokens,
        "seconds": {stage: round(seconds, 6) for stage, seconds in answer.seconds.items()},
    }


def verdicts_on(grade: Grade, outputs: Sequence[tuple[Sample, str]]) -> list[Verdict]:
    """The verdict on every output. One that makes the scorer fail is an error; the others of its batch are graded."""
    try:
        return grade(outputs)
    except DataError:
        raise  # no fault of a text: what the scorer needs is not there
    except Exception as err:
        # The texts took time to make and are kept with their fault: a scorer's bug must not end a long run.
        if len(outputs) == 1:
            return [Verdict(False, None, "error", f"{type(err).__name__}: {err}")]
        return [verdict for output in outputs for verdict in verdicts_on(grade, [output])]


def _rollout(
    plan: Plan, condition: Condition, sample: Sample, index: int, written: Generation, verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    found = {
        "rollout_idx": index,
        "sample_seed": written.seed,
        "raw_output": written.text,
        "finish": written.finish,
        "generated_tokens": len(written.tokens),
    }
    if written.answer_text is not None:
        found["answer_text"] = written.answer_text
    if plan.ans:
        found["retry"] = written.retry
    if written.retry:
        found["text_before_retry"] = written.text_before_retry
        found["correct_before_retry"] = verdicts[1].correct
        found["suffix_tokens"] = written.suffix_tokens
    if plan.tools and condition.method != "single":
        found["tool_calls"] = dict(written.tool_calls)
        found["tool_failures"] = written.tool_failures
        found["tool_tokens"] = written.tool_tokens
    return {**found, **graded(plan.benchmark.task, sample, written.answer, written.finish, verdicts[0])}


def graded(task: str, sample: Sample, text: str, finish: str, verdict: Verdict) -> dict[str, Any]:
    """What grading adds to a rollout: the verdict with the scorer's details, and the reference's verdict on the same text."""
    cut = verdict.extracted is None and verdict.status != "error" and finish == "length"
    found = {
        **verdict.details,
        "pred_answer_parsed": verdict.extracted,
        "correct": verdict.correct,
        "status": "truncated" if cut else verdict.status,
        "rule": verdict.rule,
    }
    if task in REFERENCE_TASKS:
        found["reference_correct"] = reference_correct(text, sample.gold, task)
    return found
