"""Train the inner link of one role: from the model's hidden states to its own input embeddings.

    python train/train_inner.py --mas_role planner --dataset_name RecursiveMAS/Sequential-Math \\
        --model_name_or_path Qwen/Qwen3-1.7B --batch_size 16 --save_dir train/ckpts/seq_light/planner_math

The model is frozen and runs over gold texts; the link learns to turn the state of each position into the embedding of the
next token. `--style` (a name or a user's YAML file) gives roles and prompts. Rows: see train/data/README.md. The result
loads with `python inference/run.py --ckpt_override ROLE=SAVE_DIR`. The last line of stdout is a JSON summary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from typing import Any

from inference.mas.agent import Agent
from inference.mas.checkpoints import Resolved, fetch_weights, fingerprint, read_links, resolve, write_inner_dir
from inference.mas.errors import InputError, exit_on_input_error
from inference.mas.links import DEFAULT_INNER, INNER_TYPES, InnerLink, canonical_inner
from inference.mas.lm_loading import load_language_model, pick_dtype
from inference.mas.styles import Role, Style, list_styles, load_style
from train.data.pieces import Tokens, fit_right, forward_links, role_tokens, upstream_texts
from train.data.rows import Row
from train.data.texts import build_examples
from train.inner.objective import InnerSettings, InnerTask, match_norm
from train.inner.plain import PlainRows
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


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    parser.add_argument("--model_name_or_path", default=None, help="base model (default: the role's own, by --style)")
    parser.add_argument("--dataset_name", default="openai/gsm8k", help="hub id, or local .json / .jsonl file")
    parser.add_argument(
        "--dataset_json_field", default=None, help='field of a .json file that holds the rows (default: "data")'
    )
    parser.add_argument("--text_field", default=None, help="without --mas_role: column of plain text")
    parser.add_argument("--save_dir", default=None, help="without it nothing is saved")
    role = parser.add_argument_group("role")
    role.add_argument(
        "--style", default=None, help="a style's name or .yaml file (default: a released one of --mas_design)"
    )
    role.add_argument("--mas_role", default=None, help="role of the style, by its name or its training name")
    role.add_argument(
        "--mas_design",
        default=None,
        help="sequential, hie, distill, deliberation, or a user's (default: sequential, or the style's)",
    )
    add_common(parser)
    parser.add_argument("--max_length", type=int, default=2048, help="tokens of prompt and target, cut at the end")
    parser.add_argument(
        "--grad_accum_steps",
        type=int,
        default=1,
        help="batches of a step; equals one batch of that many times the rows",
    )
    link = parser.add_argument_group("link")
    link.add_argument("--adapter_lr", type=float, default=5e-4)
    link.add_argument("--adapter_type", default=DEFAULT_INNER, help=", ".join(INNER_TYPES))
    link.add_argument("--adapter_cos_weight", type=float, default=1.0)
    link.add_argument("--adapter_mse_weight", type=float, default=0.0)
    link.add_argument("--adapter_dtype", default="float32", help="of the trained link")
    link.add_argument("--dtype", default="auto", help="of the frozen model")
    link.add_argument(
        "--inner_init",
        choices=("default", "ridge"),
        default="default",
        help="ridge: least-squares map over the first rows",
    )
    link.add_argument(
        "--match_norm", type=switch, default=False, help="1: start with the embeddings' norm at the output"
    )
    link.add_argument(
        "--load_dir", default=None, help="directory of a link to start from (and of its model, if it holds one)"
    )
    link.add_argument("--save_base", type=switch, default=False, help="1: save the base model beside the link")
    return parser


def read_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    args = make_parser().parse_args(argv)
    check_common(args)
    for name, least in (("max_length", 2), ("grad_accum_steps", 1)):
        if getattr(args, name) < least:
            raise InputError(f"--{name} {getattr(args, name)}: expected at least {least}")
    args.adapter_type = canonical_inner(args.adapter_type, "--adapter_type")
    if (
        min(args.adapter_cos_weight, args.adapter_mse_weight) < 0
        or args.adapter_cos_weight + args.adapter_mse_weight == 0
    ):
        raise InputError(
            f"--adapter_cos_weight {args.adapter_cos_weight:g} and --adapter_mse_weight {args.adapter_mse_weight:g}: "
            "expected 0 or more, and not both 0"
        )
    if args.match_norm and not INNER_TYPES[args.adapter_type].norm:
        raise InputError(
            f"--match_norm 1: {args.adapter_type} has no output norm to scale; use ln_res_adapter or leave it out"
        )
    if args.load_dir and (args.inner_init != "default" or args.match_norm):
        raise InputError("--load_dir with --inner_init or --match_norm: the link starts from one of them")
    if args.inner_init == "ridge" and args.match_norm:
        raise InputError(
            "--inner_init ridge with --match_norm 1: the ridge start has the embeddings' scale already; leave one out"
        )
    if args.mas_role is None:
        for name in ("style", "mas_design", "prompts"):
            if getattr(args, name):
                raise InputError(f"--{name} {getattr(args, name)}: needs --mas_role, the role to train")
        if args.model_name_or_path is None and args.load_dir is None:
            raise InputError("--model_name_or_path: needed without --mas_role")
    elif args.text_field:
        raise InputError(f"--text_field {args.text_field}: for plain text; with --mas_role the style names the columns")
    return args


def pick_style(args: argparse.Namespace) -> Style:
    """The style of `--style`, or the first released one of the design in which roles and prompts are the same for all."""
    if args.style:
        style = load_style(args.style, prompts=args.prompts)
        if args.mas_design and args.mas_design != style.design:
            raise InputError(f"--mas_design {args.mas_design}: style {style.name} is of design {style.design}")
        return style
    design = args.mas_design or "sequential"
    # Styles that keep their models in this repository are small systems of their own, not a design's prompts.
    found = [style for style in map(load_style, list_styles()) if style.design == design and "/" in style.outer_repo]
    found = [style for style in found if not Path(style.outer_repo).is_absolute()]
    if not found:
        raise InputError(
            f"--mas_design {design}: no style of this design; give --style (one of {', '.join(list_styles())}, or a file)"
        )
    return load_style(found[0].name, prompts=args.prompts)


def plain_style(model: str) -> tuple[Style, Role]:
    """A stand-in style for a model without a role."""
    role = Role("model", "Model", model, model, "", "model", "", {}, {}, ())
    style = Style("plain", Path(), "plain", None, "plain", "plain", (role,), "model", (), "", {}, {}, {})
    return style, role


def resolve_model(style: Style, role: Role, args: argparse.Namespace) -> Resolved:
    """Files of the role's model and, with `--load_dir`, of its link."""
    model = args.model_name_or_path
    one = replace(role, model=model or role.model, repo=args.load_dir or model or role.model)
    common: dict[str, Any] = {"task": args.mas_task, "cache_dir": args.cache_dir, "outer": False, "weights": False}
    found = resolve(
        replace(style, roles=(one,), links=()),
        inner=bool(args.load_dir),
        trust_remote_code=args.trust_remote_code,
        **common,
    )
    if model and args.load_dir:
        # A model that is named wins over one that lies beside the link.
        base = resolve(replace(style, roles=(replace(one, repo=model),), links=()), inner=False, **common).roles[
            role.name
        ]
        found = replace(
            found, roles={role.name: replace(found.roles[role.name], model=base.model, base_id=base.base_id)}
        )
    fetch_weights(found)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    args = read_args(argv)
    save_dir = Path(args.save_dir) if args.save_dir else None
    if save_dir is not None:
        check_save_dir(save_dir, args.resume)
    accelerator = start_accelerator(args.device)
    device, main_process = accelerator.device, accelerator.is_main_process
    seed_everything(args.seed)

    if args.mas_role:
        style = pick_style(args)
        role = style.role(args.mas_role)
    else:
        style, role = plain_style(args.model_name_or_path or args.load_dir)
    rows, held = read_data(args)
    text_of, counts, columns = text_source(args, style, role, rows, held)
    train_rows, heldout_rows = split_rows(args, counts[0], counts[1])

    resolved = resolve_model(style, role, args)
    files = resolved.roles[role.name]
    dtype = pick_dtype(args.adapter_dtype, device)
    loaded = read_links(resolved, dtype, args.trust_remote_code)[0] if args.load_dir else {}
    model, tokenizer = load_language_model(files.model_dir, args.dtype, device, args.trust_remote_code)
    width = model.get_input_embeddings().weight.shape[1]
    link = loaded.get(role.name) or InnerLink(width, args.adapter_type)
    if link.link_type != args.adapter_type:
        raise InputError(
            f"--load_dir {args.load_dir}: its link is of type {link.link_type}, but --adapter_type is {args.adapter_type}"
        )
    link = link.to(device, dtype).requires_grad_(True)
    agent = Agent(role, model, tokenizer, link, device)

    base_id = portable(files.base_id)
    recorded = {**vars(args), "model_name_or_path": base_id, "style": style.name, "mas_role": role.mas_role or None}

    def save(folder: Path) -> None:
        base = (model, tokenizer) if args.save_base else (None, None)
        write_inner_dir(folder, link, base_id, recorded, args.save_format, *base)

    task = InnerTask(
        agent,
        lambda row: fit_right(text_of(tokenizer, row), args.max_length),
        train_rows,
        heldout_rows,
        InnerSettings(args.adapter_cos_weight, args.adapter_mse_weight, args.batch_size),
        save,
    )
    start = f"from {args.load_dir}" if args.load_dir else "random start"
    if args.match_norm:
        start += f", output norm {match_norm(agent, range(len(tokenizer))):.3g}"
    if args.inner_init == "ridge":
        fit = task.fit()
        start = f"least squares over {fit.pairs} positions (R² {fit.r2_left_out:.2f}, cosine {fit.cosine:.2f})"
    loop = Loop(
        task,
        loop_settings(
            args,
            [*rows, *held],
            lr=args.adapter_lr,
            step_rows=args.batch_size * args.grad_accum_steps,
            micro_rows=args.batch_size,
            decay_all=False,
            extra={"inputs": fingerprint(resolved)},
        ),
        accelerator,
    )
    plan = {
        "role": f"{role.name} of style {style.name}" if args.mas_role else "none (plain question and answer, or text)",
        "model": f"{portable(files.model)}, width {width}",
        "link": f"{args.adapter_type}, {start}",
        "rows": f"{len(train_rows)} to train on, {len(heldout_rows)} held out, {counts[2]} dropped (empty question or text)",
        "columns": columns,
        "loss": f"{args.adapter_cos_weight:g} x (1 - cosine) + {args.adapter_mse_weight:g} x squared error",
        "training": f"batch {args.batch_size} x {args.grad_accum_steps}, "
        + describe_schedule(args, args.adapter_lr, loop.steps, loop.order.steps_per_epoch),
        "machine": f"{device}, model {agent.dtype}, link {dtype}, {accelerator.num_processes} process(es)",
        "save_dir": args.save_dir or "none: nothing is saved",
    }
    print_plan("train_inner", plan, main_process)
    summary = loop.run()
    if main_process:
        told = {"rows": len(train_rows), "heldout_rows": len(heldout_rows), "dropped": counts[2]}
        cuts = {
            "longest": task.longest,
            "cut_rows": len(task.cut_tokens),
            "cut_tokens": sum(task.cut_tokens.values()),
            "rows_without_target": len(task.unfit_rows),
        }
        print(json.dumps({"role": role.name, **told, **cuts, **summary, "save_dir": args.save_dir}))


def text_source(
    args: argparse.Namespace, style: Style, role: Role, rows: list[Row], held: list[Row]
) -> tuple[Callable[[Any, int], Tokens], tuple[int, int, int], str]:
    """A function from (tokenizer, row) to tokens, the numbers of training, held-out and dropped rows, and the columns."""
    where, where_held = f"--dataset_name {args.dataset_name}", f"--eval_dataset {args.eval_dataset}"
    if not args.mas_role:
        own = PlainRows(rows, args.text_field, where)
        extra = PlainRows(held, own.text_field, where_held) if held else None
        count = len(own.items)

        def plain(tokenizer: Any, row: int) -> Tokens:
            source, index = (own, row) if row < count else (extra, row - count)
            return source.tokens(tokenizer, index, args.enable_thinking)

        return plain, (count, len(extra.items) if extra else 0, own.dropped), own.text_field or "question, answer"
    wanted = [*dict.fromkeys([*(link.source for link in forward_links(style, role.name)), role.name])]
    found = build_examples(style, wanted, rows, args.mas_task, where)
    more = build_examples(style, wanted, held, args.mas_task, where_held) if held else None
    examples = found.items + (more.items if more else [])

    def by_role(tokenizer: Any, row: int) -> Tokens:
        texts = upstream_texts(style, role.name, examples[row])
        return role_tokens(
            style,
            role.name,
            tokenizer,
            examples[row],
            texts=texts,
            enable_thinking=args.enable_thinking,
            tools=role.tools,
        )

    told = ", ".join(f"{name}: {column}" for name, column in found.columns.items())
    return by_role, (len(found.items), len(more.items) if more else 0, found.dropped), told


if __name__ == "__main__":
    exit_on_input_error(main)
