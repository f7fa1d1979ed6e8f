"""From a task to its grader: a context in which many outputs at once get their verdicts.

Each scorer is imported where it is used, so that a run loads only its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from inference.benchmarks.base import Grade, Options, Sample, cache_folder
from inference.benchmarks.code import code_task
from inference.scoring.verdict import Verdict


@contextmanager
def maths_grader(options: Options) -> Iterator[Grade]:
    """Grades maths answers, hard pairs in worker processes."""
    from inference.scoring import maths

    with maths.ComparePool() as pool:
        yield lambda pairs: [maths.grade(text, sample.gold, pool) for sample, text in pairs]


@contextmanager
def choice_grader(options: Options) -> Iterator[Grade]:
    """Grades letters."""
    from inference.scoring import choice

    yield lambda pairs: [choice.grade(text, sample.gold, options=sample.meta["options"]) for sample, text in pairs]


@contextmanager
def code_grader(options: Options) -> Iterator[Grade]:
    """Runs programs side by side in the sandbox. Functions and programs have time limits of their own."""
    from inference.scoring.code import CodeRunner

    limits = {"function": options.mbppplus_timeout_s, "stdin": options.lcb_timeout_s, "call": options.lcb_timeout_s}
    with ExitStack() as stack:
        runners: dict[float, CodeRunner] = {}

        def grade(pairs: Sequence[tuple[Sample, str]]) -> list[Verdict]:
            tasks = [code_task(sample, options) for sample, _ in pairs]
            verdicts: dict[int, Verdict] = {}
            for limit in dict.fromkeys(limits[task.kind] for task in tasks):
                if limit not in runners:
                    runners[limit] = stack.enter_context(CodeRunner(options.code_workers or None, timeout_s=limit))
                places = [place for place, task in enumerate(tasks) if limits[task.kind] == limit]
                found = runners[limit].grade_many([(pairs[place][1], tasks[place]) for place in places])
                verdicts |= zip(places, found, strict=True)
            return [verdicts[place] for place in range(len(pairs))]

        yield grade


@contextmanager
def qa_grader(options: Options) -> Iterator[Grade]:
    """Grades short texts by exact match. A judge's word on those that do not match stands beside it, in the details.

    Its replies are kept in a file of the user's cache, so that no run pays for an answer that another has asked about.
    """
    from inference.scoring import qa

    def match(pairs: Sequence[tuple[Sample, str]]) -> list[Verdict]:
        return [qa.grade(text, golds_of(sample)) for sample, text in pairs]

    if not options.judge:
        yield match
        return
    from inference.scoring.judge import Judge

    limit = options.max_judge_calls if options.max_judge_calls >= 0 else None
    with Judge.from_environment(max_calls=limit, cache_file=cache_folder() / "judge.jsonl") as judge:

        def grade(pairs: Sequence[tuple[Sample, str]]) -> list[Verdict]:
            verdicts = match(pairs)
            asked = [
                place
                for place, verdict in enumerate(verdicts)
                if verdict.extracted is not None and (options.judge_all or not verdict.correct)
            ]
            judgements = judge.judge_many(
                [
                    (sample.meta.get("stem", sample.question), golds_of(sample), verdicts[place].extracted or "")
                    for place, sample in ((place, pairs[place][0]) for place in asked)
                ]
            )
            for place, judgement in zip(asked, judgements, strict=True):
                details = {**verdicts[place].details, "judge": judgement.record()}
                verdicts[place] = replace(verdicts[place], details=details)
            return verdicts

        yield grade


def golds_of(sample: Sample) -> str | list[str]:
    """The gold answer, or all of them where a row has several."""
    return list(sample.meta["answers"]) if "answers" in sample.meta else sample.gold


GRADERS: dict[str, Callable[[Options], AbstractContextManager[Grade]]] = {
    "math": maths_grader,
    "choice": choice_grader,
    "code": code_grader,
    "qa": qa_grader,
}
