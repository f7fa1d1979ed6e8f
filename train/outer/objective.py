"""The outer trainer's task: examples to losses, held-out loss, and held-out accuracy of the deployed system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inference.mas.decoding import Sampling
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Style
from train.data.pieces import Tokens, fit_left, role_tokens
from train.data.texts import Example
from train.loop import Outcome
from train.outer.unroll import Probe, Unroll, UnrollSettings

CACHED_EXAMPLES = 20_000  # token pieces kept in memory between epochs

Grade = Callable[[str, Example], bool]


@dataclass(frozen=True)
class OuterSettings:
    """How rows become one loss."""

    unroll: UnrollSettings
    non_last_loss_weight: float
    max_length: int
    enable_thinking: bool
    log_grad_norm: bool
    micro_rows: int
    eval_samples: int
    eval_new_tokens: int


def gold_roles(style: Style, settings: UnrollSettings) -> list[str]:
    """Roles whose gold text training reads: with rollouts and no role loss, the speaker's alone."""
    if settings.latent_source == "teacher" or settings.role_loss_weight > 0:
        return [role.name for role in style.roles]
    return [style.speaker]


class OuterTask:
    """Trains the outer links of `system` (see `train.loop.Task`)."""

    def __init__(
        self,
        system: MultiAgentSystem,
        examples: Sequence[Example],
        train_rows: Sequence[int],
        heldout_rows: Sequence[int],
        settings: OuterSettings,
        save: Callable[[Path], None],
        grade: Grade | None = None,
    ) -> None:
        self.system, self.examples, self.settings = system, examples, settings
        self.links: Mapping[str, nn.Module] = dict(system.outer_links.items())
        self.train_rows, self.heldout_rows = train_rows, heldout_rows
        self.save, self.grade = save, grade
        self.gold = set(gold_roles(system.style, settings.unroll))
        self.prepared = lru_cache(maxsize=CACHED_EXAMPLES)(self._prepare)
        self.probe = Probe()
        self.cut_tokens: dict[int, int] = {}  # row -> prompt tokens dropped in its most shortened stage
        self.unfit_rows: set[int] = set()
        self.longest = 0

    def _prepare(self, row: int) -> dict[tuple[str, int], Tokens] | None:
        """Prompt and gold turn of every stage; None if messages and target of one exceed `max_length`."""
        style, unroll, example = self.system.style, self.settings.unroll, self.examples[row]
        plain = {
            (role.name, r): role_tokens(
                style,
                role.name,
                self.system.agents[role.name].tokenizer,
                example,
                r,
                with_target=role.name in self.gold,
                enable_thinking=self.settings.enable_thinking,
                tools=role.tools if r == unroll.rounds else (),
            )
            for r in range(1, unroll.rounds + 1)
            for role in style.roles
        }
        fitted = {}
        for (role, r), tokens in plain.items():
            lengths = {}
            for link in style.incoming(role):
                sent = r - 1 if style.is_feedback(link) else r
                if sent >= 1:
                    whole = len(plain[link.source, sent].target)
                    teacher = unroll.latent_source == "teacher"
                    lengths[link.slot] = min(unroll.max_latent_tokens, whole) if teacher else unroll.latent_steps
            found = fit_left(tokens, lengths, self.settings.max_length)
            if found is None:
                self.unfit_rows.add(row)
                return None
            if found.cut:
                self.cut_tokens[row] = max(found.cut, self.cut_tokens.get(row, 0))
            self.longest = max(self.longest, found.text_length + sum(lengths.values()) + len(found.target))
            fitted[role, r] = found
        return fitted

    def outcome(self, rows: Sequence[int], probe: bool = False) -> Outcome:
        """Losses of rows. A row that is not finite in any round is left out, and the rest is run again without it."""
        usable = [row for row in rows if self.prepared(row) is not None]
        watch = self.probe if probe and self.settings.log_grad_norm and self.settings.unroll.rounds > 1 else None
        tokens = 0
        while usable:
            unroll = self._unroll(usable, watch)
            losses = unroll.run()
            tokens += losses.tokens
            per_row = self._weighted(losses.by_stage)
            finite = torch.isfinite(per_row.detach())
            if finite.all():
                sums = self._sums(losses.by_stage)
                sums |= {f"message_norm/{key}": value for key, value in losses.message_norms.items()}
                return Outcome(per_row.sum(), len(usable), tokens, len(rows) - len(usable), sums)
            # A graph with NaN in it spoils every gradient (0 * NaN), so the bad rows must not be part of it.
            usable = [row for row, good in zip(usable, finite.tolist(), strict=True) if good]
        return Outcome(None, 0.0, tokens, len(rows))

    def _unroll(self, rows: Sequence[int], probe: Probe | None = None, every_loss: bool = False) -> Unroll:
        prepared = [self.prepared(row) for row in rows]
        tokens = {stage: [example[stage] for example in prepared] for stage in prepared[0]}
        return Unroll(self.system, self.settings.unroll, tokens, probe, every_loss)

    def _weighted(self, by_stage: Mapping[tuple[str, int], Tensor]) -> Tensor:
        """The loss [B]: speaker in the last round + weight x mean of its others + weight x roles (mean over rounds each)."""
        settings = self.settings
        speaker, rounds = self.system.style.speaker, settings.unroll.rounds
        total = by_stage[speaker, rounds]
        others = [loss for (role, r), loss in by_stage.items() if role == speaker and r < rounds]
        if others and not settings.unroll.supervise_final_only:
            total = total + settings.non_last_loss_weight * torch.stack(others).mean(0)
        # Agents may sit on several devices; the speaker's has the sum.
        for role in self.system.style.roles:
            own = [loss for (name, _), loss in by_stage.items() if name == role.name != speaker]
            if own:
                total = total + settings.unroll.role_loss_weight * torch.stack(own).mean(0).to(total.device)
        return total

    def _sums(self, by_stage: Mapping[tuple[str, int], Tensor]) -> dict[str, tuple[float, float]]:
        return {
            f"loss/{role}/round_{r}": (float(loss.detach().sum()), len(loss)) for (role, r), loss in by_stage.items()
        }

    def probed(self, weight: float) -> dict[str, float]:
        """Gradient norms by link and round of the last probed step."""
        return self.probe.norms(weight)

    def evaluate(self) -> dict[str, Any]:
        """Held-out loss by stage, and accuracy through real rollouts where the task can be graded."""
        if not self.heldout_rows:
            return {}
        sums: dict[str, list[float]] = {}
        rows = [row for row in self.heldout_rows if self.prepared(row) is not None]
        for start in range(0, len(rows), self.settings.micro_rows):
            losses = self._unroll(rows[start : start + self.settings.micro_rows], every_loss=True).run().by_stage
            named = {
                **self._sums(losses),
                "loss": (float(self._weighted(losses).sum()), len(next(iter(losses.values())))),
            }
            for name, (value, count) in named.items():
                entry = sums.setdefault(name, [0.0, 0.0])
                entry[0], entry[1] = entry[0] + value, entry[1] + count
        found: dict[str, Any] = {f"heldout_{name}": value / count for name, (value, count) in sums.items()}
        return found | self._accuracy()

    def _accuracy(self) -> dict[str, Any]:
        if self.grade is None or self.settings.eval_samples == 0:
            return {}
        rows, right = self.heldout_rows[: self.settings.eval_samples], 0
        unroll = self.settings.unroll
        sampling = Sampling(max_new_tokens=self.settings.eval_new_tokens, do_sample=False)
        for start in range(0, len(rows), self.settings.micro_rows):
            chosen = [self.examples[row] for row in rows[start : start + self.settings.micro_rows]]
            answers = self.system.answer(
                [example.question for example in chosen],
                rounds=unroll.rounds,
                latent_steps=unroll.latent_steps,
                sampling=sampling,
                enable_thinking=self.settings.enable_thinking,
            )
            right += sum(self.grade(a.rollouts[0].text, e) for a, e in zip(answers, chosen, strict=True))
        return {"heldout_accuracy": right / len(rows), "heldout_correct": right, "heldout_samples": len(rows)}
