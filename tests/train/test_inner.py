"""The inner objective: which positions count, what they are regressed to, and how long rows are cut."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from inference.mas.links import InnerLink
from inference.mas.styles import load_style
from tests.mas.systems import make_agent
from tests.train.systems import EXAMPLES
from train.data.pieces import Tokens, fit_right, role_tokens, upstream_texts
from train.inner.objective import InnerSettings, InnerTask, match_norm
from train.inner.plain import PlainRows

STYLE = load_style("sequential_light")


def inner_task(agent, items, cos=1.0, mse=0.0, rows=None):
    settings = InnerSettings(cos, mse, 2)
    return InnerTask(agent, items.__getitem__, rows or range(len(items)), [], settings, lambda folder: None)


@pytest.fixture
def agent():
    return make_agent(STYLE, "critic", "llama", width=48)


def test_mask_rule_by_hand(agent):
    """Prompt 5 6 7, answer 8 9; and a shorter row, padded on the left: prompt 5, answer 8 9 4."""
    task = inner_task(agent, [Tokens([[5, 6, 7]], [8, 9]), Tokens([[5]], [8, 9, 4])])
    states, targets, places, count = task.pairs([0, 1])
    assert places.tolist() == [0, 0, 1, 1, 1] and count == 9
    embedding = agent.embedding.weight
    assert torch.equal(targets, embedding[torch.tensor([8, 9, 8, 9, 4])])
    first = agent.model(input_ids=torch.tensor([[5, 6, 7, 8, 9]]), output_hidden_states=True).hidden_states[-1][0]
    second = agent.model(input_ids=torch.tensor([[5, 8, 9, 4]]), output_hidden_states=True).hidden_states[-1][0]
    # The last prompt position predicts the first answer token; the last token predicts nothing.
    assert torch.allclose(states, torch.cat([first[2:4], second[0:3]]), atol=1e-5)


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
def test_targets_are_what_the_embedding_module_gives(family):
    agent = make_agent(STYLE, "critic", family)
    _, targets, _, _ = inner_task(agent, [Tokens([[5, 6]], [8, 9])]).pairs([0])
    assert torch.equal(targets, agent.model.get_input_embeddings()(torch.tensor([8, 9])))


@pytest.mark.parametrize(("cos", "mse"), [(1.0, 0.0), (0.5, 2.0)])
def test_loss_is_the_mean_over_positions_of_the_batch(agent, cos, mse):
    items = [Tokens([[5, 6, 7]], [8, 9]), Tokens([[5]], [8, 9, 4])]
    task = inner_task(agent, items, cos, mse)
    outcome = task.outcome([0, 1])
    states, targets, _, _ = task.pairs([0, 1])
    predicted = agent.inner_link(states)
    expected = cos * (1 - F.cosine_similarity(predicted, targets)) + mse * (predicted - targets).square().mean(-1)
    assert outcome.weight == 5
    assert (outcome.total / outcome.weight).item() == pytest.approx(expected.mean().item(), rel=1e-6)
    outcome.total.backward()
    assert all(p.grad is None for p in agent.model.parameters())
    assert all(p.grad is not None for p in agent.inner_link.parameters())


def test_upstream_gold_texts_are_text_in_the_prompt(agent):
    texts = upstream_texts(STYLE, "critic", EXAMPLES[0])
    assert texts == {"LATENT_PLANNER_SLOT": "add 1 to 2"}
    tokens = role_tokens(STYLE, "critic", agent.tokenizer, EXAMPLES[0], texts=texts)
    (prompt,) = tokens.prompt
    text = agent.tokenizer.decode(prompt)
    assert "add 1 to 2" in text and "the sum of 1 and 2" not in text and "SLOT" not in text
    assert agent.tokenizer.decode(tokens.target) == "the sum of 1 and 2<|eot_id|>"
    assert upstream_texts(STYLE, "planner", EXAMPLES[0]) == {}, "feedback comes in later rounds only"


@pytest.mark.parametrize(
    ("length", "prompt", "target", "cut"),
    [(6, [1, 2, 3], [4, 5, 6], 0), (5, [1, 2, 3], [4, 5], 1), (3, [1, 2, 3], [], 3), (2, [1, 2], [], 4)],
)
def test_cut_on_the_right(length, prompt, target, cut):
    assert fit_right(Tokens([[1, 2, 3]], [4, 5, 6]), length) == Tokens([prompt], target, cut)


def test_rows_without_a_target_are_counted_not_trained(agent):
    items = [fit_right(Tokens([[5, 6, 7]], [8, 9]), n) for n in (5, 4, 3)]
    task = inner_task(agent, items)
    outcome = task.outcome([0, 1, 2])
    assert (outcome.weight, outcome.skipped) == (3, 1)
    assert (task.cut_tokens, task.unfit_rows, task.longest) == ({1: 1}, {2}, 5)
    assert task.outcome([2]).total is None


def test_row_that_is_not_finite_is_left_out(agent):
    agent.embedding.weight.data[77] = torch.nan
    task = inner_task(agent, [Tokens([[5, 6]], [8, 9]), Tokens([[5, 77]], [8, 9])])
    outcome = task.outcome([0, 1])
    assert (outcome.weight, outcome.skipped) == (2, 1) and torch.isfinite(outcome.total)


def test_plain_question_rows_count_up_to_the_final_marker(agent):
    rows = PlainRows(
        [{"question": "1+1?", "answer": "It is 2.\n#### 2"}, {"question": "", "answer": "x"}], None, "rows"
    )
    assert rows.dropped == 1
    tokens = rows.tokens(agent.tokenizer, 0, False)
    counted = agent.tokenizer.decode(tokens.target[: tokens.scored])
    assert counted == "It is 2.\n" and "#### 2" in agent.tokenizer.decode(tokens.target)
    _, targets, _, _ = inner_task(agent, [tokens]).pairs([0])
    assert torch.equal(targets, agent.embedding(torch.tensor(tokens.target[: tokens.scored])))


def test_plain_text_predicts_every_token_but_the_first(agent):
    rows = PlainRows([{"text": "hello there"}], "text", "rows")
    tokens = rows.tokens(agent.tokenizer, 0, False)
    task = inner_task(agent, [tokens, Tokens([[]], [5, 6, 7])])
    _, targets, places, _ = task.pairs([0, 1])
    assert torch.equal(targets[places == 0], agent.embedding(torch.tensor(tokens.target[1:])))
    assert torch.equal(targets[places == 1], agent.embedding(torch.tensor([6, 7])))


def test_ridge_start_beats_random_and_keeps_the_embeddings_norm(agent):
    items = [
        role_tokens(STYLE, "critic", agent.tokenizer, e, texts=upstream_texts(STYLE, "critic", e)) for e in EXAMPLES
    ]
    task = inner_task(agent, items)
    before = task.outcome(range(4))
    fit = task.fit()
    after = task.outcome(range(4))
    assert fit.pairs == after.weight
    assert after.total < 0.7 * before.total
    states, targets, _, _ = task.pairs(range(4))
    with torch.no_grad():
        norm = agent.inner_link(states).norm(dim=-1).mean().item()
    assert norm == pytest.approx(targets.norm(dim=-1).mean().item(), rel=0.25)


def test_match_norm():
    agent = make_agent(STYLE, "critic", "llama", width=48)
    agent.inner_link = InnerLink(48)
    norm = match_norm(agent, range(300))
    with torch.no_grad():
        found = agent.inner_link(torch.randn(50, 48)).norm(dim=-1)
    assert torch.allclose(found, torch.full_like(found, norm), rtol=1e-2)
