"""Links set in closed form: every type must give back a linear map, and the norms must have the goal's spread."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from inference.mas.errors import InputError
from inference.mas.links import INNER_TYPES, OUTER_TYPES, InnerLink, OuterLink
from tests.train.systems import EXAMPLES, trainable_system
from train.closed_form import fit_link, ridge
from train.data.pieces import role_tokens, upstream_texts
from train.outer.start import fit_links, thought_pairs, token_strings


def data(source: int, target: int, noise: float = 0.0, scale: float = 0.05):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, source, generator=generator) * 2
    y = x @ torch.randn(source, target, generator=generator) * scale
    return x, y + noise * torch.randn(400, target, generator=generator)


@pytest.mark.parametrize("link_type", INNER_TYPES)
def test_inner_types(link_type):
    link = InnerLink(24, link_type)
    x, y = data(24, 24)
    norm = INNER_TYPES[link_type].norm
    fit = fit_link(link, x, y)
    # A norm takes each vector's own mean and scale away; what is left is the direction.
    assert fit.r2_left_out > (0.9 if norm else 0.999)
    assert F.cosine_similarity(link(x), y, dim=-1).mean() > (0.93 if norm else 0.999)
    assert torch.allclose(link(x).std(0), y.std(0), rtol=0.15)


@pytest.mark.parametrize("link_type", OUTER_TYPES)
@pytest.mark.parametrize("scale_of_input", [1.0, 30.0])
def test_outer_types(link_type, scale_of_input):
    link = OuterLink(24, 40, link_type)
    x, y = data(24, 40)
    fit_link(link, x, y)
    if scale_of_input != 1 and not OUTER_TYPES[link_type].norm:
        return  # without a norm, what comes out scales with what goes in
    found = link(x * scale_of_input)
    assert F.cosine_similarity(found, y, dim=-1).mean() > (0.93 if OUTER_TYPES[link_type].norm else 0.999)
    assert torch.allclose(found.std(0), y.std(0), rtol=0.15)


def test_gradients_reach_every_layer_after_one_step():
    link = OuterLink(24, 40)
    x, y = data(24, 40, noise=0.1)
    fit_link(link, x, y)
    optimizer = torch.optim.SGD(link.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (link(x) - y).square().mean().backward()
        optimizer.step()
    assert all(p.grad.abs().max() > 0 for p in link.parameters())


def test_ridge_chooses_its_penalty_by_left_out_pairs():
    x, y = data(24, 8, noise=3.0)
    x, y = x[:30].double(), y[:30].double()
    matrix, penalty, r2 = ridge(x, y)
    # Slow twin: leave every pair out in turn and solve again.
    mean = float(torch.linalg.eigvalsh(x.T @ x).mean())
    error = 0.0
    for i in range(len(x)):
        keep = [j for j in range(len(x)) if j != i]
        a = x[keep].T @ x[keep] + penalty * mean * torch.eye(24, dtype=torch.float64)
        error += float((y[i] - x[i] @ torch.linalg.solve(a, x[keep].T @ y[keep])).square().sum())
    assert r2 == pytest.approx(1 - error / float((y - y.mean(0)).square().sum()), rel=1e-6)
    assert matrix.shape == (8, 24)


def test_vocabulary_fit_maps_shared_tokens():
    system = trainable_system(("qwen3", "llama", "qwen2"), double=False)
    planner, critic = system.agents["planner"], system.agents["critic"]
    link = system.outer_links["outer_12"]
    fit = fit_links(system, "vocab", [], 2)["outer_12"]
    ours, theirs = token_strings(planner.tokenizer), token_strings(critic.tokenizer)
    shared = [text for text in ours if text in theirs]
    assert fit.fit.pairs == len(shared) > 100 and "shared token strings" in str(fit)
    assert planner.tokenizer.decode([ours[" the"]]) == critic.tokenizer.decode([theirs[" the"]]) == " the"
    link.requires_grad_(False)
    x = planner.embedding(torch.tensor([ours[text] for text in shared]))
    y = critic.embedding(torch.tensor([theirs[text] for text in shared]))
    before = F.cosine_similarity(type(link)(32, 48)(x), y, dim=-1).mean()
    after = F.cosine_similarity(link(x), y, dim=-1).mean()
    # More strings than channels and random tables: the best linear map meets them only in part.
    assert after > 0.4 > before + 0.2
    assert link(x).norm(dim=-1).mean() == pytest.approx(y.norm(dim=-1).mean().item(), rel=0.1)


def test_special_tokens_and_pieces_of_characters_are_no_strings():
    tokenizer = trainable_system(double=False).agents["critic"].tokenizer
    strings = token_strings(tokenizer)
    assert not set(strings.values()) & set(tokenizer.all_special_ids)
    assert all(text and "\ufffd" not in text for text in strings)
    assert "a" in strings and " a" in strings


def test_too_few_shared_strings_is_told():
    system = trainable_system(double=False)
    critic = system.agents["critic"]

    class Foreign:
        """A vocabulary of its own script."""

        all_special_ids = ()

        def __call__(self, text, **kwargs):
            return {"input_ids": [0]}

        def __len__(self):
            return 40

        def decode(self, ids, **kwargs):
            return "".join(chr(0x4E00 + i) for i in ids)

        def batch_decode(self, rows, **kwargs):
            return [self.decode(row) for row in rows]

    critic.tokenizer = Foreign()
    with pytest.raises(InputError, match="planner and critic have 0 shared token strings in common"):
        fit_links(system, "vocab", [], 2)


def test_pairs_of_thoughts_and_the_tokens_that_they_stand_for():
    """Each pair by hand: one row at a time, the full model, and the text of every token."""
    system = trainable_system(double=False)
    link = system.style.links[1]  # critic to solver
    critic, solver = system.agents["critic"], system.agents["solver"]
    x, y = thought_pairs(system, link, EXAMPLES, batch=3)
    expected = []
    for example in EXAMPLES:
        texts = upstream_texts(system.style, "critic", example)
        (prompt,) = role_tokens(system.style, "critic", critic.tokenizer, example, texts=texts).prompt
        places = {}
        for name, agent in (("ours", critic), ("theirs", solver)):
            ids = agent.tokenizer(example.text("critic"), add_special_tokens=False)["input_ids"]
            ends = [len(agent.tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
            words = [agent.tokenizer.decode([token]) for token in ids]
            starts = [end - len(word.strip() or word) for word, end in zip(words, ends, strict=True)]
            places[name] = {place: i for i, place in enumerate(zip(starts, ends, strict=True))}
            places[f"{name} ids"] = ids
        ids = torch.tensor([[*prompt, *places["ours ids"]]])
        hidden = critic.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        for place, i in places["ours"].items():
            if place in places["theirs"]:
                thought = critic.inner_link(hidden[len(prompt) + i - 1])
                expected.append((thought, places["theirs ids"][places["theirs"][place]]))
    assert len(x) == len(expected) > 40
    assert torch.allclose(x, torch.stack([thought for thought, _ in expected]), atol=1e-4)
    assert torch.equal(y, solver.embedding(torch.tensor([token for _, token in expected])))


def test_ridge_start_meets_thoughts_better_than_a_fresh_link():
    system = trainable_system(double=False)
    link = system.style.links[0]
    x, y = thought_pairs(system, link, EXAMPLES, batch=4)
    before = F.cosine_similarity(system.outer_links[link.key](x), y, dim=-1).mean()
    fits = fit_links(system, "ridge", EXAMPLES, 4)
    assert set(fits) == {"outer_12", "outer_23", "outer_31"} and fits[link.key].fit.pairs == len(x)
    assert F.cosine_similarity(system.outer_links[link.key](x), y, dim=-1).mean() > before + 0.3
