"""A user's own style from a folder of the user's, by the commands that a user runs: `ring.yaml` on the pocket models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.tiny_style import ROOT, environment

RING = Path(__file__).with_name("ring.yaml")
ROWS = "assets/pocket/rows/train.jsonl"
LINKS = {"scout_planner", "planner_critic", "critic_solver", "solver_scout", "solver_planner"}


def run(program: str, style: Path, *flags: object) -> subprocess.CompletedProcess:
    command = [sys.executable, program, "--style", style, "--device", "cpu", *flags]
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )


def evaluate(style: Path, *flags: object) -> dict:
    """The JSON that an evaluation of two rounds prints last."""
    common = ("--dataset", "pocket", "--num_samples", 8, "--num_recursive_rounds", 2, "--latent_length", 16)
    done = run("inference/run.py", style, *common, "--do_sample", 0, "--max_new_tokens", 40, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """A copy of the style outside the repository, and beside it outer links after two training steps."""
    style = tmp_path_factory.mktemp("own") / "ring.yaml"
    shutil.copy(RING, style)
    flags = ["--dataset_name", ROWS, "--save_dir", style.parent / "outer", "--outer_init", "vocab", "--max_steps", 2]
    flags += ["--batch_size", 4, "--num_recursive_rounds", 2, "--latent_source", "rollout", "--latent_steps", 4]
    done = run("train/train_outer.py", style, *flags, "--role_loss_weight", 1, "--eval_num_samples", 0)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 2
    return style


def test_a_style_without_outer_links_is_told_so(tmp_path):
    style = tmp_path / "ring.yaml"
    shutil.copy(RING, style)
    done = run("inference/run.py", style, "--dataset", "pocket", "--dry_run")
    said = "error: style ring: no outer_repo; name one or give --ckpt_override outer=DIRECTORY\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == [style]


def test_a_graph_can_be_tried_in_text_before_links_are_trained(tmp_path):
    style = tmp_path / "ring.yaml"
    shutil.copy(RING, style)
    methods = evaluate(style, "--compare", "text,single", "--output_dir", tmp_path / "run")["methods"]
    assert methods["text"]["accuracy"] >= 0.75 and methods["single"]["accuracy"] <= 0.25, methods


def test_training_writes_a_link_for_every_edge(own):
    assert {path.stem for path in (own.parent / "outer").glob("*.pt")} >= LINKS


def test_trained_links_join_the_evaluation(own, tmp_path):
    override = ("--ckpt_override", f"outer={own.parent / 'outer'}")
    assert evaluate(own, *override, "--dry_run")["missing"] == []
    summary = evaluate(own, *override, "--compare", "latent,text,zero", "--output_dir", tmp_path / "run")
    methods = summary["methods"]
    assert set(methods) == {"latent", "text", "zero"}
    # Of 8 questions: four agents think in round 1; in the last round the solver writes instead.
    assert methods["latent"]["latent_steps"] == 8 * 7 * 16 and methods["text"]["latent_steps"] == 0
    assert methods["text"]["accuracy"] >= 0.75 and methods["zero"]["accuracy"] <= 0.25, methods


@pytest.mark.parametrize(
    ("program", "old", "new", "said"),
    [
        ("run", "    model: assets/pocket/critic\n", "    modle: assets/pocket/critic\n", "roles.critic.modle: unknown"),
        ("train", "target: critic,", "target: critc,", "links.planner_critic.target: 'critc' is not a role"),
        ("run", "feedback: <<SCOUT>>", "feedback:", "roles.planner.first.math: slot <<SCOUT>> must stand exactly once"),
        ("run", "feedback: <<ANSWER>>\\n", "", "roles.scout.later.math: slot <<ANSWER>> must stand exactly once"),
        ("train", "speaker: solver\n", "", "speaker: missing; the style needs it"),
        ("train", "targets: [refined_plan]", "targets: [3]", "roles.critic.targets[0]: 3: expected a column's name"),
        ("run", "  solver:\n", "  solver:\n    tools: [shell]\n", "roles.solver.tools: tool 'shell': unknown"),
        ("train", "slot: SCOUT}", "slot: ANSWER}", "roles.planner: two links fill the same slot"),
        ("run", "refine the plan.\"}", "refine the plan.}", "not valid YAML"),
        ("run", 'single: {math: "{question}', 'single: {math: "{qestion}', "single.math: unknown field {qestion}"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_place(tmp_path, program, old, new, said):
    style = tmp_path / "ring.yaml"
    text = RING.read_text()
    assert old in text
    style.write_text(text.replace(old, new))
    if program == "run":
        done = run("inference/run.py", style, "--dataset", "pocket", "--output_dir", tmp_path / "out")
    else:
        done = run("train/train_outer.py", style, "--dataset_name", ROWS, "--save_dir", tmp_path / "out")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ") and said in lines[0] and str(style) in lines[0], lines[0]
    assert done.stdout == "" and list(tmp_path.iterdir()) == [style]
