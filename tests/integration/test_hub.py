"""Released checkpoints through the real hub client, in processes of their own, from a miniature hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inference.mas.decoding import Sampling
from inference.mas.styles import load_style
from system_loader import load_mas_system
from tests.mini_hub import MiniHub, add_released

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ["Tom has 3 apples and buys 4 more. How many?", "What is 12 * 5 - 8?"]
LOAD = """
import json, sys
from inference.mas.checkpoints import fingerprint, resolve
from inference.mas.decoding import Sampling
from inference.mas.errors import InputError, exit_on_input_error
from inference.mas.styles import load_style
from system_loader import load_mas_system

def load(job):
    questions = job.pop("questions", None)
    mas = load_mas_system(device="cpu", **job)
    row = {"outer": {key: link.proj1.weight.sum().item() for key, link in mas.outer_links.items()}}
    if questions:
        answers = mas.answer(questions, rounds=2, latent_steps=4, sampling=Sampling(max_new_tokens=8))
        row["tokens"] = [answer.rollouts[0].tokens for answer in answers]
    resolved = resolve(load_style(job["style"]), task=job["task"], revisions=job.get("revision"))
    return row | {"fingerprint": fingerprint(resolved), "files": resolved.describe()}

def main():
    jobs, found = json.loads(sys.argv[1]), []
    for job in jobs:
        try:
            found.append(load(job))
        except InputError as err:
            if len(jobs) == 1:
                raise
            found.append({"error": str(err)})
    print(json.dumps(found))

exit_on_input_error(main)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with MiniHub(tmp_path_factory.mktemp("hub")) as hub:
        add_released(hub.folder, "sequential_light")
        add_released(hub.folder, "sequential_scaled", shards=True)
        yield hub


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that the tests share; each leaves it whole."""
    return tmp_path_factory.mktemp("cache")


def run(hub: MiniHub, cache: Path, jobs: list[dict], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(jobs)],
        cwd=ROOT,
        env={**os.environ, **hub.env(cache), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


def loaded(done: subprocess.CompletedProcess[str]) -> list[dict]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that a command ended with."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, without the refs that the client itself rewrites on every call."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "refs" not in path.parts
    }


@pytest.mark.parametrize("style", ["sequential_light", "sequential_scaled"])
def test_released_style_loads_and_answers_for_both_task_sets(hub, cache, style):
    jobs = [{"style": style, "task": task, "questions": QUESTIONS} for task in ("math", "code")]
    rows = loaded(run(hub, cache, jobs))
    spec = load_style(style)
    for row, task in zip(rows, ("math", "code"), strict=True):
        outer = hub.repo(spec.outer_repo)
        for link in spec.links:
            labels = [spec.role(end).label for end in (link.source, link.target)]
            state = torch.load(outer / f"{labels[0]}-{labels[1]}-Outerlink({task}).pt", weights_only=True)
            assert row["outer"][link.key] == pytest.approx(state["proj1.weight"].sum().item())
        assert {row["files"][name]["inner"] for name in ("planner", "critic", "solver")} == {f"adapter({task}).pt"}
        # The same folders without a hub between give the same answers.
        overrides = {role.name: hub.repo(role.repo) for role in spec.roles} | {"outer": outer}
        mas = load_mas_system(style, device="cpu", task=task, ckpt_override=overrides)
        answers = mas.answer(QUESTIONS, rounds=2, latent_steps=4, sampling=Sampling(max_new_tokens=8))
        assert row["tokens"] == [answer.rollouts[0].tokens for answer in answers]
    assert rows[0]["fingerprint"]["planner.model"] == rows[1]["fingerprint"]["planner.model"]
    assert rows[0]["fingerprint"]["planner.inner"] != rows[1]["fingerprint"]["planner.inner"]


def test_cache_is_enough_without_the_hub_and_is_not_written(hub, tmp_path):
    job = {"style": "sequential_light", "task": "math", "questions": QUESTIONS}
    first = loaded(run(hub, tmp_path, [job]))
    # Only what the task needs was fetched.
    assert not [path for name in ("README.md", "*(code).pt") for path in tmp_path.rglob(name)]
    before = listing(tmp_path)
    assert loaded(run(hub, tmp_path, [job])) == first
    assert loaded(run(hub, tmp_path, [job], HF_HUB_OFFLINE="1")) == first
    assert listing(tmp_path) == before


def test_revision_pins_a_branch(hub, cache):
    repo = hub.repo("RecursiveMAS/Sequential-Light-Outerlinks")
    other = repo.with_name(repo.name + "@older")
    shutil.copytree(repo, other)
    path = other / "Planner-Critic-Outerlink(math).pt"
    state = torch.load(path, weights_only=True)
    torch.save({key: value * 2 for key, value in state.items()}, path)
    job = {"style": "sequential_light", "task": "math"}
    jobs = [job, {**job, "revision": {"outer": "older"}}, {**job, "revision": {"outer": "newest"}}]
    main, older, newest = loaded(run(hub, cache, jobs))
    assert older["outer"]["outer_12"] == pytest.approx(2 * main["outer"]["outer_12"], rel=1e-2)
    assert older["outer"]["outer_23"] == main["outer"]["outer_23"]
    assert older["files"]["outer"]["revision"] != main["files"]["outer"]["revision"]
    assert "no such revision" in newest["error"]


def test_snapshot_without_a_shard_is_named(hub, cache):
    job = {"style": "sequential_scaled", "task": "math"}
    loaded(run(hub, cache, [job]))
    shard = next(cache.rglob("*Solver*/snapshots/*/model-00002-of-*.safetensors"))
    # Cut short: the client hands out what lies in the cache without a look at its size.
    blob = shard.resolve()
    whole = blob.read_bytes()
    blob.write_bytes(whole[: len(whole) // 2])
    error = refused(run(hub, cache, [job]))
    assert shard.name in error and "its header says" in error
    # Gone, and the hub is out of reach: the client returns the folder as if nothing were missing.
    blob.unlink()
    shard.unlink()
    hub.down = True
    try:
        error = refused(run(hub, cache, [job]))
    finally:
        hub.down = False
    assert shard.name in error and "missing" in error and "model.safetensors.index.json" in error
    # Back in reach, the missing file comes by itself.
    loaded(run(hub, cache, [job]))


def test_hub_troubles_are_sentences(hub, tmp_path):
    light, scaled = ({"style": style, "task": "math"} for style in ("sequential_light", "sequential_scaled"))
    hub.gated.add("RecursiveMAS/Sequential-Light-Critic-Llama3.2-1B")
    hub.cut.add("model-00001-of-00004.safetensors")
    try:
        nobody = {**light, "ckpt_override": {"planner": "Nobody/Nothing"}}
        gated, cut, unknown = loaded(run(hub, tmp_path, [light, scaled, nobody]))
    finally:
        hub.gated.clear()
        hub.cut.clear()
    assert "gated" in gated["error"] and "Critic" in gated["error"]
    assert "download failed" in cut["error"]
    assert "no such repo" in unknown["error"] and "--ckpt_override planner" in unknown["error"]
    assert "out of reach" in refused(run(hub, tmp_path / "empty", [light], HF_HUB_OFFLINE="1"))
