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

from inference.mas.errors import InputError
from inference.mas.prompts import Question
from system_loader import load_mas_system
from tests.integration.tiny_style import ROOT, STYLE, environment, run, write_style
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
