"""The loop: accumulation, schedule, order, metrics, checkpoints, resume, and runs that find nothing finite."""

from __future__ import annotations

import json

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from inference.mas.errors import InputError
from inference.mas.styles import load_style
from tests.mas.systems import make_agent
from tests.train.systems import EXAMPLES, outer_task, trainable_system
from train.data.pieces import role_tokens, upstream_texts
from train.inner.objective import InnerSettings, InnerTask
from train.loop import DataOrder, Loop, LoopSettings, Outcome, check_save_dir, learning_rate, newest_checkpoint

STYLE = load_style("sequential_light")


def settings(save_dir=None, **changes) -> LoopSettings:
    values = {
        "save_dir": save_dir, "settings": {"lr": 0.01}, "free": frozenset({"log_every"}), "max_steps": 4, "num_train_epochs": 1,
        "step_rows": 4, "micro_rows": 4, "lr": 0.01, "schedule": "cosine", "warmup_steps": 1, "weight_decay": 0.0,
        "decay_all": False, "max_grad_norm": 1.0, "log_every": 1, "save_steps": 0, "eval_every": 0, "seed": 1, "shuffle": True,
        "resume": False,
    }  # fmt: skip
    return LoopSettings(**{**values, **changes})


def run(task, **changes):
    return Loop(task, settings(**changes), Accelerator(cpu=True)).run()


def inner_task():
    agent = make_agent(STYLE, "critic", "llama", width=48)
    agent.model.double()
    agent.inner_link.double()
    items = [
        role_tokens(STYLE, "critic", agent.tokenizer, e, texts=upstream_texts(STYLE, "critic", e)) for e in EXAMPLES
    ]
    return InnerTask(agent, items.__getitem__, range(4), [], InnerSettings(1.0, 0.1, 2), lambda folder: None)


def weights(task):
    return {
        f"{key}.{name}": p.detach().clone() for key, link in task.links.items() for name, p in link.named_parameters()
    }


@pytest.mark.parametrize("kind", ["inner", "outer"])
@pytest.mark.parametrize("micro", [1, 3])
def test_accumulation_equals_the_large_batch(kind, micro):
    """Rows have different numbers of target tokens, so a mean of means would differ."""

    def fresh():
        torch.manual_seed(0)
        return inner_task() if kind == "inner" else outer_task(trainable_system(), latent_source="rollout")

    whole, parts = fresh(), fresh()
    one, many = run(whole), run(parts, micro_rows=micro)
    assert one["final_loss"] == pytest.approx(many["final_loss"], rel=1e-6)
    for name, value in weights(whole).items():
        assert torch.allclose(value, weights(parts)[name], atol=1e-6), name


def test_learning_rate():
    rates = [learning_rate(step, 12, 1.0, "cosine", 2) for step in range(12)]
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[7] == pytest.approx(0.5) and 0 < rates[11] < 0.03
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert {learning_rate(step, 12, 1.0, "constant", 0) for step in range(12)} == {1.0}


def test_order_is_a_function_of_seed_and_step():
    order = DataOrder(range(10), 3, seed=5, shuffle=True)
    steps = [order.step(step) for step in range(9)]
    assert all(len({row for step in steps[i : i + 3] for row in step}) == 9 for i in (0, 3, 6)), (
        "no row twice in an epoch"
    )
    assert steps[0:3] != steps[3:6]
    assert DataOrder(range(10), 3, seed=5, shuffle=True).step(7) == steps[7]
    assert DataOrder(range(10), 3, seed=6, shuffle=True).step(7) != steps[7]
    assert [DataOrder(range(6), 2, seed=5, shuffle=False).step(step) for step in range(4)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [0, 1],
    ]
    with pytest.raises(InputError, match="takes 11 rows, but there are only 10"):
        DataOrder(range(10), 11, seed=5, shuffle=True)


class Stopped(Exception):
    """The power cut of a test."""


class Toy:
    """A task with a row-dependent quadratic loss; may stop at a step, or have bad rows."""

    def __init__(self, stop_at=None, bad=()):
        torch.manual_seed(3)
        self.links = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 1)}
        self.train_rows = range(12)
        self.calls, self.stop_at, self.bad, self.seen = 0, stop_at, set(bad), []

    def outcome(self, rows, probe=False):
        self.calls += 1
        if self.calls == self.stop_at:
            raise Stopped
        self.seen.append(list(rows))
        good = [row for row in rows if row not in self.bad]
        if not good:
            return Outcome(None, 0.0, 0, len(rows))
        x = torch.tensor([[row, row**2 / 10, 1.0] for row in good])
        # A draw of the global generator, which a resumed run must continue.
        loss = (self.links["b"](torch.relu(self.links["a"](x))) - torch.rand(len(good), 1)).square().sum()
        return Outcome(loss, len(good), 5 * len(good), len(rows) - len(good), {"part": (loss.detach() / 2, len(good))})

    def probed(self, weight):
        return {}

    def evaluate(self):
        return {"heldout_loss": float(self.links["b"].weight.sum())}

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for key, link in self.links.items():
            torch.save(link.state_dict(), folder / f"{key}.pt")


HOW = {"max_steps": 10, "save_steps": 3, "log_every": 2, "eval_every": 4, "step_rows": 4, "micro_rows": 2}


def lines(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in found]


@pytest.mark.parametrize("stop_at", [2, 7, 8, 15, 20])
def test_resumed_run_equals_unbroken_run(tmp_path, stop_at):
    whole, broken, resumed = Toy(), Toy(stop_at), Toy()
    torch.manual_seed(0)
    expected = run(whole, save_dir=tmp_path / "whole", **HOW)
    torch.manual_seed(0)
    with pytest.raises(Stopped):
        run(broken, save_dir=tmp_path / "broken", **HOW)
    # What a crash in the middle of a checkpoint leaves behind.
    (tmp_path / "broken" / "checkpoint-9999").mkdir()
    # The trainers seed every start alike; a resumed run then takes the generator's state from the checkpoint.
    torch.manual_seed(0)
    found = run(resumed, save_dir=tmp_path / "broken", resume=True, **HOW)
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
    assert sorted(p.name for p in (tmp_path / "broken").glob("checkpoint-*")) == [
        "checkpoint-3",
        "checkpoint-6",
        "checkpoint-9",
    ]


def test_resume_with_other_settings_names_them(tmp_path):
    run(Toy(), save_dir=tmp_path, **HOW)
    with pytest.raises(InputError, match=r"other settings \(lr was 0.01, is 0.02\)"):
        run(Toy(), save_dir=tmp_path, resume=True, settings={"lr": 0.02}, **HOW)
    run(Toy(), save_dir=tmp_path, resume=True, settings={"lr": 0.01, "log_every": 7}, **HOW)


def test_cut_state_file_is_told(tmp_path):
    run(Toy(), save_dir=tmp_path, **HOW)
    state = newest_checkpoint(tmp_path) / "training_state.pt"
    state.write_bytes(state.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"checkpoint-9/training_state.pt: cannot be read"):
        run(Toy(), save_dir=tmp_path, resume=True, **HOW)


def test_folder_of_another_run_is_refused(tmp_path):
    check_save_dir(tmp_path, resume=False)
    run(Toy(), save_dir=tmp_path, **HOW)
    check_save_dir(tmp_path, resume=True)
    with pytest.raises(InputError, match="holds another run"):
        check_save_dir(tmp_path, resume=False)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        check_save_dir(tmp_path / "file", resume=False)


def test_bad_rows_are_counted_and_divide_nothing():
    """A step with half of its rows bad moves as a step of the good half."""
    summary = run(Toy(bad=range(0, 12, 2)), **{**HOW, "save_steps": 0})
    assert 0 < summary["skipped"] < 40 and summary["bad_steps"] == 0
    some, good = Toy(bad=[1]), Toy()
    some.train_rows, good.train_rows = [0, 1, 2], [0, 2]
    torch.manual_seed(0)
    run(some, max_steps=1, step_rows=3, micro_rows=3, shuffle=False)
    torch.manual_seed(0)
    run(good, max_steps=1, step_rows=2, micro_rows=2, shuffle=False)
    # Fresh tasks seed the generator alike, so the draws of both runs are the same.
    assert all(torch.equal(value, weights(good)[name]) for name, value in weights(some).items())


@pytest.mark.parametrize("steps", [5, 100])
def test_run_of_only_bad_rows_stops(steps):
    task = Toy(bad=range(12))
    with pytest.raises(InputError, match="no finite loss or gradient"):
        run(task, max_steps=steps)
    assert task.calls == min(steps, 20)


def test_weight_decay_spares_biases_unless_told(tmp_path):
    loop = Loop(Toy(), settings(weight_decay=0.1), Accelerator(cpu=True))
    assert [(len(g["params"]), g["weight_decay"]) for g in loop.optimizer.param_groups] == [(2, 0.1), (2, 0.0)]
    loop = Loop(Toy(), settings(weight_decay=0.1, decay_all=True), Accelerator(cpu=True))
    assert [(len(g["params"]), g["weight_decay"]) for g in loop.optimizer.param_groups] == [(4, 0.1)]


def test_epochs_count_where_steps_do_not():
    assert Loop(Toy(), settings(max_steps=0, num_train_epochs=2.5), Accelerator(cpu=True)).steps == 8
    assert Loop(Toy(), settings(max_steps=7, num_train_epochs=2.5), Accelerator(cpu=True)).steps == 7


def test_clipping_bounds_the_step():
    loop = Loop(Toy(), settings(max_grad_norm=0.01, max_steps=1), Accelerator(cpu=True))
    seen = {}
    loop.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.update(
            norm=sum(p.grad.square().sum() for g in optimizer.param_groups for p in g["params"]).sqrt()
        )
    )
    loop.run()
    assert seen["norm"].item() == pytest.approx(0.01, rel=1e-3) and loop.grad_norm > 0.01


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--save_dir .*cannot be made"):
        run(Toy(), save_dir=tmp_path / "file" / "links", **HOW)
