"""The system to train: frozen agents as the flags name them, and outer links as they start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from inference.mas.agent import Agent
from inference.mas.checkpoints import Resolved, fetch_weights, read_links, resolve, with_outer
from inference.mas.errors import InputError
from inference.mas.fetch import open_folder
from inference.mas.links import OuterLink
from inference.mas.styles import Style
from system_loader import load_agents


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
    resolved: Resolved,
    devices: Mapping[str, torch.device],
    dtype: str,
    trust_remote_code: bool = False,
    offload: bool = False,
) -> dict[str, Agent]:
    """The agents on their devices (with `offload` in CPU memory), links checked before any weights are fetched."""
    inner, _ = read_links(resolved, None, trust_remote_code)
    fetch_weights(resolved)
    return load_agents(resolved, inner, devices, dtype, trust_remote_code, offload)


def start_links(
    style: Style,
    agents: Mapping[str, Agent],
    types: Mapping[str, str],
    *,
    seed: int,
    dtype: torch.dtype,
    resolved: Resolved | None = None,
) -> dict[str, OuterLink]:
    """Trainable outer links, each on its source's device: read from `resolved` (of `--load_dir`), or fresh.

    A fresh link depends on the seed and its key alone, not on the links made before it.
    """
    read = read_links(resolved, dtype)[1] if resolved is not None else {}
    links = {}
    for link in style.links:
        source, target = agents[link.source], agents[link.target]
        if link.key in read:
            made = read[link.key]
            if made.link_type != types[link.key]:
                raise InputError(
                    f"--load_dir: {link.key} is of type {made.link_type}, but --{link.key}_type is {types[link.key]}"
                )
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(
                    seed * 1_000_003 + sum(ord(char) * 257**place for place, char in enumerate(link.key)) % 2**31
                )
                made = OuterLink(source.width, target.width, types[link.key])
        links[link.key] = made.to(source.device, dtype).requires_grad_(True)
    return links


def resolve_outer(resolved: Resolved, load_dir: str, cache_dir: str | None) -> Resolved:
    """`resolved` with the outer link files of a directory or hub repo."""
    return with_outer(resolved, open_folder("--load_dir", load_dir, cache_dir=cache_dir))
