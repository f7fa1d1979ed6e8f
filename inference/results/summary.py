"""Numbers from records: accuracy with its interval, differences, metrics of each task, cost.

Optional numbers are there only where the records have what they are made of. In every share the denominator is all
answers: an answer without a metric (no answer, a scorer that failed) counts as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inference.results.folder import JUDGE_COST, Condition, Record
from inference.scoring import statistics

COSTS = (
    "prompt_tokens",
    "latent_steps",
    "generated_tokens",
    "tool_tokens",
)  # tool_tokens: of tools' results, with tools only
QA_METRICS = ("em", "f1", "official_em", "official_f1")
MAX_GROUPS = 40  # values of a field of rows; with more of them a table by this field tells nothing
Table = list[list[bool]]


def table_of(records: Sequence[Record]) -> Table:
    """Whether each rollout of each record is correct."""
    return [[bool(rollout["correct"]) for rollout in record["rollouts"]] for record in records]


def summarise(
    done: Mapping[tuple[Condition, str], Record],
    conditions: Sequence[Condition],
    ids: Sequence[str],
    pass_k: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """One entry for each condition, in order: `entry_of`, and `difference` to the first condition.

    Records that an unfinished run has not got are left out; each condition needs at least one. `pass_k`: which pass@k
    to tell; all if empty.
    """
    entries: list[dict[str, Any]] = []
    first = {sample_id: done[conditions[0], sample_id] for sample_id in ids if (conditions[0], sample_id) in done}
    for condition in conditions:
        records = {sample_id: done[condition, sample_id] for sample_id in ids if (condition, sample_id) in done}
        entry = entry_of(condition, list(records.values()), pass_k)
        both = [sample_id for sample_id in first if sample_id in records]
        if entries and both:
            pairs = difference([first[sample_id] for sample_id in both], [records[sample_id] for sample_id in both])
            entry["difference"] = {"to": conditions[0].title(), **pairs}
        entries.append(entry)
    return entries


def difference(first: Sequence[Record], second: Sequence[Record]) -> dict[str, Any]:
    """Accuracy of the second minus the first, over records of the same samples in the same order.

    `interval` 95 %, `p` exact McNemar, `better` and `worse` questions, `smallest`: the smallest true difference that
    so many questions show with 80 % power, as often as these two differ (None: none).
    """
    a, b = table_of(first), table_of(second)
    found = asdict(statistics.paired_difference(a, b))
    low, high = found.pop("low"), found.pop("high")
    smallest = statistics.smallest_difference(len(a), statistics.discordance(a, b))
    return {"interval": [low, high], **found, "smallest": smallest, "num_samples": len(a)}


def entry_of(condition: Condition, records: Sequence[Record], pass_k: Sequence[int] = ()) -> dict[str, Any]:
    """The numbers of one condition; at least one record.

    `num_correct` counts rollouts, of which there are `num_answers`; tokens, latent steps and seconds are sums over
    samples, `per_sample` holds their means. With several rollouts a question `accuracy` is mean@k; `pass_at_k` is
    unbiased.
    """
    table = table_of(records)
    rollouts = [rollout for record in records for rollout in record["rollouts"]]
    k = len(table[0])
    entry: dict[str, Any] = {
        "accuracy": statistics.mean_at_k(table),
        "interval": list(statistics.interval(table)),
        "num_samples": len(records),
        "num_correct": sum(map(sum, table)),
        "num_answers": len(rollouts),
        "statuses": _counts(rollout["status"] for rollout in rollouts),
    }
    if k > 1:
        entry["pass_at_k"] = {str(j): statistics.mean_pass_at_k(table, j) for j in pass_k or range(1, k + 1)}
        entry["rollout_accuracy"] = [sum(row[i] for row in table) / len(table) for i in range(k)]
    entry["smallest_difference"] = _smallest_difference(table)
    if any("reference_correct" in rollout for rollout in rollouts):
        entry["accuracy_reference_rule"] = _mean(rollouts, lambda rollout: rollout.get("reference_correct"))
    for name, metrics in (
        ("qa", _qa(rollouts)),
        ("code", _code(rollouts)),
        ("retry", _retry(rollouts)),
        ("tools", _tools(rollouts)),
        ("groups", _groups(records)),
    ):
        if metrics:
            entry[name] = metrics
    return entry | _cost(records) | {name: getattr(condition, name) for name in ("control", "rounds", "latent_length")}


def _smallest_difference(table: Table) -> dict[str, Any]:
    value = statistics.smallest_difference(len(table), statistics.unrelated_discordance(table))
    found = "no difference can be shown" if value is None else f"{100 * value:.1f} points can be shown"
    return {
        "value": value,
        "note": f"With {len(table)} questions, {found} against a run with as many faults on unrelated questions "
        "(80 % power, exact paired test at 5 %; Connor 1987). Two runs that fail on the same questions show smaller "
        "ones.",
    }


def _cost(records: Sequence[Record]) -> dict[str, Any]:
    stages: Counter[str] = Counter()
    tokens: dict[str, Counter[str]] = {}
    for record in records:
        stages.update(record["seconds"])
        for stage, counts in (record.get("tokens") or {}).items():
            tokens.setdefault(stage, Counter()).update(counts)
    total = {name: sum(record[name] for record in records) for name in COSTS if name in records[0]}
    total["seconds"] = sum(stages.values())
    return {
        **{name: round(value, 3) for name, value in total.items()},
        "seconds_by_stage": {stage: round(value, 3) for stage, value in stages.items()},
        "tokens_by_stage": {stage: dict(counts) for stage, counts in tokens.items()},
        "per_sample": {name: round(value / len(records), 4) for name, value in total.items()},
    }


def _qa(rollouts: Sequence[Record]) -> dict[str, Any]:
    """Means of EM and F1; with a judge, how often it was asked and failed, what that cost, and the accuracy with its
    verdict in EM's place.

    Where it was not asked EM counts, where it failed nothing.
    """
    if not any("em" in rollout for rollout in rollouts):
        return {}
    found: dict[str, Any] = {name: _mean(rollouts, lambda rollout, name=name: rollout.get(name)) for name in QA_METRICS}
    asked = [rollout["judge"] for rollout in rollouts if rollout.get("judge")]
    if asked:
        found["judged"] = len(asked)
        found["judge_accuracy"] = _mean(
            rollouts, lambda rollout: rollout["judge"]["verdict"] if rollout.get("judge") else rollout.get("em")
        )
        found["judge_failures"] = _counts(judge["status"] for judge in asked if judge["verdict"] is None)
        found["judge_cost"] = {name: sum(judge.get(name) or 0 for judge in asked) for name in JUDGE_COST}
    return found


def _code(rollouts: Sequence[Record]) -> dict[str, Any]:
    """The mean share of an answer's tests that it passes, and how many answers end in which error."""
    if not any("eval" in rollout for rollout in rollouts):
        return {}

    def share(rollout: Record) -> float:
        tests = rollout.get("eval") or {}
        return (tests.get("passed_tests") or 0) / (tests.get("total_tests") or 1)

    errors = (rollout["eval"].get("error_type") for rollout in rollouts if rollout.get("eval"))
    return {"tests_passed": _mean(rollouts, share), "error_types": _counts(error for error in errors if error)}


def _retry(rollouts: Sequence[Record]) -> dict[str, Any]:
    """How many answers were asked for their form again, and the accuracy with each as it was before that."""
    if not any("retry" in rollout for rollout in rollouts):
        return {}

    def before(rollout: Record) -> bool:
        return rollout.get("correct_before_retry", False) if rollout.get("retry") else rollout["correct"]

    return {
        "count": sum(bool(rollout.get("retry")) for rollout in rollouts),
        "accuracy_with": _mean(rollouts, lambda rollout: rollout["correct"]),
        "accuracy_without": _mean(rollouts, before),
    }


def _tools(rollouts: Sequence[Record]) -> dict[str, Any]:
    """Sums over all answers: calls by tool, answers with any, calls that failed."""
    if not any("tool_calls" in rollout for rollout in rollouts):
        return {}
    calls: Counter[str] = Counter()
    for rollout in rollouts:
        calls.update(rollout.get("tool_calls") or {})
    return {
        "calls": dict(calls.most_common()),
        "answers_with_calls": sum(any((rollout.get("tool_calls") or {}).values()) for rollout in rollouts),
        "failures": sum(rollout.get("tool_failures") or 0 for rollout in rollouts),
    }


def _groups(records: Sequence[Record]) -> dict[str, Any]:
    """By field of the rows (subject, level, ...): accuracy and interval of each value.

    A field with one value or with more than `MAX_GROUPS` is left out.
    """
    found: dict[str, Any] = {}
    for field in dict.fromkeys(name for record in records for name in record.get("groups") or {}):
        by_value: dict[str, list[Record]] = {}
        for record in records:
            by_value.setdefault(str((record.get("groups") or {}).get(field, "-")), []).append(record)
        if 1 < len(by_value) <= MAX_GROUPS:
            found[field] = {value: _group(by_value[value]) for value in sorted(by_value, key=_by_number)}
    return found


def _group(records: Sequence[Record]) -> dict[str, Any]:
    table = table_of(records)
    low, high = statistics.interval(table)
    return {"accuracy": statistics.mean_at_k(table), "interval": [low, high], "num_samples": len(records)}


def _by_number(value: str) -> tuple[int, str]:
    """Levels in the order of numbers: 9 before 10."""
    return (int(value), "") if value.isdecimal() else (10**9, value)


def _mean(rollouts: Sequence[Record], value: Any) -> float:
    return sum(float(value(rollout) or 0) for rollout in rollouts) / len(rollouts)


def _counts(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())


def nest(
    conditions: Sequence[Condition], entries: Sequence[dict], rounds: Sequence[int], lengths: Sequence[int]
) -> dict[str, Any]:
    """Entries by name, under the axes that have several values: {"rounds": {R: {"latent_lengths": {M: {"methods":
    ...}}}}}.

    An axis with one value is no level. A method stands at the level of the axes that it depends on, so `single` is
    found in the outermost `methods`, and `text` below `rounds` only.
    """
    tree: dict[str, Any] = {}
    for condition, entry in zip(conditions, entries, strict=True):
        node = tree
        for axis, values, value in (
            ("rounds", rounds, condition.rounds),
            ("latent_lengths", lengths, condition.latent_length),
        ):
            if len(values) > 1 and value is not None:
                node = node.setdefault(axis, {}).setdefault(str(value), {})
        node.setdefault("methods", {})[condition.name] = entry
    return tree
