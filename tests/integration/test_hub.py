"""Released checkpoints through the real hub client, in processes of their own, from a miniature hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from inference.mas.decoding import Sampling
from inference.mas.styles import load_style
from system_loader import load_mas_system
from tests.mini_hub import TASK_SCOPED, MiniHub, add_released, add_rows

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


WORK = """
import contextlib, io, json, sys
if sys.argv[1] == "hidden":
    sys.modules["peft"] = None  # Python's own mark of a module that cannot be imported
from transformers.utils import is_peft_available
from inference.mas.decoding import Sampling
from inference.mas.checkpoints import resolve
from inference.mas.errors import exit_on_input_error
from inference.mas.styles import load_style
from system_loader import load_mas_system
from train import train_inner, train_outer

def answered(style, task, questions, override=None):
    mas = load_mas_system(style, device="cpu", task=task, ckpt_override=override)
    answers = mas.answer(questions, rounds=2, latent_steps=2, sampling=Sampling(max_new_tokens=4))
    labels = [role.label for role in mas.style.roles]
    # Names as the model cards write them, in any case.
    assert all(mas.agents[label.upper()] is mas.agents[label.lower()] for label in labels)
    resolved = resolve(mas.style, task=task, overrides=override)
    return {
        "outer": {key: link.proj1.weight.sum().item() for key, link in mas.outer_links.items()},
        "inner": {role.name: mas.agents[role.label].inner_link.proj1.weight.sum().item() for role in mas.style.roles},
        "inner_files": {name: files.inner.path.name for name, files in resolved.roles.items()},
        "models": len({id(agent.model) for agent in mas.agents.values()}),
        "tokens": [answer.rollouts[0].tokens for answer in answers],
        "latent_steps": [answer.latent_steps for answer in answers],
    }

def run(main, flags):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(flags)
    return json.loads(out.getvalue().splitlines()[-1])

def main():
    assert is_peft_available() == (sys.argv[1] == "visible")
    found = []
    for job in json.loads(sys.argv[2]):
        style, questions = job["style"], job["questions"]
        row = {"released": {task: answered(style, task, questions) for task in job["tasks"]}}
        row["inner"] = {role: run(train_inner.main, flags) for role, flags in job["inner"].items()}
        row["outer"] = {source: run(train_outer.main, flags) for source, flags in job["outer"].items()}
        own = {role: flags[flags.index("--save_dir") + 1] for role, flags in job["inner"].items()}
        own["outer"] = job["outer"]["teacher"][job["outer"]["teacher"].index("--save_dir") + 1]
        found.append(row | {"own": answered(style, job["task"], questions, own)})
    print(json.dumps(found))

exit_on_input_error(main)
"""


@dataclass(frozen=True)
class Run:
    """Data sets (below RecursiveMAS/) and task families that a style's links are trained on: by role, and the outer ones."""

    inner: tuple[tuple[str, str], ...]
    outer: tuple[str, str]


RUNS = {
    "sequential_light": Run((("Sequential-Math", "math"),) * 3, ("Sequential-Math", "math")),
    "sequential_scaled": Run((("Sequential-Code", "code"),) * 3, ("Sequential-Code", "code")),
    "mixture": Run(
        (("Mixture-Math", "math"), ("Mixture-Code", "code"), ("Mixture-Science", "choice"), ("Mixture-Outer", "math")),
        ("Mixture-Outer", "math"),
    ),
    "distillation": Run((("Distillation-Code", "code"),) * 2, ("Distillation-Code", "code")),
    "deliberation": Run((("Deliberation", "math"),) * 2, ("Deliberation", "math")),
}


def released_rows() -> dict[str, list[dict]]:
    """Rows with the columns of the released data sets, by name; families differ between rows where they do there."""
    sums = [
        {"question": f"What is {i} + {i}?", "answer": f"{i} + {i} = {2 * i}. \\boxed{{{2 * i}}}"} for i in (2, 13, 40)
    ]
    plans = [{"plan": "add", "refined_plan": "add the number to itself", "answer_field": "answer"}] * 3
    math = {"task_family": "math", "type": "", "domain": "arithmetic"}
    program = {
        "question": "Print the sum of two numbers.",
        "answer": "```python\nprint(sum(map(int, input().split())))\n```",
    }
    function = {"question": "Return twice x.", "answer": "```python\ndef twice(x):\n    return 2 * x\n```"}
    codes = [
        program | {"type": "complete"},
        function | {"type": "function"},
        function | {"type": "function", "fn_name": "twice"},
    ]
    code = {"task_family": "code", "domain": "programs"}
    letter = {"question": "Which is a metal?\nA. iron\nB. air\nC. wood\nD. ice", "answer": "\\boxed{A}"}
    choice = letter | {"type": "", "task_family": "choice", "domain": "chemistry"}
    experts = {f"hie_{name}_expert": f"the {name} view" for name in ("math", "code", "science")}
    call = {
        "deliberation_reflector": "compute it",
        "deliberation_toolcaller": "<python>print(4)</python> <result> 4 </result> \\boxed{4}",
    }
    return {
        "Sequential-Math": [row | plan for row, plan in zip(sums, plans, strict=True)],
        "Sequential-Code": [row | plan for row, plan in zip(codes, plans, strict=True)],
        "Distillation-Code": [
            row
            | code
            | {
                "refined_plan": "old",
                "distill_expert": "Step 1: do it",
                "distill_learner": row["answer"],
                "source": "x",
            }
            for row in codes
        ],
        "Mixture-Math": [row | math | {"hie_math_expert": "it is even"} for row in sums],
        "Mixture-Code": [row | code | {"hie_code_expert": "print it"} for row in codes],
        "Mixture-Science": [choice | {"hie_science_expert": "iron is one"}] * 2,
        "Mixture-Outer": [sums[0] | math | experts, codes[0] | code | experts, choice | experts],
        "Deliberation": [row | math | call | {"tool_type": "python", "source_idx": 1} for row in sums],
    }


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with MiniHub(tmp_path_factory.mktemp("hub")) as hub:
        for style in RUNS:
            add_released(hub.folder, style, shards=style == "sequential_scaled")
        for name, rows in released_rows().items():
            add_rows(hub.folder, f"RecursiveMAS/{name}", rows)
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


@pytest.fixture(scope="module", params=["visible", "hidden"])
def work(request, hub, tmp_path_factory):
    """What `WORK` found for every released style, in one process; once with `peft` importable and once without."""
    folder = tmp_path_factory.mktemp(request.param)
    jobs = [job(style, request.param, hub.folder, folder) for style in RUNS]
    done = subprocess.run(
        [sys.executable, "-c", WORK, request.param, json.dumps(jobs)],
        cwd=ROOT,
        env={**os.environ, **hub.env(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    return request.param, folder, dict(zip(RUNS, loaded(done), strict=True))


def job(style: str, peft: str, hub: Path, folder: Path) -> dict:
    """Every command line of a style: all inner links and then all outer ones, from the hub's data or from local files."""

    def data(name: str) -> str:
        return (
            f"RecursiveMAS/{name}" if peft == "visible" else str(hub / "datasets/RecursiveMAS" / name / "train.jsonl")
        )

    run, spec = RUNS[style], load_style(style)
    common = ["--device", "cpu", "--max_steps", "1", "--batch_size", "2", "--mas_task"]
    inner = {}
    for role, (name, task) in zip(spec.roles, run.inner, strict=True):
        # By design and training name, as in the reference, where these say which style is meant.
        which = ["--mas_design", spec.design] if style != "sequential_scaled" else ["--style", style]
        flags = [
            *which,
            "--mas_role",
            role.mas_role,
            "--dataset_name",
            data(name),
            "--save_dir",
            str(folder / style / role.name),
        ]
        inner[role.name] = [*flags, *common, task]
    paths = [
        part for role in spec.roles for part in (f"--{role.flag}_inner_aligner_path", str(folder / style / role.name))
    ]
    flags = [
        "--style",
        style,
        "--dataset_name",
        data(run.outer[0]),
        "--num_recursive_rounds",
        "2",
        "--latent_steps",
        "2",
        *paths,
    ]
    outer = {
        source: [*flags, *common, run.outer[1], "--latent_source", source, "--save_dir", str(folder / style / source)]
        for source in (("teacher", "rollout") if peft == "visible" else ("teacher",))
    }
    return {"style": style, "tasks": ["math", "code"] if style in TASK_SCOPED else ["math"], "inner": inner, "outer": outer,
            "task": run.outer[1], "questions": QUESTIONS}  # fmt: skip


@pytest.mark.parametrize("style", RUNS)
def test_released_style_loads_and_answers_for_every_set(hub, work, style):
    _, _, rows = work
    spec = load_style(style)
    outer = hub.repo(spec.outer_repo)
    for task, row in rows[style]["released"].items():
        suffix = f"({task})" if style in TASK_SCOPED else ""
        for link in spec.links:
            labels = [spec.role(end).label for end in (link.source, link.target)]
            state = torch.load(outer / f"{labels[0]}-{labels[1]}-Outerlink{suffix}.pt", weights_only=True)
            assert row["outer"][link.key] == pytest.approx(state["proj1.weight"].sum().item())
        assert set(row["inner_files"].values()) == {f"adapter{suffix}.pt"}
        # The same folders without a hub between give the same answers.
        overrides = {role.name: hub.repo(role.repo) for role in spec.roles} | {"outer": outer}
        mas = load_mas_system(style, device="cpu", task=task, ckpt_override=overrides)
        answers = mas.answer(QUESTIONS, rounds=2, latent_steps=2, sampling=Sampling(max_new_tokens=4))
        assert row["tokens"] == [answer.rollouts[0].tokens for answer in answers]
        # A stage of m latent steps for every role and round, but for the last one, which writes.
        assert row["latent_steps"] == [2 * (2 * len(spec.roles) - 1)] * len(QUESTIONS)
        # Two repos with the same weights are one model in memory.
        assert row["models"] == len({role.model for role in spec.roles})


@pytest.mark.parametrize("style", RUNS)
def test_released_style_is_trained_one_step_and_loads_its_own_result(work, style):
    _, folder, rows = work
    spec, row = load_style(style), rows[style]
    for role in spec.roles:
        told = row["inner"][role.name]
        assert (told["steps"], told["role"], told["cut_rows"]) == (1, role.name, 0)
        state = torch.load(folder / style / role.name / "adapter.pt", weights_only=True)
        assert row["own"]["inner"][role.name] == pytest.approx(state["proj1.weight"].sum().item())
    for source, told in row["outer"].items():
        assert (told["steps"], told["style"], told["dropped"], told["too_long_rows"]) == (1, style, 0, 0)
        lines = (folder / style / source / "metrics.jsonl").read_text().splitlines()
        norms = json.loads(lines[-1])
        assert all(norms[f"grad_norm/{link.key}"] > 0 for link in spec.links), "every link learns in two rounds"
    for link in spec.links:
        state = torch.load(folder / style / "teacher" / f"{link.key}.pt", weights_only=True)
        assert row["own"]["outer"][link.key] == pytest.approx(state["proj1.weight"].sum().item())
    manifest = json.loads((folder / style / "teacher" / "outer_adapter_config.json").read_text())
    assert manifest["mas_shape"] == spec.mas_shape and manifest["mas_task"] == RUNS[style].outer[1]
    assert {f"{role.flag}_inner_aligner_path" for role in spec.roles} <= manifest.keys()
    assert len(row["own"]["tokens"]) == len(QUESTIONS)


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
