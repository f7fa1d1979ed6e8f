"""An answer without its form goes on in its own context: scripted texts through the real loop, and what is recorded."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from inference.answer_form import ANSWER_TOKENS, CODE_TOKENS, SUFFIXES, AnswerForm, has_form
from inference.benchmarks.base import Benchmark, Sample
from inference.evaluation import Plan, make_conditions, make_records
from inference.mas.decoding import Sampling
from inference.mas.prompts import Question
from inference.mas.recursion import Answer
from inference.mas.tools import ToolUse
from inference.mas.writing import Suffix
from inference.scoring import maths
from tests.mas.scripted import EOS, Given, Positions, Result, Scripted, Tools
from tests.mas.systems import make_system

GREEDY = Sampling(max_new_tokens=30, do_sample=False)
BOX = Suffix("\nSo: \\boxed{", 6)


def boxed_or_suffix(text):
    return None if "\\boxed" in text else BOX


def speak(model, sampling=GREEDY, find=boxed_or_suffix, seeds=None, **how):
    rows = len(model.scripts)
    return model.agent.speak(model.batch(), sampling, seeds or [[0]] * rows, suffixes=[find] * rows, **how)


def test_an_answer_goes_on_in_its_own_context_and_others_do_not():
    model = Scripted(
        [["it is ", "seven", EOS], Given(BOX.text), ["7", "}", EOS]],
        [["\\boxed{", "8}", EOS]],
    )
    with Positions(model.agent) as run:
        (first,), (second,) = speak(model)
    assert first.text == "it is seven\nSo: \\boxed{7}"
    assert first.retry and first.text_before_retry == "it is seven"
    assert first.suffix_tokens == len(model.ids_of(Given(BOX.text)))
    assert first.finish == "eos" and len(first.tokens) == 6
    assert (second.text, second.retry, second.text_before_retry, second.suffix_tokens) == ("\\boxed{8}", False, None, 0)
    # Nothing is prefilled again: the stop tokens, two of the first row and one of the second, are never run.
    assert run.prefilled == sum(model.prompt_lengths)
    assert sum(run.sizes) == len(first.tokens) - 2 + first.suffix_tokens + len(second.tokens) - 1


def test_a_text_that_was_cut_goes_on_behind_its_last_token_with_a_small_budget():
    model = Scripted([[*"abcdefgh"], Given(BOX.text), [*"123456789"]])
    ((answer,),) = speak(model, Sampling(max_new_tokens=8, do_sample=False))
    assert answer.text == "abcdefgh\nSo: \\boxed{123456" and answer.text_before_retry == "abcdefgh"
    assert answer.finish == "length" and len(answer.tokens) == 8 + BOX.max_new_tokens


def test_it_is_asked_once():
    model = Scripted([["no", EOS], Given(BOX.text), ["no", EOS]])
    asked = []

    def always(text):
        asked.append(text)
        return BOX

    ((answer,),) = speak(model, find=always)
    assert asked == ["no"] and answer.text == "no\nSo: \\boxed{no"


def test_copies_and_rollouts():
    model = Scripted([["x", EOS], Given(BOX.text), ["7}", EOS]])
    (copies,) = speak(model, seeds=[[1, 2]])
    assert [(c.seed, c.text, c.text_before_retry) for c in copies] == [(s, "x\nSo: \\boxed{7}", "x") for s in (1, 2)]
    (drawn,) = speak(model, Sampling(max_new_tokens=30, temperature=0.01), seeds=[[1, 2, 3]])
    assert [d.text for d in drawn] == [copies[0].text] * 3


def test_tools_are_closed_in_a_retry_and_their_results_are_no_form():
    model = Scripted(
        [
            ["<python>", "1", "</python>"],
            Result("\\boxed{5}"),
            ["hm", EOS],
            Given(BOX.text),
            ["6}", "<python>", "2", "</python>", EOS],
        ]
    )
    box = Tools(python=lambda body: "\\boxed{5}")
    ((answer,),) = speak(model, tools=ToolUse(box))
    assert len(box.asked) == 1
    assert answer.text_before_retry == "hm"
    assert answer.answer == "hm\nSo: \\boxed{6}"
    assert "\\boxed{5}" in answer.text


@torch.no_grad()
@pytest.mark.parametrize("method", ["latent", "text", "single"])
def test_every_method_retries_its_answer_only(method):
    system = make_system()
    questions = [Question("1+1?", id="a"), Question("Say 7.", id="b")]
    asked = []

    def needs(question, text):
        asked.append(question.id)
        return Suffix(" So: ", 3)

    how = {"rounds": 2, "latent_steps": 2, "method": method, "sampling": Sampling(max_new_tokens=5, do_sample=False)}
    plain = system.answer(questions, **how)
    retried = system.answer(questions, needs_suffix=needs, **how)
    assert sorted(asked) == ["a", "b"], "text messages are not answers"
    for before, after in zip(plain, retried, strict=True):
        old, new = before.rollouts[0], after.rollouts[0]
        assert new.text_before_retry == old.text and new.tokens[: len(old.tokens)] == old.tokens
        assert len(old.tokens) < len(new.tokens) <= len(old.tokens) + 3
        assert after.prompt_tokens == before.prompt_tokens + new.suffix_tokens
        assert after.generated_tokens - before.generated_tokens == len(new.tokens) - len(old.tokens)


# --- which answers lack their form ----------------------------------------------------------------------------------------------

MATH = Sample(0, "m", "1+1?", "2")
CHOICE = Sample(1, "c", "Which?", "B", family="choice", meta={"options": ["red", "green", "blue", "grey"]})
FUNCTION = Sample(2, "f", "Write f.", "", family="code", kind="function", fn_name="f")
PROGRAM = Sample(3, "p", "Read and print.", "", family="code", kind="program")


@pytest.mark.parametrize(
    ("sample", "text", "expected"),
    [
        (MATH, "so \\boxed{2}", True),
        (MATH, "The answer is 2.", False),
        (MATH, "", False),
        (MATH, "so \\boxed{2", False),
        (MATH, "<think> \\boxed{3}", False),
        (CHOICE, "Answer: B", True),
        (CHOICE, "The answer is green", True),
        (CHOICE, "I do not know.", False),
        (FUNCTION, "```python\ndef f(x):\n    return x\n```", True),
        (FUNCTION, "I would loop over the list.", False),
        (PROGRAM, "```python\nprint(input())\n```", True),
        (PROGRAM, "", False),
    ],
)
def test_what_has_its_form(sample, text, expected):
    assert has_form(sample, text) is expected


def test_suffixes_by_family():
    form = AnswerForm([MATH, CHOICE, FUNCTION, Sample(4, "r", "Why?", "", family="reasoning")])
    suffix = {sample: form(Question("", id=sample), "hm") for sample in "mcfr"}
    assert suffix["m"] == Suffix(SUFFIXES["math"], ANSWER_TOKENS) and ANSWER_TOKENS == 16
    assert suffix["c"] == Suffix(SUFFIXES["choice"], ANSWER_TOKENS)
    assert suffix["f"] == Suffix(SUFFIXES["code"], CODE_TOKENS) and CODE_TOKENS >= 256
    assert suffix["r"] is None, "free text has no form"
    assert form(Question("", id="m"), "<think> so") == Suffix("\n</think>" + SUFFIXES["math"], ANSWER_TOKENS)
    thinking = AnswerForm([MATH], enable_thinking=True)
    assert thinking(Question("", id="m"), "so").text.startswith("\n</think>")
    assert thinking(Question("", id="m"), "so</think> 2").text == SUFFIXES["math"]


@contextmanager
def grader():
    with maths.ComparePool() as pool:
        yield lambda pairs: [maths.grade(text, sample.gold, pool) for sample, text in pairs]


def test_records_hold_both_grades_and_never_grade_a_result():
    sample = Sample(0, "m", "?", "7")
    model = Scripted(
        [["<python>", "1", "</python>"], Result("\\boxed{7}"), ["hm", EOS], Given(SUFFIXES["math"]), ["7", "}", EOS]],
        [["\\boxed{", "7}", EOS]],
        [["<python>", "1", "</python>"], Result("\\boxed{7}"), [EOS], Given(SUFFIXES["math"]), ["8}", EOS]],
    )
    form = AnswerForm([sample])
    box = Tools(python=lambda body: "\\boxed{7}")
    rows = speak(model, find=lambda text: form(Question("?", id="m"), text), tools=ToolUse(box))
    answer = Answer("m", [row[0] for row in rows], prompt_tokens=1, generated_tokens=1, tool_tokens=2)
    data = Benchmark("own", "test", "own", None, (sample,), (sample,), grader)
    (condition,) = make_conditions(["latent"], [1], [2])
    plan = Plan("s", "chain", data, (condition,), GREEDY, 3, 0, False, ans=True, tools=object())
    with grader() as grade:
        (record,) = make_records(plan, condition, [(sample, answer)], grade)
    names = ("correct", "retry", "correct_before_retry", "text_before_retry", "answer_text", "tool_calls")
    told = [tuple(rollout.get(name) for name in names) for rollout in record["rollouts"]]
    asked = SUFFIXES["math"]
    assert told == [
        (True, True, False, "hm", f"hm{asked}7}}", {"python": 1}),
        (True, False, None, None, None, {}),
        (False, True, False, "", f"{asked}8}}".strip(), {"python": 1}),
    ]
    assert record["tool_tokens"] == 2
