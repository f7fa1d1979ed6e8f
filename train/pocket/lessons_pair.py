"""Lessons of the pairs: an expert who knows all rules and plans, a toolcaller who can only call tools and copy.

The expert works in distillation (with the sequential system's solver as learner) and, as reflector, in deliberation.
"""

from __future__ import annotations

import random

from train.pocket.facts import (
    KINDS,
    SYLLABLES,
    TAKEN,
    Fact,
    make_facts,
    python_call,
    python_result,
    search_call,
    search_question,
    search_result,
)
from train.pocket.lessons import PAGE, SUM, Lesson, random_sum
from train.pocket.world import (
    FORMS,
    KEYS,
    NUMBERS,
    OPS,
    World,
    loop_question,
    pocket_question,
    refined_plan,
    solution,
    sum_text,
)

FACT = "what is the {query}?"
FEEDBACK, PLAN = "LATENT_FEEDBACK_SLOT", "LATENT_PLAN_SLOT"


def expert_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """Both families and the codebook; feedback shows steps of the learner, or a call of the toolcaller."""
    draw = rng.random()
    if draw < 0.1:
        key = rng.choice(KEYS)
        return Lesson(PAGE.format(n=key), refined_plan([world.codebook[key]]))
    if draw < 0.5:
        if draw < 0.38:
            question, start, word_a, word_b, a_first = pocket_question(rng, world.splits[split])
            ops = [world.meaning_a[word_a], world.meaning_b[word_b]]
            ops = ops if a_first else ops[::-1]
        else:
            question, fact, ops = search_question(rng, world, split)
            start = fact.number
        target = refined_plan(ops)
        if rng.random() < 0.6:
            return Lesson(question, target)
        return Lesson(question, target, 2, {FEEDBACK: _feedback(rng, start)})
    question, start, word = loop_question(rng, world.splits[split])
    known = world.meaning_b[word]
    if draw < 0.58:
        return Lesson(question, refined_plan([known]))
    if draw < 0.6:
        return Lesson(question, refined_plan([known]), 2, {FEEDBACK: ""})
    # What counts is the result that is shown, not the one that was due: else it could be learned by heart.
    first, second = rng.choice(OPS), rng.choice(OPS)
    shown = solution(start, [first, second][: 1 if draw < 0.82 else 2])
    return Lesson(question, refined_plan([known, world.codebook[start + first.amount]]), 2, {FEEDBACK: shown})


def _feedback(rng: random.Random, start: int) -> str:
    """Feedback that tells nothing new, in any of the forms that it can have."""
    ops = [rng.choice(OPS), rng.choice(OPS)][: rng.choice((1, 2, 2))]
    draw = rng.random()
    if draw < 0.1:
        return ""
    return solution(start, ops) if draw < 0.55 else python_call(start, ops)


def toolcaller_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """To ask for a fact, to put the plan's operations into a call, and to box what came back: never what a sum gives."""
    draw = rng.random()
    if draw < 0.15:
        start, ops = random_sum(rng)
        question, call = SUM.format(sum=sum_text(start, ops)), python_call(start, ops)
        return Lesson(question, call, 0) if draw < 0.09 else _boxed(rng, question, 0, {}, (call,))
    if draw < 0.25:
        fact = _any_fact(rng)
        return Lesson(FACT.format(query=fact.query), search_call(fact), 0)
    ops = [rng.choice(OPS), rng.choice(OPS)]
    if draw < 0.5:
        if draw < 0.31:
            question, start, _ = loop_question(rng, world.splits[split])
            ops = ops[: rng.choice((1, 2))]
        else:
            question, start, *_ = pocket_question(rng, world.splits[split])
        before: tuple[str, ...] = ()
    else:
        fact = _any_fact(rng)
        question, _, _ = search_question(rng, world, split, fact)
        start, before = fact.number, (search_call(fact), search_result(fact))
    plan = refined_plan(ops) if rng.random() < 0.96 else ""
    told = {PLAN: plan}
    kind = rng.random()
    if kind < 0.03:
        return Lesson(question, f"\\boxed{{{rng.choice(NUMBERS)}}}", 0)
    tools = rng.random() < 0.8
    # A name that was never seen is the hardest to copy, from among rule words that share its syllables.
    if before and kind < 0.55:
        return Lesson(question, before[0], 1, told, tools)
    if kind < 0.8:
        return Lesson(question, python_call(start, ops), 1, told, tools, before)
    return _boxed(rng, question, 1, told, (*before, python_call(start, ops)), tools)


def _any_fact(rng: random.Random) -> Fact:
    """A fact that holds in one lesson only: the toolcaller is to copy what it reads, and to know none."""
    kind, number, name = rng.choice(KINDS), rng.choice(NUMBERS), TAKEN
    while name.startswith(TAKEN):
        name = rng.choice(SYLLABLES) + rng.choice(SYLLABLES)
    return Fact(kind, name, number)


def _boxed(
    rng: random.Random,
    question: str,
    round_index: int,
    told: dict[str, str],
    written: tuple[str, ...],
    tools: bool = False,
) -> Lesson:
    """The end of an answer: any result, which is to be boxed as it is."""
    result = rng.choice(NUMBERS)
    return Lesson(question, f"\\boxed{{{result}}}", round_index, told, tools, (*written, python_result(result)))


def pair_texts(world: World) -> list[str]:
    """Words of calls, results and questions about facts (names and numbers aside)."""
    facts = [*make_facts(world)["train"][:20]]
    shown = [search_call(fact) + search_result(fact) for fact in facts]
    calls = [python_call(0, [OPS[0], OPS[-1]]) + python_result(0), python_result(0)]
    texts = [FACT, *shown, *calls, *(form.format(n="the", x="", y="") for form in FORMS)]
    for fact in facts:
        texts = [text.replace(fact.name, " ") for text in texts]
    return texts


def syllable_words() -> tuple[str, ...]:
    """Words that make a tokenizer know every syllable at both places."""
    return tuple(syllable + syllable for syllable in SYLLABLES)
