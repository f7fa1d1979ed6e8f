"""`python inference/run.py` with a speaker that has tools: a scripted model, the real sandbox, recorded searches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.mas.checkpoints import write_inner_dir, write_outer_dir
from inference.mas.links import InnerLink, OuterLink
from inference.mas.styles import load_style
from inference.tools.cache import JsonlCache
from inference.tools.search_tool import result_text, search_request
from tests.integration.tiny_style import run
from tests.mas.scripted import EOS, Given, Result, Scripted

STYLE = """
name: asks
roles:
  speaker: {model: ./lm, repo: ./link, tools: [python, search], first: {math: "{question}"}, later: {math: "{question}<<OWN>>"}}
speaker: speaker
links:
  outer_11: {source: speaker, target: speaker, slot: OWN}
outer_repo: ./outer
single: {math: "{question}"}
"""
QUESTION = "How many?"
FOUND = [{"title": "Count", "url": "https://example.org/count", "content": "There are 7, some say \\boxed{9}."}]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_system(folder: Path, script: list) -> None:
    """A style of one role that answers QUESTION by the script."""
    scripted = Scripted(script, starts=[len(QUESTION)])
    scripted.tokenizer.chat_template = TEMPLATE
    scripted.agent.model.save_pretrained(folder / "lm")
    scripted.tokenizer.save_pretrained(folder / "lm")
    width = scripted.agent.width
    write_inner_dir(folder / "link", InnerLink(width), str(folder / "lm"), {})
    (folder / "asks.yaml").write_text(STYLE)
    write_outer_dir(
        folder / "outer", {"outer_11": OuterLink(width, width)}, load_style(folder / "asks.yaml"), "math", {}
    )
    (folder / "questions.jsonl").write_text(json.dumps({"question": QUESTION, "answer": "7"}) + "\n")


def arguments(folder: Path, *more: object) -> tuple[object, ...]:
    return (
        "--style", folder / "asks.yaml", "--dataset", folder / "questions.jsonl", "--device", "cpu", "--do_sample", 0,
        "--num_recursive_rounds", 1, "--output_dir", folder / "run", *more,
    )  # fmt: skip


def the_record(folder: Path) -> dict:
    (line,) = (folder / "run" / "records.jsonl").read_text().splitlines()
    return json.loads(line)


def test_python_and_recorded_searches(tmp_path):
    asked = "Final Answer: \\boxed{"
    write_system(
        tmp_path,
        [
            ["<search>", *"count of it", "</search>"],
            Result(result_text("count of it", FOUND)),
            ["<python>", *"print(3+4)", "</python>"],
            Result("7"),
            ["it is so", EOS],
            Given("\n\n" + asked),
            ["7", "}", EOS],
        ],
    )
    cache = JsonlCache(tmp_path / "facts.jsonl")
    cache.put(search_request("count of it"), {"results": FOUND})
    done = run(*arguments(tmp_path, "--search_replay", tmp_path / "facts.jsonl"))
    assert done.returncode == 0, done.stderr[-3000:]
    record = the_record(tmp_path)
    (rollout,) = record["rollouts"]
    assert rollout["tool_calls"] == {"search": 1, "python": 1} and rollout["tool_failures"] == 0
    assert rollout["answer_text"].endswith(asked + "7}") and "<result>" not in rollout["answer_text"]
    assert "<result> 7 </result>it is so" in rollout["raw_output"] and "\\boxed{9}" in rollout["raw_output"]
    assert (rollout["correct"], rollout["retry"], rollout["correct_before_retry"]) == (True, True, False)
    assert record["tool_tokens"] == rollout["tool_tokens"] > 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["fingerprint"]["tools"] == ["python", "search"]
    assert manifest["tools"]["sandbox"] in ("bubblewrap", "namespaces", "rlimits")
    assert manifest["tools"]["search"]["source"] == "replay"


def test_without_a_key_search_is_not_offered_and_its_tag_gives_no_evidence(tmp_path):
    told = "[search error] This tool is not available now. Go on without it."
    write_system(tmp_path, [["<search>", "x", "</search>"], Result(told), ["\\boxed{7}", EOS]])
    done = run(*arguments(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    (rollout,) = the_record(tmp_path)["rollouts"]
    assert (rollout["tool_calls"], rollout["tool_failures"], rollout["correct"]) == ({"search": 1}, 1, True)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["tools"]["offered"] == ["python"] and "search" not in manifest["tools"]


def test_ans_0_leaves_an_answer_as_it_is(tmp_path):
    write_system(tmp_path, [["I do not know", EOS]])
    done = run(*arguments(tmp_path, "--ans", 0))
    assert done.returncode == 0, done.stderr[-3000:]
    (rollout,) = the_record(tmp_path)["rollouts"]
    assert rollout["raw_output"] == "I do not know" and "retry" not in rollout and rollout["status"] == "no_answer"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "--dataset bamboogle needs the search tool"),
        (("--tavily_keys_file", "none.txt"), "--tavily_keys_file none.txt"),
        (("--search_replay", "none.jsonl"), "none.jsonl"),
        (("--max_tool_rounds", -1), "--max_tool_rounds"),
    ],
)
def test_search_that_cannot_work_is_refused_before_a_model_loads(tmp_path, more, message):
    write_system(tmp_path, [["x", EOS]])
    (tmp_path / "lm" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"Question": "Who?", "Answer": "He"}) + "\n")
    done = run(
        "--style", tmp_path / "asks.yaml", "--dataset", "bamboogle", "--dataset_file", tmp_path / "rows.jsonl", "--device", "cpu", *more
    )  # fmt: skip
    assert done.returncode == 2 and message in done.stderr, done.stderr[-2000:]
    assert done.stderr.count("\n") == 1


def test_the_plan_tells_what_searches_may_cost(tmp_path):
    write_system(tmp_path, [["x", EOS]])
    (tmp_path / "keys.txt").write_text("tvly-0123456789abcdef\n")
    keys = ("--tavily_keys_file", tmp_path / "keys.txt")
    told = [
        json.loads(run(*arguments(tmp_path, *keys, *more, "--dry_run")).stdout.splitlines()[-1])["max_searches"]
        for more in ((), ("--max_search_calls", 3), ("--max_tool_rounds", 2), ("--compare", "latent,text,single"))
    ]
    assert told == [5, 3, 2, 10]
