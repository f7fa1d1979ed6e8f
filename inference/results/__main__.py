"""Runs side by side, or graded again.

    python -m inference.results runs/a runs/b               one Markdown table, beside published numbers
    python -m inference.results runs/a runs/b --json        the same as one JSON object
    python -m inference.results runs/a --rescore            grade the answers again with the scorers as they are now

Differences are paired over the same questions where the runs' rows are the same. Loads no models.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from inference.mas.errors import exit_on_input_error
from inference.results.report import markdown, report
from inference.results.runs import load_run
from inference.tools.errors import DataError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (see --help)")


def rescore_all(folders: list[Path], dataset_file: Path | None, as_json: bool) -> None:
    """Grade runs again and say what changed."""
    from inference.results.rescore import rescore  # the scorers: a second that a table need not wait for

    for folder in folders:
        told = rescore(folder, dataset_file)
        if as_json:
            print(json.dumps(told, ensure_ascii=False))
            continue
        print(
            f"{folder}: {told['answers']} answers graded again, {len(told['changed'])} verdicts changed, "
            f"{told['other_changes']} other changes; accuracy {100 * told['accuracy_before']:.1f} % before, "
            f"{100 * told['accuracy_after']:.1f} % after"
        )
        for change in told["changed"]:
            sides = (_verdict(change[side]) for side in ("before", "after"))
            print(f"  {change['title']}, {change['sample_id']}, rollout {change['rollout_idx']}: {' -> '.join(sides)}")
        if told["old_records"]:
            print(f"  old records: {told['old_records']}")


def _verdict(side: dict[str, Any]) -> str:
    answer = json.dumps(side["pred_answer_parsed"], ensure_ascii=False)
    shown = answer if len(answer) <= 60 else answer[:57] + "..."
    return f"{'right' if side['correct'] else 'wrong'} {shown} ({side['status']}; {side['rule']})"


def main() -> int:
    """The command."""
    parser = Parser(
        "python -m inference.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder of a run (--output_dir of run.py)")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object instead of tables; with --rescore one a run"
    )
    parser.add_argument("--rescore", action="store_true", help="grade again; old records are kept beside the new ones")
    parser.add_argument(
        "--dataset_file", type=Path, help="with --rescore: the rows, where the run's own source is gone"
    )
    args = parser.parse_args()
    if args.dataset_file and not args.rescore:
        raise DataError(f"--dataset_file {args.dataset_file}: is for --rescore; leave it out or give --rescore, too")
    if len(set(map(Path.resolve, args.folders))) != len(args.folders):
        raise DataError("a folder stands twice; name each run once")
    # A lone surrogate in a model's text has no UTF-8 form.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if args.rescore:
        rescore_all(args.folders, args.dataset_file, args.json)
        return 0
    told = report([load_run(folder) for folder in args.folders])
    print(json.dumps(told, ensure_ascii=False) if args.json else markdown(told), end="\n" if args.json else "")
    return 0


if __name__ == "__main__":
    exit_on_input_error(main, DataError)
