"""Builds the pocket systems: benchmark files, recorded searches, training rows, models, inner links and outer links.

    python train/pocket/build.py                           # everything, into assets/pocket and inference/dataset
    python train/pocket/build.py --links_only              # the links alone, for the models that are there
    python train/pocket/build.py --only pocket_mixture     # one system; what it shares with those above it must be there
    python train/pocket/build.py --out /tmp/pocket         # elsewhere

Links are trained by the project's ordinary programs with ordinary flags: the commands are printed. Two models are trained
at a time, one thread each; the printed times are wall times.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from inference.mas.errors import InputError, exit_on_input_error
from inference.mas.styles import load_style
from train.pocket.facts import call_rows, search_rows, write_recorded
from train.pocket.world import benchmark_rows, loop_rows, make_world, pocket_rows, triple_rows, write_jsonl

ROWS = {"train": (2000, 2400), "dev": (200, 200)}  # pocket rows (or triples), loop rows
TEST_ROWS = 400
INNER = "--batch_size 32 --adapter_lr 2e-3 --match_norm 1 --dtype float32 --adapter_dtype float32"
OUTER = (
    "--latent_source rollout --latent_steps 16 --role_loss_weight 1 --batch_size 32 --dtype float32 "
    "--gradient_checkpointing 0 --eval_max_new_tokens 40"
)
# The first stage, of one round, trains the links that lead forward; the feedback link joins in a second one, at a smaller rate.
ONE_ROUND = "--num_recursive_rounds 1 --outer_lr 1.5e-3 --outer_init vocab"
TWO_ROUNDS = "--num_recursive_rounds 2 --outer_lr 5e-4 --supervise_final_only 0 --non_last_loss_weight 1"
LINK_FILES = ("*.pt", "*.safetensors", "*.json")


@dataclass(frozen=True)
class System:
    """What one style's system adds to those before it: models (the largest first) and inner links (role: steps).

    Training rows are `rows/<rows>train.jsonl` and `rows/<rows>dev.jsonl`; `graded` of the dev rows are answered at the end.
    """

    style: str
    models: tuple[str, ...]
    inner: dict[str, int]
    stages: tuple[str, ...]
    rows: str = ""
    graded: int = 100


SYSTEMS = {
    system.style: system
    for system in (
        # The solver's next tokens are mostly numbers, a hundred near-alike choices: its link needs longer, and the second
        # round hangs on it (feedback of a blurred number is looked up on the wrong page).
        System(
            "pocket_sequential",
            ("solver", "planner", "critic"),
            {"planner": 400, "critic": 400, "solver": 1200},
            (f"{ONE_ROUND} --max_steps 160", f"{TWO_ROUNDS} --max_steps 400"),
        ),
        System(
            "pocket_distillation",
            ("expert",),
            {"expert": 400},
            (f"{ONE_ROUND} --max_steps 160", f"{TWO_ROUNDS} --max_steps 300"),
        ),
        # No tool runs while links are trained, so that no answer can be graded.
        System(
            "pocket_deliberation",
            ("toolcaller",),
            {"toolcaller": 300},
            (f"{ONE_ROUND} --max_steps 160",),
            "deliberation_",
            0,
        ),
        System(
            "pocket_mixture",
            ("summarizer", "alpha", "beta", "gamma"),
            {"alpha": 300, "beta": 300, "gamma": 300, "summarizer": 300},
            (f"{ONE_ROUND} --max_steps 480",),
            "mixture_",
        ),
    )
}


def run(command: list[str], threads: int) -> None:
    """Run a program of the project from its root; its output passes through."""
    print("$ " + " ".join(command), flush=True)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    code = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=False).returncode
    if code:
        raise InputError(f"{' '.join(command[:5])} ...: ended with exit code {code}; what it printed says why")


def run_two_at_a_time(commands: list[list[str]]) -> None:
    with ThreadPoolExecutor(2) as workers:
        list(workers.map(lambda command: run(command, 1), commands))


def check_models(systems: list[System], out: Path, built: bool) -> None:
    """`InputError` for a model that is needed and neither there nor (with `built`) about to be made."""
    ours = {name for system in systems for name in system.models} if built else set()
    for system in systems:
        for role in load_style(system.style).roles:
            name = Path(role.model).name
            if name not in ours and not (out / name / "config.json").is_file():
                raise InputError(
                    f"--out {out}: no model {name}, which {system.style} needs; copy assets/pocket there, or build it, too"
                )


def write_rows(out: Path, dataset_dir: Path) -> None:
    """Benchmark files (the test split), the searches recorded for them, and training rows (train and dev)."""
    world = make_world()
    tests = {
        "pocket": pocket_rows,
        "pocket_loop": loop_rows,
        "pocket_search": search_rows,
        "pocket_mixture": triple_rows,
    }
    for name, make in tests.items():
        write_jsonl(dataset_dir / f"{name}.jsonl", benchmark_rows(make(world, "test", TEST_ROWS)))
    write_recorded(out / "search.jsonl", world)
    for split, (pocket, loop) in ROWS.items():
        rows = pocket_rows(world, split, pocket) + loop_rows(world, split, loop)
        random.Random(split).shuffle(rows)
        write_jsonl(out / "rows" / f"{split}.jsonl", rows)
        write_jsonl(out / "rows" / f"deliberation_{split}.jsonl", call_rows(world, split, pocket))
        write_jsonl(out / "rows" / f"mixture_{split}.jsonl", triple_rows(world, split, pocket))


def build_models(system: System, out: Path) -> None:
    """The system's own models, from scratch."""
    run_two_at_a_time([["train/pocket/pretrain.py", name, "--save_dir", str(out / name)] for name in system.models])


def data_flags(system: System, out: Path) -> list[str]:
    rows = out / "rows"
    return [
        "--dataset_name",
        str(rows / f"{system.rows}train.jsonl"),
        "--eval_dataset",
        str(rows / f"{system.rows}dev.jsonl"),
    ]


def build_inner(system: System, out: Path, work: Path) -> None:
    """The system's own inner links, each beside its model's name."""
    style, commands, kept = load_style(system.style), [], []
    for name, steps in system.inner.items():
        role = style.role(name)
        model, link = Path(role.model).name, Path(role.repo).name
        kept.append((work / link, out / "links" / link))
        where = ["--model_name_or_path", str(out / model), "--save_dir", str(work / link)]
        flags = [*where, *data_flags(system, out), *INNER.split(), "--max_steps", str(steps)]
        commands.append(["train/train_inner.py", "--style", system.style, "--mas_role", role.mas_role, *flags])
    run_two_at_a_time(commands)
    for source, target in kept:
        keep_links(source, target)


def build_outer(system: System, out: Path, work: Path) -> None:
    """The outer links, stage by stage."""
    style = load_style(system.style)
    models = []
    for role in style.roles:
        models += [f"--{role.flag}_model_name_or_path", str(out / Path(role.model).name)]
        models += [f"--{role.flag}_inner_aligner_path", str(out / "links" / Path(role.repo).name)]
    common = [*data_flags(system, out), *models, *OUTER.split(), "--eval_num_samples", str(system.graded)]
    start: list[str] = []
    for number, flags in enumerate(system.stages, 1):
        target = work / f"outer_{number}"
        command = ["train/train_outer.py", "--style", system.style, *common, *flags.split(), *start]
        run([*command, "--save_dir", str(target)], 2)
        start = ["--load_dir", str(target)]
    keep_links(work / f"outer_{len(system.stages)}", out / "links" / Path(style.outer_repo).name)


def keep_links(source: Path, target: Path) -> None:
    """Copy links and manifests of a training directory, without its checkpoints and training state."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for pattern in LINK_FILES:
        for file in sorted(source.glob(pattern)):
            if file.name != "training_state.pt":
                shutil.copy2(file, target / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "assets" / "pocket")
    parser.add_argument(
        "--dataset_dir", type=Path, default=ROOT / "inference" / "dataset", help="for the benchmark files"
    )
    parser.add_argument("--only", choices=SYSTEMS, help="build this system alone")
    parser.add_argument("--links_only", action="store_true", help="keep the models that are there")
    args = parser.parse_args()
    out, dataset_dir = args.out.resolve(), args.dataset_dir.resolve()
    # The files that training writes name their sources: inside the repository, by paths that travel with it.
    os.chdir(ROOT)
    out = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    chosen = [SYSTEMS[args.only]] if args.only else list(SYSTEMS.values())
    check_models(chosen, out, built=not args.links_only)
    times = {}

    def timed(name: str, step, *given) -> None:
        started = time.perf_counter()
        step(*given)
        times[name] = time.perf_counter() - started

    timed("rows", write_rows, out, dataset_dir)
    for system in chosen:
        work = out / "work" / system.style
        if not args.links_only:
            timed(f"{system.style}: models", build_models, system, out)
        timed(f"{system.style}: inner links", build_inner, system, out, work)
        timed(f"{system.style}: outer links", build_outer, system, out, work)
    shutil.rmtree(out / "work")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    wide = max(map(len, times))
    print("\n".join(f"{name.ljust(wide)} {seconds:7.0f} s" for name, seconds in times.items()))
    print(f"{'together'.ljust(wide)} {sum(times.values()):7.0f} s   {size / 1e6:.1f} MB in {out}")


if __name__ == "__main__":
    exit_on_input_error(main)
