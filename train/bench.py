"""What batching and late logits save in a step of the outer trainer, on random models.

    python -m train.bench

Prints a table, and one JSON object on the last line. `one by one` is the definition: each row alone, logits of every
position of every agent's forward. `ours` is the trainer's step: one padded batch, logits where a target is, layer
checkpoints if asked for; in parts, it runs some rows at a time (`--micro_batch_size`). All take the same teacher step
of the same three random Llamas over the same rows, so their gradients are compared too. Each runs in a process of its
own: seconds are the better of two steps, memory is the process's peak above its state before the first. Compare
ratios, not seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inference.bench import random_agent
from inference.mas.agent import Agent
from inference.mas.links import OuterLink
from inference.mas.prompts import Slot
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import load_style
from train.data.pieces import Tokens
from train.outer.unroll import Unroll, UnrollSettings, enable_checkpointing

SIZES = {"layers": 8, "width": 256, "vocab": 32000, "batch": 8, "prompt": 150, "target": 60, "rounds": 2}
WAYS = ("one by one", "one batch", "in parts of 2", "checkpointed")
Stages = dict[tuple[str, int], list[Tokens]]


def random_system(layers: int, width: int, vocab: int) -> MultiAgentSystem:
    """The graph of `sequential_light` over three random Llamas."""
    style = load_style("sequential_light")
    agents: dict[str, Agent] = {}
    for role in style.roles:
        base = random_agent(layers, width, vocab)
        agents[role.name] = Agent(role, base.model, base.tokenizer, base.inner_link.requires_grad_(False))
    torch.manual_seed(1)
    return MultiAgentSystem(style, agents, {link.key: OuterLink(width, width) for link in style.links})


def random_rows(system: MultiAgentSystem, args: argparse.Namespace) -> Stages:
    """Prompts and gold turns of every stage; lengths vary by a third, as in real data."""
    random = torch.Generator().manual_seed(2)

    def ids(length: int) -> list[int]:
        kept = length - int(torch.randint(length // 3 + 1, (1,), generator=random))
        return torch.randint(args.vocab, (kept,), generator=random).tolist()

    stages: Stages = {}
    for round_index in range(1, args.rounds + 1):
        for role in system.style.roles:
            links = [x for x in system.style.incoming(role.name) if round_index > 1 or not system.style.is_feedback(x)]
            slots = [Slot(link.slot) for link in links]
            stages[role.name, round_index] = [
                Tokens([ids(args.prompt), *slots, ids(10)], ids(args.target)) for _ in range(args.batch)
            ]
    return stages


def one_by_one(system: MultiAgentSystem, stages: Stages, settings: UnrollSettings) -> Tensor:
    """The mean loss; gradients are added up row by row, as a trainer with batch size 1 does."""
    total = torch.zeros(())
    count = len(next(iter(stages.values())))
    for row in range(count):

        def stage(role: str, round_index: int, inbox: Mapping[str, list[Tensor]], last: bool, row: int = row) -> Any:
            agent, tokens = system.agents[role], stages[role, round_index][row]
            hidden = agent.states(agent.embed([tokens.prompt], inbox, [tokens.target]))[0]
            scores = agent.logits(hidden)  # of every position, wanted or not
            gold = torch.tensor(tokens.target)
            if last:
                return torch.nn.functional.cross_entropy(scores[-len(gold) - 1 : -1], gold)
            return [agent.inner_link(hidden[-len(gold) :][: settings.max_latent_tokens])]

        loss = system.exchange(settings.rounds, stage) / count
        loss.backward()
        total += loss.detach()
    return total


def batched(system: MultiAgentSystem, stages: Stages, settings: UnrollSettings, part: int) -> Tensor:
    """The same step as the trainer takes it, `part` rows at a time."""
    total = torch.zeros(())
    count = len(next(iter(stages.values())))
    for start in range(0, count, part):
        rows = {stage: tokens[start : start + part] for stage, tokens in stages.items()}
        loss = Unroll(system, settings, rows).run().by_stage[system.style.speaker, settings.rounds].sum() / count
        loss.backward()
        total += loss.detach()
    return total


def peak_bytes() -> int:
    """Peak memory of this process so far (macOS counts bytes, Linux kilobytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One step in this process: seconds, peak memory above the start, loss, gradient norm of every link."""
    settings = UnrollSettings(
        rounds=args.rounds,
        latent_source="teacher",
        latent_steps=1,
        max_latent_tokens=args.target,
        supervise_final_only=True,
        role_loss_weight=0.0,
        gradient_checkpointing=args.only == "checkpointed",
    )
    system = random_system(args.layers, args.width, args.vocab)
    if settings.gradient_checkpointing:
        enable_checkpointing(system)
    stages = random_rows(system, args)
    part = 2 if args.only == "in parts of 2" else args.batch
    before, seconds = peak_bytes(), []
    for _ in range(2):
        system.outer_links.zero_grad()
        start = time.perf_counter()
        one = args.only == "one by one"
        loss = one_by_one(system, stages, settings) if one else batched(system, stages, settings, part)
        seconds.append(time.perf_counter() - start)
    norms = {
        key: float(torch.cat([p.grad.flatten() for p in link.parameters()]).norm())
        for key, link in system.outer_links.items()
    }
    peak = (peak_bytes() - before) / 2**20
    return {"seconds": min(seconds), "peak_mb": peak, "loss": float(loss), "grad_norms": norms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=WAYS, help="one way, in this process")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args)))
        return
    sizes = [text for name in SIZES for text in (f"--{name}", str(getattr(args, name)))]
    found: dict[str, Any] = {}
    for way in WAYS:
        command = [sys.executable, "-m", "train.bench", *sizes, "--only", way]
        found[way] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    first = found["one by one"]
    print(f"{'':14}{'seconds':>9}{'speed-up':>10}{'peak MB':>10}{'loss':>12}{'largest gradient difference':>30}")
    for way, entry in found.items():
        entry["speedup"] = first["seconds"] / entry["seconds"]
        entry["gradient_difference"] = max(
            abs(entry["grad_norms"][key] - norm) / norm for key, norm in first["grad_norms"].items()
        )
        print(
            f"{way:14}{entry['seconds']:9.2f}{entry['speedup']:10.2f}{entry['peak_mb']:10.0f}{entry['loss']:12.6f}"
            f"{entry['gradient_difference']:30.1e}"
        )
    print(json.dumps({"sizes": {name: getattr(args, name) for name in SIZES}, **found}))


if __name__ == "__main__":
    main()
