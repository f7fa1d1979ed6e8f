"""Grade the answers of a run again, from their texts, with the scorers as they are now.

Gold answers come from the records where these are enough (maths; letters, if the question shows its options; short
text of a named benchmark), else from the benchmark's rows, which must be those of the run. The run's `records.jsonl`
is replaced whole or not at all, and the old one is kept beside it as `records.before-rescore.jsonl` (`-2`, `-3`, ...
for further ones).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from inference.benchmarks.base import FAMILY, Options, Sample
from inference.benchmarks.grading import GRADERS
from inference.benchmarks.registry import BENCHMARKS, load_benchmark
from inference.evaluation import graded, verdicts_on
from inference.results.folder import MANIFEST, Record, key_of, lock, read_records, record_line, write_json
from inference.results.report import write_summary
from inference.results.runs import load_run, read_manifest, records_path
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError

BATCH = 256  # records graded together: enough programs to keep all workers busy, few enough to hold in memory
# What of a rollout was there before it was graded; all else is replaced.
WRITTEN = (
    "rollout_idx", "sample_seed", "raw_output", "answer_text", "finish", "generated_tokens", "retry",
    "text_before_retry", "tool_calls", "tool_failures", "tool_tokens", "suffix_tokens",
)  # fmt: skip
_OPTIONS = re.compile(r"^A\. (.*)\nB\. (.*)\nC\. (.*)\nD\. (.*)\Z", re.MULTILINE)
Find = Callable[[Record], Sample]


def rescore(folder: Path, dataset_file: Path | None = None) -> dict[str, Any]:
    """Grade all answers in a run's folder again; returns what changed.

    {"folder", "answers", "accuracy_before", "accuracy_after" (of all answers), "changed": [{"title", "sample_id",
    "rollout_idx", "before", "after"}] for each answer that became right or wrong, "other_changes": answers read or
    decided in another way with the same verdict, "old_records": file name or null}. Nothing is written where nothing
    changed. `dataset_file` gives the rows where the run's own source is gone. Raises `DataError`.
    """
    manifest = read_manifest(folder)
    load_run(folder)
    path = records_path(folder, manifest)
    options, task = _options(manifest), manifest["fingerprint"]["data"].get("task", "math")
    if task not in GRADERS:
        raise DataError(f"{folder / MANIFEST}: task {task!r}; expected one of {', '.join(GRADERS)}")
    find = _finder(folder, manifest, task, options, dataset_file)
    draft = path.with_name(path.name + ".tmp")
    told: dict[str, Any] = {"folder": str(folder), "answers": 0, "changed": [], "other_changes": 0}
    before = after = 0
    with path.open("r+b") as held:
        lock(held, str(folder))
        try:
            with draft.open("wb") as file, GRADERS[task](options) as grade:
                for old, new in _graded_again(read_records(path), find, grade, task):
                    file.write(record_line(new))
                    before += sum(rollout["correct"] for rollout in old["rollouts"])
                    after += sum(rollout["correct"] for rollout in new["rollouts"])
                    _note_changes(old, new, told)
                file.flush()
                os.fsync(file.fileno())
            told |= {"accuracy_before": before / told["answers"], "accuracy_after": after / told["answers"]}
            told["old_records"] = None
            if told["changed"] or told["other_changes"]:
                told["old_records"] = _keep(path)
                draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    if told["old_records"]:
        count = {"answers": told["answers"], "changed": len(told["changed"]), "old_records": told["old_records"]}
        write_json(folder / MANIFEST, {**manifest, "rescored": count})
        write_summary(load_run(folder))
    return told


def _graded_again(records: Iterator[Record], find: Find, grade: Any, task: str) -> Iterator[tuple[Record, Record]]:
    while batch := list(islice(records, BATCH)):
        pairs = [(record, find(record)) for record in batch]
        outputs = [
            (sample, text) for record, sample in pairs for rollout in record["rollouts"] for text in _texts(rollout)
        ]
        verdicts = iter(verdicts_on(grade, outputs))
        for record, sample in pairs:
            rollouts = [
                _with_verdicts(rollout, sample, [next(verdicts) for _ in _texts(rollout)], task)
                for rollout in record["rollouts"]
            ]
            first = {name: rollouts[0][name] for name in ("pred_answer_parsed", "correct", "status")}
            either = any(rollout["correct"] for rollout in rollouts)
            yield record, {**record, **first, "pass_at_k_correct": either, "rollouts": rollouts}


def _texts(rollout: Record) -> list[str]:
    """The text that is graded (without tools' results where there are some), and the one before a retry."""
    texts = [rollout.get("answer_text", rollout["raw_output"])]
    return [*texts, rollout["text_before_retry"]] if rollout.get("retry") else texts


def _with_verdicts(rollout: Record, sample: Sample, verdicts: Sequence[Verdict], task: str) -> Record:
    new = {name: rollout[name] for name in WRITTEN if name in rollout}
    if rollout.get("retry"):
        new["correct_before_retry"] = verdicts[1].correct
    return new | graded(task, sample, _texts(rollout)[0], rollout["finish"], verdicts[0])


def _note_changes(old: Record, new: Record, told: dict[str, Any]) -> None:
    names = ("correct", "pred_answer_parsed", "status", "rule")
    for left, right in zip(old["rollouts"], new["rollouts"], strict=True):
        told["answers"] += 1
        before, after = ({name: rollout.get(name) for name in names} for rollout in (left, right))
        if before["correct"] != after["correct"]:
            condition, sample_id = key_of(old)
            told["changed"].append(
                {
                    "title": condition.title(),
                    "sample_id": sample_id,
                    "rollout_idx": left["rollout_idx"],
                    "before": before,
                    "after": after,
                }
            )
        elif left != right:
            told["other_changes"] += 1


def _keep(path: Path) -> str:
    """Copy the records to a name that is free; returns it."""
    number, kept = 1, path.with_name(f"{path.stem}.before-rescore.jsonl")
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.stem}.before-rescore-{number}.jsonl")
    draft = kept.with_name(kept.name + ".tmp")
    shutil.copyfile(path, draft)
    draft.replace(kept)
    return kept.name


def _options(manifest: Record) -> Options:
    """What the run's flags said about rows and grading."""
    settings = {**manifest["fingerprint"]["settings"], **manifest["machine"]}
    return Options(**{field.name: settings[field.name] for field in fields(Options) if field.name in settings})


def _finder(folder: Path, manifest: Record, task: str, options: Options, dataset_file: Path | None) -> Find:
    """How a record gets its sample: from what it holds, or from the rows, which are loaded once they are needed."""
    rows: dict[str, Sample] = {}

    def from_rows(record: Record) -> Sample:
        if not rows:
            rows.update((row.id, row) for row in _rows(folder, manifest, options, dataset_file))
        return rows[record["sample_id"]]

    def from_record(record: Record) -> Sample:
        meta: dict[str, Any] = {}
        if task == "choice":
            shown = _OPTIONS.search(record["question"])
            if shown is None:
                return from_rows(record)
            meta = {"options": list(shown.groups())}
        return Sample(
            record["sample_idx"],
            record["sample_id"],
            record["question"],
            record["gold_answer_raw"],
            FAMILY[task],
            meta=meta,
        )

    # A user's own row of short text may have several gold answers, of which the record has one; a judge sees the bare
    # question.
    whole = task in ("math", "choice") or (
        task == "qa" and manifest["fingerprint"]["data"]["name"] in BENCHMARKS and not options.hotpot_context
    )
    return from_record if whole and dataset_file is None else from_rows


def _rows(folder: Path, manifest: Record, options: Options, dataset_file: Path | None) -> Sequence[Sample]:
    """All rows of the run's benchmark, checked to be the same as then."""
    then, origin = manifest["fingerprint"]["data"], manifest["data_from"]
    named = then["name"] in BENCHMARKS
    source = dataset_file or (Path(origin["source"]) if then["split"] == "file" else None)
    benchmark = load_benchmark(
        then["name"] if named else str(source),
        split="" if source else then["split"],
        dataset_file=source if named else None,
        revision=origin["revision"],
        options=options,
    )
    now = benchmark.fingerprint()
    differ = [name for name in now if name != "name" and now[name] != then.get(name)]
    if differ:
        raise DataError(
            f"{folder}: {benchmark.source} has other rows than the run had ({differ[0]} "
            f"{json.dumps(then.get(differ[0]))} then, {json.dumps(now[differ[0]])} now); "
            "give the rows of the run with --dataset_file"
        )
    return benchmark.rows
