"""The pocket world: rules whose meaning is split between agents, so that an answer needs the messages.

    question        start with 52. apply bako then zuri.
    plan            bako means add 7.                        only the planner knows the words of family A
    refined_plan    add 7 then subtract 4.                   only the critic knows the words of family B
    answer          52 + 7 = 59. 59 - 4 = 55. \\boxed{55}     only the solver can compute

In the `loop` questions the second rule is named by a number that only the solver can compute, and its meaning stands in a
codebook that only the planner knows, so that one round cannot do:

    question        start with 52. apply zuri then the rule of the result.
    round 1         the rule is not known.       subtract 4.                   52 - 4 = 48. \\boxed{48}
    round 2         the rule means add 2.        subtract 4 then add 2.        52 - 4 = 48. 48 + 2 = 50. \\boxed{50}

In the `triple` questions a third family of words comes in, and each family is known to one expert only:

    question        start with 52. apply bako then zuri then cyla.
    experts         first is add 7.  second is subtract 4.  third is add 1.      each knows the words of one family
    answer          52 + 7 = 59. 59 - 4 = 55. 55 + 1 = 56. \\boxed{56}

Train, dev and test share neither a pair of rule words nor a start number. Everything here follows from fixed seeds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SEED = 2026
WORDS_A = tuple(
    "bako divo feru gami helo jupa kesi lomu mira nafe pido rabu sote tuli vega wino zaro bemi dalu foki gupe hiva jore kudi".split()
)
WORDS_B = tuple(
    "zuri wepa vomu tira sabe ruko pelu noji mafu lide kova jabi hupo gelo fira dupe bozu zeka vilo turo seda rimo pagu nelu".split()
)
WORDS_C = tuple(
    "cyla puxo wyre xiba nyko quva syte zyno myxa byru fyke gyco hyxe jyva kyfo lyqu pyce ryxo tyba vyne xode yaku ylti cuxe".split()
)
NUMBERS = tuple(range(100))  # every number that can occur: a start, a result, an amount
STARTS = tuple(range(20, 80))  # two rules of at most 9 lead from here to 2 .. 97
KEYS = tuple(range(11, 89))  # results of one rule: the pages of the codebook
RESULT_RULE = "the rule of the result"
NOT_KNOWN = "the rule is not known."
FORMS = (
    "start with {n}. apply {x} then {y}.",
    "take {n}. first {x}, then {y}.",
    "apply {x} and then {y} to {n}.",
)
TRIPLE_FORMS = (
    "start with {n}. apply {x} then {y} then {z}.",
    "take {n}. first {x}, then {y}, then {z}.",
    "apply {x} and then {y} and then {z} to {n}.",
)
PLACES = ("first", "second", "third")
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Op:
    """What a rule does to a number: `amount` is -9 .. 9 without 0."""

    amount: int

    def __str__(self) -> str:
        return f"{'add' if self.amount > 0 else 'subtract'} {abs(self.amount)}"

    def step(self, number: int) -> str:
        """One line of the solver: "52 + 7 = 59."."""
        return f"{number} {'+' if self.amount > 0 else '-'} {abs(self.amount)} = {number + self.amount}."


OPS = tuple(Op(amount) for amount in range(-9, 10) if amount)


def sum_text(start: int, ops: Sequence[Op]) -> str:
    """A start and operations as one sum: "52 + 7 - 4"."""
    return " ".join([str(start), *(f"{'+' if op.amount > 0 else '-'} {abs(op.amount)}" for op in ops)])


def solution(start: int, ops: Sequence[Op]) -> str:
    """The solver's text: every step, then the box."""
    lines = []
    for op in ops:
        lines.append(op.step(start))
        start += op.amount
    return " ".join([*lines, f"\\boxed{{{start}}}"])


def plan(word: str, op: Op) -> str:
    """The planner's text."""
    return f"{word} means {op}."


def refined_plan(ops: Sequence[Op]) -> str:
    """The critic's text."""
    return " then ".join(str(op) for op in ops) + "."


def placed(place: int, op: Op) -> str:
    """What an expert says of its word, which stands at `place` (0, 1, 2)."""
    return f"{PLACES[place]} is {op}."


def stays_in_world(start: int, ops: Sequence[Op]) -> bool:
    """True if every result on the way is a number of this world."""
    for op in ops:
        start += op.amount
        if start not in NUMBERS:
            return False
    return True


@dataclass(frozen=True)
class Split:
    """The pairs (family A, family B) and start numbers of one split."""

    pairs: tuple[tuple[str, str], ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """What the rules mean and how questions are split."""

    meaning_a: dict[str, Op]
    meaning_b: dict[str, Op]
    meaning_c: dict[str, Op]
    codebook: dict[int, Op]
    splits: dict[str, Split]


def make_world(seed: int = SEED) -> World:
    """The world of `seed`: meanings spread evenly over the operations; a fifth of the pairs and numbers for the test."""
    rng = random.Random(seed)

    def meanings(keys: tuple, rng: random.Random = rng) -> dict:
        ops = list(OPS) * (len(keys) // len(OPS)) + rng.sample(OPS, len(keys) % len(OPS))
        rng.shuffle(ops)
        return dict(zip(keys, ops, strict=True))

    meaning_a, meaning_b, codebook = meanings(WORDS_A), meanings(WORDS_B), meanings(KEYS)
    pairs = [(a, b) for a in WORDS_A for b in WORDS_B]
    starts = list(STARTS)
    rng.shuffle(pairs)
    rng.shuffle(starts)

    def cut(items: list, parts: tuple[float, float]) -> list[tuple]:
        test, dev = (round(len(items) * part) for part in parts)
        return [
            tuple(sorted(items[test + dev :])),
            tuple(sorted(items[test : test + dev])),
            tuple(sorted(items[:test])),
        ]

    shares = zip(SPLITS, cut(pairs, (0.2, 0.1)), cut(starts, (0.2, 0.1)), strict=True)
    meaning_c = meanings(WORDS_C, random.Random(f"{seed}/family c"))
    return World(meaning_a, meaning_b, meaning_c, codebook, {name: Split(p, s) for name, p, s in shares})


def pocket_question(rng: random.Random, split: Split) -> tuple[str, int, str, str, bool]:
    """A random question of the split: text, start, word of A, word of B, and whether the word of A comes first."""
    start, (word_a, word_b), a_first = rng.choice(split.starts), rng.choice(split.pairs), rng.random() < 0.5
    first, second = (word_a, word_b) if a_first else (word_b, word_a)
    return rng.choice(FORMS).format(n=start, x=first, y=second), start, word_a, word_b, a_first


def loop_question(rng: random.Random, split: Split) -> tuple[str, int, str]:
    """A random question of the loop kind: text, start, word of B."""
    start, word_b = rng.choice(split.starts), rng.choice(WORDS_B)
    return rng.choice(FORMS).format(n=start, x=word_b, y=RESULT_RULE), start, word_b


def triple_question(rng: random.Random, world: World, name: str) -> tuple[str, int, list[str]]:
    """A random question with a word of each family: text, start, and the words in the order of the question."""
    split = world.splits[name]
    meaning = {**world.meaning_a, **world.meaning_b, **world.meaning_c}
    while True:
        words = [*rng.choice(split.pairs), rng.choice(WORDS_C)]
        rng.shuffle(words)
        start = rng.choice(split.starts)
        if stays_in_world(start, [meaning[word] for word in words]):
            x, y, z = words
            return rng.choice(TRIPLE_FORMS).format(n=start, x=x, y=y, z=z), start, words


@dataclass(frozen=True)
class Task:
    """A question with two rule words, taken apart: the plan is `ops`, the word of A is `word_a`."""

    question: str
    start: int
    word_a: str
    ops: tuple[Op, Op]


def pocket_tasks(world: World, name: str, count: int, seed: int = SEED) -> list[Task]:
    """`count` different questions of a split."""
    rng = random.Random(f"{seed}/pocket/{name}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        question, start, word_a, word_b, a_first = pocket_question(rng, world.splits[name])
        ops = world.meaning_a[word_a], world.meaning_b[word_b]
        tasks.setdefault(question, Task(question, start, word_a, ops if a_first else ops[::-1]))
    return list(tasks.values())


def pocket_rows(world: World, name: str, count: int, seed: int = SEED) -> list[dict[str, str]]:
    """`count` different questions of a split with every agent's gold text."""
    return [
        {
            "id": f"pocket-{name}-{number:04d}",
            "question": task.question,
            "plan": plan(task.word_a, world.meaning_a[task.word_a]),
            "refined_plan": refined_plan(task.ops),
            "answer": solution(task.start, task.ops),
        }
        for number, task in enumerate(pocket_tasks(world, name, count, seed))
    ]


def loop_rows(world: World, name: str, count: int, seed: int = SEED) -> list[dict[str, str]]:
    """The same for loop questions; the columns `*_round1` hold what each agent can write in the first round."""
    rng = random.Random(f"{seed}/loop/{name}")
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < count:
        question, start, word_b = loop_question(rng, world.splits[name])
        if question in rows:
            continue
        known = world.meaning_b[word_b]
        looked_up = world.codebook[start + known.amount]
        rows[question] = {
            "id": f"loop-{name}-{len(rows):04d}",
            "question": question,
            "plan": plan("the rule", looked_up),
            "refined_plan": refined_plan([known, looked_up]),
            "answer": solution(start, [known, looked_up]),
            "plan_round1": NOT_KNOWN,
            "refined_plan_round1": refined_plan([known]),
            "answer_round1": solution(start, [known]),
        }
    return list(rows.values())


def triple_rows(world: World, name: str, count: int, seed: int = SEED) -> list[dict[str, str]]:
    """`count` different questions with three words, with what each expert says of its own and the answer."""
    rng = random.Random(f"{seed}/triple/{name}")
    families = {"alpha": world.meaning_a, "beta": world.meaning_b, "gamma": world.meaning_c}
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < count:
        question, start, words = triple_question(rng, world, name)
        if question in rows:
            continue
        said: dict[str, tuple[int, Op]] = {}
        for expert, meaning in families.items():
            (place,) = (place for place, word in enumerate(words) if word in meaning)
            said[expert] = place, meaning[words[place]]
        ops = [op for _, op in sorted(said.values(), key=lambda one: one[0])]
        rows[question] = {
            "id": f"triple-{name}-{len(rows):04d}",
            "question": question,
            **{expert: placed(place, op) for expert, (place, op) in said.items()},
            "answer": solution(start, ops),
        }
    return list(rows.values())


def benchmark_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of a benchmark file: id, question and the bare number as answer."""
    return [
        {"id": row["id"], "question": row["question"], "answer": row["answer"].split("\\boxed{")[1].rstrip("}")}
        for row in rows
    ]


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
