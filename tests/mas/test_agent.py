"""Fast paths of an agent against slow twins, for every model family of the styles."""

from __future__ import annotations

import pytest
import torch

from inference.mas.agent import Session
from inference.mas.decoding import Sampling
from inference.mas.errors import InputError
from inference.mas.prompts import Question, Slot, chat_ids, user_parts
from inference.mas.styles import load_style
from tests.mas.systems import FAMILIES, make_agent, naive_greedy, naive_think

QUESTIONS = ["1+1?", "What is the sum of the first twenty odd numbers?", "Say 7."]
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=FAMILIES)
def agent(request):
    return make_agent(load_style("sequential_light"), "critic", request.param, seed=3)


def batch_of(agent, which, length=5):
    """Ragged prompts with a message in the critic's slot."""
    style = load_style("sequential_light")
    prompts = [chat_ids(agent.tokenizer, "", user_parts(style, "critic", Question(QUESTIONS[i]), 1)) for i in which]
    messages = []
    for i in which:
        generator = torch.Generator().manual_seed(i)
        messages.append(torch.randn(length - i, agent.width, generator=generator))
    return agent.embed(prompts, {"LATENT_PLANNER_SLOT": messages})


@torch.no_grad()
def test_cached_thinking_equals_full_recomputation_in_a_ragged_batch(agent):
    batch = batch_of(agent, [0, 1, 2])
    assert len(set(batch.prompt_tokens)) > 1, "the batch must be ragged to show anything"
    assert torch.allclose(agent.think(batch, 6), naive_think(agent, batch, 6), atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_a_sample_alone_thinks_as_in_a_batch(agent):
    together = agent.think(batch_of(agent, [0, 1, 2]), 6)
    for i in range(3):
        assert torch.allclose(agent.think(batch_of(agent, [i]), 6)[0], together[i], atol=TOLERANCE, rtol=0)


def test_greedy_text_equals_full_recomputation_and_batch_of_one(agent):
    sampling = Sampling(max_new_tokens=12, do_sample=False)
    together = agent.speak(batch_of(agent, [0, 1, 2]), sampling, [[0], [0], [0]])
    for i in range(3):
        assert together[i][0].tokens == naive_greedy(agent, batch_of(agent, [i]), 12)


def test_k_samples_of_one_prefill_equal_k_separate_runs(agent):
    sampling = Sampling(max_new_tokens=12, temperature=1.5, top_p=0.9, top_k=50)
    seeds = [[11, 12, 13], [21], [31, 32]]
    together = agent.speak(batch_of(agent, [0, 1, 2]), sampling, seeds)
    for i, row in enumerate(seeds):
        for j, seed in enumerate(row):
            alone = agent.speak(batch_of(agent, [i]), sampling, [[seed]])[0][0]
            assert together[i][j].tokens == alone.tokens
    assert together[0][0].tokens != together[0][1].tokens, "two seeds should differ"


@torch.no_grad()
def test_thinking_runs_one_prefill_and_single_steps_of_the_bare_decoder(agent):
    lengths, heads = [], []
    hooks = [
        agent.decoder.register_forward_pre_hook(
            lambda m, a, k: lengths.append(k["inputs_embeds"].shape[1]), with_kwargs=True
        ),
        agent.model.get_output_embeddings().register_forward_pre_hook(lambda m, a: heads.append(1)),
    ]
    batch = batch_of(agent, [0, 1])
    agent.think(batch, 5)
    for hook in hooks:
        hook.remove()
    assert lengths == [batch.embeds.shape[1], 1, 1, 1, 1]
    assert heads == []


@torch.no_grad()
def test_logits_are_the_models_own(agent):
    batch = batch_of(agent, [0, 1, 2])
    own = agent.model(inputs_embeds=batch.embeds, attention_mask=batch.mask, position_ids=batch.positions).logits
    real = batch.mask.bool()
    assert torch.allclose(agent.logits(agent.states(batch))[real], own[real], atol=TOLERANCE, rtol=0)


def test_finished_rows_leave_the_batch(agent):
    sampling = Sampling(max_new_tokens=6, do_sample=False)
    batch = batch_of(agent, [0, 1, 2])
    first = agent.speak(batch, sampling, [[0], [0], [0]])
    sizes = []
    hook = agent.decoder.register_forward_pre_hook(
        lambda m, a, k: sizes.append(len(k["inputs_embeds"])), with_kwargs=True
    )
    # The second token of row 1 becomes a stop token: it and no row without that token must go.
    stop = first[1][0].tokens[1]
    eos, agent.eos_ids = agent.eos_ids, agent.eos_ids | {stop}
    try:
        stopped = agent.speak(batch_of(agent, [0, 1, 2]), sampling, [[0], [0], [0]])
    finally:
        agent.eos_ids = eos
        hook.remove()
    for row, full in zip(stopped, first, strict=True):
        tokens = full[0].tokens
        cut = tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
        assert row[0].tokens == cut
        assert row[0].finish == ("eos" if stop in tokens or tokens[-1] in eos else "length")
    alive = [
        sum(len(row[0].tokens) > step for row in stopped) for step in range(max(len(row[0].tokens) for row in stopped))
    ]
    assert sizes[0] == 3 and sizes[1:] == alive[1:], "each forward holds exactly the rows that still write"


def test_left_padding_has_a_true_mask_and_positions(agent):
    batch = batch_of(agent, [0, 1])
    short = min(range(2), key=lambda i: batch.prompt_tokens[i])
    pad = batch.embeds.shape[1] - batch.prompt_tokens[short]
    assert batch.mask[short].tolist() == [0] * pad + [1] * batch.prompt_tokens[short]
    assert batch.positions[short, pad:].tolist() == list(range(batch.prompt_tokens[short]))
    assert (batch.embeds[short, :pad] == 0).all()


def test_no_latent_steps_and_empty_messages_are_legal(agent):
    assert agent.think(batch_of(agent, [0, 1]), 0).shape == (2, 0, agent.width)
    empty = agent.embed([[[5, 6], Slot("A"), [7]]], {"A": [torch.zeros(0, agent.width)]})
    plain = agent.embed([[[5, 6, 7]]])
    assert torch.equal(empty.embeds, plain.embeds)


def test_a_message_of_wrong_width_or_a_missing_one_is_told(agent):
    with pytest.raises(InputError, match="has shape"):
        agent.embed([[Slot("A")]], {"A": [torch.zeros(2, agent.width + 1)]})
    with pytest.raises(InputError, match="no message for slot <<B>>"):
        agent.embed([[Slot("B")]], {"A": [torch.zeros(2, agent.width)]})


@torch.no_grad()
def test_rows_leave_and_come_back_to_another_length(agent):
    """A row steps alone, then joins rows that are longer by now: every state is that of a row that was never moved."""
    tokens = torch.arange(20, 60).reshape(2, 20)  # past the sliding window of the families that have one
    batch = batch_of(agent, [0, 1])
    together, away = Session(agent, batch), None
    for step in range(8):
        together.run(tokens[:, step].tolist())
    away = together.split(1)
    together.select([0])
    for step in range(8, 20):
        together.run([int(tokens[0, step])])
    for step in range(8, 11):
        away.run([int(tokens[1, step])])
    together.join([away])
    together.run([61, 62])
    for row, (own, last) in enumerate(((tokens[0], 61), (tokens[1, :11], 62))):
        alone = Session(agent, batch_of(agent, [row]))
        for token in [*own.tolist(), last]:
            alone.run([token])
        assert torch.allclose(together.last[row], alone.last[0], atol=TOLERANCE, rtol=0)
        assert int(together.position[row]) == int(alone.position[0])
