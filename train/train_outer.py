"""Train the outer links of a style: how agents speak to each other in latents.

    python train/train_outer.py --style sequential_light --mas_task math --dataset_name RecursiveMAS/Sequential-Math \\
        --agent1_inner_aligner_path train/ckpts/seq_light/planner_math --save_dir train/ckpts/seq_light/outer_math

All models and inner links are frozen. With `--latent_source teacher` (default) each agent's message comes from the states
over its gold text; with `rollout` from the latent steps that it takes at inference. Rows: see train/data/README.md. The
result loads with `python inference/run.py --ckpt_override outer=SAVE_DIR`. The last line of stdout is a JSON summary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from functools import partial
from typing import Any

import torch

from inference.mas.checkpoints import fingerprint, write_outer_dir
from inference.mas.errors import InputError, exit_on_input_error
from inference.mas.links import DEFAULT_OUTER, canonical_outer
from inference.mas.lm_loading import parse_device_map, pick_dtype
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Style, load_style
from system_loader import place_roles
from train.data.texts import build_examples
from train.loop import Loop, check_save_dir
from train.options import (
    Parser,
    add_common,
    check_common,
    describe_schedule,
    loop_settings,
    portable,
    print_plan,
    read_data,
    seed_everything,
    split_rows,
    start_accelerator,
    switch,
)
from train.outer.build import RoleSource, load_frozen_agents, resolve_agents, resolve_outer, start_links
from train.outer.grading import GRADED, is_right
from train.outer.objective import OuterSettings, OuterTask, gold_roles
from train.outer.start import INITS, StartFit, fit_links
from train.outer.unroll import UnrollSettings, enable_checkpointing


def make_parser(style: Style) -> argparse.ArgumentParser:
    """All flags; those of models and links carry the style's own names."""
    parser = Parser(__doc__)
    parser.add_argument("--style", required=True, help="a style's name, or a .yaml file")
    parser.add_argument("--dataset_name", required=True, help="hub id, or local .json / .jsonl file")
    parser.add_argument("--dataset_json_field", default="data", help="field of a .json file that holds the rows")
    parser.add_argument("--save_dir", required=True)
    add_common(parser)
    parser.add_argument("--outer_lr", type=float, default=5e-4)
    parser.add_argument(
        "--micro_batch_size", type=int, default=0, help="rows run at once (0: --batch_size); memory against speed"
    )
    outer = parser.add_argument_group("objective")
    outer.add_argument("--num_recursive_rounds", type=int, default=3)
    outer.add_argument("--latent_source", choices=("teacher", "rollout"), default="teacher")
    outer.add_argument(
        "--latent_steps",
        type=int,
        default=32,
        help="steps of rollouts, in training (rollout) and for held-out accuracy",
    )
    outer.add_argument("--max_latent_tokens", type=int, default=80, help="teacher: gold positions sent")
    outer.add_argument("--max_length", type=int, default=4096, help="positions of prompt, messages and target")
    outer.add_argument("--supervise_final_only", type=switch, default=True)
    outer.add_argument("--non_last_loss_weight", type=float, default=0.1)
    outer.add_argument(
        "--role_loss_weight", type=float, default=0.0, help="weight of other roles' cross-entropy, given their messages"
    )
    outer.add_argument(
        "--local_gradients",
        type=switch,
        default=False,
        help="1: each link learns from its own receiver's text alone (cheap, stable)",
    )
    outer.add_argument("--gradient_checkpointing", type=switch, default=True, help="less memory, one more forward")
    outer.add_argument("--log_grad_norm", type=switch, default=True, help="log gradient norms by link and round")
    outer.add_argument("--eval_num_samples", type=int, default=64, help="held-out rows answered for accuracy (0: none)")
    outer.add_argument("--eval_max_new_tokens", type=int, default=512)
    links = parser.add_argument_group("models and links")
    links.add_argument(
        "--outer_init",
        choices=INITS,
        default="default",
        help="vocab: fitted to shared token strings; ridge: to thoughts over the first gold texts",
    )
    links.add_argument("--load_dir", default=None, help="outer links to start from")
    links.add_argument("--outer_adapter_type", default=DEFAULT_OUTER)
    links.add_argument("--dtype", default="auto", help="of the frozen models")
    links.add_argument("--outer_dtype", default="float32", help="of the trained links")
    place = parser.add_argument_group("memory")
    place.add_argument(
        "--offload",
        type=switch,
        default=False,
        help="1: one model at a time on the device; stages with gradients run twice",
    )
    place.add_argument("--device_map", default=None, help="ROLE=DEVICE,...; others on --device")
    flags = {f"--{link.key}_type": f"{link.source} to {link.target}" for link in style.links}
    for role in style.roles:
        flags[f"--{role.flag}_model_name_or_path"] = f"{role.name}: {portable(role.model)}"
        flags[f"--{role.flag}_inner_aligner_path"] = f"{role.name}: {portable(role.repo)}"
    for flag, text in flags.items():
        try:
            links.add_argument(flag, default=None, help=text)
        except argparse.ArgumentError as err:
            raise InputError(
                f"{style.path}: {text}: {flag} is a flag of the trainer already; give the link another key, or the role "
                "another flag"
            ) from err
    return parser


def read_args(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, Style]:
    """The flags and the style that names some of them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--style", default="sequential_light")
    first.add_argument("--prompts", default=None)
    known, _ = first.parse_known_args(argv)
    style = load_style(known.style, prompts=known.prompts)
    args = make_parser(style).parse_args(argv)
    check_common(args)
    for name, least in (
        ("num_recursive_rounds", 1),
        ("latent_steps", 1),
        ("max_latent_tokens", 1),
        ("max_length", 1),
        ("micro_batch_size", 0),
        ("eval_num_samples", 0),
        ("eval_max_new_tokens", 1),
    ):
        if getattr(args, name) < least:
            raise InputError(f"--{name} {getattr(args, name)}: expected at least {least}")
    if args.load_dir and args.outer_init != "default":
        raise InputError("--load_dir and --outer_init: links start from one of them")
    if args.local_gradients and args.role_loss_weight == 0:
        raise InputError("--local_gradients 1: links between other roles would learn nothing; add --role_loss_weight")
    if args.offload and args.device_map:
        raise InputError(
            "--offload 1 with --device_map: agents share one device in turn, or have their own; give one of them"
        )
    if not style.links:
        raise InputError(f"style {style.name}: has no outer links to train")
    return args, style


def main(argv: Sequence[str] | None = None) -> None:
    args, style = read_args(argv)
    save_dir = Path(args.save_dir)
    check_save_dir(save_dir, args.resume)
    accelerator = start_accelerator(args.device)
    device, main_process = accelerator.device, accelerator.is_main_process
    devices = place_roles(style, device, parse_device_map(args.device_map) if args.device_map else None)
    if args.device_map and accelerator.num_processes > 1:
        raise InputError(
            f"--device_map: with {accelerator.num_processes} processes every one has a device of its own; start one process"
        )
    seed_everything(args.seed)

    unroll = UnrollSettings(
        rounds=args.num_recursive_rounds,
        latent_source=args.latent_source,
        latent_steps=args.latent_steps,
        max_latent_tokens=args.max_latent_tokens,
        supervise_final_only=args.supervise_final_only,
        role_loss_weight=args.role_loss_weight,
        gradient_checkpointing=args.gradient_checkpointing,
        local_gradients=args.local_gradients,
    )
    rows, held = read_data(args)
    roles = gold_roles(style, unroll)
    if args.outer_init == "ridge":
        wanted = {*roles, *(link.source for link in style.links)}
        roles = [role.name for role in style.roles if role.name in wanted]
    own = build_examples(style, roles, rows, args.mas_task, f"--dataset_name {args.dataset_name}")
    extra = build_examples(style, roles, held, args.mas_task, f"--eval_dataset {args.eval_dataset}") if held else None
    examples = own.items + (extra.items if extra else [])
    train_rows, heldout_rows = split_rows(args, len(own.items), len(extra.items) if extra else 0)

    types = {
        link.key: canonical_outer(getattr(args, f"{link.key}_type") or args.outer_adapter_type, f"--{link.key}_type")
        for link in style.links
    }
    sources = {
        role.name: RoleSource(
            getattr(args, f"{role.flag}_model_name_or_path"), getattr(args, f"{role.flag}_inner_aligner_path")
        )
        for role in style.roles
    }
    resolved = resolve_agents(style, sources, args.mas_task, args.cache_dir, args.trust_remote_code)
    loaded = resolve_outer(resolved, args.load_dir, args.cache_dir) if args.load_dir else None
    agents = load_frozen_agents(resolved, devices, args.dtype, args.trust_remote_code, args.offload)
    dtype = pick_dtype(args.outer_dtype, device)
    links = start_links(style, agents, types, seed=args.seed, dtype=dtype, resolved=loaded)
    system = MultiAgentSystem(style, agents, links, task=args.mas_task, offload=args.offload)
    fits = fit_links(
        system, args.outer_init, [examples[row] for row in train_rows], args.batch_size, args.enable_thinking
    )
    if args.gradient_checkpointing:
        enable_checkpointing(system)

    graded = all(examples[row].question.family in GRADED for row in heldout_rows)
    micro = min(args.micro_batch_size or args.batch_size, args.batch_size)
    settings = OuterSettings(
        unroll=unroll,
        non_last_loss_weight=args.non_last_loss_weight,
        max_length=args.max_length,
        enable_thinking=args.enable_thinking,
        log_grad_norm=args.log_grad_norm,
        micro_rows=micro,
        eval_samples=args.eval_num_samples,
        eval_new_tokens=args.eval_max_new_tokens,
    )
    models = {role.flag: resolved.roles[role.name] for role in style.roles}
    recorded: dict[str, Any] = {
        f"{flag}_model_name_or_path": portable(files.base_id) for flag, files in models.items()
    } | {f"{flag}_inner_aligner_path": portable(files.link) for flag, files in models.items()}
    manifest = recorded | {
        "num_recursive_rounds": args.num_recursive_rounds,
        "supervise_final_only": int(args.supervise_final_only),
        "non_last_loss_weight": args.non_last_loss_weight,
        "role_loss_weight": args.role_loss_weight,
        "local_gradients": int(args.local_gradients),
        "latent_source": args.latent_source,
        "latent_steps": args.latent_steps,
        "enable_thinking": int(args.enable_thinking),
    }

    def save(folder: Path) -> None:
        write_outer_dir(folder, links, style, args.mas_task, vars(args) | recorded, args.save_format, manifest)

    speaker = style.speaker
    task = OuterTask(
        system,
        examples,
        train_rows,
        heldout_rows,
        settings,
        save,
        partial(is_right, speaker=speaker, rounds=args.num_recursive_rounds) if graded else None,
    )
    loop = Loop(
        task,
        loop_settings(
            args,
            [*rows, *held],
            lr=args.outer_lr,
            step_rows=args.batch_size,
            micro_rows=micro,
            decay_all=True,
            extra={"inputs": fingerprint(resolved), "link_types": types},
        ),
        accelerator,
    )
    plan: dict[str, Any] = {
        "style": f"{style.name}, {args.num_recursive_rounds} rounds, task {args.mas_task}",
        "rows": f"{len(train_rows)} to train on, {len(heldout_rows)} held out, {own.dropped} dropped (empty question or text)",
        "columns": ", ".join(f"{role}: {column}" for role, column in own.columns.items()),
        **{
            role.name: f"{portable(resolved.roles[role.name].model)}, inner link {portable(resolved.roles[role.name].link)}, "
            f"width {agents[role.name].width}, embedding norm {embedding_norm(agents[role.name]):.3g}"
            for role in style.roles
        },
        **{link.key: describe_link(link.key, style, types, fits, args) for link in style.links},
        "latents": f"{args.latent_source}, "
        + (
            f"first {args.max_latent_tokens} gold positions"
            if args.latent_source == "teacher"
            else f"{args.latent_steps} steps"
        ),
        "loss": f"{speaker}"
        + ("" if args.supervise_final_only else f" + {args.non_last_loss_weight:g} x its earlier rounds")
        + (f" + {args.role_loss_weight:g} x other roles" if args.role_loss_weight else ""),
        "training": f"batch {args.batch_size} in parts of {micro}, "
        + describe_schedule(args, args.outer_lr, loop.steps, loop.order.steps_per_epoch),
        "machine": describe_devices(devices, device)
        + (", one model at a time" if args.offload else "")
        + f", models {args.dtype} ({next(iter(agents.values())).dtype}), links {args.outer_dtype}, "
        f"{accelerator.num_processes} process(es)",
        "save_dir": args.save_dir,
    }
    print_plan("train_outer", plan, main_process)
    summary = loop.run()
    if main_process:
        rows_told = {"rows": len(train_rows), "heldout_rows": len(heldout_rows), "dropped": own.dropped}
        cuts = {
            "longest": task.longest,
            "cut_rows": len(task.cut_tokens),
            "cut_tokens": sum(task.cut_tokens.values()),
            "too_long_rows": len(task.unfit_rows),
        }
        print(json.dumps({"style": style.name, **rows_told, **cuts, **summary, "save_dir": args.save_dir}))


def embedding_norm(agent: Any) -> float:
    """Mean norm of the input embeddings that messages join."""
    step = max(1, len(agent.tokenizer) // 1000)
    # An off-loaded model is in CPU memory here.
    ids = torch.arange(0, len(agent.tokenizer), step, device=agent.embedding.weight.device)
    with torch.no_grad():
        return float(agent.embedding(ids).float().norm(dim=-1).mean())


def describe_devices(devices: Mapping[str, torch.device], default: torch.device) -> str:
    """The device, and the roles that have another one."""
    own = [f"{role} on {device}" for role, device in devices.items() if device != default]
    return ", ".join([str(default), *own])


def describe_link(
    key: str, style: Style, types: Mapping[str, str], fits: Mapping[str, StartFit], args: argparse.Namespace
) -> str:
    """Type, start and use of an outer link."""
    link = next(link for link in style.links if link.key == key)
    start = f"from {args.load_dir}" if args.load_dir else "random start"
    if key in fits:
        start = str(fits[key])
    idle = style.is_feedback(link) and args.num_recursive_rounds == 1
    return f"{link.source} -> {link.target}, {types[key]}, {start}" + (
        ", unused in one round: stays as it is" if idle else ""
    )


if __name__ == "__main__":
    exit_on_input_error(main)
