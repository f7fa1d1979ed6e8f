"""The token loop: per-sample sampling, stop rules, and a batch that shrinks as rows finish.

Every row draws from a generator of its own, seeded by (seed, sample, rollout), so neither the batch it sits in nor its
place there changes an answer. Draws are made on the CPU (the same numbers for every device) and sent over in blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inference.mas.errors import InputError

DRAW_BLOCK = 64  # uniforms per row and transfer: one small copy in 64 steps


@dataclass(frozen=True)
class Sampling:
    """How text is decoded. `top_k` and `min_p` below 0 are off; `temperature` 0 or `do_sample` False is greedy."""

    max_new_tokens: int = 1000
    do_sample: bool = True
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    min_p: float = -1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        checks = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (self.min_p <= 1, "at most 1"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:
                raise InputError(f"--{name} {getattr(self, name)}: expected {expected}")

    @property
    def greedy(self) -> bool:
        """True if no number is drawn."""
        return not self.do_sample or self.temperature == 0


@dataclass(frozen=True)
class Generation:
    """One written answer. `finish` is "eos" or "length"; `tokens` holds the stop token too, `text` no special token."""

    text: str
    tokens: list[int]
    finish: str
    seed: int


def sample_seed(seed: int, sample_id: str, rollout: int, purpose: str = "text") -> int:
    """A 63-bit seed for one use of randomness: the same for every batch, order, device and platform."""
    digest = hashlib.sha256(f"{seed}\x1f{sample_id}\x1f{rollout}\x1f{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Stepper(Protocol):
    """What the loop needs of a running model: next logits for chosen tokens, and a choice of rows."""

    def feed(self, tokens: Tensor) -> Tensor:
        """Token ids [b] to the logits after them [b, V]."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows (indices [b'], repeats allowed)."""


class _Draws:
    """Uniform numbers in [0, 1): a stream for each row."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.device = device
        self.block = torch.empty(len(seeds), 0, device=device)
        self.used = 0

    def next(self) -> Tensor:
        """The next number of every row: [b]."""
        if self.used == self.block.shape[1]:
            drawn = [torch.rand(DRAW_BLOCK, generator=generator) for generator in self.generators]
            self.block, self.used = torch.stack(drawn).to(self.device), 0
        self.used += 1
        return self.block[:, self.used - 1]

    def select(self, rows: list[int]) -> None:
        self.generators = [self.generators[row] for row in rows]
        self.block = self.block[rows]


def filtered_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [b, V] after temperature, top_k, top_p and min_p, in the order of Hugging Face's `generate`."""
    scores = logits / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = scores.sort(dim=-1)
        # Rising order, as in `generate`: drop the tail whose mass is at most 1 - top_p, never the best token.
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        drop[:, -1] = False
        scores = scores.masked_fill(drop.scatter(1, index, drop), -torch.inf)
    probs = scores.softmax(-1)
    if sampling.min_p > 0:
        probs = probs.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), 0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def choose(logits: Tensor, sampling: Sampling, draws: Tensor | None) -> Tensor:
    """Next tokens [b] from logits [b, V]: the best ones, or by inverse CDF at the row's uniform number."""
    if draws is None:
        return logits.argmax(-1)
    cumulative = filtered_probs(logits, sampling).double().cumsum(-1)
    # Scaled by the total, so that rounding cannot point past the last token that has mass.
    target = draws.double() * cumulative[:, -1]
    return torch.searchsorted(cumulative, target.unsqueeze(-1), right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """The repetition penalty on tokens in `seen` [b, V]; as with `generate(inputs_embeds=...)`, only written tokens count."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def generate(
    stepper: Stepper, logits: Tensor, sampling: Sampling, seeds: Sequence[int], eos_ids: frozenset[int]
) -> list[tuple[list[int], str]]:
    """Decode every row from its first logits [b, V] until a stop token or `max_new_tokens`.

    Returns (tokens, "eos" | "length") for each row in order. Finished rows leave the batch at once.
    """
    written: list[list[int]] = [[] for _ in seeds]
    finish = ["length"] * len(seeds)
    alive = list(range(len(seeds)))
    draws = None if sampling.greedy else _Draws(seeds, logits.device)
    penalty = sampling.repetition_penalty
    seen = torch.zeros_like(logits, dtype=torch.bool) if penalty != 1 else None
    for step in range(sampling.max_new_tokens):
        scores = logits.float()
        if seen is not None:
            scores = penalise(scores, seen, penalty)
        tokens = choose(scores, sampling, draws.next() if draws else None)
        if seen is not None:
            seen.scatter_(1, tokens.unsqueeze(1), True)
        keep = []
        for place, token in enumerate(tokens.tolist()):
            written[alive[place]].append(token)
            if token in eos_ids:
                finish[alive[place]] = "eos"
            else:
                keep.append(place)
        if not keep or step == sampling.max_new_tokens - 1:
            break
        if len(keep) < len(alive):
            rows = torch.tensor(keep, device=tokens.device)
            stepper.select(rows)
            tokens, alive = tokens[rows], [alive[place] for place in keep]
            if draws:
                draws.select(keep)
            if seen is not None:
                seen = seen[rows]
        logits = stepper.feed(tokens)
    return list(zip(written, finish, strict=True))
