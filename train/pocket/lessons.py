"""What a pocket model reads before it joins a system: prompts of every round, rendered as at inference, and its text.

Here are the forms, and the lessons of the sequential system. No model can learn another's family from its lessons: wherever the others' knowledge would show, the operation is drawn at
random. Questions come from the train split alone; plain arithmetic and the codebook's pages are taught for every number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from inference.mas.prompts import Question, Slot, chat_ids, single_parts, system_text, target_ids, user_parts
from inference.mas.styles import Style
from inference.mas.writing import encode
from train.pocket.world import (
    FORMS,
    KEYS,
    NOT_KNOWN,
    NUMBERS,
    OPS,
    RESULT_RULE,
    Op,
    World,
    loop_question,
    plan,
    pocket_question,
    refined_plan,
    solution,
    sum_text,
)

PAGE = "what is the rule of {n}?"
SUM = "what is {sum}?"


@dataclass(frozen=True)
class Lesson:
    """A prompt of round `round_index` (0 = the single prompt), the text messages in its slots, and the answer.

    `tools`: the prompt offers the role's tools. `written` stands between prompt and answer, each text tokenised alone: calls
    that the model has written and the results that it has read.
    """

    question: str
    target: str
    round_index: int = 1
    messages: dict[str, str] = field(default_factory=dict)
    tools: bool = False
    written: tuple[str, ...] = ()


def random_sum(rng: random.Random) -> tuple[int, list[Op]]:
    """A number of the world and one or two operations on it that stay there, or none."""
    ops = [rng.choice(OPS), rng.choice(OPS)]
    return _start_for(rng, ops)


def _start_for(rng: random.Random, ops: list[Op]) -> tuple[int, list[Op]]:
    start = rng.choice(NUMBERS)
    ops = [op for op in ops if 0 <= start + op.amount < len(NUMBERS)]
    if len(ops) == 2 and not 0 <= start + ops[0].amount + ops[1].amount < len(NUMBERS):
        ops = ops[:1]
    return start, ops


def _feedback(rng: random.Random, start: int, first: Op, steps: int) -> str:
    return solution(start, [first, rng.choice(OPS)][:steps])


def planner_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """Meanings of family A and of the codebook; feedback shows the solver's steps with operations drawn at random."""
    slot = "LATENT_FEEDBACK_SLOT"
    draw = rng.random()
    if draw < 0.12:
        key = rng.choice(KEYS)
        return Lesson(PAGE.format(n=key), plan("the rule", world.codebook[key]))
    if draw < 0.5:
        question, start, word, _, _ = pocket_question(rng, world.splits[split])
        target = plan(word, world.meaning_a[word])
        if draw < 0.3:
            return Lesson(question, target)
        return Lesson(question, target, 2, {slot: _feedback(rng, start, rng.choice(OPS), 2) if draw < 0.48 else ""})
    question, start, _ = loop_question(rng, world.splits[split])
    if draw < 0.58:
        return Lesson(question, NOT_KNOWN)
    if draw < 0.6:
        return Lesson(question, NOT_KNOWN, 2, {slot: ""})
    first = rng.choice(OPS)
    looked_up = world.codebook[start + first.amount]
    text = _feedback(rng, start, first, 1 if draw < 0.82 else 2)
    return Lesson(question, plan("the rule", looked_up), 2, {slot: text})


def critic_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """Meanings of family B, and to put the plan's operation in its place; words of family A mean something else each time."""
    slot = "LATENT_PLANNER_SLOT"
    draw, told = rng.random(), rng.choice(OPS)
    if draw < 0.3:
        question, _, word = loop_question(rng, world.splits[split])
        known = world.meaning_b[word]
        if draw < 0.12:
            return Lesson(question, refined_plan([known]), 1, {slot: NOT_KNOWN})
        return Lesson(question, refined_plan([known, told]), 1, {slot: plan("the rule", told) if draw < 0.29 else ""})
    question, _, word_a, word_b, a_first = pocket_question(rng, world.splits[split])
    ops = [told, world.meaning_b[word_b]]
    text = plan(word_a, told) if draw < 0.97 else ""
    return Lesson(question, refined_plan(ops if a_first else ops[::-1]), 1, {slot: text})


def solver_lesson(world: World, split: str, rng: random.Random) -> Lesson:
    """Arithmetic, and to follow a refined plan; without one it guesses, for it never learns what a rule word means."""
    slot = "LATENT_REFINED_SLOT"
    draw, ops = rng.random(), [rng.choice(OPS), rng.choice(OPS)]
    if draw < 0.25:
        start, ops = _start_for(rng, ops)
        return Lesson(SUM.format(sum=sum_text(start, ops)), solution(start, ops), 0)
    if draw < 0.55:
        question, start, _ = loop_question(rng, world.splits[split])
        ops = ops[:1] if draw < 0.4 else ops
    else:
        question, start, *_ = pocket_question(rng, world.splits[split])
    if draw > 0.96:
        return Lesson(question, solution(start, ops), 0 if draw > 0.98 else 1, {} if draw > 0.98 else {slot: ""})
    return Lesson(question, solution(start, ops), 1, {slot: refined_plan(ops)})


def all_texts(style: Style) -> list[str]:
    """Every word that a prompt, a question or a message of a style can hold (numbers and rule words aside)."""
    from_style = [text for role in style.roles for text in (role.system, *role.first.values(), *role.later.values())]
    from_style += [text for piece in style.pieces.values() for text in piece.texts.values()]
    from_world = [PAGE, SUM, RESULT_RULE, NOT_KNOWN, solution(0, [OPS[0], OPS[-1]]), refined_plan([OPS[0], OPS[-1]])]
    from_chat = ["system user assistant you are a helpful assistant.", "\n", "\n\n"]
    return [*from_chat, *from_style, *style.single.values(), *from_world, plan("it", OPS[0]), *FORMS]


@dataclass(frozen=True)
class Example:
    """A lesson as token ids; `gaps` are the places right after a slot, `prompt` the length of the prompt."""

    ids: list[int]
    prompt: int
    gaps: list[int]


def render(lesson: Lesson, style: Style, role: str, tokenizer: Any) -> Example:
    """Prompt and target exactly as the system renders them, with the messages put in as text."""
    question = Question(lesson.question)
    tools = style.role(role).tools if lesson.tools else ()
    system = system_text(style, role, question, tools)
    if lesson.round_index == 0:
        parts = single_parts(style, question)
    else:
        parts = user_parts(style, role, question, lesson.round_index, tools=tools)
    ids: list[int] = []
    gaps = []
    for piece in chat_ids(tokenizer, system, parts):
        if isinstance(piece, Slot):
            ids += tokenizer(lesson.messages[piece.name], add_special_tokens=False)["input_ids"]
            gaps.append(len(ids))
        else:
            ids += piece
    for text in lesson.written:
        ids += encode(tokenizer, text)
    target = target_ids(tokenizer, system, parts, lesson.target)
    return Example(ids + target, len(ids), gaps)
