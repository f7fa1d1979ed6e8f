"""A user's style with three tiny random models on disk, for tests that run the real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from inference.mas.checkpoints import write_inner_dir, write_outer_dir
from inference.mas.links import InnerLink, OuterLink
from inference.mas.styles import load_style
from tests.tiny_models import make_lm

ROOT = Path(__file__).resolve().parents[2]
STYLE = """
name: tiny
system: be brief.
roles:
  planner:
    {model: ./planner, repo: ./planner_link, first: {math: "{question} plan"},
     later: {math: "{question} feedback <<FEEDBACK>> plan"}}
  critic: {model: ./critic, repo: ./critic_link, first: {math: "{question} plan <<PLAN>> refine"}}
  solver: {model: ./solver, repo: ./solver_link, first: {math: "<<REFINED>> {question} answer"}}
speaker: solver
links:
  outer_12: {source: planner, target: critic, slot: PLAN}
  outer_23: {source: critic, target: solver, slot: REFINED}
  outer_31: {source: solver, target: planner, slot: FEEDBACK}
outer_repo: ./outer
single: {math: "{question} answer"}
"""
WIDTHS = {"planner": ("qwen3", 32), "critic": ("llama", 48), "solver": ("qwen2", 64)}


def write_style(folder: Path) -> Path:
    """Models, links and the YAML file of the style; returns the YAML's path."""
    torch.manual_seed(0)
    for seed, (role, (family, width)) in enumerate(WIDTHS.items()):
        make_lm(family, folder / role, width=width, seed=seed)
        write_inner_dir(folder / f"{role}_link", InnerLink(width), str(folder / role), {})
    path = folder / "tiny.yaml"
    path.write_text(STYLE)
    style = load_style(path)
    widths = {role: width for role, (_, width) in WIDTHS.items()}
    links = {link.key: OuterLink(widths[link.source], widths[link.target]) for link in style.links}
    write_outer_dir(folder / "outer", links, style, "math", {})
    return path


def write_questions(path: Path, count: int = 10) -> Path:
    """`count` questions of different lengths and answers."""
    rows = [
        {"id": f"q{i}", "question": "one more" * (i * 7 % 5) + f" than {i}?", "answer": str(i + 1)}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(*arguments: object) -> list[str]:
    """The command line of a run."""
    return [sys.executable, "inference/run.py", *map(str, arguments)]


def environment() -> dict[str, str]:
    """One thread, so that sums have one order; no hub."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(*arguments: object) -> subprocess.CompletedProcess:
    """Run the command as a user would, from the repository's root."""
    return subprocess.run(command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
