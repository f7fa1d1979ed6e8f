"""The shipped pocket systems through the real command: the answer needs the messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.mas.errors import InputError
from inference.mas.styles import load_style
from system_loader import load_mas_system
from tests.conftest import ROOT

ALL = "latent,text,single,none,zero,noise,shuffle"
CONTROLS = ("single", "none", "zero", "noise", "shuffle")
SEARCHES = "assets/pocket/search.jsonl"


def run(tmp_path: Path, *flags: str, style: str = "pocket_sequential") -> dict:
    """The summary that `inference/run.py` prints last."""
    command = [
        sys.executable,
        "inference/run.py",
        "--style",
        style,
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


@pytest.mark.parametrize(
    ("style", "dataset", "flags"),
    [
        ("pocket_distillation", "pocket", ()),
        ("pocket_deliberation", "pocket", ()),
        ("pocket_deliberation", "pocket_search", ("--search_replay", SEARCHES)),
        ("pocket_mixture", "pocket_mixture", ()),
    ],
)
def test_latents_carry_what_the_speaker_cannot_know(tmp_path, style, dataset, flags):
    summary = run(tmp_path, "--dataset", dataset, "--num_samples", "60", "--compare", ALL, *flags, style=style)
    accuracy = {name: entry["accuracy"] for name, entry in summary["methods"].items()}
    assert accuracy["latent"] >= 0.9 and accuracy["text"] >= 0.9, accuracy
    assert all(accuracy[name] <= 0.2 for name in CONTROLS), accuracy


def test_two_rounds_of_distillation_look_up_what_one_cannot(tmp_path):
    flags = ("--dataset", "pocket_loop", "--num_samples", "60", "--compare", "latent", "--num_recursive_rounds", "1,2")
    by_round = run(tmp_path, *flags, style="pocket_distillation")["rounds"]
    one, two = (by_round[r]["methods"]["latent"]["accuracy"] for r in ("1", "2"))
    assert two >= one + 0.3, (one, two)


def test_the_toolcaller_calls_its_tools(tmp_path):
    """Each answer is what Python printed, after a search where the question starts with a fact."""
    run(
        tmp_path, "--dataset", "pocket_search", "--num_samples", "20", "--search_replay", SEARCHES,
        style="pocket_deliberation",
    )  # fmt: skip
    lines = (tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    rollouts = [json.loads(line)["rollouts"][0] for line in lines]
    calls = [rollout["tool_calls"] for rollout in rollouts]
    assert calls.count({"search": 1, "python": 1}) >= 18, calls
    for rollout in rollouts:
        if rollout["correct"]:
            assert f"<result> {rollout['pred_answer_parsed']} </result>" in rollout["raw_output"]


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


def test_without_links_a_system_speaks_and_cannot_think():
    mas = load_mas_system(style="pocket_sequential", device="cpu", links=False)
    (answer,) = mas.answer(["start with 54. apply zuri then gami."], rounds=1, method="text")
    assert "\\boxed{" in answer.rollouts[0].text and answer.latent_steps == 0 and not mas.outer_links
    with pytest.raises(InputError, match="loaded without links"):
        mas.answer(["start with 54. apply zuri then gami."], rounds=1, latent_steps=4)


def test_assets_stay_small():
    size = sum(path.stat().st_size for path in (ROOT / "assets" / "pocket").rglob("*") if path.is_file())
    assert size < 32 * 10**6
    assert load_style("pocket_sequential").speaker == "solver"
