"""`train_inner.py` and `train_outer.py` as a user runs them, on a user's style with tiny random models."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from inference.mas.checkpoints import write_inner_dir, write_outer_dir
from inference.mas.decoding import Sampling
from inference.mas.errors import InputError
from inference.mas.links import InnerLink, OuterLink
from inference.mas.prompts import Question
from inference.mas.styles import load_style
from system_loader import load_mas_system
from tests.integration.tiny_style import ROOT, STYLE, environment, run, write_style
from tests.tiny_models import make_lm
from train import train_inner, train_outer

TARGETS = {"planner": "plan", "critic": "refined_plan", "solver": "answer"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with the style `tiny.yaml`, whose roles name training columns, and sixteen rows, `rows.json`."""
    folder = tmp_path_factory.mktemp("tiny")
    path = write_style(folder)
    text = STYLE
    for role, column in TARGETS.items():
        text = text.replace(f"model: ./{role}, ", f"model: ./{role}, mas_role: {role}_role, targets: [{column}], ")
    path.write_text(text)
    rows = [
        {
            "question": f"What is {i} + {i % 3}?" + " Please." * (i % 4),
            "plan": f"add {i} and {i % 3}",
            "refined_plan": f"add {i} and {i % 3}, then box the sum",
            "answer": f"{i} + {i % 3} = {i + i % 3}. \\boxed{{{i + i % 3}}}",
        }
        for i in range(16)
    ]
    (folder / "rows.json").write_text(json.dumps({"data": rows}))
    return folder


def inner_flags(tiny: Path, save_dir: Path, *more: object) -> list[str]:
    flags = [
        "--style",
        tiny / "tiny.yaml",
        "--mas_role",
        "critic",
        "--dataset_name",
        tiny / "rows.json",
        "--save_dir",
        save_dir,
    ]
    return [*map(str, flags), "--device", "cpu", "--batch_size", "4", *map(str, more)]


def outer_flags(tiny: Path, save_dir: Path, *more: object) -> list[str]:
    flags = [
        "--style",
        tiny / "tiny.yaml",
        "--dataset_name",
        tiny / "rows.json",
        "--save_dir",
        save_dir,
        "--batch_size",
        4,
    ]
    return [*map(str, flags), "--device", "cpu", "--num_recursive_rounds", "2", "--latent_steps", "3", *map(str, more)]


FLAGS = {"inner": inner_flags, "outer": outer_flags}
MAIN = {"inner": train_inner.main, "outer": train_outer.main}
ROLLOUT = ("--latent_source", "rollout", "--role_loss_weight", "0.5", "--outer_init", "vocab")


def command(kind: str, flags: list[str]) -> list[str]:
    return [sys.executable, f"train/train_{kind}.py", *flags]


def train(kind: str, flags: list[str]) -> subprocess.CompletedProcess:
    done = subprocess.run(
        command(kind, flags), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def summary(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def links(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of all link files."""
    return {
        f"{p.stem}.{k}": v for p in sorted(folder.glob("*.pt")) for k, v in torch.load(p, weights_only=True).items()
    }


def messages(mas, rounds: int = 2) -> dict[tuple[str, int], list[torch.Tensor]]:
    """Every message of a run on two questions."""
    sent = {}
    questions = [Question("What is 3 + 4?", id="a"), Question("one more than 9?", id="b")]
    for key, link in mas.outer_links.items():
        link.register_forward_hook(lambda module, args, output, key=key: sent.setdefault(key, []).append(output))
    mas.answer(questions, rounds=rounds, latent_steps=3)
    return sent


def test_trained_directories_load_by_override_and_give_the_same_messages(tiny, tmp_path):
    inner_dir, outer_dir = tmp_path / "critic", tmp_path / "outer"
    told = summary(
        train("inner", inner_flags(tiny, inner_dir, "--max_steps", 6, "--eval_fraction", 0.25, "--log_every", 2))
    )
    assert (told["steps"], told["rows"], told["heldout_rows"], told["role"]) == (6, 12, 4, "critic")
    assert sorted(p.name for p in inner_dir.iterdir()) == [
        "adapter.pt",
        "adapter_config.json",
        "metrics.jsonl",
        "train_args.json",
    ]
    assert json.loads((inner_dir / "adapter_config.json").read_text())["adapter_type"] == "ln_res_adapter"

    more = (
        *ROLLOUT,
        "--max_steps",
        6,
        "--log_every",
        3,
        "--save_steps",
        3,
        "--eval_fraction",
        0.25,
        "--eval_max_new_tokens",
        4,
    )
    told = summary(train("outer", outer_flags(tiny, outer_dir, *more, "--agent2_inner_aligner_path", inner_dir)))
    assert told["steps"] == 6 and 0 <= told["heldout_accuracy"] <= 1 and told["heldout_samples"] == 4
    files = {
        "outer_12.pt",
        "outer_23.pt",
        "outer_31.pt",
        "outer_adapter_config.json",
        "outerlink_config.json",
        "train_args.json",
    }
    assert files <= {p.name for p in outer_dir.iterdir()}
    assert files | {"training_state.pt"} == {p.name for p in (outer_dir / "checkpoint-3").iterdir()}
    assert json.loads((outer_dir / "outer_adapter_config.json").read_text())["num_recursive_rounds"] == 2

    override = {"critic": inner_dir, "outer": outer_dir}
    style = tiny / "tiny.yaml"
    loaded = load_mas_system(style=style, device="cpu", ckpt_override=override)
    by_hand = load_mas_system(style=style, device="cpu")
    by_hand.agents["critic"].inner_link.load_state_dict(torch.load(inner_dir / "adapter.pt", weights_only=True))
    for key, link in by_hand.outer_links.items():
        link.load_state_dict(torch.load(outer_dir / f"{key}.pt", weights_only=True))
    expected, found = messages(by_hand), messages(loaded)
    assert [len(found[key]) for key in ("outer_12", "outer_23", "outer_31")] == [2, 2, 1]
    assert all(torch.equal(a, b) for key in expected for a, b in zip(expected[key], found[key], strict=True))
    assert not torch.equal(messages(load_mas_system(style=style, device="cpu"))["outer_12"][0], found["outer_12"][0])

    (tmp_path / "q.jsonl").write_text(json.dumps({"id": "1", "question": "What is 3 + 4?", "answer": "7"}) + "\n")
    done = run(
        "--style", style, "--dataset", tmp_path / "q.jsonl", "--device", "cpu", "--output_dir", tmp_path / "run", "--max_new_tokens", 4,
        "--ckpt_override", f"critic={inner_dir}", "--ckpt_override", f"outer={outer_dir}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

    lines = [json.loads(line) for line in (outer_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-1]
    wanted = {
        "loss",
        "lr",
        "tokens_per_second",
        "grad_norm",
        "loss/critic/round_1",
        "loss/solver/round_2",
        "message_norm/outer_31",
    }
    assert wanted | {"grad_norm/outer_12", "grad_norm/outer_12/round_2"} <= first.keys()
    assert {"heldout_loss", "heldout_accuracy", "heldout_loss/solver/round_1"} <= last.keys()


@pytest.fixture
def one_thread():
    """Sums in one order, as in the processes that the tests start."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("inner", ("--max_steps", 60, "--save_steps", 2)), ("outer", ("--max_steps", 10, "--save_steps", 2, *ROLLOUT))],
)
def test_killed_and_resumed_run_ends_with_the_same_weights(tiny, tmp_path, one_thread, capsys, kind, more):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    main = MAIN[kind]
    process = subprocess.Popen(
        command(kind, FLAGS[kind](tiny, broken, *more)),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 200
    while not (broken / "checkpoint-2" / "training_state.pt").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "train_args.json").exists(), "killed before the end"
    with pytest.raises(InputError, match="holds another run"):
        main(FLAGS[kind](tiny, broken, *more))
    main(FLAGS[kind](tiny, whole, *more))
    expected = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    main(FLAGS[kind](tiny, broken, *more, "--resume", 1))
    told = capsys.readouterr().out.strip().splitlines()
    assert any(line.startswith("[resume]") for line in told)
    found = json.loads(told[-1])
    a, b = links(whole), links(broken)
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert found["final_loss"] == expected["final_loss"] and found["tokens"] == expected["tokens"]
    for flag, value in (("seed", 7), ("batch_size", 2)):
        with pytest.raises(InputError, match=rf"--resume 1: .*\({flag} was"):
            main(FLAGS[kind](tiny, broken, *more, "--resume", 1, f"--{flag}", value))


def test_two_processes_train_as_one(tiny, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    flags = ("--max_steps", 3, *ROLLOUT)
    train_outer.main(outer_flags(tiny, one, *flags))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, "train/train_outer.py", *outer_flags(tiny, two, *flags)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 process(es)" in done.stdout and done.stdout.count("[train_outer]") == 1
    a, b = links(one), links(two)
    # Adam divides by the gradient's own size, so where a gradient is near 0 the order of its sum decides its sign.
    assert all(torch.allclose(a[key], b[key], atol=2e-3) for key in a)


def test_released_names_formats_and_base(tiny, tmp_path):
    flags = inner_flags(
        tiny,
        tmp_path / "a",
        "--max_steps",
        1,
        "--save_format",
        "safetensors",
        "--save_base",
        1,
        "--inner_init",
        "ridge",
    )
    train_inner.main(flags)
    assert {"adapter.safetensors", "model.safetensors", "config.json", "tokenizer.json"} <= {
        p.name for p in (tmp_path / "a").iterdir()
    }
    # The training name of a role is as good as its own; a full directory is a model to start from.
    train_inner.main(
        [
            *inner_flags(tiny, tmp_path / "b", "--max_steps", 1, "--load_dir", tmp_path / "a"),
            "--mas_role",
            "critic_role",
        ]
    )
    loaded = load_mas_system(style=tiny / "tiny.yaml", device="cpu", ckpt_override={"critic": tmp_path / "a"})
    assert loaded.agents["critic"].model.config.name_or_path == str(tmp_path / "a")


def test_plain_rows_without_a_role(tiny, tmp_path, capsys):
    (tmp_path / "qa.jsonl").write_text(
        '{"question": "1+1?", "answer": "two\\n#### 2"}\n{"question": "2+2?", "answer": "four"}\n'
    )
    common = ["--model_name_or_path", str(tiny / "planner"), "--device", "cpu", "--max_steps", "2"]
    train_inner.main([*common, "--dataset_name", str(tmp_path / "qa.jsonl"), "--save_dir", str(tmp_path / "qa")])
    (tmp_path / "text.jsonl").write_text('{"body": "some words"}\n{"body": "more words here"}\n')
    train_inner.main([*common, "--dataset_name", str(tmp_path / "text.jsonl"), "--text_field", "body"])
    assert '"save_dir": null' in capsys.readouterr().out
    assert (tmp_path / "qa" / "adapter.pt").exists()


def test_outer_links_go_on_from_a_directory(tiny, tmp_path):
    train_outer.main(outer_flags(tiny, tmp_path / "a", "--max_steps", 2, "--outer_23_type", "outer_res_adapter"))
    again = ["--max_steps", 1, "--outer_lr", 1e-9, "--load_dir", tmp_path / "a"]
    train_outer.main(outer_flags(tiny, tmp_path / "b", *again, "--outer_23_type", "outer_res_adapter"))
    a, b = links(tmp_path / "a"), links(tmp_path / "b")
    assert all(torch.allclose(a[key], b[key], atol=1e-6) for key in a)
    with pytest.raises(InputError, match="outer_23 is of type outer_res_adapter"):
        train_outer.main(outer_flags(tiny, tmp_path / "c", *again))


def test_question_and_answer_are_enough_for_rollouts(tiny, tmp_path, capsys):
    (tmp_path / "qa.jsonl").write_text(
        "".join(json.dumps({"question": f"{i}+1?", "answer": f"\\boxed{{{i + 1}}}"}) + "\n" for i in range(6))
    )
    flags = outer_flags(tiny, tmp_path / "a", "--max_steps", 1, "--latent_source", "rollout")
    train_outer.main([*flags, "--dataset_name", str(tmp_path / "qa.jsonl")])
    assert "columns   solver: answer\n" in capsys.readouterr().out
    with pytest.raises(InputError, match="no column for the text of role planner; expected plan"):
        train_outer.main([*outer_flags(tiny, tmp_path / "b"), "--dataset_name", str(tmp_path / "qa.jsonl")])
    assert not (tmp_path / "b").exists()


RING = """
system: be brief.
roles:
  north: {model: ./small, repo: ./north, targets: [n], first: {math: "{question} go"}, later: {math: "{question} <<BACK>> go"}}
  east:
    model: ./wide
    repo: ./east
    targets: [e]
    first: {math: "{question} {label}: <<NORTH>>", code: "{question} code <<NORTH>>"}
    later: {math: "{question} <<NORTH>> and <<LAST>>", code: "{question} code <<NORTH>> and <<LAST>>"}
  south: {model: ./small, repo: ./south, targets: [s], first: {math: "{question} <<EAST>>"}}
  west: {model: ./small, repo: ./west, targets: [answer], first: {math: "<<SOUTH>> {question} {hint}"}}
speaker: west
links:
  ne: {source: north, target: east, slot: NORTH}
  es: {source: east, target: south, slot: EAST}
  sw: {source: south, target: west, slot: SOUTH}
  wn: {source: west, target: north, slot: BACK}
  we: {source: west, target: east, slot: LAST}
outer_repo: ./outer
pieces: {hint: {when: {question: "3"}, math: "three"}}
single: {math: "{question}"}
"""


@pytest.fixture(scope="module")
def ring(tmp_path_factory) -> Path:
    """A user's style: four agents in a ring with two feedback links, three of them on one base model."""
    folder = tmp_path_factory.mktemp("ring")
    (folder / "ring.yaml").write_text(RING)
    style = load_style(folder / "ring.yaml")
    torch.manual_seed(0)
    widths = {"small": 32, "wide": 48}
    for family, (name, width) in zip(("qwen3", "llama"), widths.items(), strict=True):
        make_lm(family, folder / name, width=width)
    width = {role.name: widths[Path(role.model).name] for role in style.roles}
    for role in style.roles:
        write_inner_dir(folder / role.name, InnerLink(width[role.name]), role.model, {})
    links = {link.key: OuterLink(width[link.source], width[link.target]) for link in style.links}
    write_outer_dir(folder / "outer", links, style, "math", {})
    rows = [
        {
            "question": f"What is {i} + 1?",
            "n": f"take {i}",
            "e": "add one",
            "s": f"say {i + 1}",
            "answer": f"\\boxed{{{i + 1}}}",
        }
        for i in range(4)
    ]
    # One row has a family of its own, another lacks a text that only `east` needs.
    rows += [rows[0] | {"question": "Print 3.", "task_family": "code", "type": "complete"}, rows[1] | {"e": ""}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def ring_flags(ring: Path, *more: object) -> list[str]:
    flags = ["--style", ring / "ring.yaml", "--dataset_name", ring / "rows.jsonl", "--device", "cpu", "--max_steps", 1]
    return [*map(str, flags), "--batch_size", "2", *map(str, more)]


def test_a_users_ring_with_two_feedback_links(ring, tmp_path, capsys):
    style = ring / "ring.yaml"
    mas = load_mas_system(style=style, device="cpu", device_map={"EAST": "cpu"})
    models = {name: agent.model for name, agent in mas.agents.items()}
    assert models["north"] is models["south"] is models["west"] is not models["east"]
    sent = messages(mas)
    assert {key: len(found) for key, found in sent.items()} == {"ne": 2, "es": 2, "sw": 2, "wn": 1, "we": 1}
    # What the two feedback links carry is one rollout of the speaker's.
    with torch.no_grad():
        heard = []
        for key in ("wn", "we"):
            mas.outer_links[key].register_forward_pre_hook(lambda module, args: heard.append(args[0]))
        mas.answer(["What is 3 + 4?"], rounds=2, latent_steps=3, sampling=Sampling(max_new_tokens=1))
    assert torch.equal(heard[0], heard[1])

    override = {}
    for role in ("north", "east", "south", "west"):
        override[role] = tmp_path / role
        train_inner.main(ring_flags(ring, "--mas_role", role, "--save_dir", override[role]))
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        # A role reads its own text and those of the roles before it.
        assert (told["rows"], told["dropped"]) == ((6, 0) if role in ("north", "west") else (5, 1))
    inner = [part for i, role in enumerate(override, 1) for part in (f"--agent{i}_inner_aligner_path", override[role])]
    for init in ("ridge", "default"):
        outer = tmp_path / init
        more = ["--num_recursive_rounds", 2, "--latent_steps", 2, "--save_dir", outer, "--outer_init", init, *inner]
        source = "rollout" if init == "ridge" else "teacher"
        train_outer.main(ring_flags(ring, *more, "--latent_source", source, "--offload", 1, "--outer_lr", 1e-3))
        out = capsys.readouterr().out
        assert "west -> north" in out and ("thoughts over gold texts" in out) == (init == "ridge")
        told = json.loads(out.splitlines()[-1])
        assert (told["rows"], told["dropped"], told["cut_rows"], told["cut_tokens"]) == (5, 1, 0, 0)
        line = json.loads((outer / "metrics.jsonl").read_text().splitlines()[-1])
        assert all(line[f"grad_norm/{key}"] > 0 for key in ("ne", "es", "sw", "wn", "we"))
        loaded = load_mas_system(style=style, device="cpu", ckpt_override=override | {"outer": outer})
        assert not torch.equal(messages(loaded)["we"][0], sent["we"][0])


def test_outer_links_are_read_without_opening_anything_else(ring, tmp_path):
    """`--load_dir` with every model and inner link by flags, where the style's own folders are not there."""
    text = RING
    for role in ("north", "east", "south", "west"):
        text = text.replace(f"repo: ./{role}", "repo: ./nowhere")
    for name in ("small", "wide"):
        text = text.replace(f"model: ./{name}", "model: ./nowhere")
    (tmp_path / "ring.yaml").write_text(text)
    flags = []
    for i, role in enumerate(("north", "east", "south", "west"), 1):
        flags += [f"--agent{i}_model_name_or_path", ring / ("wide" if role == "east" else "small")]
        flags += [f"--agent{i}_inner_aligner_path", ring / role]
    more = ["--style", tmp_path / "ring.yaml", "--load_dir", ring / "outer", "--save_dir", tmp_path / "out"]
    train_outer.main(ring_flags(ring, *flags, *more, "--num_recursive_rounds", 1, "--outer_lr", 1e-9))
    a, b = links(ring / "outer"), links(tmp_path / "out")
    assert all(torch.allclose(a[key], b[key], atol=1e-6) for key in a)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RING.replace("ne:", "lr_scheduler:"), "--lr_scheduler_type is a flag of the trainer already"),
        (RING.replace("ne:", "forward:"), "links.forward: 'forward' is taken by torch; call the link outer_forward"),
        (RING.replace("targets: [n], ", ""), "role north names no training column"),
    ],
)
def test_mistakes_of_a_style_that_show_in_training(ring, tmp_path, text, message):
    for name in ("small", "wide"):
        text = text.replace(f"./{name}", str(ring / name))
    (tmp_path / "ring.yaml").write_text(text)
    with pytest.raises(InputError) as told:
        train_outer.main(ring_flags(ring, "--style", tmp_path / "ring.yaml", "--save_dir", tmp_path / "out"))
    assert message in str(told.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("inner", ["--mas_role", "judge"], "no role 'judge'"),
        ("inner", ["--mas_design", "hie"], "style tiny is of design"),
        ("inner", ["--dataset_name", "missing.json"], "no such file"),
        ("inner", ["--batch_size", "17"], "takes 17 rows, but there are only 16"),
        ("inner", ["--batch_size", "many"], "invalid int value"),
        ("inner", ["--batch_size", "0"], "--batch_size 0"),
        ("inner", ["--adapter_type", "outer_adapter"], "unknown type 'outer_adapter'"),
        ("inner", ["--adapter_type", "adapter", "--match_norm", "1"], "no output norm"),
        ("inner", ["--adapter_cos_weight", "0"], "not both 0"),
        ("inner", ["--text_field", "x"], "--text_field x"),
        ("inner", ["--eval_every", "5"], "nothing is held out"),
        ("inner", ["--max_steps", "0", "--num_train_epochs", "0"], "nothing to train"),
        ("inner", ["--load_dir", "missing"], "missing"),
        ("inner", ["--device", "cuda:99"], "--device cuda:99"),
        ("inner", ["--enable_thinking", "yes"], "expected 0 or 1"),
        ("outer", ["--num_recursive_rounds", "0"], "--num_recursive_rounds 0"),
        ("outer", ["--latent_steps", "0"], "--latent_steps 0"),
        ("outer", ["--latent_source", "dream"], "invalid choice"),
        ("outer", ["--agent1_inner_aligner_path", "missing_dir"], "missing_dir"),
        ("outer", ["--agent9_model_name_or_path", "x"], "unrecognized arguments: --agent9"),
        ("outer", ["--outer_12_type", "wide"], "--outer_12_type: unknown type 'wide'"),
        ("outer", ["--load_dir", "x", "--outer_init", "vocab"], "links start from one of them"),
        ("outer", ["--load_dir", "nowhere/at/all"], "--load_dir: no directory nowhere/at/all"),
        ("outer", ["--outer_init", "magic"], "invalid choice: 'magic'"),
        ("outer", ["--device_map", "solver"], "'solver' is not ROLE=DEVICE, such as solver=cuda:1"),
        ("outer", ["--device_map", "solver=cpu,solver=cpu"], "solver is given twice"),
        (
            "outer",
            ["--device_map", "judge=cpu"],
            "--device_map judge=cpu: style tiny has no such role; it has planner,",
        ),
        ("outer", ["--device_map", "solver=cuda:99"], "--device_map solver: cuda:99: this machine has"),
        ("outer", ["--device_map", "solver=cpu", "--offload", "1"], "--offload 1 with --device_map"),
        ("outer", ["--style", "unheard"], "unknown style"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(tiny, tmp_path, kind, more, message):
    with pytest.raises(InputError) as told:
        MAIN[kind]([*FLAGS[kind](tiny, tmp_path / "out"), *more])
    assert message in str(told.value)
    assert not (tmp_path / "out").exists()


def test_exit_code_of_bad_input(tiny, tmp_path):
    done = train("outer", outer_flags(tiny, tmp_path / "out", "--max_steps", 3, "--max_length", 5))
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: training stopped at step 3")
