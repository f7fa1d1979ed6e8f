"""Runs side by side: their numbers, published ones, and paired tests; as one JSON value, and as Markdown made from it.

`finish` is what `run.py` ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from inference.results.folder import Condition, RunFolder, flat, write_json, write_text
from inference.results.published import Published, Row
from inference.results.runs import Run, read_manifest
from inference.results.summary import difference
from inference.results.tables import (
    condition_cells,
    cost_cells,
    markdown_table,
    metric_cells,
    percent,
    percents,
    result_cells,
    table_text,
)

SUMMARY, SUMMARY_TABLES = "summary.json", "summary.md"
_LEFT = ("run", "style", "dataset", "method", "first", "second", "source", "system", "setting", "errors", "tool calls")


def finish(folder: RunFolder) -> tuple[dict[str, Any], str]:
    """Write `summary.json` and `summary.md` of a run that is done; returns the summary and the table for people.

    How the run was carried out (`machine`) is told as this process did it, all else as the manifest on disk says.
    """
    manifest = {**read_manifest(folder.folder), "machine": folder.manifest["machine"]}
    run = Run(folder.folder, manifest, folder.done)
    notes = dict.fromkeys(entry["smallest_difference"]["note"] for entry in run.entries[:1])
    return write_summary(run), "\n\n".join([table_text(run.conditions, run.entries), *notes])


def write_summary(run: Run) -> dict[str, Any]:
    """Write `summary.json` and `summary.md` into a run's folder; returns the summary."""
    summary = run.summary()
    write_json(run.folder / SUMMARY, summary)
    write_text(run.folder / SUMMARY_TABLES, markdown(report([run])))
    return summary


class _Notes:
    """Footnotes, numbered from 1 in the order of their first use."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        text = " ".join(text.split())
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def report(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything about runs as one JSON value.

    `runs`: what each was made from, and `lines` (condition, numbers, `published` ones of the same kind); `paired`:
    differences to the first line over the same data; `unpaired`: why there are none, in words; `published`: all
    published numbers of these styles and benchmarks; `notes`: what the numbers under `notes` elsewhere refer to, from
    1.
    """
    published, notes = Published(), _Notes()

    def cite(row: Row, dataset: str) -> dict[str, Any]:
        found = {"source": row.source, "system": row.system, "style": row.style, "dataset": dataset}
        found |= {"rounds": row.rounds, "score": row.scores[dataset] / 100}
        found |= {
            name: values[dataset] for name, values in (("seconds", row.seconds), ("tokens", row.tokens)) if values
        }
        return found | {"notes": [notes.number(text) for text in published.caveats(row, dataset)]}

    told = []
    for run in runs:
        lines = [
            {
                "method": condition.name,
                "title": condition.title(),
                "published": [
                    cite(row, run.dataset)
                    for row in published.beside(run.style, run.dataset, condition.name, condition.rounds)
                ],
                **entry,
            }
            for condition, entry in zip(run.conditions, run.entries, strict=True)
        ]
        summary = run.summary()
        for axis in ("methods", "rounds", "latent_lengths"):
            summary.pop(axis, None)
        told.append({**summary, "lines": lines})
    paired, unpaired = _pair(runs)
    pairs = dict.fromkeys((run.style, run.dataset) for run in runs)
    listed = [cite(row, dataset) for style, dataset in pairs for row in published.of(style, dataset)]
    return {"runs": told, "paired": paired, "unpaired": unpaired, "published": listed, "notes": notes.texts}


def _pair(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """Differences of all lines to the first one over the same rows, on the samples that both have."""
    paired: list[dict[str, Any]] = []
    unpaired: list[str] = []
    first_of: dict[tuple, tuple[Run, Condition]] = {}
    seen: dict[str, Run] = {}
    for run in runs:
        rows = tuple(run.data[name] for name in ("name", "split", "sha256"))
        other = seen.setdefault(run.dataset, run)
        if rows not in first_of and other is not run:
            unpaired.append(f"{run.folder} and {other.folder}: the rows of {run.dataset} differ, so no paired test")
        for condition in run.conditions:
            first_run, first = first_of.setdefault(rows, (run, condition))
            if (first_run, first) == (run, condition):
                continue
            a, b = first_run.records(first), run.records(condition)
            common = [sample_id for sample_id in a if sample_id in b]
            names = _line_name(first_run, first, runs), _line_name(run, condition, runs)
            if not common:
                unpaired.append(f"{names[0]} and {names[1]}: no sample in common, so no paired test")
                continue
            found = difference([a[sample_id] for sample_id in common], [b[sample_id] for sample_id in common])
            paired.append({"first": names[0], "second": names[1], **found})
    return paired, unpaired


def _line_name(run: Run, condition: Condition, runs: Sequence[Run]) -> str:
    return f"{run.folder}: {condition.title()}" if len(runs) > 1 else condition.title()


def markdown(told: dict[str, Any]) -> str:
    """The report (`report`) as Markdown."""
    runs = told["runs"]
    several = len(runs) > 1
    title = "Results" if several else f"{runs[0]['style']} on {runs[0]['dataset']}"
    parts = [f"# {title}", markdown_table([_line(run, line, several) for run, line in _lines(runs)], _LEFT)]
    parts += _remarks(runs, several)
    metrics = [({**_place(run, line, several), **metric_cells(line)}, metric_cells(line)) for run, line in _lines(runs)]
    if any(cells for _, cells in metrics):
        parts += ["## Other metrics", markdown_table([row for row, cells in metrics if cells], _LEFT)]
    if told["paired"] or told["unpaired"]:
        parts.append("## Differences over the same questions")
        parts += [markdown_table(list(map(_pair_cells, told["paired"])), _LEFT)] if told["paired"] else []
        parts += [f"- {sentence}." for sentence in told["unpaired"]]
    parts += _groups(runs, several)
    if told["published"]:
        parts += ["## Published numbers", markdown_table([_published_cells(row) for row in told["published"]], _LEFT)]
        parts.append("\n".join(f"{number}. {text}" for number, text in enumerate(told["notes"], 1)))
    parts += _settings(runs) if several else _made_from(runs[0])
    return "\n\n".join(parts) + "\n"


def _lines(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return ((run, line) for run in runs for line in run["lines"])


def _place(run: dict[str, Any], line: dict[str, Any], several: bool) -> dict[str, str]:
    condition = Condition(line["method"], None, line["rounds"], line["latent_length"])
    where = {"run": run["output_dir"], "style": run["style"], "dataset": run["dataset"]} if several else {}
    return where | condition_cells(condition)


def _line(run: dict[str, Any], line: dict[str, Any], several: bool) -> dict[str, str]:
    cells = {**_place(run, line, several), "questions": str(line["num_samples"]), **result_cells(line)}
    for name, is_release in (("paper %", False), ("released %", True)):
        found = [row for row in line["published"] if (row["source"] == "release") == is_release]
        if found:
            cells[name] = " or ".join(f"{percent(row['score'])} [{_numbers(row)}]" for row in found)
    smallest = line["smallest_difference"]["value"]
    return {**cells, "shows from": "-" if smallest is None else f"{100 * smallest:.1f}", **cost_cells(line)}


def _numbers(row: dict[str, Any]) -> str:
    return ",".join(map(str, row["notes"]))


def _remarks(runs: Sequence[dict[str, Any]], several: bool) -> list[str]:
    told = [
        "Accuracy over all questions asked, whatever became of their answers, with a 95 % interval (Wilson; with "
        'several answers a question: the mean over them, on the effective sample size). "shows from": the smallest '
        "difference in points that so many questions show against a run with as many faults on unrelated questions "
        "(80 % power, exact paired test at 5 %; Connor 1987); two runs that fail on the same questions show smaller ones. Tokens, latent "
        "steps and seconds are means a question."
    ]
    for run in runs:
        told += [f"Unfinished: {run['output_dir']}, {part}." for part in run.get("unfinished", [])]
        if "rescored" in run:
            told.append(f"{run['output_dir']}: graded again, {run['rescored']['changed']} verdicts changed.")
    return told


def _pair_cells(pair: dict[str, Any]) -> dict[str, str]:
    smallest = pair["smallest"]
    return {
        "first": pair["first"],
        "second": pair["second"],
        "questions": str(pair["num_samples"]),
        "second - first": percent(pair["value"], "+"),
        "95 % interval": percents(pair["interval"], "+"),
        "better": str(pair["better"]),
        "worse": str(pair["worse"]),
        "McNemar p": f"{pair['p']:.3g}",
        "shows from": "-" if smallest is None else f"{100 * smallest:.1f}",
    }


def _groups(runs: Sequence[dict[str, Any]], several: bool) -> list[str]:
    parts = []
    for run in runs:
        for field in dict.fromkeys(name for line in run["lines"] for name in line.get("groups", {})):
            rows: dict[str, dict[str, str]] = {}
            for line in run["lines"]:
                for value, group in line.get("groups", {}).get(field, {}).items():
                    row = rows.setdefault(value, {field: value, "questions": str(group["num_samples"])})
                    row[line["title"]] = f"{percent(group['accuracy'])} ({percents(group['interval'])})"
            where = f", {run['output_dir']}" if several else ""
            parts += [f"## Accuracy by {field}{where}", markdown_table(list(rows.values()), (field,))]
    return parts


def _published_cells(row: dict[str, Any]) -> dict[str, str]:
    cells = {name: row[name] for name in ("style", "dataset", "source", "system")}
    cells |= {"R": "-" if row["rounds"] is None else str(row["rounds"]), "score %": percent(row["score"])}
    return cells | {name: str(row[name]) for name in ("seconds", "tokens") if name in row} | {"notes": _numbers(row)}


def _settings(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Settings and origins that differ between runs."""
    flats = [
        flat({name: run[name] for name in ("settings", "data", "style_sha256", "versions", "git_commit")})
        for run in runs
    ]
    names = list(dict.fromkeys(name for found in flats for name in found))
    rows = [
        {"setting": name} | {run["output_dir"]: _text(found.get(name)) for run, found in zip(runs, flats, strict=True)}
        for name in names
        if any(found.get(name) != flats[0].get(name) for found in flats)
    ]
    return ["## What differs between the runs", markdown_table(rows, _LEFT)] if rows else []


def _made_from(run: dict[str, Any]) -> list[str]:
    sources = run["setting_sources"]
    rows = [
        {"setting": name, "value": _text(value), "source": sources.get(name, "-")}
        for name, value in run["settings"].items()
    ]
    stages = {stage: 0.0 for line in run["lines"] for stage in line["seconds_by_stage"]}
    timed = [
        {"stage": stage, **{line["title"]: f"{line['seconds_by_stage'].get(stage, 0.0):.2f}" for line in run["lines"]}}
        for stage in stages
    ]
    parts = {name: run[name] for name in ("data", "tools") if name in run}
    origin = {**flat(parts), "git_commit": run["git_commit"], **run["versions"]}
    return [
        "## Seconds by stage",
        markdown_table(timed, ("stage",)),
        "## Settings",
        markdown_table(rows, ("setting", "value", "source")),
        "## Made from",
        "\n".join(f"- {name}: {_text(value)}" for name, value in origin.items()),
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    return "-" if value is None else str(int(value)) if isinstance(value, bool) else str(value)
