"""Lessons of the mixture: three experts who know one family of words each, and a summarizer who knows none."""

from __future__ import annotations

import random

from train.pocket.lessons import SUM, Lesson, random_sum
from train.pocket.world import (
    OPS,
    PLACES,
    TRIPLE_FORMS,
    Op,
    World,
    placed,
    solution,
    stays_in_world,
    sum_text,
    triple_question,
)

FEEDBACK = "LATENT_FEEDBACK_SLOT"
SLOTS = ("LATENT_ALPHA_SLOT", "LATENT_BETA_SLOT", "LATENT_GAMMA_SLOT")


def _expert_lesson(meaning: dict[str, Op], world: World, split: str, rng: random.Random) -> Lesson:
    """What the word of the own family means, and its place; feedback shows steps with operations drawn at random."""
    question, start, words = triple_question(rng, world, split)
    (place,) = (place for place, word in enumerate(words) if word in meaning)
    target = placed(place, meaning[words[place]])
    draw = rng.random()
    if draw < 0.6:
        return Lesson(question, target)
    ops = _random_ops(rng, start)
    return Lesson(question, target, 2, {FEEDBACK: solution(start, ops) if draw < 0.95 else ""})


def alpha_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """The expert of family A."""
    return _expert_lesson(world.meaning_a, world, split, rng)


def beta_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """The expert of family B."""
    return _expert_lesson(world.meaning_b, world, split, rng)


def gamma_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """The expert of family C."""
    return _expert_lesson(world.meaning_c, world, split, rng)


def summarizer_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """Arithmetic, and to put what three experts say in order; without it, it guesses."""
    draw = rng.random()
    if draw < 0.25:
        start, ops = random_sum(rng)
        return Lesson(SUM.format(sum=sum_text(start, ops)), solution(start, ops), 0)
    question, start, _ = triple_question(rng, world, split)
    ops = _random_ops(rng, start)
    if draw < 0.28:
        return Lesson(question, solution(start, ops), 0)
    said = [placed(place, op) for place, op in enumerate(ops)]
    rng.shuffle(said)
    if draw < 0.31:
        said = [""] * len(said)
    return Lesson(question, solution(start, ops), 1, dict(zip(SLOTS, said, strict=True)))


def _random_ops(rng: random.Random, start: int) -> list[Op]:
    while True:
        ops = [rng.choice(OPS) for _ in PLACES]
        if stays_in_world(start, ops):
            return ops


def mixture_texts() -> list[str]:
    """Words of questions and messages (numbers and rule words aside)."""
    return [*(form.format(n="", x="", y="", z="") for form in TRIPLE_FORMS), *(placed(p, OPS[0]) for p in range(3))]
