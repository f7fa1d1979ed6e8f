"""Facts of the pocket world that nobody knows: a question names one in the place of its start number, a search tells it.

    question      start with the height of mount kelo. apply bako then zuri.
    toolcaller    <search>height of mount kelo</search> <result> ... the height of mount kelo is 52. ... </result>
                  <python>print(52 + 7 - 4)</python> <result> 55 </result>
                  \\boxed{55}

What searches find is recorded for the facts of the test questions, in the form that `--search_replay` reads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from inference.mas.tools import ToolUse, result_block
from inference.tools.cache import JsonlCache
from inference.tools.search_tool import result_text, search_request
from train.pocket.world import (
    FORMS,
    SEED,
    SPLITS,
    WORDS_A,
    WORDS_B,
    WORDS_C,
    Op,
    World,
    pocket_tasks,
    refined_plan,
    sum_text,
)

KINDS = ("height of mount", "depth of lake", "age of king")
FACTS_OF_A_START = 5
SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmrstvwz" for vowel in "aeiou")  # of names
SITE = "https://pocket.invalid"
TAKEN = (
    "sum"  # a word of the lessons: of a name that begins with it, the tokenizers would read it and not the syllables
)


@dataclass(frozen=True)
class Fact:
    """Something that has a number: `kind` and `name` are how it is asked for."""

    kind: str
    name: str
    number: int

    @property
    def query(self) -> str:
        """What is searched for: "height of mount kelo"."""
        return f"{self.kind} {self.name}"

    def page(self) -> dict[str, str]:
        """The page that tells it, as a search result."""
        thing = self.kind.rsplit(" ", 1)[1]
        content = f"the {self.query} is {self.number}."
        return {"title": f"{thing} {self.name}", "url": f"{SITE}/{thing}/{self.name}", "content": content}


def make_facts(world: World, seed: int = SEED) -> dict[str, tuple[Fact, ...]]:
    """Facts by split: a few for each of its start numbers, every name once in all."""
    return _facts(tuple(world.splits[split].starts for split in SPLITS), seed)


@lru_cache(maxsize=4)
def _facts(starts: tuple[tuple[int, ...], ...], seed: int) -> dict[str, tuple[Fact, ...]]:
    rng = random.Random(f"{seed}/facts")
    names = sorted({a + b for a in SYLLABLES for b in SYLLABLES} - {*WORDS_A, *WORDS_B, *WORDS_C})
    rng.shuffle(names)
    left = (name for name in names if not name.startswith(TAKEN))
    return {
        split: tuple(Fact(rng.choice(KINDS), next(left), start) for start in own for _ in range(FACTS_OF_A_START))
        for split, own in zip(SPLITS, starts, strict=True)
    }


def search_results(fact: Fact) -> list[dict[str, str]]:
    """What a search for a fact finds: its page."""
    return [fact.page()]


def search_question(
    rng: random.Random, world: World, split: str, fact: Fact | None = None
) -> tuple[str, Fact, list[Op]]:
    """A random question of the split that starts with a fact: text, fact, and what its two rules do, in their order.

    The fact is one of the split's, if none is given.
    """
    fact = fact or rng.choice(make_facts(world)[split])
    word_a, word_b = words = rng.choice(world.splits[split].pairs)
    ops = [world.meaning_a[word_a], world.meaning_b[word_b]]
    if rng.random() >= 0.5:
        words, ops = words[::-1], ops[::-1]
    return rng.choice(FORMS).format(n=f"the {fact.query}", x=words[0], y=words[1]), fact, ops


def search_rows(world: World, name: str, count: int, seed: int = SEED) -> list[dict[str, str]]:
    """`count` different questions that start with a fact, with the plan and the answer."""
    rng = random.Random(f"{seed}/search/{name}")
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < count:
        question, fact, ops = search_question(rng, world, name)
        row = {
            "id": f"search-{name}-{len(rows):04d}",
            "question": question,
            "refined_plan": refined_plan(ops),
            "answer": f"\\boxed{{{fact.number + sum(op.amount for op in ops)}}}",
        }
        rows.setdefault(question, row)
    return list(rows.values())


def search_call(fact: Fact) -> str:
    """How the toolcaller asks for a fact."""
    return f"<search>{fact.query}</search>"


def search_result(fact: Fact) -> str:
    """What the toolcaller reads behind that call, as the tool loop puts it."""
    return result_block(result_text(fact.query, search_results(fact)), ToolUse.result_max_chars)


def python_call(start: int, ops: Sequence[Op]) -> str:
    """How the toolcaller has the answer computed."""
    return f"<python>print({sum_text(start, ops)})</python>"


def python_result(number: int) -> str:
    """What it reads behind that call."""
    return result_block(str(number), ToolUse.result_max_chars)


def call_rows(world: World, name: str, count: int) -> list[dict[str, str]]:
    """Pocket rows for the pair with tools: the plan, and the call that carries it out."""
    return [
        {
            "id": f"call-{name}-{number:04d}",
            "question": task.question,
            "refined_plan": refined_plan(task.ops),
            "call": python_call(task.start, task.ops),
        }
        for number, task in enumerate(pocket_tasks(world, name, count))
    ]


def write_recorded(path: Path, world: World) -> None:
    """The searches of the test questions' facts, as a file for `--search_replay`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    cache = JsonlCache(path)
    for fact in make_facts(world)["test"]:
        cache.put(search_request(fact.query), {"results": search_results(fact)})
