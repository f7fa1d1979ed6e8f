"""The round loop against the definition written out by hand, and what controls, seeds and counts must keep."""

from __future__ import annotations

import pytest
import torch

from inference.mas.decoding import Sampling
from inference.mas.errors import InputError
from inference.mas.prompts import Question, chat_ids, user_parts
from tests.mas.systems import make_system, naive_greedy, naive_think

GREEDY = Sampling(max_new_tokens=8, do_sample=False)
DRAWN = Sampling(max_new_tokens=8, temperature=1.2)
QUESTIONS = [
    Question("1+1?", id="a"),
    Question("What is the sum of the first twenty odd numbers?", id="b"),
    Question("Say 7.", id="c"),
]


@pytest.fixture(scope="module")
def system():
    return make_system()


def texts(answers):
    return [[rollout.tokens for rollout in answer.rollouts] for answer in answers]


@torch.no_grad()
def by_hand(system, question, rounds, steps):
    """Two or three rounds of planner -> critic -> solver for one question, each line one stage of the reference."""
    agents, links, style = system.agents, system.outer_links, system.style

    def batch(role, round_index, slot=None, message=None):
        agent = agents[role]
        prompt = chat_ids(agent.tokenizer, agent.role.system, user_parts(style, role, question, round_index))
        return agent.embed([prompt], {slot: [message]} if slot else {})

    feedback = None
    for round_index in range(1, rounds + 1):
        slot = "LATENT_FEEDBACK_SLOT" if round_index > 1 else None
        plan = links["outer_12"](naive_think(agents["planner"], batch("planner", round_index, slot, feedback), steps))[
            0
        ]
        critic = batch("critic", round_index, "LATENT_PLANNER_SLOT", plan)
        refined = links["outer_23"](naive_think(agents["critic"], critic, steps))[0]
        solver = batch("solver", round_index, "LATENT_REFINED_SLOT", refined)
        if round_index == rounds:
            return naive_greedy(agents["solver"], solver, GREEDY.max_new_tokens)
        feedback = links["outer_31"](naive_think(agents["solver"], solver, steps))[0]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_equal_the_definition(system, rounds):
    answers = system.answer(QUESTIONS, rounds=rounds, latent_steps=4, sampling=GREEDY)
    assert texts(answers) == [[by_hand(system, question, rounds, 4)] for question in QUESTIONS]


@pytest.mark.parametrize(
    "how", [{}, {"method": "text"}, {"method": "single"}, {"control": "noise"}, {"control": "none"}]
)
def test_batch_and_order_never_change_an_answer(system, how):
    together = system.answer(QUESTIONS, rounds=2, latent_steps=3, sampling=DRAWN, num_rollouts=2, **how)
    backwards = system.answer(QUESTIONS[::-1], rounds=2, latent_steps=3, sampling=DRAWN, num_rollouts=2, **how)[::-1]
    alone = [system.answer([q], rounds=2, latent_steps=3, sampling=DRAWN, num_rollouts=2, **how)[0] for q in QUESTIONS]
    assert texts(together) == texts(backwards) == texts(alone)
    assert texts(together) != texts(
        system.answer(QUESTIONS, rounds=2, latent_steps=3, sampling=DRAWN, num_rollouts=2, seed=1, **how)
    )


def test_shuffle_gives_the_donors_true_messages(system):
    donors = [QUESTIONS[1], QUESTIONS[2], QUESTIONS[0]]
    shuffled = system.answer(QUESTIONS, rounds=2, latent_steps=3, sampling=GREEDY, control="shuffle", donors=donors)
    # A donor's run is undisturbed, so question i with messages of donor i depends on these two alone.
    alone = [
        system.answer([q], rounds=2, latent_steps=3, sampling=GREEDY, control="shuffle", donors=[d])[0]
        for q, d in zip(QUESTIONS, donors, strict=True)
    ]
    assert texts(shuffled) == texts(alone)
    # Its own messages as the donor's are no control at all.
    same = system.answer(QUESTIONS, rounds=2, latent_steps=3, sampling=GREEDY, control="shuffle", donors=QUESTIONS)
    assert texts(same) == texts(system.answer(QUESTIONS, rounds=2, latent_steps=3, sampling=GREEDY))


@pytest.mark.parametrize(("control", "length"), [("none", 0), ("zero", 4), ("noise", 4), (None, 4)])
def test_controls_replace_every_message(system, control, length):
    got, true = {}, {}
    for store, how in ((got, control), (true, None)):
        for role in ("planner", "critic", "solver"):
            agent = system.agents[role]
            embed = agent.embed

            def spy(prompts, inbox=None, targets=None, *, embed=embed, role=role, store=store):
                store.setdefault(role, []).append(inbox)
                return embed(prompts, inbox, targets)

            agent.embed = spy
        system.answer(QUESTIONS, rounds=2, latent_steps=4, sampling=GREEDY, control=how)
        for role in ("planner", "critic", "solver"):
            del system.agents[role].embed
    first = (got["critic"][0]["LATENT_PLANNER_SLOT"], true["critic"][0]["LATENT_PLANNER_SLOT"])
    assert list(got["planner"][1]) == ["LATENT_FEEDBACK_SLOT"], "feedback arrives in round 2"
    for inbox in [got["planner"][1], *got["critic"], *got["solver"]]:
        for messages in inbox.values():
            assert [len(message) for message in messages] == [length] * 3
            assert control != "zero" or all((message == 0).all() for message in messages)
    for mine, real in zip(*first, strict=True):
        if control == "noise":
            assert torch.allclose(mine.norm(dim=-1), real.norm(dim=-1), rtol=1e-4)
            assert not torch.allclose(mine, real)
        elif control is None:
            assert torch.equal(mine, real)


def test_costs_are_counted(system):
    prefilled = dict.fromkeys(("planner", "critic", "solver"), 0)
    hooks = []
    for role in prefilled:

        def count(module, args, kwargs, role=role):
            if kwargs.get("past_key_values") is None:
                prefilled[role] += int(kwargs["attention_mask"].sum())

        hooks.append(system.agents[role].decoder.register_forward_pre_hook(count, with_kwargs=True))
    answers = system.answer(QUESTIONS, rounds=2, latent_steps=4, sampling=DRAWN, num_rollouts=3)
    for hook in hooks:
        hook.remove()
    assert [answer.latent_steps for answer in answers] == [4 * 5] * 3, "five thinking stages of two rounds"
    assert sum(answer.prompt_tokens for answer in answers) == sum(prefilled.values())
    assert [a.generated_tokens for a in answers] == [sum(len(r.tokens) for r in a.rollouts) for a in answers]
    assert set(answers[0].seconds) == {"planner.think", "critic.think", "solver.think", "solver.speak"}
    for a in answers:
        assert set(a.tokens) == set(a.seconds)
        assert a.tokens["planner.think"]["latent_steps"] == 8 and "latent_steps" not in a.tokens["solver.speak"]
        for name in ("prompt_tokens", "latent_steps", "generated_tokens", "tool_tokens"):
            assert sum(counts.get(name, 0) for counts in a.tokens.values()) == getattr(a, name)
    for role, positions in prefilled.items():
        stages = (counts for a in answers for stage, counts in a.tokens.items() if stage.startswith(role))
        assert sum(counts["prompt_tokens"] for counts in stages) == positions
    text = system.answer(QUESTIONS, rounds=1, method="text", sampling=GREEDY)
    assert all(a.latent_steps == 0 and a.generated_tokens > len(a.rollouts[0].tokens) for a in text)


def test_strings_are_questions_and_agents_are_found_by_any_name(system):
    assert texts(system.answer(["Say 7."], sampling=GREEDY, rounds=1, latent_steps=2)) == texts(
        system.answer([Question("Say 7.")], sampling=GREEDY, rounds=1, latent_steps=2)
    )
    assert system.agents["Critic"] is system.agents["refiner"] is system.agents["critic"]
    with pytest.raises(KeyError, match="no role 'judge'"):
        system.agents["judge"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rounds": 0}, "num_recursive_rounds 0"),
        ({"latent_steps": -1}, "latent_length -1"),
        ({"num_rollouts": 0}, "num_rollouts 0"),
        ({"method": "telepathy"}, "telepathy"),
        ({"control": "ones"}, "ones"),
        ({"control": "zero", "method": "text"}, "only the latent method"),
        ({"control": "shuffle"}, "donor"),
    ],
)
def test_bad_settings_are_told(system, how, message):
    with pytest.raises(InputError, match=message):
        system.answer(["1+1?"], **how)
