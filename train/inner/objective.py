"""The inner trainer's task: from the hidden state of each position to the input embedding of the next token.

    tokens      u1  u2  u3  a1  a2  a3          u: prompt, a: answer (and end of turn)
    state of    u1  u2  u3  a1  a2  a3
    next        u2  u3  a1  a2  a3   -
    selected     0   0   1   1   1   0          a state counts if the token after it belongs to the answer

The last prompt position counts, the last token does not. One forward without gradients gives all states; only the link
is run with them. Targets come from the embedding module called on ids, so a family's scaling is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inference.mas.agent import Agent
from train.closed_form import MAX_PAIRS, Fit, fit_link
from train.data.pieces import Tokens
from train.loop import Outcome

CACHED_ROWS = 20_000


@dataclass(frozen=True)
class InnerSettings:
    """Weights of the two terms."""

    cos_weight: float
    mse_weight: float
    micro_rows: int


class InnerTask:
    """Trains `agent.inner_link` (see `train.loop.Task`). `tokens(row)` gives the flat prompt and target of a row.

    `supervised(row, target length)` may shorten the part of the target that counts (None: all of it).
    """

    def __init__(
        self,
        agent: Agent,
        tokens: Callable[[int], Tokens],
        train_rows: Sequence[int],
        heldout_rows: Sequence[int],
        settings: InnerSettings,
        save: Callable[[Path], None],
    ) -> None:
        self.agent, self.settings, self.save = agent, settings, save
        self.links: Mapping[str, nn.Module] = {"inner": agent.inner_link}
        self.train_rows, self.heldout_rows = train_rows, heldout_rows
        self.tokens = lru_cache(maxsize=CACHED_ROWS)(tokens)
        self.cut_tokens: dict[int, int] = {}  # row -> tokens dropped
        self.unfit_rows: set[int] = set()
        self.longest = 0

    def pairs(self, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, int]:
        """States [N, D], next embeddings [N, D] of all selected positions of rows, the row (place) of each, and tokens run."""
        items = [self.tokens(row) for row in rows]
        self.cut_tokens |= {row: item.cut for row, item in zip(rows, items, strict=True) if item.cut}
        self.longest = max(self.longest, *(item.text_length + len(item.target) for item in items))
        with torch.no_grad():
            batch = self.agent.embed([item.prompt for item in items], targets=[item.target for item in items])
            hidden = self.agent.states(batch)
        length = hidden.shape[1]
        selected = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        for place, item in enumerate(items):
            # Without a prompt (plain text), the first token is predicted by nothing.
            first = length - len(item.target) - 1 if item.prompt and item.prompt[0] else length - len(item.target)
            last = first + item.scored - (0 if item.prompt and item.prompt[0] else 1)
            selected[place, max(0, first) : last] = True
        places = selected.nonzero()[:, 0]
        after = torch.roll(selected, 1, dims=1)
        return hidden[selected], batch.embeds[after], places, sum(batch.prompt_tokens)

    def outcome(self, rows: Sequence[int], probe: bool = False) -> Outcome:
        """The summed loss of selected positions and their number. A row with a loss that is not finite is left out."""
        empty = [row for row in rows if not self._has_pairs(row)]
        self.unfit_rows |= set(empty)
        usable = [row for row in rows if row not in empty]
        tokens = 0
        while usable:
            states, targets, places, count = self.pairs(usable)
            tokens += count
            total, cosine, square = self.losses(states, targets)
            bad = set(places[~torch.isfinite(total.detach())].tolist())
            if not bad:
                positions = len(total)
                sums = {
                    "cosine_loss": (cosine.detach().sum(), positions),
                    "mse_loss": (square.detach().sum(), positions),
                }
                return Outcome(total.sum(), positions, tokens, len(rows) - len(usable), sums)
            usable = [row for place, row in enumerate(usable) if place not in bad]
        return Outcome(None, 0.0, tokens, len(rows))

    def _has_pairs(self, row: int) -> bool:
        item = self.tokens(row)
        return item.scored > (0 if item.prompt and item.prompt[0] else 1)

    def losses(self, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Per position [N], in fp32: weighted loss, 1 - cosine, mean squared error over channels."""
        predicted, targets = self.agent.inner_link(states).float(), targets.float()
        cosine = 1 - F.cosine_similarity(predicted, targets, dim=-1)
        square = (predicted - targets).square().mean(-1)
        return self.settings.cos_weight * cosine + self.settings.mse_weight * square, cosine, square

    def probed(self, weight: float) -> dict[str, float]:
        """Nothing costs extra here."""
        return {}

    def evaluate(self) -> dict[str, Any]:
        """Held-out loss, mean over positions."""
        sums: dict[str, list[float]] = {}
        for start in range(0, len(self.heldout_rows), self.settings.micro_rows):
            outcome = self.outcome(self.heldout_rows[start : start + self.settings.micro_rows])
            if outcome.total is not None:
                for name, (value, count) in {**outcome.sums, "loss": (outcome.total, outcome.weight)}.items():
                    entry = sums.setdefault(name, [0.0, 0.0])
                    entry[0], entry[1] = entry[0] + float(value), entry[1] + count
        return {f"heldout_{name}": value / count for name, (value, count) in sums.items()}

    def fit(self, wanted: int = MAX_PAIRS) -> Fit:
        """Set the link to the least-squares map from states to next embeddings over the first training rows."""
        states, targets, have = [], [], 0
        for start in range(0, len(self.train_rows), self.settings.micro_rows):
            rows = [row for row in self.train_rows[start : start + self.settings.micro_rows] if self._has_pairs(row)]
            if rows:
                x, y, _, _ = self.pairs(rows)
                states.append(x.float().cpu())
                targets.append(y.float().cpu())
                have += len(x)
            if have >= wanted:
                break
        return fit_link(self.agent.inner_link, torch.cat(states), torch.cat(targets))


def match_norm(agent: Agent, ids: Sequence[int]) -> float:
    """Scale the link's output norm to the mean norm of the input embeddings of `ids`; returns that norm."""
    with torch.no_grad():
        norm = agent.embedding(torch.tensor(list(ids), device=agent.device)).float().norm(dim=-1).mean()
        agent.inner_link.post_ln.weight.fill_(float(norm) / agent.width**0.5)
    return float(norm)
