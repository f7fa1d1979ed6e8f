"""The token loop: per-sample sampling, stop rules, and a batch that rows leave and come back to.

Every row draws from a generator of its own, seeded by (seed, sample, rollout), so neither the batch it sits in nor its
place there changes an answer. Draws are made on the CPU: the same numbers for every device.

A row may have tokens to run before its next draw (`Row.queue`: its own last token, a tool's result, a suffix), or wait for a
tool: then it leaves the batch with its cache and comes back when the result is there, while the others go on.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from inference.mas.errors import InputError

DRAW_BLOCK = 64  # uniforms made at once: a call of the generator costs more than the numbers


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
    """One written answer. `finish` is "eos" or "length"; `tokens` are the written ones, the stop token among them.

    `text` is the whole transcript without special tokens; where tools were called, their results stand in it and
    `answer_text` is what the model wrote outside of tool blocks. `tool_calls` counts calls by tool, `tool_failures` those that
    failed, `tool_tokens` tokens of results. An answer that had to be asked for its form again has `text_before_retry`,
    its gradable text before that, and `suffix_tokens` that were put in. Tokens of results and suffix are not in `tokens`.
    """

    text: str
    tokens: list[int]
    finish: str
    seed: int
    answer_text: str | None = None
    tool_calls: Mapping[str, int] = field(default_factory=dict)
    tool_failures: int = 0
    tool_tokens: int = 0
    text_before_retry: str | None = None
    suffix_tokens: int = 0

    @property
    def answer(self) -> str:
        """The text to grade: never a tool's input or result."""
        return self.text if self.answer_text is None else self.answer_text

    @property
    def retry(self) -> bool:
        """True if the answer went on from a suffix."""
        return self.text_before_retry is not None


def sample_seed(seed: int, sample_id: str, rollout: int, purpose: str = "text") -> int:
    """A 63-bit seed for one use of randomness: the same for every batch, order, device and platform."""
    digest = hashlib.sha256(f"{seed}\x1f{sample_id}\x1f{rollout}\x1f{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Stepper(Protocol):
    """What the loop needs of a running batch."""

    def logits(self, rows: Sequence[int]) -> Tensor:
        """Logits [b, V] after the newest token of these rows."""

    def run(self, tokens: Sequence[int]) -> None:
        """Run one token a row."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; repeats are allowed."""

    def split(self, row: int) -> Stepper:
        """This row as a batch of its own, copied."""

    def join(self, others: Sequence[Stepper]) -> None:
        """Take in the rows of others, after one's own."""


class Draws:
    """Uniform numbers in [0, 1) of one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._block: deque[float] = deque()

    def next(self) -> float:
        """The next number."""
        if not self._block:
            self._block.extend(torch.rand(DRAW_BLOCK, generator=self._generator).tolist())
        return self._block.popleft()


class Row:
    """One text being written: what was written, what is run before the next draw, and whether it waits or is done."""

    def __init__(self, seed: int, max_new_tokens: int, eos_ids: frozenset[int]) -> None:
        self.seed = seed
        self.draws = Draws(seed)
        self.limit = max_new_tokens
        self.eos_ids = eos_ids
        self.tokens: list[int] = []
        self.queue: deque[int] = deque()
        self.finish = ""
        self.done = False
        self.waits_for: Future[tuple[str, bool]] | None = None
        self.seen: Tensor | None = None  # [V], written tokens, where they are penalised

    def take(self, token: int) -> None:
        """A token was drawn: end, or put on the queue what comes next."""
        self.tokens.append(token)
        if token in self.eos_ids:
            self.end("eos")
        elif len(self.tokens) >= self.limit:
            self.end("length")
        else:
            self.queue.append(token)

    def end(self, finish: str) -> None:
        """Nothing more is drawn. A subclass may go on instead."""
        self.finish, self.done = finish, True

    def resume(self, result: str, failed: bool) -> None:
        """What the row waited for is there."""
        raise NotImplementedError


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


def generate(stepper: Stepper, rows: Sequence[Row], sampling: Sampling) -> None:
    """Write every row of a batch to its end. Rows that are done leave at once; rows that wait leave and come back."""
    active = list(rows)
    away: list[tuple[Row, Stepper]] = []
    while active or away:
        back = _returning(away, block=not active)
        if back:
            away = [pair for pair in away if pair not in back]
            steppers = [other for _, other in back]
            if not active:
                stepper = steppers.pop(0)
            if steppers:
                stepper.join(steppers)
            active += [row for row, _ in back]
        drawing = [place for place, row in enumerate(active) if not row.queue]
        if drawing:
            _draw(stepper.logits(drawing).float(), [active[place] for place in drawing], sampling)
        keep = [place for place, row in enumerate(active) if not row.done and row.waits_for is None]
        if len(keep) < len(active):
            away += [(row, stepper.split(place)) for place, row in enumerate(active) if row.waits_for is not None]
            active = [active[place] for place in keep]
            if active:
                stepper.select(keep)
        if active:
            stepper.run([row.queue.popleft() for row in active])


def _draw(logits: Tensor, rows: Sequence[Row], sampling: Sampling) -> None:
    """One token for each row, from its logits [b, V]."""
    penalty = sampling.repetition_penalty
    if penalty != 1:
        for row in rows:
            if row.seen is None:
                row.seen = logits.new_zeros(logits.shape[-1], dtype=torch.bool)
        logits = penalise(logits, torch.stack([row.seen for row in rows]), penalty)
    draws = None if sampling.greedy else torch.tensor([row.draws.next() for row in rows], device=logits.device)
    for row, token in zip(rows, choose(logits, sampling, draws).tolist(), strict=True):
        if row.seen is not None:
            row.seen[token] = True
        row.take(token)


def _returning(away: list[tuple[Row, Stepper]], block: bool) -> list[tuple[Row, Stepper]]:
    """The rows whose result has come; with `block`, at least one is waited for."""
    if away and block:
        wait([row.waits_for for row, _ in away], return_when=FIRST_COMPLETED)
    back = [(row, stepper) for row, stepper in away if row.waits_for.done()]
    for row, _ in back:
        result, row.waits_for = row.waits_for.result(), None
        row.resume(*result)
    return back
