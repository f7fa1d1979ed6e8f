"""The system to train: frozen agents as the flags name them, and outer links as they start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from inference.mas.agent import Agent
from inference.mas.checkpoints import Resolved, fetch_weights, read_links, resolve
from inference.mas.errors import InputError
from inference.mas.links import OuterLink
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Style
from system_loader import load_agents
from train.outer.start import VocabFit, fit_vocab


@dataclass(frozen=True)
class RoleSource:
    """Where a role's model and inner link come from; None = as the style says."""

    model: str | None = None
    inner: str | None = None


def resolve_agents(
    style: Style,
    sources: Mapping[str, RoleSource],
    task: str,
    cache_dir: str | None = None,
    trust_remote_code: bool = False,
) -> Resolved:
    """The files of models and inner links, without outer links.

    A model that is named wins over one that lies beside the inner link.
    """

    def with_sources(models_too: bool) -> Style:
        roles = []
        for role in style.roles:
            source = sources.get(role.name, RoleSource())
            inner = source.inner or role.repo
            roles.append(
                replace(role, model=source.model or role.model, repo=(source.model or inner) if models_too else inner)
            )
        return replace(style, roles=tuple(roles))

    common = {
        "task": task,
        "cache_dir": cache_dir,
        "outer": False,
        "weights": False,
        "trust_remote_code": trust_remote_code,
    }
    models = resolve(with_sources(models_too=True), inner=False, **common)
    links = resolve(with_sources(models_too=False), **common)
    roles = {
        name: replace(links.roles[name], model=files.model, base_id=files.base_id)
        for name, files in models.roles.items()
    }
    return replace(links, style=style, roles=roles)


def load_frozen_agents(
    resolved: Resolved, device: torch.device, dtype: str, trust_remote_code: bool = False
) -> dict[str, Agent]:
    """The agents, links checked before any weights are fetched."""
    inner, _ = read_links(resolved, None, trust_remote_code)
    fetch_weights(resolved)
    return load_agents(resolved, inner, device, dtype, trust_remote_code)


def start_links(
    style: Style,
    agents: Mapping[str, Agent],
    types: Mapping[str, str],
    *,
    init: str,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    resolved: Resolved | None = None,
) -> tuple[dict[str, OuterLink], dict[str, VocabFit]]:
    """Trainable outer links: read from `resolved` (of `--load_dir`), or fresh, or fitted to the vocabularies.

    A fresh link depends on the seed and its key alone, not on the links made before it.
    """
    if resolved is not None:
        _, links = read_links(resolved, dtype)
        for link in style.links:
            if links[link.key].link_type != types[link.key]:
                raise InputError(
                    f"--load_dir: {link.key} is of type {links[link.key].link_type}, but --{link.key}_type is {types[link.key]}"
                )
        return {key: link.to(device).requires_grad_(True) for key, link in links.items()}, {}
    links, fits = {}, {}
    for link in style.links:
        source, target = agents[link.source], agents[link.target]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(
                seed * 1_000_003 + sum(ord(char) * 257**place for place, char in enumerate(link.key)) % 2**31
            )
            fresh = OuterLink(source.width, target.width, types[link.key])
        if init == "vocab":
            fits[link.key] = fit_vocab(fresh, source, target, link)
        links[link.key] = fresh.to(device, dtype)
    return links, fits


def resolve_outer(style: Style, resolved: Resolved, load_dir: str, task: str, cache_dir: str | None) -> Resolved:
    """`resolved` with the outer link files of a directory or hub repo."""
    found = resolve(
        replace(style, outer_repo=str(Path(load_dir)) if Path(load_dir).is_dir() else load_dir),
        task=task,
        cache_dir=cache_dir,
        weights=False,
        inner=False,
    )
    return replace(resolved, outer=found.outer, outer_folder=found.outer_folder)


def make_system(
    style: Style, agents: Mapping[str, Agent], links: Mapping[str, OuterLink], task: str
) -> MultiAgentSystem:
    """The system with links that learn."""
    return MultiAgentSystem(style, agents, links, task=task)
