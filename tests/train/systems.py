"""Examples, token pieces and slow twins for the tests of the trainers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from inference.mas.agent import Agent, Batch
from inference.mas.links import OuterLink
from inference.mas.prompts import Question
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Style, load_style
from tests.mas.systems import make_agent, make_system, naive_think
from train.data.texts import Example
from train.outer.objective import OuterSettings, OuterTask
from train.outer.unroll import UnrollSettings

EXAMPLES = [
    Example(
        Question(f"What is {a} and {b}?" + " Think well." * (index % 3), id=str(index)),
        {
            "planner": f"add {a} to {b}" + " now" * index,
            "critic": f"the sum of {a} and {b}",
            "solver": f"\\boxed{{{a + b}}}",
        },
    )
    for index, (a, b) in enumerate([(1, 2), (30, 4), (5, 66), (7, 8)])
]


def style_system(
    name: str, families: Sequence[str], widths: Sequence[int], kind: type[MultiAgentSystem] = MultiAgentSystem
) -> MultiAgentSystem:
    """A style of the project on random agents."""
    style = load_style(name)
    agents = {
        role.name: make_agent(style, role.name, family, width=width, seed=index)
        for index, (role, family, width) in enumerate(zip(style.roles, families, widths, strict=True))
    }
    torch.manual_seed(7)
    links = {link.key: OuterLink(agents[link.source].width, agents[link.target].width) for link in style.links}
    return kind(style, agents, links)


def style_examples(style: Style) -> list[Example]:
    """Three rows of three families, with a text of its own for every role."""
    tasks = [("math", "What is 2 and 5?"), ("choice", "Which?\nA. two\nB. five"), ("code", "Print five.")]
    return [
        Example(
            Question(text, id=str(i), family=family),
            {r.name: f"{r.name} says {i} {text[:j]}" for j, r in enumerate(style.roles, 3)},
        )
        for i, (family, text) in enumerate(tasks)
    ]


class EvictingSystem(MultiAgentSystem):
    """Off-loading that shows on one device: a model that is not at work has NaN for weights."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.weights: dict[int, list[Tensor]] = {}

    def activate(self, role: str) -> Agent:
        agent = self.agents[role]
        if not self.weights:
            models = {id(a.model): a.model for a in self.agents.values()}
            self.weights = {key: [p.data for p in model.parameters()] for key, model in models.items()}
        for other in self.agents.values():
            for parameter, own in zip(other.model.parameters(), self.weights[id(other.model)], strict=True):
                parameter.data = own if other.model is agent.model else torch.full_like(own, torch.nan)
        return agent


def trainable_system(families=("qwen3", "llama", "qwen2"), double: bool = True) -> MultiAgentSystem:
    """Three random agents whose outer links learn; float64, so that slow twins can be compared closely."""
    return trainable(make_system(families), double)


def trainable(system: MultiAgentSystem, double: bool = True) -> MultiAgentSystem:
    """The system with links that learn, all in float64 if asked for."""
    for agent in system.agents.values():
        agent.model.requires_grad_(False)
        agent.inner_link.requires_grad_(False)
        if double:
            agent.model.double()
            agent.inner_link.double()
    return_links = system.outer_links.double() if double else system.outer_links
    return_links.requires_grad_(True)
    return system


def unroll_settings(**changes) -> UnrollSettings:
    values = {
        "rounds": 2, "latent_source": "teacher", "latent_steps": 3, "max_latent_tokens": 5, "supervise_final_only": True,
        "role_loss_weight": 0.0, "gradient_checkpointing": False,
    }  # fmt: skip
    return UnrollSettings(**{**values, **changes})


def outer_task(system, examples=EXAMPLES, *, non_last=0.1, max_length=4096, **changes) -> OuterTask:
    settings = OuterSettings(unroll_settings(**changes), non_last, max_length, False, True, 2, 0, 8)
    return OuterTask(system, examples, range(len(examples)), [], settings, lambda folder: None)


def naive_states(agent: Agent, batch: Batch) -> Tensor:
    """Hidden states by the full model, all layers kept."""
    out = agent.model(
        inputs_embeds=batch.embeds,
        attention_mask=batch.mask,
        position_ids=batch.positions,
        output_hidden_states=True,
        use_cache=False,
    )
    return out.hidden_states[-1]


def naive_loss(system: MultiAgentSystem, task: OuterTask, row: int) -> Tensor:
    """The loss of one row as the definition has it: one sample, full logits, labels of -100, rollouts without a cache."""
    unroll, style = task.settings.unroll, system.style
    tokens = task.prepared(row)
    mail, by_round, by_role = {}, [], {}
    for r in range(1, unroll.rounds + 1):
        for role in style.roles:
            agent, piece = system.agents[role.name], tokens[role.name, r]
            inbox = {link.slot: [mail[link.key]] for link in style.incoming(role.name) if link.key in mail}
            gold = agent.embed([piece.prompt], inbox, [piece.target])
            logits = agent.model(
                inputs_embeds=gold.embeds, attention_mask=gold.mask, position_ids=gold.positions, use_cache=False
            ).logits[0]
            labels = torch.full((len(logits),), -100)
            if piece.target:
                labels[-len(piece.target) :] = torch.tensor(piece.target)
                loss = F.cross_entropy(logits[:-1].float(), labels[1:], ignore_index=-100)
                if role.name == style.speaker:
                    by_round.append(loss)
                elif inbox:
                    by_role.setdefault(role.name, []).append(loss)
            if unroll.latent_source == "teacher":
                hidden = naive_states(agent, gold)[0, -len(piece.target) :]
                thoughts = agent.inner_link(hidden)[: unroll.max_latent_tokens]
            else:
                thoughts = naive_think(agent, agent.embed([piece.prompt], inbox), unroll.latent_steps)[0]
            for link in style.outgoing(role.name):
                mail[link.key] = system.outer_links[link.key](thoughts)
    total = by_round[-1]
    if not unroll.supervise_final_only and len(by_round) > 1:
        total = total + task.settings.non_last_loss_weight * torch.stack(by_round[:-1]).mean()
    if unroll.role_loss_weight:
        total = total + unroll.role_loss_weight * sum(torch.stack(losses).mean() for losses in by_role.values())
    return total


def gradients(system: MultiAgentSystem) -> dict[str, Tensor]:
    """Gradients of all links, cleared afterwards."""
    found = {name: p.grad for name, p in system.outer_links.named_parameters() if p.grad is not None}
    system.outer_links.zero_grad(set_to_none=True)
    return found
