"""The shipped pocket system through the real command: the answer needs the messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from inference.mas.styles import load_style
from system_loader import load_mas_system
from tests.conftest import ROOT


def run(tmp_path: Path, *flags: str) -> dict:
    """The summary that `inference/run.py` prints last."""
    command = [
        sys.executable,
        "inference/run.py",
        "--style",
        "pocket_sequential",
        "--device",
        "cpu",
        "--output_dir",
        str(tmp_path / "run"),
        *flags,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_latents_carry_what_the_solver_cannot_know(tmp_path):
    summary = run(
        tmp_path,
        "--dataset",
        "pocket",
        "--num_samples",
        "50",
        "--compare",
        "latent,text,single,none,zero,noise,shuffle",
    )
    accuracy = {name: entry["accuracy"] for name, entry in summary["methods"].items()}
    assert accuracy["latent"] >= 0.9 and accuracy["text"] >= 0.9, accuracy
    assert all(accuracy[name] <= 0.2 for name in ("single", "none", "zero", "noise", "shuffle")), accuracy


def test_the_readmes_notebook_lines():
    mas = load_mas_system(style="pocket_sequential", device="cpu")
    assert (
        mas.agents["planner"].model
        and mas.agents["planner"].tokenizer
        and mas.agents["planner"].inner_link
        and mas.outer_links["outer_12"]
    )
    answers = mas.answer(["start with 54. apply zuri then gami."], rounds=1, latent_steps=16)
    assert "\\boxed{" in answers[0].rollouts[0].text and answers[0].latent_steps == 32


def test_assets_stay_small():
    size = sum(path.stat().st_size for path in (ROOT / "assets" / "pocket").rglob("*") if path.is_file())
    assert size < 16 * 2**20
    assert load_style("pocket_sequential").speaker == "solver"
