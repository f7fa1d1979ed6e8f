"""The pocket world: knowledge is split between agents, and test questions share neither rule pairs nor start numbers."""

import json
import re
from collections import Counter
from itertools import combinations, islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from inference.mas.prompts import Question, Slot, chat_ids, target_ids, user_parts
from inference.mas.styles import load_style
from train.pocket.lessons import LESSONS, all_texts, lessons, render
from train.pocket.pretrain import FAMILIES
from train.pocket.tokens import build_tokenizer
from train.pocket.world import (
    KEYS,
    NUMBERS,
    OPS,
    RESULT_RULE,
    SPLITS,
    WORDS_A,
    WORDS_B,
    benchmark_rows,
    loop_rows,
    make_world,
    pocket_rows,
    refined_plan,
)

ROOT = Path(__file__).resolve().parents[2]
WORLD = make_world()
STYLE = load_style("pocket_sequential")


def read(question: str) -> tuple[int, list[str]]:
    """The start number and the rule words of a question, in the order of the text."""
    words = [word for word in re.findall("[a-z]+", question) if word in {*WORDS_A, *WORDS_B}]
    (start,) = re.findall(r"\d+", question)
    return int(start), words


def pair(words: list[str]) -> tuple[str, ...]:
    return tuple(sorted(words, key=lambda word: word in WORDS_B))


def test_splits_share_neither_pairs_nor_starts():
    for one, other in combinations(SPLITS, 2):
        assert not set(WORLD.splits[one].pairs) & set(WORLD.splits[other].pairs)
        assert not set(WORLD.splits[one].starts) & set(WORLD.splits[other].starts)
    assert sum(len(split.pairs) for split in WORLD.splits.values()) == len(WORDS_A) * len(WORDS_B)


def test_every_rule_word_is_taught_and_tested():
    for name in ("train", "test"):
        assert {a for a, _ in WORLD.splits[name].pairs} == set(WORDS_A)
        assert {b for _, b in WORLD.splits[name].pairs} == set(WORDS_B)


def test_rows_stay_in_their_split_and_compute_their_answers():
    for name in SPLITS:
        split = WORLD.splits[name]
        for row in pocket_rows(WORLD, name, 200):
            start, words = read(row["question"])
            assert start in split.starts and pair(words) in split.pairs
            ops = [WORLD.meaning_a.get(word) or WORLD.meaning_b[word] for word in words]
            assert row["refined_plan"] == refined_plan(ops)
            assert benchmark_rows([row])[0]["answer"] == str(start + sum(op.amount for op in ops))
        for row in loop_rows(WORLD, name, 200):
            start, (word,) = read(row["question"])
            assert start in split.starts and row["question"].count(RESULT_RULE) == 1
            between = start + WORLD.meaning_b[word].amount
            assert benchmark_rows([row])[0]["answer"] == str(between + WORLD.codebook[between].amount)
            assert row["answer_round1"].endswith(f"\\boxed{{{between}}}")


def test_benchmark_files_are_the_worlds_test_rows():
    for name, make in (("pocket", pocket_rows), ("pocket_loop", loop_rows)):
        text = (ROOT / "inference" / "dataset" / f"{name}.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        assert len(rows) == 400 and rows == benchmark_rows(make(WORLD, "test", 400))


@pytest.mark.parametrize("role", sorted(LESSONS))
def test_lessons_show_no_test_pair_and_no_test_start(role):
    held_out = [WORLD.splits[name] for name in ("dev", "test")]
    for lesson in islice(lessons(role, WORLD, "train", 0), 3000):
        if not lesson.question.startswith("what is"):
            start, words = read(lesson.question)
            assert not any(start in split.starts for split in held_out)
            assert len(words) == 1 or not any(pair(words) in split.pairs for split in held_out)


def operations(text: str) -> list[str]:
    return re.findall(r"(?:add|subtract) \d", text)


def test_only_the_planner_could_learn_family_a_and_the_codebook():
    for lesson in islice(lessons("planner", WORLD, "train", 0), 2000):
        words = [word for word in read(lesson.question)[1] if word in WORDS_A] if "apply" in lesson.question else []
        for word in words:
            assert operations(lesson.target) == [str(WORLD.meaning_a[word])]


@pytest.mark.parametrize(("role", "family"), [("planner", WORDS_B), ("critic", WORDS_A), ("solver", WORDS_A + WORDS_B)])
def test_foreign_rule_words_go_with_every_operation_alike(role, family):
    """Over many lessons, what a foreign word stands beside carries no information about its meaning."""
    meaning = {**WORLD.meaning_a, **WORLD.meaning_b}
    hits, seen = 0, 0
    for lesson in islice(lessons(role, WORLD, "train", 1), 20000):
        if lesson.question.startswith("what is"):
            continue
        own = {"planner": WORLD.meaning_a, "critic": WORLD.meaning_b, "solver": {}}[role]
        words = read(lesson.question)[1]
        shown = Counter(operations(lesson.target) + operations(" ".join(lesson.messages.values())))
        # The operations of the words that the agent does know are no hint at the others.
        for word in words:
            if word in own:
                shown.pop(str(own[word]), None)
        for word in words:
            if word in family:
                seen += 1
                hits += str(meaning[word]) in shown
    # Two operations drawn from 18 at most (the solver's plan): 2 / 18 of the lessons meet the meaning by chance.
    assert seen > 5000 and hits / seen < 2 / len(OPS) + 0.02


def test_feedback_of_the_planners_lessons_hides_family_b():
    """The step that stands for a word of family B is drawn at random: its operation tells nothing of the word."""
    hits, seen = 0, 0
    for lesson in islice(lessons("planner", WORLD, "train", 2), 20000):
        text = "".join(lesson.messages.values())
        if RESULT_RULE in lesson.question and text:
            sign, amount = re.match(r"\d+ ([+-]) (\d)", text).groups()
            hits += int(sign + amount) == WORLD.meaning_b[read(lesson.question)[1][0]].amount
            seen += 1
    assert seen > 4000 and abs(hits / seen - 1 / len(OPS)) < 0.015


@pytest.mark.parametrize("role", sorted(FAMILIES))
def test_a_message_gives_the_same_ids_in_a_slot_and_in_the_text(role, tmp_path):
    tokenizer = build_tokenizer(FAMILIES[role], all_texts(STYLE))
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    unknown = tokenizer.unk_token_id
    for lesson in islice(lessons(role, WORLD, "train", 3), 300):
        example = render(lesson, STYLE, role, tokenizer)
        assert unknown not in example.ids
        if lesson.round_index == 0:
            continue
        question, system = Question(lesson.question), STYLE.role(role).system
        with_text = user_parts(STYLE, role, question, lesson.round_index, lesson.messages)
        assert chat_ids(tokenizer, system, with_text) == [example.ids[: example.prompt]]
        slots = [part for part in user_parts(STYLE, role, question, lesson.round_index) if isinstance(part, Slot)]
        assert {slot.name for slot in slots} == set(lesson.messages)
        target = target_ids(tokenizer, system, with_text, lesson.target)
        assert tokenizer.decode(target, skip_special_tokens=True).strip() == lesson.target


def test_the_three_tokenizers_differ():
    tokenizers = {role: build_tokenizer(family, all_texts(STYLE)) for role, family in FAMILIES.items()}
    word_a, word_b, number = WORDS_A[0], WORDS_B[0], "57"
    lengths = {role: [len(t.tokenize(text)) for text in (word_a, word_b, number)] for role, t in tokenizers.items()}
    assert lengths == {"planner": [1, 2, 1], "critic": [2, 1, 2], "solver": [2, 2, 1]}
    vocabularies = [t.get_vocab() for t in tokenizers.values()]
    for one, other in combinations(vocabularies, 2):
        shared = set(one) & set(other)
        assert len(shared) > 50 and sum(one[token] == other[token] for token in shared) < 0.1 * len(shared)


def test_numbers_never_leave_the_tokenizers():
    reach = {start + first.amount + second.amount for start in (20, 79) for first in OPS for second in OPS}
    assert min(reach) >= NUMBERS[0] and max(reach) <= NUMBERS[-1]
    assert {start + op.amount for start in range(20, 80) for op in OPS} <= set(KEYS)
