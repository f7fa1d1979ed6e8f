"""`python inference/run.py` as a user runs it, on a user's style with tiny random models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from inference.mas.errors import InputError
from inference.plan import make_job, memory_estimate
from inference.run import make_parser
from inference.tools.errors import DataError
from tests.integration.tiny_style import ROOT, command, environment, run, write_questions, write_style

COMPARE = ("--compare", "latent,text,single,zero,shuffle", "--num_recursive_rounds", "1,2", "--latent_length", "3")
SAMPLED = (*COMPARE, "--num_rollouts", "2", "--max_new_tokens", "16")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with the style `tiny.yaml` and ten questions, `questions.jsonl`."""
    folder = tmp_path_factory.mktemp("tiny")
    write_style(folder)
    write_questions(folder / "questions.jsonl")
    return folder


def base(tiny: Path) -> tuple[str, ...]:
    return ("--style", str(tiny / "tiny.yaml"), "--dataset", str(tiny / "questions.jsonl"), "--device", "cpu")


def records(folder: Path) -> list[dict]:
    """The records without their seconds."""
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().split("\n")[:-1]]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in found]


def last_line(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def unbroken(tiny) -> tuple[Path, dict, str]:
    """Folder, summary and standard output of one comparison that nothing disturbs."""
    done = run(*base(tiny), *SAMPLED, "--batch_size", 2, "--output_dir", tiny / "unbroken")
    return tiny / "unbroken", last_line(done), done.stdout


def test_summary_and_table(unbroken):
    folder, summary, shown = unbroken
    assert {
        "style": "tiny",
        "dataset": "questions",
        "num_samples": 10,
        "output_dir": str(folder),
    }.items() <= summary.items()
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert list(summary["methods"]) == ["single"], "single depends on no rounds, so it stands once, above them"
    assert list(summary["rounds"]) == ["1", "2"]
    assert list(summary["rounds"]["2"]["methods"]) == ["latent", "text", "zero", "shuffle"]
    for entry in [summary["methods"]["single"], *summary["rounds"]["1"]["methods"].values()]:
        assert 0 <= entry["interval"][0] <= entry["accuracy"] <= entry["interval"][1] <= 1
        assert sum(entry["statuses"].values()) == entry["num_answers"] == 20
        assert entry["prompt_tokens"] > 0 and entry["generated_tokens"] > 0 and entry["seconds"] > 0
    assert summary["rounds"]["1"]["methods"]["latent"]["latent_steps"] == 10 * 2 * 3
    assert summary["rounds"]["2"]["methods"]["latent"]["latent_steps"] == 10 * 5 * 3
    assert (
        summary["methods"]["single"]["latent_steps"] == summary["rounds"]["1"]["methods"]["text"]["latent_steps"] == 0
    )
    assert summary["settings"]["num_recursive_rounds"] == [1, 2] and summary["setting_sources"]["seed"] == "default"
    rows = [line.split()[0] for line in shown.split("no answer\n")[1].splitlines()[1:10]]
    assert rows == ["latent", "latent", "text", "text", "single", "zero", "zero", "shuffle", "shuffle"]
    assert "latent_length" in shown and "(flag)" in shown and "(default)" in shown


def test_records_carry_what_was_done(unbroken):
    folder, _, _ = unbroken
    found = records(folder)
    assert len(found) == 9 * 10
    record = next(r for r in found if r["method"] == "latent" and r["control"] is None and r["rounds"] == 2)
    assert record["style"] == "tiny" and record["latent_length"] == 3 and record["latent_steps"] == 15
    assert [rollout["rollout_idx"] for rollout in record["rollouts"]] == [0, 1]
    assert record["rollouts"][0]["sample_seed"] != record["rollouts"][1]["sample_seed"]
    assert all(
        rollout["raw_output"] is not None and rollout["finish"] in {"eos", "length"} for rollout in record["rollouts"]
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["fingerprint"]) == {"style", "settings", "data", "weights"}
    assert "batch_size" not in manifest["fingerprint"]["settings"] and manifest["machine"]["batch_size"] == 2
    assert {"planner.model", "planner.inner", "outer_31"} <= set(manifest["fingerprint"]["weights"])
    assert manifest["versions"]["torch"] == torch.__version__


def test_killed_at_any_moment_the_run_ends_as_if_unbroken(tiny, unbroken):
    """kill -9 before anything is written, early and late, and a line cut in the middle."""
    folder = tiny / "broken"
    path = folder / "records.jsonl"
    arguments = command(*base(tiny), *SAMPLED, "--batch_size", 2, "--output_dir", folder)

    def lines() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    for wanted in (0, 5, 50):
        with subprocess.Popen(
            arguments, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            start = time.monotonic()
            while lines() < wanted or (wanted == 0 and time.monotonic() < start + 1.5):
                assert process.poll() is None and time.monotonic() < start + 240
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert wanted <= lines() < 90
        if wanted == 5:
            path.write_bytes(path.read_bytes()[:-20])
    done = run(*base(tiny), *SAMPLED, "--batch_size", 2, "--output_dir", folder)
    assert "resumed" in done.stdout
    assert records(folder) == records(unbroken[0])

    def without_time(summary: dict) -> dict:
        told = json.loads(json.dumps(summary), object_hook=lambda d: {k: v for k, v in d.items() if "seconds" not in k})
        return {key: value for key, value in told.items() if key != "output_dir"}

    assert without_time(last_line(done)) == without_time(unbroken[1])


def test_batch_size_changes_no_answer_and_a_whole_run_is_only_shown(tiny, unbroken):
    def key(record: dict) -> str:
        return json.dumps([record[name] for name in ("method", "control", "rounds", "latent_length", "sample_idx")])

    last_line(run(*base(tiny), *SAMPLED, "--batch_size", 7, "--output_dir", tiny / "sevens"))
    assert sorted(records(tiny / "sevens"), key=key) == sorted(records(unbroken[0]), key=key)
    # Another batch size may also go on with a run; here nothing is left, so no weights are needed.
    again = run(*base(tiny), *SAMPLED, "--batch_size", 5, "--output_dir", tiny / "sevens")
    assert last_line(again)["rounds"] and "Loading weights" not in again.stderr
    assert "90 records are there, 0 are missing" in again.stdout


def job_of(*arguments: object, dry_run: bool = False):
    """The plan that a command line makes, in this process."""
    return make_job(vars(make_parser().parse_args([str(argument) for argument in arguments])), dry_run=dry_run)


def told_by(*arguments: object) -> str:
    """The sentence that refuses a command line."""
    with pytest.raises((InputError, DataError)) as err:
        job_of(*arguments)
    return str(err.value)


def test_flags_that_make_no_sense(tiny):
    for arguments, sentence in [
        (("--latent_length", "-1"), "--latent_length: '-1': expected a whole number of at least 0"),
        (
            ("--latent_length", "16,x"),
            "--latent_length: '16,x': expected a whole number of at least 0, or a comma list",
        ),
        (("--num_recursive_rounds", "0"), "--num_recursive_rounds: '0': expected a whole number of at least 1"),
        (("--num_recursive_rounds", "1,1"), "a comma list of different ones"),
        (("--num_rollouts", "0"), "--num_rollouts: '0': expected a whole number of at least 1"),
        (("--batch_size", "0"), "--batch_size: '0'"),
        (("--temperature", "nan"), "--temperature: 'nan': expected a number"),
        (("--temperature", "-0.5"), "--temperature -0.5: expected 0 or more"),
        (("--top_p", "0"), "--top_p 0.0: expected above 0"),
        (("--do_sample", "yes"), "--do_sample: 'yes': expected 0 or 1"),
        (("--method", "telepathy"), "--method: invalid choice: 'telepathy'"),
        (
            ("--compare", "latent,telepathy"),
            "--compare: unknown method 'telepathy'; expected some of latent, text, single, none",
        ),
        (("--compare", "latent,latent"), "a method stands twice"),
        (("--compare", "latent,text", "--method", "text"), "leave out --method and --latent_control"),
        (("--method", "text", "--latent_control", "zero"), "replaces latent messages, but --method is text"),
        (("--num_rollout", "2"), "unrecognized arguments: --num_rollout 2"),
        (("--device", "abacus"), "--device abacus: unknown device"),
        (("--dtype", "int3"), "--dtype int3: unknown dtype"),
        (("--ckpt_override", "planner"), "--ckpt_override planner: expected KEY=PATH"),
        (("--ckpt_override", "wizard=x"), "unknown key; style tiny has planner, critic, solver, outer"),
        (("--ckpt_override", f"planner={tiny / 'nowhere'}"), "nowhere"),
        (("--ckpt_override", f"planner={tiny / 'outer'}"), "no inner link"),
        (("--revision", "planner="), "expected one revision for all, or KEY=REVISION"),
        (("--prompts", tiny / "none.yaml"), "none.yaml"),
    ]:
        assert sentence in told_by(*base(tiny), *arguments), arguments
    questions = tiny / "questions.jsonl"
    assert "--style telepathic: unknown style" in told_by("--style", "telepathic", "--dataset", questions)
    assert "--dataset mathh: unknown dataset" in told_by("--style", tiny / "tiny.yaml", "--dataset", "mathh")


@pytest.mark.parametrize("ask", ["cuda", "cuda:99"])
def test_cuda_asked_where_there_is_none(tiny, ask):
    if torch.cuda.device_count() < 99:
        arguments = (
            (*base(tiny)[:-1], ask) if not torch.cuda.is_available() or ask != "cuda" else (*base(tiny)[:-1], "cuda:99")
        )
        assert f"--device {arguments[-1]}: this machine has" in told_by(*arguments)


def test_plan_without_loading(tiny):
    job = job_of(*base(tiny), "--latent_length", 5, "--num_samples", 4, dry_run=True)
    assert [condition.title() for condition in job.conditions] == ["latent R=3 m=5"]
    assert (job.settings["latent_length"].source, job.settings["seed"].source) == ("flag", "default")
    assert [sample.id for sample in job.benchmark.samples] == ["q0", "q1", "q2", "q3"]
    memory = memory_estimate(job)
    assert memory["device_total"] == sum(memory["models"].values()) + memory["links"]
    # The files' own sizes, less their headers, as the models are saved in float32.
    sizes = [(tiny / role / "model.safetensors").stat().st_size for role in ("planner", "critic", "solver")]
    assert 0.9 * sum(sizes) < sum(memory["models"].values()) < sum(sizes)
    halves = memory_estimate(job_of(*base(tiny), "--dtype", "bfloat16", "--offload"))
    assert 2 * halves["device_total"] - 2 * halves["links"] == max(memory["models"].values())


def test_dry_run_tells_what_it_cannot_reach():
    """The released style, with no hub: settings are shown all the same."""
    env = {**environment(), "HF_HOME": os.devnull + "/none", "HF_HUB_OFFLINE": "1"}
    arguments = command("--style", "sequential_scaled", "--dataset", "math500", "--dry_run", "--device", "cpu")
    done = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    report = last_line(done)
    assert report["settings"]["latent_length"] == 64 and report["setting_sources"]["latent_length"] == "recommended"
    assert "MATH-500" in report["missing"][0] and "Sequential-Scaled" in report["missing"][1]


def test_what_decides_answers_is_the_fingerprint(tiny):
    first = job_of(*base(tiny))
    same = job_of(*base(tiny), "--batch_size", 3)
    assert first.default_folder() == same.default_folder()
    for arguments in [
        ("--seed", 1),
        ("--latent_length", 4),
        ("--num_samples", 3),
        ("--shuffle_seed", 1),
        ("--method", "text"),
    ]:
        assert job_of(*base(tiny), *arguments).default_folder() != first.default_folder(), arguments
    prompts = tiny / "prompts.yaml"
    prompts.write_text('single: {math: "{question} now"}\n')
    assert job_of(*base(tiny), "--prompts", prompts).fingerprint()["style"] != first.fingerprint()["style"]


def test_refusals_end_with_one_sentence_and_write_nothing(tiny, unbroken):
    """Exit code 2, no traceback, nothing on disk: one flag, one data file, one set of weights, one foreign folder."""
    broken = tiny / "broken.jsonl"
    broken.write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": \n')
    state = torch.load(tiny / "outer" / "outer_23.pt", weights_only=True)
    for link in (tiny / "outer").iterdir():
        target = tiny / "nan" / link.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(link.read_bytes())
    state["proj1.bias"][0] = float("nan")
    torch.save(state, tiny / "nan" / "outer_23.pt")
    before = {path: path.stat().st_mtime_ns for path in unbroken[0].iterdir()}
    new = tiny / "new"
    for arguments, sentence in [
        ((*base(tiny), "--latent_length", "-1", "--output_dir", new), "--latent_length: '-1'"),
        ((*base(tiny), "--num_samples", 1, "--output_dir", tiny / "tiny.yaml" / "x"), "x: cannot be made"),
        (("--style", tiny / "tiny.yaml", "--dataset", broken, "--output_dir", new), f"{broken}, line 2: broken JSON"),
        ((*base(tiny), "--ckpt_override", f"outer={tiny / 'nan'}", "--output_dir", new), "outer_23.pt"),
        ((*base(tiny), *SAMPLED, "--seed", 43, "--output_dir", unbroken[0]), "settings.seed is 42 there and 43 here"),
    ]:
        done = run(*arguments)
        assert done.returncode == 2, done.stderr[-2000:]
        assert "Traceback" not in done.stderr and done.stderr.strip().splitlines()[-1].startswith("error: ")
        assert sentence in done.stderr
        assert not new.exists()
    assert {path: path.stat().st_mtime_ns for path in unbroken[0].iterdir()} == before


def test_result_jsonl_names_the_records(tiny):
    out, named = tiny / "named", tiny / "elsewhere" / "rows.jsonl"
    arguments = (*base(tiny), "--method", "single", "--num_samples", 2, "--max_new_tokens", 4, "--output_dir", out)
    assert list(last_line(run(*arguments, "--result_jsonl", named))["methods"]) == ["single"]
    assert len(named.read_text().splitlines()) == 2 and not (out / "records.jsonl").exists()


def test_list_needs_no_models():
    done = run("--list")
    told = last_line(done)
    assert {"sequential_light", "sequential_scaled"} <= set(told["styles"]) and {"pocket", "math500"} <= set(
        told["datasets"]
    )
