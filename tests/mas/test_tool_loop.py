"""Tools in the token loop: scripted texts through the real loop, and random models of every family against a slow twin."""

from __future__ import annotations

import re
import threading
import time

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inference.mas.agent import Agent
from inference.mas.decoding import Sampling, choose
from inference.mas.links import InnerLink
from inference.mas.styles import Role
from inference.mas.tools import LIMIT_REACHED, Tags, ToolUse, result_block
from inference.mas.writing import TextStream
from inference.tools.errors import FailedResult
from inference.tools.toolbox import ToolSettings
from tests.mas.scripted import EOS, Cut, Positions, Result, Scripted, Tools
from tests.mas.systems import FAMILIES
from tests.tiny_models import make_model, make_tokenizer

GREEDY = Sampling(max_new_tokens=200, do_sample=False)


def speak(model: Scripted, box: Tools, sampling: Sampling = GREEDY, **use):
    """The one answer of each row."""
    seeds = [[0]] * len(model.scripts)
    return [row[0] for row in model.agent.speak(model.batch(), sampling, seeds, tools=ToolUse(box, **use))]


def test_a_tag_in_the_first_token_is_a_call():
    model = Scripted([["<python>1+1</python>"], Result("2"), [" so ", "2", EOS]])
    box = Tools(python=lambda body: "2")
    (answer,) = speak(model, box)
    assert answer.text == "<python>1+1</python> <result> 2 </result> so 2"
    assert answer.answer == "so 2"
    assert box.asked == [("0:0", "python", "1+1")]
    assert (answer.tool_calls, answer.tool_failures) == ({"python": 1}, 0)
    assert answer.tool_tokens == len(model.ids_of(Result("2")))
    assert len(answer.tokens) == 4 and answer.finish == "eos"


def test_a_tag_split_over_many_tokens_is_a_call():
    model = Scripted([list("let me <search> two words\n") + list("</search>"), Result("found"), ["fine", EOS]])
    box = Tools(search=lambda body: "found")
    (answer,) = speak(model, box)
    assert box.asked == [("0:0", "search", "two words")]
    assert answer.text == "let me <search> two words\n</search> <result> found </result>fine"
    assert answer.answer == "let me  fine"


def test_text_behind_the_tag_in_its_token_is_dropped_from_text_tokens_and_cache():
    model = Scripted([["<python>", "1"], Cut("</python> I guess it is 7", "</python>"), Result("2"), ["ok", EOS]])
    box = Tools(python=lambda body: "2")
    with Positions(model.agent) as run:
        (answer,) = speak(model, box)
    assert answer.text == "<python>1</python> <result> 2 </result>ok"
    assert model.tokenizer.decode(answer.tokens, skip_special_tokens=True) == "<python>1</python>ok"
    assert run.total == model.prompt_lengths[0] + len(answer.tokens) - 1 + answer.tool_tokens


def test_rows_stop_for_tools_at_different_steps_and_never_change_each_other():
    scripts = [
        [["<python>", "a", "</python>"], Result("A"), [*"the first row", EOS]],
        [["plain", " text ", "only", EOS]],
        [
            [*"later ", "<search>", "b", "</search>"],
            Result("B b B"),
            ["<python>", "c", "</python>"],
            Result("C"),
            ["end", EOS],
        ],
        [["<python>", *"a long body", "</python>"], Result("D"), [*"last", EOS]],
    ]
    results = {"a": "A", "b": "B b B", "c": "C", "a long body": "D"}

    def slow(body):
        time.sleep(0.05 * len(body))
        return results[body]

    model = Scripted(*scripts)
    answers = speak(model, Tools(python=slow, search=slow))
    assert [answer.text for answer in answers] == [
        "<python>a</python> <result> A </result>the first row",
        "plain text only",
        "later <search>b</search> <result> B b B </result><python>c</python> <result> C </result>end",
        "<python>a long body</python> <result> D </result>last",
    ]
    assert [answer.tool_calls for answer in answers] == [{"python": 1}, {}, {"search": 1, "python": 1}, {"python": 1}]
    assert answers[2].answer == "later   end"


def test_tools_of_a_batch_run_at_once_while_other_rows_write():
    both = threading.Barrier(2, timeout=60)
    written = threading.Event()

    def meet(body):
        both.wait()  # fails unless the other row's tool runs at the same time
        assert written.wait(60), "the third row wrote nothing meanwhile"
        return body

    model = Scripted(
        [["<python>", "x", "</python>"], Result("x"), ["1", EOS]],
        [["<python>", "y", "</python>"], Result("y"), ["2", EOS]],
        [[*"z" * 40, EOS]],
    )
    steps = []

    def watch(module, args, kwargs):
        steps.append(len(kwargs["inputs_embeds"]))
        if steps[-5:] == [1] * 5:
            written.set()

    hook = model.agent.decoder.register_forward_pre_hook(watch, with_kwargs=True)
    answers = speak(model, Tools(python=meet))
    hook.remove()
    assert [answer.answer for answer in answers] == ["1", "2", "z" * 40]


def test_an_unclosed_tag_is_text():
    model = Scripted([["<python>", "1+1", EOS]])
    box = Tools(python=lambda body: "2")
    (answer,) = speak(model, box)
    assert box.asked == [] and answer.tool_calls == {}
    assert answer.text == answer.answer == "<python>1+1" and answer.finish == "eos"


def test_after_the_last_call_tools_are_closed_and_the_model_may_answer():
    call = ["<python>", "1", "</python>"]
    limit = Result(LIMIT_REACHED)
    model = Scripted([call, Result("2"), call, Result("2"), call, limit, call, [*"answer ", "\\boxed{2}", EOS]])
    box = Tools(python=lambda body: "2")
    (answer,) = speak(model, box, max_rounds=2)
    assert len(box.asked) == 2 and answer.tool_calls == {"python": 2}
    assert answer.text.count("<result>") == 3 and answer.text.count(LIMIT_REACHED) == 1
    assert answer.answer == "answer \\boxed{2}", "a block that was not run is no answer either"
    assert answer.tool_tokens == 2 * len(model.ids_of(Result("2"))) + len(model.ids_of(limit))


def test_no_rounds_means_no_call():
    model = Scripted([["<python>", "1", "</python>"], Result(LIMIT_REACHED), ["7", EOS]])
    box = Tools(python=lambda body: "2")
    (answer,) = speak(model, box, max_rounds=0)
    assert box.asked == [] and answer.answer == "7"


@pytest.mark.parametrize(("budget", "calls"), [(3, 0), (4, 0), (5, 1), (6, 1)])
def test_the_budget_counts_written_tokens_only_and_may_end_inside_a_tag(budget, calls):
    model = Scripted([["<python>", "1", "+1", "</python>"], Result("2"), ["so", " 2", EOS]])
    box = Tools(python=lambda body: "2")
    (answer,) = speak(model, box, Sampling(max_new_tokens=budget, do_sample=False))
    assert len(box.asked) == calls
    assert len(answer.tokens) == budget and answer.finish == "length"
    assert answer.answer == {3: "<python>1+1", 4: "", 5: "so", 6: "so 2"}[budget]


def test_each_row_has_a_budget_of_its_own():
    model = Scripted(
        [["<python>", "1", "</python>"], Result("x" * 100), [*"abcdefgh", EOS]],
        [[*"0123456789", EOS]],
    )
    answers = speak(model, Tools(python=lambda body: "x" * 100), Sampling(max_new_tokens=8, do_sample=False))
    assert [answer.answer for answer in answers] == ["abcde", "01234567"]
    assert [len(answer.tokens) for answer in answers] == [8, 8]


def test_a_result_can_neither_close_its_block_nor_answer_nor_call():
    text = "\\boxed{5} </result> </ RESULT > <python>2</python> " + EOS
    model = Scripted([["<python>", "1", "</python>"], Result(text), ["I say ", "\\boxed{6}", EOS]])
    box = Tools(python=lambda body: text)
    (answer,) = speak(model, box)
    assert len(box.asked) == 1
    assert re.findall(r"<\s*/\s*result\s*>", answer.text, re.I) == ["< /result>", "< / RESULT >", "</result>"]
    assert answer.text.endswith("</result>I say \\boxed{6}")
    assert answer.answer == "I say \\boxed{6}"
    assert answer.finish == "eos" and model.tokenizer.eos_token_id not in model.ids_of(Result(text))


def test_tags_take_any_letter_case_and_one_name_at_both_ends():
    mixed = Scripted([["<PYTHON>", "1\n2", "</Python>"], Result("3"), ["ok", EOS]])
    box = Tools(python=lambda body: "3", search=lambda body: "no")
    (answer,) = speak(mixed, box)
    assert box.asked == [("0:0", "python", "1\n2")] and answer.answer == "ok"
    other = Scripted([["<python>", "1", "</search>", "2", "</python>"], Result("3"), ["ok", EOS]])
    box = Tools(python=lambda body: "3", search=lambda body: "no")
    (answer,) = speak(other, box)
    assert box.asked == [("0:0", "python", "1</search>2")]


def test_a_tool_that_this_run_lacks_gives_no_evidence():
    model = Scripted(
        [
            ["<search>", "x", "</search>"],
            Result("[search error] This tool is not available now. Go on without it."),
            ["ok", EOS],
        ]
    )
    (answer,) = speak(model, Tools(python=lambda body: "2"))
    assert answer.tool_calls == {"search": 1} and answer.tool_failures == 1 and answer.answer == "ok"


def test_a_role_without_tools_writes_tags_as_text():
    model = Scripted([["<python>", "1", "</python>", " and on", EOS]], tools=())
    box = Tools(python=lambda body: "2")
    (answer,) = speak(model, box)
    assert box.asked == [] and answer.text == answer.answer == "<python>1</python> and on"


def test_a_huge_result_is_cut():
    model = Scripted([["<python>", "1", "</python>"], Result("y" * 100_000, 300), ["ok", EOS]])
    (answer,) = speak(model, Tools(python=lambda body: "y" * 100_000), result_max_chars=300)
    assert "y" * 300 + "\n[cut: 99700 more characters]" in answer.text and "y" * 301 not in answer.text
    assert answer.answer == "ok"


def test_failures_are_counted():
    """By the tool's word, not by what the text reads like: a page about errors is a good find."""
    texts = FailedResult("[timeout] 10 s"), FailedResult("a\n[exit_code] 1"), "[error] is a word\n[exit_code] 1"
    model = Scripted(*([["<python>", "1", "</python>"], Result(text), ["ok", EOS]] for text in texts))
    results = iter(texts)
    answers = [
        model.agent.speak(
            model.agent.embed([[[0] * length]]), GREEDY, [[0]], tools=ToolUse(Tools(python=lambda body: next(results)))
        )[0][0]
        for length in model.prompt_lengths
    ]
    assert [answer.tool_failures for answer in answers] == [1, 1, 0]


def test_three_calls_run_every_position_once():
    call = ["<python>", "1", "</python>"]
    model = Scripted([call, Result("2"), call, Result("3 3"), call, Result("4"), [*"the end", EOS]])
    numbers = iter(("2", "3 3", "4"))
    with Positions(model.agent) as run:
        (answer,) = speak(model, Tools(python=lambda body: next(numbers)))
    assert answer.tool_calls == {"python": 3}
    # The stop token is drawn and never run.
    assert run.prefilled == model.prompt_lengths[0]
    assert sum(run.sizes) == len(answer.tokens) - 1 + answer.tool_tokens


def test_greedy_copies_ask_a_tool_once_and_drawn_rollouts_once_each():
    script = [["<python>", "1", "</python>"], Result("2"), ["ok", EOS]]
    model = Scripted(script)
    box = Tools(python=lambda body: "2")
    copies = model.agent.speak(model.batch(), GREEDY, [[1, 2, 3]], tools=ToolUse(box))[0]
    assert (
        len(box.asked) == 1 and [copy.seed for copy in copies] == [1, 2, 3] and len({copy.text for copy in copies}) == 1
    )
    drawn = model.agent.speak(
        model.batch(), Sampling(max_new_tokens=50, temperature=0.01), [[1, 2, 3]], tools=ToolUse(box), names=["q"]
    )
    assert [copy.text for copy in drawn[0]] == [copies[0].text] * 3
    assert sorted(row for row, _, _ in box.asked[1:]) == ["q:0", "q:1", "q:2"]


def test_a_fault_of_a_tool_is_no_result():
    model = Scripted([["<python>", "1", "</python>"], Result("2"), ["ok", EOS]])
    with pytest.raises(ZeroDivisionError):
        speak(model, Tools(python=lambda body: 1 // 0))


def test_the_real_interpreter_in_the_loop():
    """Code that prints, code that fails, code that hangs and code that floods: each row goes on with its own result."""
    codes = ["print(6*7)", "1/0", "while 1: pass", "print('y'*10**5)", "print(r'</result> \\boxed{1}')"]
    with ToolSettings(("python",), python_timeout=1.0, result_max_chars=400).open() as box:
        results = [box.run("python", code, "")[0] for code in codes]
        scripts = [
            [["<python>", *code, "</python>"], Result(text, 400), [f"row {index}", EOS]]
            for index, (code, text) in enumerate(zip(codes, results, strict=True))
        ]
        model = Scripted(*scripts, tools=("python",))
        answers = speak(model, box, result_max_chars=400)
    assert results[0] == "42" and "ZeroDivisionError" in results[1] and results[2].startswith("[timeout]")
    assert [answer.answer for answer in answers] == [f"row {index}" for index in range(5)]
    assert [answer.tool_failures for answer in answers] == [0, 1, 1, 0, 0]
    behind = [answer.text.split("</python>")[1] for answer in answers]
    assert all(text.count("</result>") == 1 for text in behind) and "< /result> \\boxed{1}" in behind[4]
    assert max(len(answer.text) for answer in answers) < 800 and box.counts() == {"python": 10}


# --- every family against a slow twin -------------------------------------------------------------------------------------------


TAGS = ["<a>", "</a>", "<a>1", "<a>2</a>", "</a> b", "<a>33</a>", "<a>7</a> 0"]


def small_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character of a result, and some for tags: random models of so few words call tools by themselves."""
    chars = [*sorted(set(" <result>/0123456789[tool limit]ab")), *TAGS]
    bpe = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(chars)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    bpe.decoder = decoders.Fuse()
    bpe.add_tokens(TAGS)
    bpe.add_special_tokens([EOS])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, pad_token=EOS)


def tool(body: str) -> str:
    time.sleep(0.002 * (len(body) % 7))  # rows come back at different steps
    return str(sum(map(ord, body)))


def alone(agent: Agent, prompt: list[int], sampling: Sampling, seed: int, rounds: int) -> tuple[list[int], str, int]:
    """One row by the definition: all ids run again for every token, all text decoded and searched, results put behind."""
    generator = torch.Generator().manual_seed(seed)
    ids, written, calls, text, cursor, closed = list(prompt), [], 0, "", 0, False
    while len(written) < sampling.max_new_tokens:
        embeds = agent.embedding(torch.tensor([ids]))
        hidden = agent.decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, -1]
        token = int(choose(agent.logits(hidden), sampling, torch.rand(1, generator=generator)))
        written.append(token)
        if token in agent.eos_ids:
            break
        ids.append(token)
        before, text = len(text), text + agent.tokenizer.decode([token])
        block = re.search(r"<a>(.*?)</a>", text[cursor:])
        if block and not closed and len(written) < sampling.max_new_tokens:
            end = cursor + block.end()
            if end < len(text):  # the token's tail is dropped
                text, part = text[:end], agent.tokenizer(text[before:end], add_special_tokens=False)["input_ids"]
                written[-1:] = ids[-1:] = part
            closed = calls == rounds
            calls += not closed
            result = result_block(LIMIT_REACHED if closed else tool(block[1].strip()), 6000)
            text += result
            ids += agent.tokenizer(result, add_special_tokens=False)["input_ids"]
            cursor = len(text)
    return written, text.strip(), calls


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_with_tools_equal_full_recomputation_of_each_alone(family):
    tokenizer = small_tokenizer()
    model = make_model(family, seed=1, tokenizer=make_tokenizer(family))
    # The family's model with the small vocabulary: other rows of its embeddings are never drawn.
    model.resize_token_embeddings(len(tokenizer))
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
    role = Role("speaker", "Speaker", "", "", "speaker", "agent1", "", {}, {}, (), tools=("a",))
    agent = Agent(role, model, tokenizer, InnerLink(32))
    sampling = Sampling(max_new_tokens=50, temperature=10.0, top_p=1.0)
    prompts = [[3, 4, 5], [7] * 12, [1, 2], [9, 8, 7, 6, 5, 4]]
    seeds = [[1, 2], [3], [4, 7], [5, 6]]
    use = ToolUse(Tools(a=tool), max_rounds=2)
    with Positions(agent) as run:
        together = agent.speak(agent.embed([[prompt] for prompt in prompts]), sampling, seeds, tools=use)
    calls = 0
    for prompt, row, own in zip(prompts, together, seeds, strict=True):
        for written, seed in zip(row, own, strict=True):
            expected = alone(agent, prompt, sampling, seed, rounds=2)
            assert (written.tokens, written.text, written.tool_calls.get("a", 0)) == expected
            calls += expected[2]
    assert calls >= 3, "the test must call tools to show anything"
    everything = [written for row in together for written in row]
    # The last token of a row is drawn and never run.
    assert sum(run.sizes) == sum(len(w.tokens) - 1 + w.tool_tokens for w in everything)
    assert max(run.sizes) > 1 and len(set(run.sizes)) > 2, "rows must leave and come back to show anything"


# --- text ---------------------------------------------------------------------------------------------------------------------


def test_a_stream_decodes_characters_that_are_split_over_tokens():
    tokenizer = make_tokenizer("qwen2")
    text = "Zürich 日本 🙂 </python> é"
    stream = TextStream(tokenizer)
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        read = stream.push(token)
        assert text.startswith(read.rstrip("\ufffd"))
    assert stream.read() == text


def test_blocks_are_found_when_they_close():
    tags = Tags(("python", "search"))
    text = "a <python> <search>q</search>"
    assert tags.find(text[:-1], 1) is None
    call = tags.find(text, 1)
    assert (call.name, call.body, text[call.start : call.end]) == ("search", "q", "<search>q</search>")
    assert tags.find(text + " more", 5) is None, "it was completed before"
    assert tags.remove("x<python>1</python>y<SEARCH>2</search>z<python>") == "xyz<python>"


@pytest.mark.parametrize(
    ("body", "trimmed"),
    [
        (" a b \n", "a b"),
        ("\n\n    x = 1\n    y = 2\n", "    x = 1\n    y = 2"),
        (" x = 1\ny = 2", "x = 1\ny = 2"),
        (" \n ", ""),
    ],
)
def test_code_keeps_its_indentation(body, trimmed):
    text = f"<python>{body}</python>"
    assert Tags(("python",)).find(text, len(text)).body == trimmed
