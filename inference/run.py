"""Evaluate a multi-agent system on a benchmark.

    python inference/run.py --style pocket_sequential --dataset pocket --device cpu
    python inference/run.py --style sequential_light --dataset math500 --compare latent,text,single --num_samples 100
    python inference/run.py --style my_style.yaml --dataset questions.jsonl --num_recursive_rounds 1,2,3 --latent_length 16,32

Settings without a flag take the recommended value for style and benchmark, else the default; each is printed with its source.
The run's folder (--output_dir) holds records, manifest and summary; the same command again goes on where it was interrupted. The last
line of stdout is the summary as one JSON object; with several rounds or latent lengths its `methods` stand under
`rounds` and `latent_lengths`, a method that does not depend on one of them above it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# Run as a file, Python puts inference/ on the path; the imports below start at the repository's root.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from inference.evaluation import evaluate, pending
from inference.mas.errors import InputError, exit_on_input_error
from inference.mas.styles import CONTROLS, METHODS
from inference.results import RunFolder, finish
from inference.settings import DEFAULTS, plain, recommended, settings_lines
from inference.tools.errors import DataError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.removeprefix('argument ')} (see --help)")


def number(kind: type, least: float | None = None) -> Callable[[str], Any]:
    """A reader of one number."""
    what = "a whole number" if kind is int else "a number"
    expected = what if least is None else f"{what} of at least {least}"

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or (least is not None and value < least):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
        return value

    return read


def numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    """A reader of one whole number or a comma list."""

    def read(text: str) -> tuple[int, ...]:
        try:
            values = tuple(int(item) for item in text.split(","))
        except ValueError:
            values = ()
        if not values or min(values) < least or len(set(values)) != len(values):
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected a whole number of at least {least}, or a comma list of different ones"
            )
        return values

    return read


def switch(text: str) -> bool:
    """A reader of 0 or 1."""
    if text not in {"0", "1"}:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 or 1")
    return text == "1"


def names(text: str) -> list[str]:
    """A reader of a comma list of names."""
    return [item.strip() for item in text.split(",") if item.strip()]


def make_parser() -> Parser:
    """All flags. A setting's flag defaults to None: then the recommended value or the default applies."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def add(group: Any, name: str, help: str, **how: Any) -> None:
        if name in DEFAULTS and "(default" not in help:
            default = plain(DEFAULTS[name])
            text = int(default) if isinstance(default, bool) else default if default != "" else "none"
            help = f"{help} (default {text})"
        if how.get("type") is switch:
            how |= {"nargs": "?", "const": True, "metavar": "0|1"}
        group.add_argument(f"--{name}", help=help, **how)

    what = parser.add_argument_group("what is run")
    add(what, "style", "name of a style, or a YAML file")
    add(what, "dataset", "name of a benchmark, or a .json or .jsonl file with question and answer")
    add(what, "dataset_split", "split of the benchmark", default="")
    add(what, "dataset_file", "local file to take the benchmark's rows from")
    add(what, "dataset_revision", "revision of the hub dataset")
    add(what, "num_samples", "how many samples; 0 or less: all", type=number(int))
    add(what, "sample_ids", "these samples only, a comma list", type=names, default=[])
    add(what, "shuffle_seed", "shuffle the samples by this seed before the first are taken", type=number(int))
    add(
        what, "method", "latent messages, text messages, or the speaker's model alone (default latent)", choices=METHODS
    )
    add(what, "latent_control", "what receivers get instead of the true message", choices=CONTROLS)
    add(
        what,
        "compare",
        "several methods and controls over the same samples, a comma list; differences are to the first",
        type=names,
    )

    how = parser.add_argument_group("how it answers")
    add(how, "num_recursive_rounds", "rounds, a number or a comma list", type=numbers(1))
    add(how, "latent_length", "latent steps of a stage, a number or a comma list", type=numbers(0))
    add(how, "num_rollouts", "answers to each question", type=number(int, 1))
    add(
        how,
        "pass_k",
        "which pass@k are told, a number or a comma list (default all up to --num_rollouts)",
        type=numbers(1),
    )
    add(how, "seed", "base of all random draws", type=number(int))
    add(how, "sample_seed", "base of the draws instead of --seed, if 0 or more", type=number(int))
    add(how, "do_sample", "draw tokens; 0: greedy", type=switch)
    add(how, "temperature", "temperature of the draws", type=number(float))
    add(how, "top_p", "nucleus of the draws", type=number(float))
    add(how, "top_k", "how many tokens are drawn from; below 0: all", type=number(int))
    add(how, "min_p", "least probability, relative to the best token's; below 0: off", type=number(float))
    add(how, "repetition_penalty", "above 1: written tokens get less likely", type=number(float))
    add(how, "max_new_tokens", "limit of a written answer or text message", type=number(int, 1))
    add(how, "enable_thinking", "thinking switch of chat templates that have one", type=switch)
    add(how, "prompts", "YAML file with prompts that replace the style's")
    add(how, "ans", "an answer without box, letter or code goes on from a short suffix; both are graded", type=switch)

    tools = parser.add_argument_group("tools of a speaker that has some")
    add(tools, "max_tool_rounds", "calls an answer may make", type=number(int, 0))
    add(tools, "python_timeout", "seconds for a program", type=number(float, 0.1))
    add(tools, "result_max_chars", "characters of a result that the model reads", type=number(int, 1))
    add(tools, "tavily_keys_file", "keys for searches, one a line (default: the variable TAVILY_API_KEY)")
    add(tools, "tavily_sentinel_file", "file to write when all keys are used up")
    add(tools, "search_replay", "recorded searches (search.jsonl of a run) in place of the network")
    add(tools, "max_search_calls", "searches to pay for; below 0: no limit", type=number(int))

    task = parser.add_argument_group("data and grading of some benchmarks")
    add(task, "lcb_release", "livecodebench: release_v1 to release_v6 (all up to it), or slices vN, vN_vM")
    add(task, "lcb_start_date", "livecodebench: contests from this day on, YYYY-MM-DD")
    add(task, "lcb_end_date", "livecodebench: contests up to this day, YYYY-MM-DD")
    add(task, "lcb_use_private_tests", "livecodebench: private tests too, not only the public ones", type=switch)
    add(task, "lcb_timeout_s", "seconds for each test of a program or call", type=number(float, 0.1))
    add(task, "mbppplus_timeout_s", "seconds for all tests of a function", type=number(float, 0.1))
    add(task, "mbppplus_num_prompt_tests", "mbppplus: asserts shown in the prompt", type=number(int, 0))
    add(task, "code_workers", "programs that run side by side; 0: one a CPU", type=number(int, 0))
    add(task, "hotpot_context", "hotpotqa: show the paragraphs, not the question only", type=switch)
    add(
        task,
        "judge",
        "bamboogle, hotpotqa: an LLM judges answers that do not match (default: 1 if API_KEY, API_BASE_URL and API_MODEL are set)",
        type=switch,
    )
    add(task, "judge_all", "ask the judge about matching answers, too", type=switch)
    add(task, "max_judge_calls", "limit of requests to the judge; below 0: none", type=number(int))

    machine = parser.add_argument_group("models and machine")
    add(
        machine,
        "ckpt_override",
        "KEY=PATH: another folder for a role or `outer`; repeatable",
        action="append",
        default=[],
    )
    add(machine, "revision", "revision of all hub repos, or KEY=REVISION; repeatable", action="append", default=[])
    add(machine, "device", "cpu, cuda, cuda:N")
    add(machine, "dtype", "float32, bfloat16, float16; auto: by device")
    add(machine, "offload", "keep idle models in CPU memory", type=switch)
    add(machine, "trust_remote_code", "run model code from the hub", type=switch)
    add(machine, "batch_size", "questions answered together; does not change answers", type=number(int, 1))

    out = parser.add_argument_group("output")
    add(out, "output_dir", "folder of the run (default runs/<style>-<dataset>-<hash of all that decides answers>)")
    add(out, "result_jsonl", "records file (default <output_dir>/records.jsonl)")
    out.add_argument("--list", action="store_true", help="show styles, benchmarks and recommended settings, and end")
    out.add_argument(
        "--dry_run", action="store_true", help="check everything and show the plan; load and write nothing"
    )
    return parser


def show_list() -> None:
    """Styles, datasets, and the settings that are recommended for pairs of them."""
    from inference.benchmarks.registry import BENCHMARKS
    from inference.mas.styles import list_styles

    styles, pairs = list_styles(), {}
    print("styles (or a .yaml file):\n" + "".join(f"  {style}\n" for style in styles))
    print("datasets (or a .json or .jsonl file):")
    for name, spec in BENCHMARKS.items():
        config = f" {spec.config}" if spec.config else ""
        print(f"  {name:14} {spec.task:7} {spec.source}{config}  split {' or '.join(spec.splits)}")
    print("\nrecommended settings (where the flag is absent):")
    for style in styles:
        for name in BENCHMARKS:
            table = {key: plain(value) for key, value in recommended(style, name).items()}
            if table:
                print(f"  {style:18} {name:14} " + " ".join(f"{key}={value}" for key, value in table.items()))
                pairs[f"{style}/{name}"] = table
    print(json.dumps({"styles": styles, "datasets": list(BENCHMARKS), "recommended": pairs}))


def show_plan(job: Any) -> None:
    """Plan and settings, for people."""
    data = job.benchmark
    told = (
        f"{len(data.samples)} of {len(data.rows)} samples, split {data.split}, from {data.source}"
        if data
        else "not reached"
    )
    print(f"style    {job.style.name}: {' -> '.join(role.name for role in job.style.roles)}")
    print(f"dataset  {job.dataset} ({job.task}): {told}")
    print(f"runs     {', '.join(condition.title() for condition in job.conditions)}")
    print("settings")
    print("\n".join(settings_lines(job.settings)))
    for name in job.unused:
        print(f"unused   --{name}: has no effect in this run")


def dry_run(flags: dict[str, Any]) -> int:
    """Resolve everything and show it."""
    from inference.plan import make_job, memory_estimate

    job = make_job(flags, dry_run=True)
    show_plan(job)
    memory = memory_estimate(job)
    answers = len(job.benchmark.samples) * len(job.conditions) * job.value("num_rollouts") if job.benchmark else None
    print(f"answers  {answers if answers is not None else 'unknown'} to write")
    searches = job.most_searches()
    if job.tools:
        print(
            f"tools    {', '.join(job.tools.offered) or 'none can run'}; at most {'an unknown number of' if searches is None else searches} searches to pay for"
        )
    judge_calls = job.most_judge_calls()
    if job.settings.get("judge"):
        print(f"judge    at most {'an unknown number of' if judge_calls is None else judge_calls} requests to pay for")
    if job.resolved:
        print("weights")
        for key, value in job.resolved.describe().items():
            print(f"  {key:12} {value}")
    for line in job.unreachable:
        print(f"missing  {line}")
    if memory:
        for name, size in memory["models"].items():
            print(f"memory   {size / 2**20:10.1f} MiB  {name}")
        print(f"memory   {memory['links'] / 2**20:10.1f} MiB  links")
        print(f"memory   {memory['device_total'] / 2**20:10.1f} MiB  on {job.device}, plus activations and KV cache")
    report = {
        "dry_run": True,
        "style": job.style.name,
        "dataset": job.dataset,
        "num_samples": len(job.benchmark.samples) if job.benchmark else None,
        "conditions": [condition.title() for condition in job.conditions],
        "answers": answers,
        "max_searches": searches,
        "max_judge_calls": judge_calls,
        "settings": job.shown_settings(),
        "setting_sources": {name: setting.source for name, setting in job.settings.items()},
        "weights": job.resolved.describe() if job.resolved else None,
        "memory_bytes": memory,
        "missing": list(job.unreachable),
    }
    print(json.dumps(report, ensure_ascii=False))
    return 0


def run(flags: dict[str, Any]) -> int:
    """Answer what is missing and show the whole run's summary."""
    from inference.plan import make_job  # imports torch: seconds that a wrong flag or --list need not wait for

    job = make_job(flags)
    output_dir = Path(flags["output_dir"]) if flags["output_dir"] else job.default_folder()
    folder = RunFolder(output_dir, job.manifest(), Path(flags["result_jsonl"]) if flags["result_jsonl"] else None)
    folder.read()
    show_plan(job)
    print(f"folder   {output_dir}", flush=True)
    plan = job.plan()
    left = pending(plan, folder)
    if folder.done:
        print(f"resumed  {len(folder.done)} records are there, {left} are missing", flush=True)
    if left:
        from system_loader import load_mas_system

        system = load_mas_system(
            job.style,
            device=job.device,
            dtype=job.value("dtype"),
            trust_remote_code=job.value("trust_remote_code"),
            task=job.family,
            offload=job.value("offload"),
            resolved=job.resolved,
        )
        folder.open()
        try:
            evaluate(plan, folder, system, job.value("batch_size"))
        except KeyboardInterrupt:
            print(f"\ninterrupted; the same command goes on from {folder.path}", file=sys.stderr)
            return 130
        finally:
            folder.close()
    summary, table = finish(folder)
    print(f"\n{table}\n")
    faults = sum(rollout["status"] == "error" for record in folder.done.values() for rollout in record["rollouts"])
    if faults:
        print(f"warning: the scorer failed on {faults} answers, counted as wrong; `rule` in {folder.path} says how\n")
    print(json.dumps(summary, ensure_ascii=False))
    return 0


def main() -> int:
    """The command."""
    args = make_parser().parse_args()
    if args.list:
        show_list()
        return 0
    for flag in ("style", "dataset"):
        if not getattr(args, flag):
            raise InputError(f"--{flag}: missing; give one (see --list)")
    return dry_run(vars(args)) if args.dry_run else run(vars(args))


if __name__ == "__main__":
    exit_on_input_error(main, DataError)
