"""Builds the pocket system: benchmark files, training rows, three models, their inner links and the outer links.

    python train/pocket/build.py                       # everything, into assets/pocket and inference/dataset
    python train/pocket/build.py --links_only          # the links alone, for the models that are there
    python train/pocket/build.py --out /tmp/pocket     # elsewhere

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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from train.pocket.world import benchmark_rows, loop_rows, make_world, pocket_rows, write_jsonl

ROLES = {"planner": "planner", "critic": "refiner", "solver": "solver"}  # folder -> training role
ROWS = {"train": (2000, 2400), "dev": (200, 200)}  # pocket rows, loop rows
TEST_ROWS = 400
INNER = "--batch_size 32 --adapter_lr 2e-3 --match_norm 1 --dtype float32 --adapter_dtype float32"
# The solver's next tokens are mostly numbers, a hundred near-alike choices: its link needs longer, and the second round
# hangs on it (feedback of a blurred number is looked up on the wrong page).
INNER_STEPS = {"planner": 400, "critic": 400, "solver": 1200}
OUTER = (
    "--latent_source rollout --latent_steps 16 --role_loss_weight 1 --batch_size 32 --dtype float32 "
    "--gradient_checkpointing 0 --eval_num_samples 100 --eval_max_new_tokens 40"
)
# One round trains two of the links; the feedback link joins in the second stage, at a smaller rate.
STAGES = (
    "--num_recursive_rounds 1 --max_steps 160 --outer_lr 1.5e-3 --outer_init vocab",
    "--num_recursive_rounds 2 --max_steps 400 --outer_lr 5e-4 --supervise_final_only 0 --non_last_loss_weight 1",
)
LINK_FILES = ("*.pt", "*.safetensors", "*.json")


def run(command: list[str], threads: int) -> None:
    """Run a program of the project from its root; its output passes through."""
    print("$ " + " ".join(command), flush=True)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=True)


def run_two_at_a_time(commands: list[list[str]]) -> None:
    with ThreadPoolExecutor(2) as workers:
        list(workers.map(lambda command: run(command, 1), commands))


def write_rows(out: Path, dataset_dir: Path) -> None:
    """Benchmark files (the test split) and training rows (train and dev)."""
    world = make_world()
    write_jsonl(dataset_dir / "pocket.jsonl", benchmark_rows(pocket_rows(world, "test", TEST_ROWS)))
    write_jsonl(dataset_dir / "pocket_loop.jsonl", benchmark_rows(loop_rows(world, "test", TEST_ROWS)))
    for split, (pocket, loop) in ROWS.items():
        rows = pocket_rows(world, split, pocket) + loop_rows(world, split, loop)
        random.Random(split).shuffle(rows)
        write_jsonl(out / "rows" / f"{split}.jsonl", rows)


def build_models(out: Path) -> None:
    """The three models; the largest first, so that two workers end together."""
    run_two_at_a_time(
        [["train/pocket/pretrain.py", role, "--save_dir", str(out / role)] for role in ("solver", "planner", "critic")]
    )


def data_flags(out: Path) -> list[str]:
    return ["--dataset_name", str(out / "rows/train.jsonl"), "--eval_dataset", str(out / "rows/dev.jsonl")]


def build_inner(out: Path, work: Path) -> None:
    """The three inner links."""
    commands = []
    for folder, role in ROLES.items():
        where = ["--model_name_or_path", str(out / folder), "--save_dir", str(work / folder)]
        commands.append(
            [
                "train/train_inner.py",
                "--style",
                "pocket_sequential",
                "--mas_role",
                role,
                *where,
                *data_flags(out),
                *INNER.split(),
                "--max_steps",
                str(INNER_STEPS[folder]),
            ]
        )
    run_two_at_a_time(commands)
    for folder in ROLES:
        keep_links(work / folder, out / "links" / folder)


def build_outer(out: Path, work: Path) -> None:
    """The outer links, in the stages of `STAGES`."""
    models = []
    for number, folder in enumerate(ROLES, 1):
        models += [f"--agent{number}_model_name_or_path", str(out / folder)]
        models += [f"--agent{number}_inner_aligner_path", str(out / "links" / folder)]
    previous: Path | None = None
    for number, flags in enumerate(STAGES, 1):
        target = work / f"outer_{number}"
        start = ["--load_dir", str(previous)] if previous else []
        command = ["train/train_outer.py", "--style", "pocket_sequential", *data_flags(out), *models, *OUTER.split()]
        run([*command, *flags.split(), *start, "--save_dir", str(target)], 2)
        previous = target
    assert previous is not None
    keep_links(previous, out / "links" / "outer")


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
    parser.add_argument("--links_only", action="store_true", help="keep the models that are there")
    args = parser.parse_args()
    out, dataset_dir = args.out.resolve(), args.dataset_dir.resolve()
    # The files that training writes name their sources: inside the repository, by paths that travel with it.
    os.chdir(ROOT)
    out = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    work = out / "work"
    times = {}

    def timed(name: str, step, *given) -> None:
        started = time.perf_counter()
        step(*given)
        times[name] = time.perf_counter() - started

    timed("rows", write_rows, out, dataset_dir)
    if not args.links_only:
        timed("models", build_models, out)
    timed("inner links", build_inner, out, work)
    timed("outer links", build_outer, out, work)
    shutil.rmtree(work)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print("\n".join(f"{name.ljust(12)} {seconds:7.0f} s" for name, seconds in times.items()))
    print(f"{'together'.ljust(12)} {sum(times.values()):7.0f} s   {size / 1e6:.1f} MB in {out}")


if __name__ == "__main__":
    main()
