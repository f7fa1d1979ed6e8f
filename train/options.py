"""Flags and steps that both trainers share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from inference.mas.errors import InputError
from inference.mas.fetch import Folder
from inference.mas.lm_loading import pick_device
from inference.mas.styles import FAMILIES, ROOT
from train.data.rows import Row, fingerprint, load_rows
from train.data.texts import split_heldout
from train.loop import LoopSettings

# Settings that change nothing in the trained weights: a resumed run may have others.
FREE = frozenset(
    {
        "save_dir",
        "log_every",
        "save_steps",
        "eval_every",
        "eval_num_samples",
        "eval_max_new_tokens",
        "resume",
        "save_base",
        "save_format",
        "device",
        "log_grad_norm",
        "cache_dir",
        "offload",
        "device_map",
    }
)


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and whose errors are one sentence, as all others."""

    def __init__(self, description: str | None) -> None:
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.removeprefix('argument ')} (see --help)")


def switch(text: str) -> bool:
    """A flag's 0 or 1."""
    if text not in {"0", "1"}:
        raise argparse.ArgumentTypeError(f"expected 0 or 1, found {text!r}")
    return text == "1"


def add_common(parser: argparse.ArgumentParser) -> None:
    """Flags of data, optimiser, saving and held-out figures."""
    data = parser.add_argument_group("data")
    data.add_argument("--dataset_split", default="train", help="split of a hub data set")
    data.add_argument("--dataset_config", default=None, help="configuration of a hub data set (default: its plain one)")
    data.add_argument("--num_samples", type=int, default=-1, help="use the first N rows (-1: all)")
    data.add_argument("--shuffle", type=switch, default=True, help="1: a new order in every epoch; 0: the file's order")
    data.add_argument("--mas_task", choices=FAMILIES, default="math", help="task family of rows without `task_family`")
    data.add_argument(
        "--enable_thinking", type=switch, default=False, help="passed to chat templates that have the switch"
    )
    data.add_argument("--prompts", default=None, help="YAML file that replaces prompts of the style")
    steps = parser.add_argument_group("optimisation")
    steps.add_argument("--num_train_epochs", type=float, default=1, help="used if --max_steps is 0 or less")
    steps.add_argument("--max_steps", type=int, default=20000, help="optimiser steps")
    steps.add_argument("--batch_size", type=int, default=2, help="rows of a step")
    steps.add_argument("--lr_scheduler_type", choices=("cosine", "constant"), default="cosine")
    steps.add_argument("--warmup_steps", type=int, default=10)
    steps.add_argument("--weight_decay", type=float, default=0.0)
    steps.add_argument("--max_grad_norm", type=float, default=1.0, help="0: no clipping")
    steps.add_argument("--seed", type=int, default=42)
    saving = parser.add_argument_group("saving and figures")
    saving.add_argument("--save_steps", type=int, default=0, help="a checkpoint every N steps (0: none)")
    saving.add_argument("--save_format", choices=("pt", "safetensors"), default="pt")
    saving.add_argument("--resume", type=switch, default=False, help="1: continue the run in --save_dir")
    saving.add_argument("--log_every", type=int, default=10)
    saving.add_argument("--eval_fraction", type=float, default=0.0, help="share of rows held out")
    saving.add_argument("--eval_dataset", default=None, help="held-out rows of their own (local file or hub id)")
    saving.add_argument("--eval_every", type=int, default=0, help="held-out figures every N steps (0: at the end)")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N")
    machine.add_argument("--trust_remote_code", type=switch, default=False, help="run program code that a model brings")
    machine.add_argument("--cache_dir", default=None, help="the hub client's cache")


def check_common(args: argparse.Namespace) -> None:
    """Refuse numbers out of range."""
    for name, least in (("batch_size", 1), ("warmup_steps", 0), ("save_steps", 0), ("eval_every", 0), ("log_every", 0)):
        if getattr(args, name) < least:
            raise InputError(f"--{name} {getattr(args, name)}: expected at least {least}")
    for name in ("weight_decay", "max_grad_norm"):
        if getattr(args, name) < 0:
            raise InputError(f"--{name} {getattr(args, name)}: expected 0 or more")
    if args.max_steps <= 0 and args.num_train_epochs <= 0:
        raise InputError(
            f"--max_steps {args.max_steps} with --num_train_epochs {args.num_train_epochs}: nothing to train"
        )
    if args.num_samples == 0 or args.num_samples < -1:
        raise InputError(f"--num_samples {args.num_samples}: expected -1 (all) or at least 1")
    if args.eval_dataset and args.eval_fraction:
        raise InputError("--eval_dataset and --eval_fraction: give one of them")
    if args.eval_every and not (args.eval_dataset or args.eval_fraction):
        raise InputError(f"--eval_every {args.eval_every}: nothing is held out; add --eval_fraction or --eval_dataset")
    if args.save_steps and args.save_dir is None:
        raise InputError(f"--save_steps {args.save_steps}: nowhere to save; add --save_dir")
    if args.resume and args.save_dir is None:
        raise InputError("--resume 1: needs the --save_dir of the run to continue")


def read_data(args: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Training rows and rows of `--eval_dataset` (empty without it)."""
    rows = load_rows(
        args.dataset_name, args.dataset_split, args.dataset_json_field, args.num_samples, args.dataset_config
    )
    if not args.eval_dataset:
        return rows, []
    return rows, load_rows(args.eval_dataset, args.dataset_split, args.dataset_json_field, config=args.dataset_config)


def split_rows(args: argparse.Namespace, count: int, extra: int) -> tuple[list[int], list[int]]:
    """Indices (train, held-out) of `count` training examples followed by `extra` of `--eval_dataset`."""
    if extra:
        return list(range(count)), list(range(count, count + extra))
    return split_heldout(count, args.eval_fraction, args.seed)


def start_accelerator(device: str) -> Accelerator:
    """The processes of this run and their device. Under `accelerate launch`, each process has the device it is given."""
    chosen = pick_device(device)
    accelerator = Accelerator(cpu=chosen.type == "cpu")
    if accelerator.num_processes == 1 and chosen.type == "cuda" and chosen.index is not None:
        torch.cuda.set_device(chosen)
    return accelerator


def seed_everything(seed: int) -> None:
    """Python, numpy and torch: what starts at random (fresh links) starts the same."""
    set_seed(seed)


def portable(source: str | Path | Folder) -> str:
    """A hub id, or a path, written relative to the repository where it lies inside, so that files can travel."""
    text = source.id if isinstance(source, Folder) else str(source)
    path = Path(text)
    return path.relative_to(ROOT).as_posix() if path.is_absolute() and path.is_relative_to(ROOT) else text


def loop_settings(
    args: argparse.Namespace,
    rows: Sequence[Row],
    *,
    lr: float,
    step_rows: int,
    micro_rows: int,
    decay_all: bool,
    extra: Mapping[str, Any],
) -> LoopSettings:
    """The loop's settings from flags; `extra` joins the flags that a resumed run must repeat."""
    settings = {**vars(args), "rows": fingerprint(rows), "num_rows": len(rows), **extra}
    return LoopSettings(
        save_dir=Path(args.save_dir) if args.save_dir else None,
        settings=settings,
        free=FREE,
        max_steps=args.max_steps,
        num_train_epochs=args.num_train_epochs,
        step_rows=step_rows,
        micro_rows=micro_rows,
        lr=lr,
        schedule=args.lr_scheduler_type,
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
        decay_all=decay_all,
        max_grad_norm=args.max_grad_norm,
        log_every=args.log_every,
        save_steps=args.save_steps,
        eval_every=args.eval_every,
        seed=args.seed,
        shuffle=args.shuffle,
        resume=args.resume,
    )


def print_plan(title: str, plan: Mapping[str, Any], main: bool) -> None:
    """What is about to happen, one fact a line."""
    if not main:
        return
    print(f"[{title}]")
    width = max(len(name) for name in plan)
    for name, value in plan.items():
        print(f"  {name.ljust(width)}  {value}")
    sys.stdout.flush()


def describe_schedule(args: argparse.Namespace, lr: float, steps: int, per_epoch: int) -> str:
    """Steps, epochs and rate in one line."""
    return (
        f"{steps} steps ({steps / max(1, per_epoch):.2f} epochs of {per_epoch}), AdamW lr {lr:g} {args.lr_scheduler_type}, "
        f"{args.warmup_steps} warm-up, clip {args.max_grad_norm:g}"
    )
