"""The style's rounds as one differentiable graph over a batch of examples.

Each stage of `MultiAgentSystem.exchange` gives what its agent sends on, and a loss where one is asked for:

    teacher   run prompt + gold text; send inner(states at the first gold positions)     no rollout
    rollout   run the prompt; send the m latent steps of `think`, as inference does      no gold text goes upstream

    loss      cross-entropy of the role's gold text after its prompt; logits at its target positions only

Gradients flow from a loss through frozen models and inner links into every outer link upstream, over all rounds. A stage
that no trained link feeds (the first ones of round 1) runs without a graph. With `local_gradients` they stop at the
message: each link learns from its own receiver's text alone, and what is sent on is computed without a graph.

With the system's `offload`, one agent at a time sits on its device, in the backward pass too: a stage that has a graph
keeps its inputs only and is run again there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from inference.mas.agent import Agent, Batch
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Link
from train.data.pieces import Tokens

# Loss [B] or None, vectors to send [m_i, D] or None, positions run.
_Done = tuple[Tensor | None, list[Tensor] | None, int]
LOGIT_FLOATS = 2**26  # logits computed at once: 256 MB in fp32


@dataclass(frozen=True)
class UnrollSettings:
    """What is unrolled and which losses are taken."""

    rounds: int
    latent_source: str  # "teacher" or "rollout"
    latent_steps: int
    max_latent_tokens: int
    supervise_final_only: bool
    role_loss_weight: float
    gradient_checkpointing: bool
    local_gradients: bool = False


@dataclass
class Losses:
    """Mean cross-entropy [B] per stage that has one, and what was run."""

    by_stage: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    tokens: int = 0
    message_norms: dict[str, tuple[Tensor, int]] = field(default_factory=dict)


def token_losses(
    agent: Agent, hidden: Tensor, targets: Sequence[Sequence[int]], logit_floats: int = LOGIT_FLOATS
) -> Tensor:
    """Mean cross-entropy [B] of each row's target, from hidden states [B, L, D] of prompt + target, left-padded.

    The state before each target token predicts it, so the first is predicted by the last prompt position. Logits exist
    for these positions only, at most `logit_floats` numbers at once; blocks are recomputed in the backward pass.
    """
    length = hidden.shape[1]
    counts = torch.tensor([len(target) for target in targets], device=hidden.device)
    states = torch.cat([hidden[i, length - 1 - len(target) : length - 1] for i, target in enumerate(targets)])
    labels = torch.tensor([token for target in targets for token in target], device=hidden.device)

    def block(part: Tensor, gold: Tensor) -> Tensor:
        return F.cross_entropy(agent.logits(part).float(), gold, reduction="none")

    size = max(1, logit_floats // agent.embedding.weight.shape[0])
    if len(states) <= size:
        losses = block(states, labels)
    else:
        parts = zip(states.split(size), labels.split(size), strict=True)
        losses = torch.cat([checkpoint(block, part, gold, use_reentrant=False) for part, gold in parts])
    rows = torch.repeat_interleave(torch.arange(len(targets), device=hidden.device), counts)
    return torch.zeros(len(targets), device=hidden.device).index_add(0, rows, losses) / counts


class Probe:
    """Gradients of every link by round, summed over micro-batches, where one link serves several rounds."""

    def __init__(self) -> None:
        self.grads: dict[tuple[str, int], dict[str, Tensor]] = {}

    def parameters(self, key: str, round_index: int, module: torch.nn.Module) -> dict[str, Tensor]:
        """Stand-ins for a link's parameters in one round, which report the gradients that they pass on."""
        store = self.grads.setdefault((key, round_index), {})

        def watched(name: str, parameter: Tensor) -> Tensor:
            def note(grad: Tensor) -> None:
                store[name] = store[name] + grad if name in store else grad.clone()

            alias = parameter.view_as(parameter)
            if alias.requires_grad:
                alias.register_hook(note)
            return alias

        return {name: watched(name, parameter) for name, parameter in module.named_parameters()}

    def norms(self, weight: float) -> dict[str, float]:
        """Norms of the gradients divided by `weight`; starts anew."""
        found = {
            f"grad_norm/{key}/round_{r}": float(sum(g.float().square().sum() for g in grads.values()) ** 0.5) / weight
            for (key, r), grads in self.grads.items()
            if grads
        }
        self.grads = {}
        return found


class Unroll:
    """One pass of a batch through the rounds. `tokens[role, round][i]` are the prompt and gold turn of example i."""

    def __init__(
        self,
        system: MultiAgentSystem,
        settings: UnrollSettings,
        tokens: dict[tuple[str, int], list[Tokens]],
        probe: Probe | None = None,
        every_loss: bool = False,
    ) -> None:
        self.system, self.settings, self.tokens = system, settings, tokens
        self.probe, self.every_loss = probe, every_loss
        self.losses = Losses()

    def run(self) -> Losses:
        """The losses; with `every_loss` also of stages that training does not supervise (for held-out figures)."""
        self.system.exchange(self.settings.rounds, self.stage, self.send)
        return self.losses

    def stage(self, role: str, round_index: int, inbox: dict[str, list[Tensor]], last: bool) -> list[Tensor] | None:
        """What the agent sends on: per example vectors [m_i, D] in its own embedding space; None at the end."""
        tracked = torch.is_grad_enabled() and any(m.requires_grad for messages in inbox.values() for m in messages)
        wanted = self.supervised(role, inbox, last, tracked)

        def work() -> _Done:
            return self.work(role, round_index, inbox, last, tracked, wanted)

        # An agent may leave its device after its stage, so the backward pass runs a stage that has a graph again: that
        # brings the agent back.
        again = tracked and self.system.offload
        loss, thoughts, positions = checkpoint(work, use_reentrant=False) if again else work()
        self.losses.tokens += positions
        if loss is not None:
            self.losses.by_stage[role, round_index] = loss
        return thoughts

    def work(
        self,
        role: str,
        round_index: int,
        inbox: dict[str, list[Tensor]],
        last: bool,
        tracked: bool,
        wanted: bool,
    ) -> _Done:
        """One stage: its loss if `wanted`, what it sends on if not `last`, and the positions run."""
        agent = self.system.activate(role)
        settings, tokens = self.settings, self.tokens[role, round_index]
        teacher = settings.latent_source == "teacher"
        prompts, targets = [t.prompt for t in tokens], [t.target for t in tokens]
        loss, positions = None, 0
        with torch.set_grad_enabled(tracked):
            if wanted or (teacher and not last):
                batch = agent.embed(prompts, inbox, targets)
                positions += sum(batch.prompt_tokens)
                hidden = self.states(agent, batch, tracked)
            if wanted:
                loss = token_losses(agent, hidden, targets)
            if last:
                return loss, None, positions
            if teacher:
                # The gold positions end the row; the first ones of them are sent.
                length, most = hidden.shape[1], settings.max_latent_tokens
                starts = [length - len(target) for target in targets]
                if settings.local_gradients:
                    hidden = hidden.detach()
                sent = [agent.inner_link(row[start : start + most]) for row, start in zip(hidden, starts, strict=True)]
                return loss, sent, positions
            onward = tracked and not settings.local_gradients
            with torch.set_grad_enabled(onward):
                batch = agent.embed(prompts, inbox)
                positions += sum(batch.prompt_tokens) + settings.latent_steps * len(prompts)
                return loss, list(self.think(agent, batch, onward)), positions

    def supervised(self, role: str, inbox: dict[str, list[Tensor]], last: bool, tracked: bool) -> bool:
        """True if this stage's gold text is scored."""
        if last:
            return True
        if role == self.system.style.speaker:
            return self.every_loss or not self.settings.supervise_final_only
        # A text that no message leads to teaches the links nothing.
        return self.settings.role_loss_weight > 0 and (tracked or (self.every_loss and bool(inbox)))

    def states(self, agent: Agent, batch: Batch, tracked: bool) -> Tensor:
        """Hidden states [B, L, D]; with checkpointing, layers keep their inputs only (which asks for train mode)."""
        if not (tracked and self.settings.gradient_checkpointing):
            return agent.states(batch)
        with _train_mode(agent):
            return agent.states(batch)

    def think(self, agent: Agent, batch: Batch, tracked: bool) -> Tensor:
        """The latent rollout [B, m, D]; with checkpointing, the whole rollout is run again in the backward pass.

        Layer checkpointing forbids a KV cache, so here the stage is the unit that is recomputed (with offloading it is
        already).
        """
        if not (tracked and self.settings.gradient_checkpointing) or self.system.offload:
            return agent.think(batch, self.settings.latent_steps)

        def rollout(embeds: Tensor) -> Tensor:
            return agent.think(replace(batch, embeds=embeds), self.settings.latent_steps)

        return checkpoint(rollout, batch.embeds, use_reentrant=False)

    def send(self, link: Link, round_index: int, thoughts: list[Tensor]) -> list[Tensor]:
        """Messages [m_i, T] of a link."""
        module = self.system.outer_links[link.key]
        vectors = torch.cat(thoughts)
        if self.probe is not None and torch.is_grad_enabled():
            messages = functional_call(module, self.probe.parameters(link.key, round_index, module), (vectors,))
        else:
            messages = module(vectors)
        norms = messages.detach().norm(dim=-1)
        total, count = self.losses.message_norms.get(link.key, (0, 0))
        self.losses.message_norms[link.key] = (total + norms.sum(), count + len(norms))
        return list(messages.split([len(thought) for thought in thoughts]))


@contextmanager
def _train_mode(agent: Agent) -> Any:
    agent.decoder.train()
    try:
        yield
    finally:
        agent.decoder.eval()


def enable_checkpointing(system: MultiAgentSystem) -> None:
    """Prepare the models for layer checkpointing, which works in train mode only: every dropout is set to 0."""
    for agent in system.agents.values():
        for module in agent.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0
        agent.model.gradient_checkpointing_enable({"use_reentrant": False})
        # It also makes embeddings require gradients, which only re-entrant checkpoints need.
        agent.model.disable_input_require_grads()
