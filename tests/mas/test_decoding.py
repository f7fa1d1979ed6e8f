"""Sampling against Hugging Face's own filters and against exact probabilities."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from inference.mas.decoding import DRAW_BLOCK, Draws, Sampling, choose, filtered_probs, penalise, sample_seed
from inference.mas.errors import InputError


@pytest.mark.parametrize(
    "settings",
    [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2, "top_p": 1.0}, {"top_k": 9, "top_p": 0.7, "min_p": 0.05}],
)
def test_filters_equal_hugging_faces(settings):
    sampling = Sampling(temperature=0.7, **settings)
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7)])
    if sampling.top_k > 0:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    assert torch.allclose(filtered_probs(logits, sampling), warpers(None, logits).softmax(-1), atol=1e-6)


def test_repetition_penalty_equals_hugging_faces():
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    written = torch.tensor([[1, 2, 3], [4, 4, 4], [0, 29, 5]])
    seen = torch.zeros(3, 30, dtype=torch.bool).scatter(1, written, True)
    assert torch.equal(penalise(logits, seen, 1.3), RepetitionPenaltyLogitsProcessor(1.3)(written, logits))


def test_inverse_cdf_draws_tokens_at_their_probabilities():
    sampling = Sampling(temperature=1.0, top_p=1.0)
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    points = (torch.arange(10_000) + 0.5) / 10_000
    tokens = choose(logits.expand(10_000, 4), sampling, points)
    assert torch.allclose(tokens.bincount(minlength=4) / 10_000, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=1e-3)


def test_a_token_without_mass_is_never_drawn():
    logits = torch.tensor([[5.0, 5.0, -40.0, -torch.inf]]).expand(3, 4)
    ends = torch.tensor([0.0, 0.5, 1 - 2**-24])
    assert choose(logits, Sampling(temperature=1.0, top_p=0.9), ends).tolist() == [0, 1, 1]


def test_seeds_differ_by_every_part_and_are_stable():
    assert sample_seed(42, "a", 0) == 8182270255597042240, "records of earlier runs depend on it"
    assert (
        len(
            {
                sample_seed(42, "a", 0),
                sample_seed(43, "a", 0),
                sample_seed(42, "b", 0),
                sample_seed(42, "a", 1),
                sample_seed(42, "a", 0, "noise"),
            }
        )
        == 5
    )


def test_draws_are_one_stream_of_the_seed():
    draws = Draws(7)
    stream = torch.rand(3 * DRAW_BLOCK, generator=torch.Generator().manual_seed(7))
    assert [draws.next() for _ in range(2 * DRAW_BLOCK + 5)] == stream[: 2 * DRAW_BLOCK + 5].tolist()


@pytest.mark.parametrize(
    "bad",
    [{"top_p": 0}, {"top_p": 1.1}, {"temperature": -1}, {"max_new_tokens": 0}, {"repetition_penalty": 0}, {"min_p": 2}],
)
def test_settings_out_of_range_are_told(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Sampling(**bad)
