"""The public door: load a multi-agent system by its style's name.

from system_loader import load_mas_system

mas = load_mas_system(style="sequential_light", device="cuda")
answers = mas.answer(["What is 7 * 8?"], rounds=3, latent_steps=32)
print(answers[0].rollouts[0].text)
mas.agents["planner"].model, mas.agents["planner"].inner_link, mas.outer_links["outer_12"]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from inference.mas.agent import Agent
from inference.mas.checkpoints import Resolved, fetch_weights, read_links, resolve
from inference.mas.errors import InputError
from inference.mas.links import InnerLink
from inference.mas.lm_loading import load_model, load_tokenizer, pick_device, pick_dtype
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import FAMILIES, Style, load_style

# Datasets that are not maths, for callers who name a dataset instead of a task family.
DATASET_TASKS = {"mbppplus": "code", "livecodebench": "code", "gpqa": "choice", "medqa": "choice"}


def load_mas_system(
    style: str | Path | Style,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    trust_remote_code: bool = False,
    ckpt_override: Mapping[str, str | Path] | None = None,
    task: str = "math",
    *,
    dataset: str | None = None,
    prompts: str | Path | None = None,
    offload: bool = False,
    device_map: Mapping[str, str | torch.device] | None = None,
    link_dtype: str | torch.dtype | None = None,
    revision: str | Mapping[str, str] | None = None,
    cache_dir: str | Path | None = None,
    links: bool = True,
    resolved: Resolved | None = None,
) -> MultiAgentSystem:
    """Load every model and link of a style; with `links=False` models alone, for the methods "text" and "single".

    `style`: a name of `list_styles()`, a YAML file, or a loaded `Style`. `task` (math, code, choice, reasoning) or
    `dataset` (such as math500) chooses the set of released links. `ckpt_override`: {role or "outer": directory or hub id}.
    `revision` pins hub repos, one for all or by role. `dtype` "auto" picks by device; `link_dtype` None keeps each link
    file's own. With `offload`, idle models wait in CPU memory. `device_map` gives roles a device of their own, such as
    {"solver": "cuda:1"}; the others work on `device`. `resolved` takes the place of everything that names files.

    All links are checked before any weights are downloaded or loaded. Raises `InputError`.
    """
    if dataset is not None:
        task = DATASET_TASKS.get(dataset, "math")
    if task not in FAMILIES:
        raise InputError(f"task {task!r}: unknown task family; expected one of {', '.join(FAMILIES)}")
    chosen = pick_device(device)
    link_type = None if link_dtype is None else pick_dtype(link_dtype, chosen)
    if resolved is None:
        resolved = resolve(
            style if isinstance(style, Style) else load_style(style, prompts=prompts),
            task=dataset or task,
            overrides=ckpt_override,
            revisions=revision,
            cache_dir=cache_dir,
            weights=False,
            inner=links,
            outer=links,
            trust_remote_code=trust_remote_code,
        )
    devices = place_roles(resolved.style, chosen, device_map)
    inner_links, outer_links = read_links(resolved, link_type, trust_remote_code)
    fetch_weights(resolved)
    agents = load_agents(resolved, inner_links, devices, dtype, trust_remote_code, offload)
    # A link works where its source has thought.
    outer = {
        link.key: outer_links[link.key].to(devices[link.source]).requires_grad_(False)
        for link in resolved.style.links
        if link.key in outer_links
    }
    return MultiAgentSystem(resolved.style, agents, outer, task=task, offload=offload)


def place_roles(
    style: Style, device: torch.device, device_map: Mapping[str, str | torch.device] | None = None
) -> dict[str, torch.device]:
    """Every role's device: `device`, or its own in `device_map` (by role name, label or training name)."""
    devices = {role.name: device for role in style.roles}
    named: set[str] = set()
    for key, place in (device_map or {}).items():
        try:
            name = style.role(key).name
        except InputError as err:
            roles = ", ".join(devices)
            raise InputError(
                f"--device_map {key}={place}: style {style.name} has no such role; it has {roles}"
            ) from err
        if name in named:
            raise InputError(f"--device_map {key}={place}: {name} is given twice")
        named.add(name)
        devices[name] = pick_device(place, f"--device_map {key}:")
    return devices


def load_agents(
    resolved: Resolved,
    inner_links: Mapping[str, InnerLink],
    devices: Mapping[str, torch.device],
    dtype: str | torch.dtype = "auto",
    trust_remote_code: bool = False,
    offload: bool = False,
) -> dict[str, Agent]:
    """The agents of a system by role. Roles with the same base model on one device share one copy of it."""
    models = {}
    agents = {}
    for role in resolved.style.roles:
        files = resolved.roles[role.name]
        device = devices[role.name]
        key = (device, files.weights_key())
        if key not in models:
            # A model that is to be off-loaded starts in CPU memory, in the dtype of the device it will work on.
            models[key] = load_model(files.model_dir, dtype, device, trust_remote_code, resident=not offload)
        tokenizer = load_tokenizer(files.model_dir, trust_remote_code)
        link = inner_links.get(role.name)
        if link is not None:
            link = link.to(device).eval().requires_grad_(False)
        agents[role.name] = Agent(role, models[key], tokenizer, link, device)
    return agents
