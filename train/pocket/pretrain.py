"""Trains one pocket model from scratch on its lessons and saves it as an ordinary model folder.

    python -m train.pocket.pretrain planner --save_dir assets/pocket/planner

Three habits make frozen models fit for latent messages, and cost nothing at use: a little noise on the input embeddings
(a message is never exactly an embedding), a random jump of the position ids after a slot (a message may be longer
than the text it stands for), and end-of-turn tokens repeated after the end (a rollout may go on when all is said).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path[0] = str(Path(__file__).resolve().parents[2])

from inference.mas.styles import load_style
from train.pocket.lessons import Example, render
from train.pocket.models import MODELS, PocketModel
from train.pocket.world import World, make_world

TAIL = 16  # end-of-turn tokens that may follow the end
GAP = 24  # longest jump of position ids after a slot
NOISE = 0.3  # largest noise, in parts of the embeddings' root mean square


def collate(examples: list[Example], end: int, rng: random.Random) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Right-padded ids [B, L], mask [B, L], positions [B, L] and labels [B, L] (-100 where there is no loss).

    Padding is the tail of end-of-turn tokens, of which the first ones count as text.
    """
    longest = max(len(example.ids) for example in examples)
    longest = longest + (TAIL if rng.random() < 0.25 else 0)
    ids = torch.full((len(examples), longest), end)
    labels = torch.full((len(examples), longest), -100)
    positions = torch.zeros((len(examples), longest), dtype=torch.long)
    for row, example in enumerate(examples):
        length = len(example.ids)
        ids[row, :length] = torch.tensor(example.ids)
        labels[row, example.prompt :] = ids[row, example.prompt :]
        jumps = torch.ones(longest, dtype=torch.long)
        jumps[0] = 0
        for gap in example.gaps:
            jumps[gap] += rng.randrange(GAP + 1) if rng.random() < 0.5 else 0
        positions[row] = jumps.cumsum(0)
    return ids, torch.ones_like(ids), positions, labels


def forward(model: Any, batch: tuple[Tensor, Tensor, Tensor, Tensor], noise: float) -> tuple[Tensor, Tensor]:
    """Logits [N, V] and labels [N] at every position that carries loss."""
    ids, mask, positions, labels = batch
    embeds = model.get_input_embeddings()(ids)
    if noise:
        scale = embeds.detach().pow(2).mean().sqrt() * noise * torch.rand(len(ids), 1, 1)
        embeds = embeds + scale * torch.randn_like(embeds)
    # The mask is given because without one, jumps of the position ids would be read as borders of packed sequences.
    hidden = model.model(inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False)
    wanted = labels[:, 1:] != -100
    return model.lm_head(hidden.last_hidden_state[:, :-1][wanted]), labels[:, 1:][wanted]


@torch.no_grad()
def held_out(model: Any, examples: list[Example], end: int) -> float:
    """Share of examples whose whole target is the most likely one, token by token."""
    model.eval()
    right = 0
    for start in range(0, len(examples), 64):
        rows = examples[start : start + 64]
        longest = max(len(row.ids) for row in rows)
        ids = torch.tensor([row.ids + [end] * (longest - len(row.ids)) for row in rows])
        best = model(input_ids=ids).logits.argmax(-1)
        right += sum(
            best[i, row.prompt - 1 : len(row.ids) - 1].tolist() == row.ids[row.prompt :] for i, row in enumerate(rows)
        )
    model.train()
    return right / len(examples)


def pool(spec: PocketModel, world: World, tokenizer: Any, split: str, count: int, seed: int) -> list[Example]:
    style = load_style(spec.style)
    return [render(lesson, style, spec.role, tokenizer) for lesson in islice(spec.lessons(world, split, seed), count)]


def train(spec: PocketModel, save_dir: Path, *, steps: int, batch_size: int, lr: float, seed: int) -> float:
    """Train and save a model; returns its held-out accuracy on dev lessons (random guesses among them)."""
    torch.manual_seed(seed)
    rng = random.Random(f"{seed}/batches/{spec.name}")
    world, tokenizer = make_world(), spec.tokenizer()
    end = tokenizer.eos_token_id
    examples = pool(spec, world, tokenizer, "train", spec.pool, seed)
    dev = pool(spec, world, tokenizer, "dev", 256, seed)
    model = spec.build(tokenizer)
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{spec.name}: {size} parameters, {len(tokenizer)} tokens", flush=True)
    decay = [weight for weight in model.parameters() if weight.dim() > 1]
    rest = [weight for weight in model.parameters() if weight.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        logits, labels = forward(model, collate(rng.sample(examples, batch_size), end, rng), NOISE)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            accuracy = held_out(model, dev, end)
            seconds = time.perf_counter() - started
            told = f"step {step} loss {loss.item():.4f} held-out {accuracy:.3f} {seconds:.0f} s"
            print(f"{spec.name} {told}", flush=True)
    model.eval()
    model.generation_config.do_sample = False
    model.save_pretrained(save_dir)
    tokenizer.save_pretrained(save_dir)
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--save_dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="default: the model's own number")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    spec = MODELS[args.model]
    train(
        spec,
        args.save_dir,
        steps=args.steps or spec.steps,
        batch_size=args.batch_size,
        lr=args.lr,
        seed=args.seed,
    )


if __name__ == "__main__":
    main()
