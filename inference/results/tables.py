"""Tables: the one that a run prints, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.results.folder import Condition


def percent(value: float, sign: str = "") -> str:
    """A share in percent, one decimal."""
    return f"{100 * value:{sign}.1f}"


def percents(interval: Sequence[float], sign: str = "") -> str:
    """An interval of shares in percent."""
    return f"{percent(interval[0], sign)} to {percent(interval[1], sign)}"


def result_cells(entry: dict[str, Any]) -> dict[str, str]:
    """Accuracy and what else counts answers, by column; the columns beyond the first two only where they apply."""
    cells = {"accuracy %": percent(entry["accuracy"]), "95 % interval": percents(entry["interval"])}
    if "pass_at_k" in entry:
        k, value = list(entry["pass_at_k"].items())[-1]
        cells[f"pass@{k} %"] = percent(value)
    if "accuracy_reference_rule" in entry:
        cells["reference rule %"] = percent(entry["accuracy_reference_rule"])
    return cells


def cost_cells(entry: dict[str, Any]) -> dict[str, str]:
    """Means a sample, and answers without a graded answer."""
    cost = entry["per_sample"]
    return {
        "prompt tok": f"{cost['prompt_tokens']:.1f}",
        "latent steps": f"{cost['latent_steps']:.1f}",
        "gen. tok": f"{cost['generated_tokens']:.1f}",
        **({"tool tok": f"{cost['tool_tokens']:.1f}"} if "tool_tokens" in cost else {}),
        "seconds": f"{cost['seconds']:.3f}",
        "no answer": str(entry["num_answers"] - entry["statuses"].get("ok", 0)),
    }


def condition_cells(condition: Condition) -> dict[str, str]:
    """Name, rounds, latent length."""
    values = [condition.name, condition.rounds, condition.latent_length]
    return dict(zip(("method", "R", "m"), ("-" if value is None else str(value) for value in values), strict=True))


def metric_cells(entry: dict[str, Any]) -> dict[str, str]:
    """Metrics of some tasks, of retries if there were any, and of tools; {} where there are none."""
    cells = {}
    if "qa" in entry:
        names = {"em": "EM", "f1": "F1", "official_em": "official EM", "official_f1": "official F1"}
        cells |= {f"{shown} %": percent(entry["qa"][name]) for name, shown in names.items()}
        if "judge_accuracy" in entry["qa"]:
            cells["EM or judge %"] = percent(entry["qa"]["judge_accuracy"])
            cells["judge failures"] = str(sum(entry["qa"]["judge_failures"].values()))
    if "code" in entry:
        cells["tests passed %"] = percent(entry["code"]["tests_passed"])
        cells["errors"] = ", ".join(f"{name} {count}" for name, count in entry["code"]["error_types"].items()) or "-"
    if entry.get("retry", {}).get("count"):
        cells["retried"] = str(entry["retry"]["count"])
        cells["accuracy without retry %"] = percent(entry["retry"]["accuracy_without"])
    if "tools" in entry:
        calls = entry["tools"]["calls"]
        cells["tool calls"] = ", ".join(f"{name} {count}" for name, count in calls.items()) or "-"
        cells["failed calls"] = str(entry["tools"]["failures"])
    return cells


def table_text(conditions: Sequence[Condition], entries: Sequence[dict[str, Any]]) -> str:
    """The table for people: percent, means a sample. Differences are to the first row, over the same samples."""
    rows = []
    for place, (condition, entry) in enumerate(zip(conditions, entries, strict=True)):
        other = entry.get("difference")
        # Names of columns must differ here; blanks at their ends are not shown.
        paired = {"difference": "", "95 % interval ": "", "McNemar p": ""} if len(entries) > 1 else {}
        if other and place:
            values = [percent(other["value"], "+"), percents(other["interval"], "+"), f"{other['p']:.3g}"]
            paired = dict(zip(paired, values, strict=True))
        rows.append({**condition_cells(condition), **result_cells(entry), **paired, **cost_cells(entry)})
    cells = grid(rows, missing="-")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(line.rstrip() for line in lines)


def grid(rows: Sequence[dict[str, str]], missing: str = "") -> list[list[str]]:
    """Rows given by column as a head and lines of cells; columns are ordered as in the longest row."""
    head = list(max(rows, key=len))
    for row in rows:
        head += [name for name in row if name not in head]
    return [[name.strip() for name in head], *([row.get(name, missing) for name in head] for row in rows)]


def markdown_table(rows: Sequence[dict[str, str]], left: Sequence[str] = ()) -> str:
    """A Markdown table, its columns padded so that it also reads as text; those in `left` are aligned left."""
    cells = [[_escape(cell) for cell in row] for row in grid(rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lefts = [name in left for name in cells[0]]

    def line(row: Sequence[str]) -> str:
        padded = (c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in zip(row, widths, lefts, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 2) if is_left else "-" * (w + 1) + ":" for w, is_left in zip(widths, lefts, strict=True))
    return "\n".join([line(cells[0]), f"|{rule}|", *map(line, cells[1:])])


def _escape(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
