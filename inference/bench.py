"""What the cached latent rollout saves over the definition, on a random model.

    python -m inference.bench rollout

Prints a table, and one JSON object on the last line. `naive` runs the whole prefix again for every latent step, as the
reference does; `cached` is `Agent.think`; `decoding` is plain cached decoding of as many tokens, the price of text.
Times are the best of `--repeats` runs in one process; compare ratios, not seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from inference.mas.agent import Agent, Batch, Session
from inference.mas.links import InnerLink
from inference.mas.styles import Role


class _NoTokenizer:
    """The benchmark feeds embeddings; an agent only asks its tokenizer for the stop token."""

    eos_token_id = None


def random_agent(layers: int, width: int, vocab: int = 4096) -> Agent:
    """A Llama with random weights and a random inner link, fp32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    role = Role("bench", "Bench", "", "", "bench", "agent1", "", {}, {}, ())
    return Agent(role, model, _NoTokenizer(), InnerLink(width))


def naive_think(agent: Agent, batch: Batch, steps: int) -> Tensor:
    """Thoughts [B, steps, D] by full recomputation of the prefix for every step."""
    embeds, mask, thoughts = batch.embeds, batch.mask, []
    while len(thoughts) < steps:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        thoughts.append(agent.inner_link(agent.states(Batch(embeds, mask, positions, batch.prompt_tokens))[:, -1]))
        embeds = torch.cat([embeds, thoughts[-1].unsqueeze(1)], dim=1)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return torch.stack(thoughts, dim=1)


def decode(agent: Agent, batch: Batch, steps: int) -> None:
    """Greedy tokens with the cache: as many forwards as the rollout has."""
    session = Session(agent, batch)
    logits = agent.logits(session.last)
    for _ in range(steps - 1):
        logits = session.feed(logits.argmax(-1))


def best(run: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least seconds of some runs, and what the last one returned."""
    seconds, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


@torch.no_grad()
def rollout(args: argparse.Namespace) -> dict[str, Any]:
    """Time the three and compare naive and cached thoughts."""
    agent = random_agent(args.layers, args.width)
    ids = torch.randint(4096, (args.batch, args.prompt), generator=torch.Generator().manual_seed(1))
    batch = agent.embed([[row] for row in ids.tolist()])
    cached_seconds, cached = best(lambda: agent.think(batch, args.steps), args.repeats)
    decoding_seconds, _ = best(lambda: decode(agent, batch, args.steps), args.repeats)
    naive_seconds, naive = best(lambda: naive_think(agent, batch, args.steps), 1)
    return {
        "layers": args.layers, "width": args.width, "prompt": args.prompt, "batch": args.batch, "steps": args.steps,
        "naive_seconds": round(naive_seconds, 3), "cached_seconds": round(cached_seconds, 3),
        "decoding_seconds": round(decoding_seconds, 3), "ratio": round(naive_seconds / cached_seconds, 2),
        "max_abs_difference": float((naive - cached).abs().max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rollout",))
    for name, default in (("layers", 30), ("width", 576), ("prompt", 200), ("batch", 4), ("steps", 32), ("repeats", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    found = rollout(parser.parse_args())
    for name, value in found.items():
        print(f"{name:20} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
