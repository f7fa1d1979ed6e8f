"""Finding the program in a text."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.scoring.code import extract
from inference.scoring.code.names import supply, unbound

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "code_cases.jsonl").read_text(encoding="utf-8").splitlines()
]
F = "```"
GOOD = "def bump(n):\n    return n + 7"
DRAFT = "def bump(n):\n    return 0"


@pytest.mark.parametrize("kind", ["function", "program"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict, kind: str) -> None:
    found = extract(case["pred"], "bump", kind)
    assert found.code == case["code"], found
    assert found.status == ("ok" if case["code"] else "empty")


# Neighbours of the cases: (text, expected code, status), for a function task that asks for `bump`.
FUNCTION = {
    "tag in capitals": (f"{F}Python\n{GOOD}\n{F}", GOOD, "ok"),
    "tag py": (f"{F}py\n{GOOD}\n{F}", GOOD, "ok"),
    "tag python3 with attributes": (f'{F}python3 title="a.py"\n{GOOD}\n{F}', GOOD, "ok"),
    "tag in braces": (f"{F}{{.python .numberLines}}\n{GOOD}\n{F}", GOOD, "ok"),
    "no tag": (f"{F}\n{GOOD}\n{F}", GOOD, "ok"),
    "tildes": (f"~~~python\n{GOOD}\n~~~", GOOD, "ok"),
    "unknown tag": (f"{F}code\n{GOOD}\n{F}", GOOD, "ok"),
    "last of two drafts": (f"{F}python\n{DRAFT}\n{F}\nBetter:\n{F}python\n{GOOD}\n{F}", GOOD, "ok"),
    "usage after the function": (f"{F}python\n{GOOD}\n{F}\nUse:\n{F}python\nx = bump(1)\n{F}", GOOD, "ok"),
    "untagged function, tagged usage": (f"{F}\n{GOOD}\n{F}\n{F}python\nx = bump(1)\n{F}", GOOD, "ok"),
    "last block does not parse": (f"{F}python\n{GOOD}\n{F}\n{F}python\ndef bump(n) return\n{F}", GOOD, "ok"),
    "shell block after": (f"{F}python\n{GOOD}\n{F}\n{F}bash\npython bump.py\n{F}", GOOD, "ok"),
    "JSON block after": (f"{F}python\n{GOOD}\n{F}\n{F}json\n[1, 2]\n{F}", GOOD, "ok"),
    "fence in a docstring, not indented": (
        f'{F}python\ndef bump(n):\n    """Use:\n{F}\nbump(1)\n{F}\n    """\n    return n\n{F}',
        f'def bump(n):\n    """Use:\n{F}\nbump(1)\n{F}\n    """\n    return n',
        "ok",
    ),
    "new fence without closing the old": (f"{F}python\n{DRAFT}\n{F}python\n{GOOD}\n{F}", GOOD, "ok"),
    "closing fence on the last line of code": (f"{F}python\n{GOOD}{F}", GOOD, "ok"),
    "opening fence behind a sentence": (f"The code: {F}python\n{GOOD}\n{F}", GOOD, "ok"),
    "tagged, longer closer": (f"{F}python\n{GOOD}\n{F}{F}", GOOD, "ok"),
    "first line lost its indentation": (
        f"   {F}python\ndef bump(n):\n       return n\n   {F}",
        "def bump(n):\n    return n",
        "ok",
    ),
    "no-break spaces": (f"{F}python\ndef bump(n):\n\xa0\xa0\xa0\xa0return n + 7\n{F}", GOOD, "ok"),
    "colour codes": (f"\x1b[32m{F}python\x1b[0m\n{GOOD}\n{F}", GOOD, "ok"),
    "complete block, then a cut one": (
        f"{F}python\n{GOOD}\n{F}\nAgain:\n{F}python\ndef bump(n):\n    return (",
        GOOD,
        "ok",
    ),
    "cut in the next function": (f"{F}python\n{GOOD}\n\ndef more(n):\n    return (n +", GOOD, "truncated"),
    "cut in a string": (f'{F}python\n{GOOD}\n\ntext = """abc', GOOD, "truncated"),
    "cut inside the function": (f"{F}python\ndef bump(n):\n    return (n +", None, "no_code"),
    "asserts and prints go": (f"{F}python\n{GOOD}\nassert bump(1) == 8\nprint(bump(\n  2))\n{F}", GOOD, "ok"),
    "a print in a line with others": (f"{F}python\nx = 1; print(x)\n{GOOD}\n{F}", f"x = 1; pass\n{GOOD}", "ok"),
    "prints in functions stay": (
        f"{F}python\ndef bump(n):\n    print(n)\n    return n\n{F}",
        "def bump(n):\n    print(n)\n    return n",
        "ok",
    ),
    "two definitions": (f"{F}python\n{DRAFT}\n{GOOD}\n{F}", f"{DRAFT}\n{GOOD}", "ok"),
    "method of a class": (
        f"{F}python\nclass Solution:\n    def bump(self, n):\n        return n\n{F}",
        "class Solution:\n    def bump(self, n):\n        return n",
        "ok",
    ),
    "assigned lambda": (f"{F}python\nbump = lambda n: n\n{F}", "bump = lambda n: n", "ok"),
    "conditional definition": (
        f"{F}python\nif True:\n    def bump(n): return n\n{F}",
        "if True:\n    def bump(n): return n",
        "ok",
    ),
    "no fence, signature in the prose": ("We need bump(n).\n" + GOOD + "\nNote: done", GOOD, "ok"),
    "another function only": (f"{F}python\ndef other(n):\n    return n\n{F}", "def other(n):\n    return n", "ok"),
    "prose": ("The answer is 5, so we are done.", None, "no_code"),
    "one word": ("Yes", None, "no_code"),
    "prose in a block": (f"{F}\nI think it is five\n{F}", None, "no_code"),
    "open reasoning": (f"<think>\nfirst\n{F}python\n{GOOD}\n{F}", None, "unclosed_reasoning"),
    "reopened reasoning": (f"<think>a</think>\n<think>\n{F}python\n{GOOD}\n{F}", None, "unclosed_reasoning"),
    "other reasoning tag": (f"<Thinking>\n{DRAFT}\n</Thinking>\n{F}python\n{GOOD}\n{F}", GOOD, "ok"),
    "the tag in a string": (
        f"{F}python\ndef bump(n):\n    return '<think>'\n{F}",
        "def bump(n):\n    return '<think>'",
        "ok",
    ),
    "blanks": ("  \n\n ", None, "empty"),
}
PROGRAM = {
    "asserts and prints stay": (f"{F}python\nassert True\nprint(input())\n{F}", "assert True\nprint(input())", "ok"),
    "last block wins": (f"{F}python\nprint(1)\n{F}\n{F}python\nprint(2)\n{F}", "print(2)", "ok"),
    "numbers in an untagged block": (f"{F}python\nprint(1)\n{F}\nOutput:\n{F}\n1\n{F}", "print(1)", "ok"),
    "only an example of the input": (f"Input:\n{F}text\n3\n4\n{F}", None, "no_code"),
    "bare script": ("n = int(input())\nprint(n)", "n = int(input())\nprint(n)", "ok"),
    "bare script and prose": (
        "Read and print it.\nn = int(input())\nprint(n)\nThis is right.",
        "n = int(input())\nprint(n)",
        "ok",
    ),
    "a word that is a name": ("answer", None, "no_code"),
    "a sentence that parses": ("x is y", None, "no_code"),
    "a remark that parses": ("Note: done", None, "no_code"),
    "inline block": (f"Run {F}python print(3){F} now.", "print(3)", "ok"),
    "cut": (f"{F}python\nn = int(input())\nprint(n)\nfor i in ra", "n = int(input())\nprint(n)", "truncated"),
}


@pytest.mark.parametrize("name", FUNCTION)
def test_function_neighbour(name: str) -> None:
    text, code, status = FUNCTION[name]
    found = extract(text, "bump", "function")
    assert (found.code, found.status) == (code, status), found


@pytest.mark.parametrize("name", PROGRAM)
def test_program_neighbour(name: str) -> None:
    text, code, status = PROGRAM[name]
    found = extract(text, None, "program")
    assert (found.code, found.status) == (code, status), found


@pytest.mark.parametrize(
    "text",
    [
        "1" + "+1" * 45_000,
        "x = a" + ".b" * 40_000,
        "not " * 20_000 + "x",
        "[" * 5_000,
        "def f():\n" * 30_000,
        "x = (\n" * 30_000,
        "```\n" * 50_000,
        "````python\n```python\n" * 15_000,
        "~" * 50_000 + "`",
        "`" * 50_000 + "x",
        "'''\n" * 20_000,
        "a = [b, " * 20_000,
        "print(1) x\n" * 20_000,
        "\x1b[" + "0" * 50_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_is_bounded(text: str) -> None:
    for whole in (text, f"{F}python\n{text}\n{F}"):
        for kind in ("function", "program"):
            found = extract(whole, "bump", kind)
            assert found.code is None or found.status in ("ok", "truncated")


PIECES = st.sampled_from(
    ["```", "```python", "~~~", "````", "<think>", "</think>", "[PYTHON]", "[/PYTHON]", "def bump(n):", "    return n", "print(1)",
     "assert x", '"""', "(", "\\", "\x0c", "\xa0", "x = 1; print(x)", "é = 'ß'; print(é); assert é", "\ud800", "\t", "#", "", "Yes."]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=25).map("\n".join)),
    st.sampled_from(["function", "program"]),
)
def test_never_raises_and_only_returns_programs(text: str, kind: str) -> None:
    found = extract(text, "bump" if kind == "function" else None, kind)
    assert (found.code is None) == (found.status not in ("ok", "truncated"))
    if found.code is not None:
        ast.parse(found.code)


def test_extraction_repeats_itself() -> None:
    for _, code, status in FUNCTION.values():
        if code is not None and status == "ok" and "bump" in code:
            assert extract(f"{F}{F}python\n{code}\n{F}{F}", "bump", "function").code == code


@pytest.mark.parametrize(
    ("code", "lines", "unknown"),
    [
        ("def f(x: List[int]): return gcd(*x)", "from typing import List\nfrom math import gcd\n", set()),
        ("import math\nprint(math.pi, sqrt)", "from math import sqrt\n", set()),
        ("print(copy(x), y := 1)", "from copy import copy\n", {"x"}),
        ("print(copy.copy([]))", "import copy\n", set()),
        ("for i in range(3): heappush(h, i)", "from heapq import heappush\n", {"h"}),
        ("def gcd(a, b): return a\nprint(gcd(1, 2))", "\n", set()),
        ("from math import *\nprint(sys.argv)", "import sys\n", set()),
        ("match p:\n  case {'a': q, **rest}: print(q, rest)\n  case [a, *b] as c: print(a, b, c)", "\n", {"p"}),
    ],
)
def test_missing_imports_are_supplied(code: str, lines: str, unknown: set[str]) -> None:
    assert supply(ast.parse(code)) == (lines, frozenset(unknown))


def test_unbound_names() -> None:
    assert unbound(ast.parse("def f(a, *b, **c):\n  try: d\n  except E as e: print(e, a, b, c)")) == {"d", "E"}
