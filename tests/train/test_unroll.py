"""The batched unroll against its definition, one sample at a time; what reaches which link; what is left out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from inference.mas.prompts import Question, Slot
from tests.train.systems import (
    EXAMPLES,
    EvictingSystem,
    gradients,
    naive_loss,
    outer_task,
    style_examples,
    style_system,
    trainable,
    trainable_system,
)
from train.data.pieces import Tokens, fit_left
from train.data.texts import Example
from train.outer.unroll import enable_checkpointing, token_losses

SOURCES = ("teacher", "rollout")
ROWS = range(len(EXAMPLES))


@pytest.fixture
def system():
    return trainable_system()


@pytest.mark.parametrize("latent_source", SOURCES)
@pytest.mark.parametrize(
    "losses", [{}, {"supervise_final_only": False, "role_loss_weight": 0.5}, {"rounds": 1, "role_loss_weight": 1.0}]
)
def test_batch_equals_one_by_one_with_full_logits(system, latent_source, losses):
    assert_batch_equals_one_by_one(outer_task(system, latent_source=latent_source, **losses))


STYLES = {
    "mixture": (("deepseek", "qwen2", "mistral", "qwen3"), (24, 32, 48, 32)),
    "distillation": (("qwen3", "llama"), (48, 32)),
    "deliberation": (("qwen3", "gemma3"), (32, 32)),
}


@pytest.mark.parametrize("latent_source", SOURCES)
@pytest.mark.parametrize("name", STYLES)
def test_every_style_is_trained_as_defined(name, latent_source):
    system = trainable(style_system(name, *STYLES[name]))
    examples = style_examples(system.style)
    how = {"latent_source": latent_source, "supervise_final_only": False, "role_loss_weight": 0.5}
    task = outer_task(system, examples, **how)
    ours = assert_batch_equals_one_by_one(task)
    assert {key.split(".")[0] for key, grad in ours.items() if grad.abs().max() > 0} == set(system.outer_links.keys())
    # Tools are offered in the stage that writes the answer, and nowhere else.
    speaker = system.agents[system.style.speaker]
    for (role, r), tokens in task.prepared(0).items():
        text = system.agents[role].tokenizer.decode([t for p in tokens.prompt if not isinstance(p, Slot) for t in p])
        assert ("<python>" in text) == (bool(speaker.role.tools) and (role, r) == (speaker.name, 2))


def assert_batch_equals_one_by_one(task):
    """Loss and gradients of all rows at once against the slow twin's; returns the gradients."""
    system, rows = task.system, range(len(task.examples))
    outcome = task.outcome(rows)
    outcome.total.backward()
    ours = gradients(system)
    naive = torch.stack([naive_loss(system, task, row) for row in rows]).sum()
    naive.backward()
    theirs = gradients(system)
    assert outcome.weight == len(rows)
    assert outcome.total.item() == pytest.approx(naive.item(), rel=1e-6)
    assert ours.keys() == theirs.keys() and ours
    for name, grad in ours.items():
        scale = theirs[name].abs().max().clamp(min=1e-3)
        assert (grad - theirs[name]).abs().max() / scale < 1e-4, name
    return ours


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("latent_source", SOURCES)
@pytest.mark.parametrize("checkpointing", [True, False])
def test_agents_may_leave_after_their_stage(latent_source, checkpointing, offload):
    """Without off-loading, the backward pass meets the weights of agents that left: the double shows what it should."""
    style, size = "mixture", STYLES["mixture"]
    how = {"latent_source": latent_source, "role_loss_weight": 0.5, "rounds": 2}
    found = []
    for kind in (EvictingSystem, None):
        system = trainable(style_system(style, *size, **({"kind": kind} if kind else {})))
        system.offload = offload and kind is not None
        if checkpointing:
            enable_checkpointing(system)
        outcome = outer_task(system, style_examples(system.style), gradient_checkpointing=checkpointing, **how).outcome(
            range(3)
        )
        outcome.total.backward()
        found.append((outcome, gradients(system)))
    (ours, ours_grads), (plain, plain_grads) = found
    assert ours.total.item() == pytest.approx(plain.total.item(), rel=1e-9) and ours.tokens == plain.tokens
    assert ours_grads.keys() == plain_grads.keys()
    same = [torch.allclose(grad, plain_grads[name], atol=1e-9) for name, grad in ours_grads.items()]
    assert all(same) if offload else not all(same)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_5", "llama", "mistral", "gemma3"])
def test_gradient_through_cached_rollout(family):
    system = trainable_system((family, family, family))
    task = outer_task(system, latent_source="rollout", rounds=2, latent_steps=4)
    task.outcome(ROWS).total.backward()
    ours = gradients(system)
    torch.stack([naive_loss(system, task, row) for row in ROWS]).sum().backward()
    theirs = gradients(system)
    # The recurrence of linear attention computes in float32 whatever the model's dtype.
    limit = 1e-3 if family == "qwen3_5" else 1e-4
    for name, grad in ours.items():
        scale = theirs[name].abs().max().clamp(min=1e-3)
        assert (grad - theirs[name]).abs().max() / scale < limit, name


@pytest.mark.parametrize("latent_source", SOURCES)
def test_every_link_learns_from_two_rounds(system, latent_source):
    task = outer_task(system, latent_source=latent_source, rounds=2)
    task.outcome(ROWS).total.backward()
    found = gradients(system)
    assert {name.split(".")[0] for name, grad in found.items() if grad.abs().max() > 0} == {
        "outer_12",
        "outer_23",
        "outer_31",
    }


@pytest.mark.parametrize("latent_source", SOURCES)
def test_local_gradients_are_those_of_the_receivers_own_text(system, latent_source):
    how = {"latent_source": latent_source, "rounds": 1, "role_loss_weight": 1.0}
    outer_task(system, local_gradients=True, **how).outcome(ROWS).total.backward()
    ours = gradients(system)
    for receiver, key in (("critic", "outer_12"), ("solver", "outer_23")):
        by_stage = outer_task(system, **how)._unroll(ROWS).run().by_stage
        by_stage[receiver, 1].sum().backward()
        alone = {name: grad for name, grad in gradients(system).items() if name.startswith(key)}
        assert alone
        for name, grad in alone.items():
            assert torch.allclose(ours[name], grad, atol=1e-9, rtol=1e-6), name
    # With full gradients the first link hears the last text too, so the flag does something.
    outer_task(system, **how).outcome(ROWS).total.backward()
    full = gradients(system)
    assert any(not torch.allclose(full[name], ours[name]) for name in ours if name.startswith("outer_12"))


def test_feedback_link_gets_nothing_in_one_round(system):
    outer_task(system, latent_source="rollout", rounds=1).outcome(ROWS).total.backward()
    assert {name.split(".")[0] for name in gradients(system)} == {"outer_12", "outer_23"}


def test_stages_without_a_trained_link_upstream_keep_no_graph(system):
    seen = {}

    def note(name):
        def hook(module, args, kwargs, output):
            seen.setdefault(name, []).append(output.last_hidden_state.requires_grad)

        return hook

    for name, agent in system.agents.items():
        agent.decoder.register_forward_hook(note(name), with_kwargs=True)
    outer_task(system, rounds=2).outcome(ROWS)
    assert seen == {"planner": [False, True], "critic": [True, True], "solver": [True, True]}


@pytest.mark.parametrize("rounds", [1, 2])
def test_rollouts_use_no_gold_text_of_others(system, rounds):
    others = [Example(e.question, {**e.texts, "planner": "nonsense", "critic": "of any kind"}) for e in EXAMPLES]
    own = outer_task(system, latent_source="rollout", rounds=rounds).outcome(ROWS).total
    assert torch.equal(own, outer_task(system, others, latent_source="rollout", rounds=rounds).outcome(ROWS).total)
    taught = outer_task(system, rounds=rounds).outcome(ROWS).total
    assert not torch.allclose(taught, outer_task(system, others, rounds=rounds).outcome(ROWS).total)


def test_teacher_states_are_those_at_the_first_gold_positions(system):
    task = outer_task(system, rounds=1, max_latent_tokens=2)
    sent = {}
    system.outer_links["outer_12"].register_forward_pre_hook(lambda module, args: sent.update(vectors=args[0]))
    task.outcome([1, 2])
    planner = system.agents["planner"]
    expected = []
    for row in (1, 2):
        piece = task.prepared(row)["planner", 1]
        ids = torch.tensor([[*piece.prompt[0], *piece.target]])
        hidden = planner.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        start = len(piece.prompt[0])
        expected.append(planner.inner_link(hidden[start : start + 2]))
    assert torch.allclose(sent["vectors"], torch.cat(expected), atol=1e-9)


@pytest.mark.parametrize("latent_source", SOURCES)
def test_checkpointing_changes_nothing(system, latent_source):
    how = {"latent_source": latent_source, "role_loss_weight": 0.5}
    plain = outer_task(system, **how).outcome(ROWS).total
    plain.backward()
    expected = gradients(system)
    enable_checkpointing(system)
    saved = outer_task(system, gradient_checkpointing=True, **how).outcome(ROWS).total
    saved.backward()
    assert saved.item() == pytest.approx(plain.item(), rel=1e-9)
    for name, grad in gradients(system).items():
        assert torch.allclose(grad, expected[name], atol=1e-9), name
    assert not any(module.training for agent in system.agents.values() for module in agent.model.modules())


@pytest.mark.parametrize("floats", [1, 700, 10**9])
def test_loss_in_blocks_equals_loss_at_once(floats):
    system = trainable_system()
    agent = system.agents["solver"]
    torch.manual_seed(0)
    hidden = torch.randn(3, 9, agent.width, dtype=torch.float64, requires_grad=True)
    targets = [[5], [7, 8, 9, 1], [2, 3]]
    expected = torch.stack(
        [
            F.cross_entropy(agent.logits(hidden[i, 8 - len(t) : 8]).float(), torch.tensor(t))
            for i, t in enumerate(targets)
        ]
    )
    found = token_losses(agent, hidden, targets, logit_floats=floats)
    assert torch.allclose(found, expected)
    (ours,) = torch.autograd.grad(found.sum(), hidden, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected.sum(), hidden)
    assert torch.allclose(ours, theirs)


def test_row_that_is_not_finite_is_left_out_and_counted(system):
    # A token that only the third question has stands for a broken row.
    agent = system.agents["critic"]
    broken = [*EXAMPLES[:2], Example(Question("What is 5 ~ 66?", id="x"), EXAMPLES[2].texts), EXAMPLES[3]]
    (token,) = agent.tokenizer("~", add_special_tokens=False)["input_ids"]
    agent.embedding.weight.data[token] = torch.nan
    outcome = outer_task(system, broken, latent_source="rollout").outcome(ROWS)
    outcome.total.backward()
    found = gradients(system)
    good = outer_task(system, broken, latent_source="rollout").outcome([0, 1, 3])
    good.total.backward()
    assert (outcome.skipped, outcome.weight) == (1, 3)
    assert outcome.total.item() == pytest.approx(good.total.item(), rel=1e-9)
    for name, grad in gradients(system).items():
        assert torch.allclose(found[name], grad, atol=1e-9), name


def test_gradient_norms_by_round_add_up_to_the_links(system):
    task = outer_task(system, rounds=2, latent_source="rollout")
    outcome = task.outcome(ROWS, probe=True)
    outcome.total.backward()
    norms = task.probed(outcome.weight)
    assert set(norms) == {
        f"grad_norm/{key}/round_{r}"
        for key, r in [("outer_12", 1), ("outer_12", 2), ("outer_23", 1), ("outer_23", 2), ("outer_31", 1)]
    }
    found = gradients(system)
    # The feedback link is used once, so its one round has all of its gradient.
    whole = sum(g.square().sum() for name, g in found.items() if name.startswith("outer_31")) ** 0.5 / outcome.weight
    assert norms["grad_norm/outer_31/round_1"] == pytest.approx(whole.item(), rel=1e-5)
    assert task.probed(1.0) == {}


def test_rounds_with_a_text_of_their_own(system):
    own = [Example(e.question, e.texts, {("solver", 1): "not yet"}) for e in EXAMPLES]
    how = {"rounds": 2, "supervise_final_only": False}
    plain, changed = outer_task(system, **how).outcome(ROWS), outer_task(system, own, **how).outcome(ROWS)
    assert plain.sums["loss/solver/round_1"] != changed.sums["loss/solver/round_1"]
    assert [len(outer_task(system, own).prepared(0)["solver", r].target) for r in (1, 2)] == [
        len(system.agents["solver"].tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in ("not yet<|im_end|>\n", EXAMPLES[0].texts["solver"] + "<|im_end|>\n")
    ]


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (12, [[1, 2, 3], Slot("A"), [4, 5]]),
        (11, [[2, 3], Slot("A"), [4, 5]]),
        (8, [Slot("A"), [5]]),
        (7, None),
        (2, None),
    ],
)
def test_cutting_spares_messages_and_targets(max_length, expected):
    tokens = Tokens([[1, 2, 3], Slot("A"), [4, 5]], [8, 9, 9])
    found = fit_left(tokens, {"A": 4}, max_length)
    assert (found and found.prompt) == expected
    if found:
        assert found.target == [8, 9, 9] and found.cut == 12 - max_length


def test_cut_and_unfit_rows_are_counted(system):
    plain = outer_task(system, latent_source="rollout")
    lengths = [max(t.text_length + len(t.target) + 3 for t in plain.prepared(row).values()) for row in ROWS]
    task = outer_task(system, latent_source="rollout", max_length=min(lengths))
    task.outcome(ROWS)
    assert len(task.cut_tokens) == sum(length > min(lengths) for length in lengths) > 0
    tight = outer_task(system, latent_source="rollout", max_length=4)
    outcome = tight.outcome(ROWS)
    assert outcome.total is None and outcome.skipped == len(EXAMPLES) and len(tight.unfit_rows) == len(EXAMPLES)
