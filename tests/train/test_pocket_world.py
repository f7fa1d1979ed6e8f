"""The pocket world: knowledge is split between agents, and test questions share neither rule pairs nor start numbers."""

import json
import re
from collections import Counter
from itertools import combinations, islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from inference.mas.prompts import Question, Slot, chat_ids, system_text, target_ids, user_parts
from inference.mas.styles import load_style
from inference.tools.cache import JsonlCache
from inference.tools.search_tool import SearchSettings, SearchTool
from train.pocket.facts import (
    KINDS,
    call_rows,
    make_facts,
    python_call,
    search_result,
    search_rows,
    write_recorded,
)
from train.pocket.lessons import render
from train.pocket.models import MODELS
from train.pocket.world import (
    KEYS,
    NUMBERS,
    OPS,
    RESULT_RULE,
    SPLITS,
    WORDS_A,
    WORDS_B,
    WORDS_C,
    benchmark_rows,
    loop_rows,
    make_world,
    placed,
    pocket_rows,
    refined_plan,
    stays_in_world,
    triple_rows,
)

ROOT = Path(__file__).resolve().parents[2]
WORLD = make_world()
MEANING = {**WORLD.meaning_a, **WORLD.meaning_b, **WORLD.meaning_c}
FACT = re.compile(rf"(?:{'|'.join(KINDS)}) ([a-z]+)")
# What each model is taught, and what it could only have from others.
KNOWN = {
    "planner": WORLD.meaning_a,
    "critic": WORLD.meaning_b,
    "solver": {},
    "expert": {**WORLD.meaning_a, **WORLD.meaning_b},
    "toolcaller": {},
    "alpha": WORLD.meaning_a,
    "beta": WORLD.meaning_b,
    "gamma": WORLD.meaning_c,
    "summarizer": {},
}


def lessons(name: str, count: int, seed: int) -> list:
    return list(islice(MODELS[name].lessons(WORLD, "train", seed), count))


def read(question: str) -> tuple[int | None, list[str]]:
    """The start number (None: a fact stands there) and the rule words of a question, in the order of the text."""
    words = [word for word in re.findall("[a-z]+", FACT.sub("", question)) if word in MEANING]
    starts = re.findall(r"\d+", question)
    assert len(starts) == (0 if FACT.search(question) else 1)
    return (int(starts[0]) if starts else None), words


def pair(words: list[str]) -> tuple[str, ...]:
    return tuple(sorted((word for word in words if word not in WORDS_C), key=lambda word: word in WORDS_B))


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


def test_rows_with_three_words():
    for name in SPLITS:
        split = WORLD.splits[name]
        for row in triple_rows(WORLD, name, 200):
            start, words = read(row["question"])
            assert start in split.starts and pair(words) in split.pairs and len(set(words) & set(WORDS_C)) == 1
            ops = [MEANING[word] for word in words]
            assert stays_in_world(start, ops)
            assert sorted((row["alpha"], row["beta"], row["gamma"])) == sorted(map(placed, range(3), ops))
            assert row["alpha"] == placed(*next((i, op) for i, op in enumerate(ops) if words[i] in WORDS_A))
            assert benchmark_rows([row])[0]["answer"] == str(start + sum(op.amount for op in ops))


def test_rows_with_a_fact_and_rows_with_calls():
    for name in SPLITS:
        facts = {fact.query: fact for fact in make_facts(WORLD)[name]}
        assert {fact.number for fact in facts.values()} == set(WORLD.splits[name].starts)
        for row in search_rows(WORLD, name, 100):
            _, words = read(row["question"])
            assert pair(words) in WORLD.splits[name].pairs
            number = facts[FACT.search(row["question"])[0]].number
            assert benchmark_rows([row])[0]["answer"] == str(number + sum(MEANING[word].amount for word in words))
        for row, same in zip(call_rows(WORLD, name, 50), pocket_rows(WORLD, name, 50), strict=True):
            start, words = read(row["question"])
            assert row["question"] == same["question"]
            assert row["call"] == python_call(start, [MEANING[word] for word in words])
    names = [fact.name for facts in make_facts(WORLD).values() for fact in facts]
    assert len(set(names)) == len(names) and not set(names) & set(MEANING)


def test_benchmark_files_are_the_worlds_test_rows():
    makers = {
        "pocket": pocket_rows,
        "pocket_loop": loop_rows,
        "pocket_search": search_rows,
        "pocket_mixture": triple_rows,
    }
    for name, make in makers.items():
        text = (ROOT / "inference" / "dataset" / f"{name}.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        assert len(rows) == 400 and rows == benchmark_rows(make(WORLD, "test", 400))


def test_recorded_searches_answer_the_test_facts(tmp_path):
    """The shipped file is what the world gives, and the real tool reads from it what the lessons show."""
    write_recorded(tmp_path / "search.jsonl", WORLD)
    shipped = ROOT / "assets" / "pocket" / "search.jsonl"
    assert shipped.read_bytes() == (tmp_path / "search.jsonl").read_bytes()
    assert len(JsonlCache(shipped, read_only=True)) == len(make_facts(WORLD)["test"])
    with SearchTool(SearchSettings(replay_file=shipped)) as search:
        for fact in make_facts(WORLD)["test"]:
            assert search_result(fact) == f" <result> {search(fact.query)} </result>"


@pytest.mark.parametrize("name", sorted(MODELS))
def test_lessons_show_no_test_pair_no_test_start_and_no_test_fact(name):
    held_out = [WORLD.splits[split] for split in ("dev", "test")]
    facts = {(fact.query, fact.number) for split in ("dev", "test") for fact in make_facts(WORLD)[split]}
    for lesson in lessons(name, 3000, 0):
        shown = " ".join(lesson.written)
        assert not any((query, int(n)) in facts for query, n in re.findall(r"the ([a-z ]+) is (\d+)\.", shown))
        if not lesson.question.startswith("what is"):
            start, words = read(lesson.question)
            assert not any(start in split.starts for split in held_out)
            assert len(words) == 1 or not any(pair(words) in split.pairs for split in held_out)


def operations(text: str) -> list[str]:
    """The operations that a text names, in words or as a sum."""
    signs = [f"{'add' if sign == '+' else 'subtract'} {n}" for sign, n in re.findall(r"([+-]) (\d)\b", text)]
    return re.findall(r"(?:add|subtract) \d", text) + signs


@pytest.mark.parametrize("name", ["planner", "alpha", "beta", "gamma"])
def test_those_who_know_a_family_say_what_it_means(name):
    for lesson in lessons(name, 2000, 0):
        if lesson.question.startswith("what is") or RESULT_RULE in lesson.question:
            continue
        (known,) = (word for word in read(lesson.question)[1] if word in KNOWN[name])
        assert operations(lesson.target) == [str(MEANING[known])]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_foreign_rule_words_go_with_every_operation_alike(name):
    """Over many lessons, what a foreign word stands beside carries no information about its meaning."""
    hits = seen = expected = 0
    for lesson in lessons(name, 20000, 1):
        if lesson.question.startswith("what is"):
            continue
        words = read(lesson.question)[1]
        texts = [lesson.target, *lesson.messages.values(), *lesson.written]
        shown = Counter(operations(" ".join(texts)))
        # The operations of the words that the model does know are no hint at the others.
        for word in words:
            if word in KNOWN[name]:
                shown.pop(str(MEANING[word]), None)
        for word in words:
            if word not in KNOWN[name]:
                seen += 1
                hits += str(MEANING[word]) in shown
                expected += len(shown) / len(OPS)
    if name == "expert":
        assert seen == 0
    else:
        assert seen > 5000 and hits < expected + 0.02 * seen


def test_feedback_of_the_planners_lessons_hides_family_b():
    """The step that stands for a word of family B is drawn at random: its operation tells nothing of the word."""
    hits, seen = 0, 0
    for lesson in lessons("planner", 20000, 2):
        text = "".join(lesson.messages.values())
        if RESULT_RULE in lesson.question and text:
            sign, amount = re.match(r"\d+ ([+-]) (\d)", text).groups()
            hits += int(sign + amount) == WORLD.meaning_b[read(lesson.question)[1][0]].amount
            seen += 1
    assert seen > 4000 and abs(hits / seen - 1 / len(OPS)) < 0.015


def test_the_expert_looks_up_the_result_that_feedback_shows():
    """The first operation of the learner's steps is drawn at random, so that nothing but the shown result tells the page."""
    seen = 0
    for lesson in lessons("expert", 5000, 2):
        text = "".join(lesson.messages.values())
        if RESULT_RULE in lesson.question and text:
            shown = int(re.match(r"\d+ [+-] \d = (\d+)\.", text)[1])
            known = WORLD.meaning_b[read(lesson.question)[1][0]]
            assert lesson.target == refined_plan([known, WORLD.codebook[shown]])
            seen += 1
    assert seen > 1500


def test_the_toolcaller_is_never_shown_what_a_sum_gives():
    """Results that it boxes are drawn at random: it can learn to read them, and not to compute them."""
    right = seen = 0
    for lesson in lessons("toolcaller", 10000, 2):
        if lesson.written and "</python>" in lesson.written[-2]:
            assert lesson.target == f"\\boxed{{{re.fullmatch(r' <result> (.+) </result>', lesson.written[-1])[1]}}}"
            terms = re.findall(r"[+-]? ?\d+", lesson.written[-2])
            right += sum(int(term.replace(" ", "")) for term in terms) == int(re.findall(r"\d+", lesson.target)[0])
            seen += 1
    assert seen > 1500 and right / seen < 0.03


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_message_gives_the_same_ids_in_a_slot_and_in_the_text(name, tmp_path):
    model = MODELS[name]
    style, role = load_style(model.style), model.role
    model.tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    unknown = tokenizer.unk_token_id
    for lesson in lessons(name, 300, 3):
        example = render(lesson, style, role, tokenizer)
        assert unknown not in example.ids
        if lesson.round_index == 0:
            continue
        question = Question(lesson.question)
        tools = style.role(role).tools if lesson.tools else ()
        system = system_text(style, role, question, tools)
        with_text = user_parts(style, role, question, lesson.round_index, lesson.messages, tools)
        (prompt,) = chat_ids(tokenizer, system, with_text)
        assert example.ids[: len(prompt)] == prompt and (lesson.written or len(prompt) == example.prompt)
        slots = [part for part in user_parts(style, role, question, lesson.round_index) if isinstance(part, Slot)]
        assert {slot.name for slot in slots} == set(lesson.messages)
        target = target_ids(tokenizer, system, with_text, lesson.target)
        assert tokenizer.decode(target, skip_special_tokens=True).strip() == lesson.target


@pytest.mark.parametrize("name", sorted(MODELS))
def test_shipped_tokenizers_are_what_the_code_builds(name, tmp_path):
    MODELS[name].tokenizer().save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / file).read_text() == (ROOT / "assets" / "pocket" / name / file).read_text(), file


def test_tokenizers_differ_within_a_system():
    word_a, word_b, number = WORDS_A[0], WORDS_B[0], "57"
    tokenizers = {name: model.tokenizer() for name, model in MODELS.items()}
    lengths = {name: [len(t.tokenize(text)) for text in (word_a, word_b, number)] for name, t in tokenizers.items()}
    assert {name: lengths[name] for name in ("planner", "critic", "solver")} == {
        "planner": [1, 2, 1],
        "critic": [2, 1, 2],
        "solver": [2, 2, 1],
    }
    systems = (("planner", "critic", "solver"), ("expert", "solver"), ("expert", "toolcaller"))
    for names in (*systems, ("alpha", "beta", "gamma", "summarizer")):
        for one, other in combinations([tokenizers[name].get_vocab() for name in names], 2):
            shared = set(one) & set(other)
            assert len(shared) > 50 and sum(one[token] == other[token] for token in shared) < 0.1 * len(shared)


def test_numbers_never_leave_the_tokenizers():
    reach = {start + first.amount + second.amount for start in (20, 79) for first in OPS for second in OPS}
    assert min(reach) >= NUMBERS[0] and max(reach) <= NUMBERS[-1]
    assert {start + op.amount for start in range(20, 80) for op in OPS} <= set(KEYS)
