"""Small random systems and slow twins for the tests of `inference/mas`."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.mas.agent import Agent, Batch
from inference.mas.links import InnerLink, OuterLink
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Style, load_style
from tests.tiny_models import make_model, make_tokenizer

FAMILIES = ("qwen2", "qwen3", "qwen3_5", "llama", "mistral", "gemma3")


def make_agent(style: Style, role: str, family: str, *, width: int = 32, seed: int = 0) -> Agent:
    """An agent with a random model of `family` and a random inner link."""
    tokenizer = make_tokenizer(family)
    model = make_model(family, width=width, seed=seed, tokenizer=tokenizer)
    torch.manual_seed(seed + 100)
    return Agent(style.role(role), model, tokenizer, InnerLink(width))


def make_system(
    families: tuple[str, str, str] = ("qwen3", "llama", "qwen2"), widths: tuple[int, int, int] = (32, 48, 64)
) -> MultiAgentSystem:
    """A sequential system of three random agents of three widths."""
    style = load_style("sequential_light")
    agents = {
        role.name: make_agent(style, role.name, family, width=width, seed=index)
        for index, (role, family, width) in enumerate(zip(style.roles, families, widths, strict=True))
    }
    torch.manual_seed(7)
    links = {link.key: OuterLink(agents[link.source].width, agents[link.target].width) for link in style.links}
    return MultiAgentSystem(style, agents, links)


def naive_think(agent: Agent, batch: Batch, steps: int) -> Tensor:
    """The latent rollout as the definition has it: the whole prefix is run again for every step."""
    embeds, mask = batch.embeds, batch.mask
    states = []
    for _ in range(steps):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        hidden = agent.model(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states[-1]
        states.append(hidden[:, -1])
        embeds = torch.cat([embeds, agent.inner_link(hidden[:, -1:])], dim=1)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return agent.inner_link(torch.stack(states, dim=1))


def naive_greedy(agent: Agent, batch: Batch, tokens: int) -> list[int]:
    """Greedy tokens of a one-row batch, the whole prefix run again for every token; stops at a stop token."""
    embeds, mask, out = batch.embeds, batch.mask, []
    while len(out) < tokens:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        scores = agent.model(inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False).logits
        out.append(int(scores[0, -1].argmax()))
        if out[-1] in agent.eos_ids:
            break
        embeds = torch.cat([embeds, agent.embedding(torch.tensor([[out[-1]]]))], dim=1)
        mask = torch.cat([mask, mask.new_ones(1, 1)], dim=1)
    return out
