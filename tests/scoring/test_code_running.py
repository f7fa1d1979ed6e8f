"""Programs that break graders, each a plain verdict here (R1 to R19), and graders' own duties."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.scoring.code import CodeRunner, CodeTask, mbppplus_task
from inference.scoring.code.lines import first_difference
from inference.scoring.code.task import ERROR_TYPES
from inference.scoring.verdict import Verdict
from inference.tools.errors import DataError
from tests.tools.processes import running_with

MARK = secrets.token_hex(8)  # of child processes that hostile programs start
HEAD = """
import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    return False

def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp, f"out: {out}, exp: {exp}"
"""


def table(inputs: list, results: list, entry: str = "grow", head: str = HEAD, atol: float = 0) -> str:
    """Test text in the layout of MBPP+."""
    loop = f"for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion({entry}(*inp), exp, {atol})\n"
    return f"{head}\ninputs = {inputs!r}\nresults = {results!r}\n{loop}"


def fenced(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\n"


GROW = CodeTask("function", "grow", table([[1], [4], [10]], [3, 9, 21]))
PLAIN = CodeTask("function", "grow", "assert grow(1) == 3\nassert grow(4) == 9\n")
LISTS = CodeTask("function", "grow", table([[[1, 2]], [[]]], [[2, 1], []]))
SUM = CodeTask("stdin", cases=[("2\n1 2\n", "3\n"), ("3\n4 5 6\n", "15\n")])
RIGHT = "def grow(n):\n    return 2 * n + 1\n"
WAIT = f"import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 300; : {MARK}'], start_new_session=True)\n"
LIAR = (
    "class Liar:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    def __bool__(self): return True\n    def __repr__(self): return '3'\n"
)
READ_ALL = "import sys\ndata = {}.split()\nprint(sum(map(int, data[1:])))"
SECRET = "secret-of-the-test"
SNOOP = f"import os\nfor value in os.environ.values():\n    assert '{SECRET}' not in value\n    assert 'KEY' not in ''.join(os.environ)\n"
TOUCH = (
    "import os\nfor path in ('../up', '/up', '/usr/up'):\n    try: open(path, 'w').write('x')\n    except OSError: pass\n"
    "import shutil\nshutil.rmtree('../box', ignore_errors=True)\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n"
)

# name: (program, task, error type or None for a pass)
PROGRAMS: dict[str, tuple[str, CodeTask, str | None]] = {
    "R1 sys.exit(0) while loading": ("import sys\nsys.exit(0)\n" + RIGHT, GROW, "RE"),
    "R1 exit() while loading": ("exit()\n" + RIGHT, PLAIN, "RE"),
    "R1 sys.exit(0) in the call": ("import sys\ndef grow(n):\n    sys.exit(0)", GROW, "RE"),
    "R1 exit before printing": ("exit()\nprint(3)", SUM, "WA"),
    "R2 os._exit(0) while loading": ("import os\nos._exit(0)\n" + RIGHT, GROW, "RE"),
    "R2 os._exit(0) in the call": ("import os\ndef grow(n):\n    os._exit(0)", PLAIN, "RE"),
    "R3 object equal to all": (LIAR + "def grow(n): return Liar()", GROW, "WA"),
    "R3 list equal to all": (LIAR.replace("Liar:", "Liar(list):") + "def grow(n): return Liar([9])", LISTS, "WA"),
    "R3 int equal to all": (LIAR.replace("Liar:", "Liar(int):") + "def grow(n): return Liar(0)", PLAIN, "WA"),
    "R4 prints and sends what looks like a verdict": (
        "import os, json\ndef grow(n):\n    line = json.dumps({'token': '0' * 32, 'loaded': True, 'passed': 3, 'asked': 3, 'heard': 3}) + '\\n'\n"
        "    for fd in range(1, 64):\n        try: os.write(fd, line.encode())\n        except OSError: pass\n    return 0",
        GROW,
        "RE",
    ),
    "R5 endless loop": ("def grow(n):\n    while True: pass", GROW, "TLE"),
    "R5 endless script": ("while True: pass", SUM, "TLE"),
    "R5 endless loading": ("while True: pass\n" + RIGHT, PLAIN, "TLE"),
    "R6 too much memory": ("def grow(n):\n    return len([0] * 10**10)", GROW, "RE"),
    "R6 script, too much memory": ("x = [0] * 10**10", SUM, "RE"),
    "R7 child outlives the script": (WAIT + "n = input(); print(sum(map(int, input().split())))", SUM, None),
    "R7 child outlives the function": (WAIT + RIGHT, GROW, None),
    "R8 swallows every signal": (
        "import signal\nfor s in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\n"
        "def grow(n):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        GROW,
        "TLE",
    ),
    "R9 prints without end": ("while True: print('x' * 100000)", SUM, "WA"),
    "R9 prints without end in the call": ("def grow(n):\n    while True: print('x' * 100000)", GROW, "RE"),
    "R10 sees no keys": (SNOOP + RIGHT, GROW, None),
    "R11 touches nothing outside": (TOUCH + RIGHT, GROW, None),
    "R12 mutates its argument": ("def grow(x):\n    x.reverse()\n    return x", LISTS, None),
    "R12 same argument twice": (
        "def grow(x):\n    x.append(1)\n    return len(x)",
        CodeTask(
            "function", "grow", "data = [1, 2]\nassert grow(data) == 3\nassert grow(data) == 3\nassert data == [1, 2]"
        ),
        None,
    ),
    "R13 tuple for list, plain": ("def grow(x):\n    return tuple(x[::-1])", LISTS, "WA"),
    "R13 tuple for list, oracle": (
        "def grow(x):\n    return tuple(x[::-1])",
        CodeTask("function", "grow", LISTS.tests, oracle="sequence"),
        None,
    ),
    "R13 float off by 1e-12": (
        "def grow(n):\n    return n / 3 + 1e-12",
        CodeTask("function", "grow", table([[1], [2]], [1 / 3, 2 / 3])),
        None,
    ),
    "R13 float off by 1e-3": (
        "def grow(n):\n    return n / 3 + 1e-3",
        CodeTask("function", "grow", table([[1], [2]], [1 / 3, 2 / 3])),
        "WA",
    ),
    "R13 nested float, oracle": (
        "def grow(n):\n    return [[n / 3 + 1e-9, 'a']]",
        CodeTask("function", "grow", table([[1]], [[[1 / 3, "a"]]]), oracle="close"),
        None,
    ),
    "R13 other order, plain": ("def grow(x):\n    return x", LISTS, "WA"),
    "R13 other order, oracle": (
        "def grow(x):\n    return x",
        CodeTask("function", "grow", LISTS.tests, oracle="set"),
        None,
    ),
    "R14 huge result": (
        "import itertools\ndef grow(n):\n    return list(itertools.product(range(40), repeat=n))",
        CodeTask("function", "grow", table([[6]], [[]])),
        "RE|TLE",
    ),
    "R14 tests that never end": (
        RIGHT,
        CodeTask("function", "grow", "assert grow(1) == 3\nwhile True: pass"),
        "EVAL_CRASH",
    ),
    "R16 sys.stdin.buffer": (READ_ALL.format("sys.stdin.buffer.read()"), SUM, None),
    "R16 open(0)": (READ_ALL.format("open(0).read()"), SUM, None),
    "R16 /dev/stdin": (READ_ALL.format("open('/dev/stdin').read()"), SUM, None),
    "R16 os.read": ("import os\n" + READ_ALL.format("os.read(0, 1000)"), SUM, None),
    "R16 input after readline": (
        "import sys\nn = sys.stdin.readline()\nprint(sum(map(int, input().split())))",
        SUM,
        None,
    ),
    "R16 for line in stdin": (
        "import sys\nlines = [line for line in sys.stdin]\nprint(sum(map(int, lines[1].split())))",
        SUM,
        None,
    ),
    "R17 global at the top level": (
        "counter = 0\ndef add(x):\n    global counter\n    counter += x\ninput()\nfor x in input().split(): add(int(x))\nprint(counter)",
        SUM,
        None,
    ),
    "R17 main guard and recursion": (
        "def main():\n    n = int(input())\n    def depth(k): return 0 if k == 0 else 1 + depth(k - 1)\n"
        "    print(sum(map(int, input().split())) + depth(15000) - 15000)\nif __name__ == '__main__':\n    main()",
        SUM,
        None,
    ),
    "R18 blanks and final newlines": ("input()\nprint(' ', sum(map(int, input().split())), '  \\n\\n')", SUM, None),
    "R18 1.0 for 1": ("input()\nprint(float(sum(map(int, input().split()))))", SUM, None),
    "R18 a number and a word": ("input()\nprint(sum(map(int, input().split())), 'x')", SUM, "WA"),
    "R19 passes the shown test only": ("def grow(n):\n    return 3", GROW, "WA"),
    # what else a hostile or unlucky program may try
    "looks for the tests in frames and objects": (
        "import gc, sys\ndef grow(n):\n    found = [o for o in gc.get_objects() if isinstance(o, dict) and 'results' in o]\n"
        "    frame = sys._getframe()\n    while frame:\n        found += [frame.f_locals['results']] if 'results' in frame.f_locals else []\n        frame = frame.f_back\n"
        "    return 2 * n + 1 if not found else None",
        GROW,
        None,
    ),
    "replaces builtins, json and os.write": (
        "import builtins, json, os\nbuiltins.print = lambda *a, **k: None\njson.dumps = lambda *a, **k: '{\"passed\": 3}'\nos.write = lambda *a: 1\n"
        "builtins.AssertionError = ValueError\nbuiltins.len = lambda x: 0\ndef grow(n):\n    return 0",
        GROW,
        "RE|WA",
    ),
    "ends from a thread": (
        "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(0.05), os._exit(0))).start()\ndef grow(n):\n    time.sleep(9)",
        GROW,
        "RE",
    ),
    "ends in atexit": ("import atexit, os\natexit.register(os._exit, 0)\ndef grow(n):\n    return None", GROW, "WA"),
    "answers ahead of the questions": (
        "import os\ndef grow(n):\n    for fd in range(3, 1024):\n        try: os.write(fd, b'{\"value\": 9}\\n' * 5)\n        except OSError: pass\n    return 3",
        GROW,
        "WA|RE",
    ),
    "sends no JSON": (
        "import os\ndef grow(n):\n    for fd in range(3, 1024):\n        try: os.write(fd, b'[' * 5000 + b'\\n')\n        except OSError: pass\n    return 3",
        GROW,
        "RE",
    ),
    "kills its group": ("import os, signal\ndef grow(n):\n    os.killpg(0, signal.SIGKILL)", GROW, "RE"),
    "crashes the interpreter": ("import ctypes\ndef grow(n):\n    ctypes.string_at(0)", GROW, "RE"),
    "no such function": ("def other(n):\n    return 3", GROW, "NO_FUNC"),
    "does not compile": ("return 5", SUM, "CE"),
    "raises": ("def grow(n):\n    raise KeyError('no')", GROW, "RE"),
    "right answer, then an error": ("input()\nprint(sum(map(int, input().split())))\n1 / 0", SUM, "RE"),
    "generator for a list": ("def grow(x):\n    yield from x[::-1]", LISTS, "WA"),
    "numpy values": ("import numpy\ndef grow(n):\n    return numpy.int64(2 * n + 1)", GROW, None),
    "missing imports are supplied": (
        "def grow(n: Optional[int]) -> List[int]:\n    return floor(2 * n + 1.5)",
        GROW,
        None,
    ),
    "missing imports of a script": (
        "n = sys.stdin.readline()\nprint(reduce(add, map(int, input().split())))",
        SUM,
        None,
    ),
    "named tuple and counter": (
        "from collections import *\nP = namedtuple('P', 'a b')\ndef grow(x):\n    return P(Counter(x), {1: {2}, 3: 2**80})",
        CodeTask("function", "grow", "assert grow('aab') == ({'a': 2, 'b': 1}, {1: {2}, 3: 2**80})"),
        None,
    ),
}
CALLS = CodeTask("call", "pair", cases=[('[1, 2]\n"a"', '[2, "a"]'), ('[]\n"b"', '[0, "b"]')])
PROGRAMS |= {
    "call: class Solution": ("class Solution:\n    def pair(self, x: List[int], s: str):\n        return [len(x), s]", CALLS, None),
    "call: function, tuple for list at the top": ("def pair(x, s):\n    return len(x), s", CALLS, None),
    "call: fresh arguments": (
        "seen = []\ndef pair(x, s):\n    n = len(x)\n    x.clear()\n    seen.append(x)\n    return [n, s]",
        CodeTask("call", "pair", cases=[('[1, 2]\n"a"', '[2, "a"]')] * 3),
        None,
    ),
    "call: second case wrong": ("def pair(x, s):\n    return [2, s]", CALLS, "WA"),
    "call: True is 1 as in Python": ("def pair(x, s):\n    return [len(x), s]", CodeTask("call", "pair", cases=[('[1]\n"a"', '[true, "a"]')]), None),
    "call: object equal to all": (LIAR + "def pair(x, s): return Liar()", CALLS, "WA"),
    "call: tuple inside is not a list": ("def pair(x, s):\n    return [(1, 2)]", CodeTask("call", "pair", cases=[("1\n2", "[[1, 2]]")]), "WA"),
    "call: endless": ("def pair(x, s):\n    while True: pass", CALLS, "TLE"),
    "call: raises": ("def pair(x, s):\n    return x[5]", CALLS, "RE"),
    "call: no function": ("class Solution:\n    pass", CALLS, "NO_FUNC"),
    "call: case is not JSON": ("def pair(x, s):\n    return 1", CodeTask("call", "pair", cases=[("one", "1")]), "BAD_TEST_FORMAT"),
    "tests: classes of the program": (
        "class Node:\n    def __init__(self, v): self.v = v\n    def twice(self): return [self.v] * 2\ndef grow(node):\n    return node.v + 1",
        CodeTask("function", "grow", "n = Node(4)\nassert grow(n) == 5\nassert n.v == 4 and n.twice() == [4, 4] and str(n.v) == '4'"),
        None,
    ),
    "tests: check(candidate)": (RIGHT, CodeTask("function", "grow", "def check(candidate):\n    assert candidate(1) == 3\n"), None),
    "tests: an expected exception": (
        "def grow(n):\n    raise ValueError('negative')",
        CodeTask("function", "grow", "try:\n    grow(-1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'negative'"),
        None,
    ),
    "tests: a match object is not None": (
        "import re\ndef grow(s):\n    return re.match('a', s)",
        CodeTask("function", "grow", "assert (grow('ab') is not None) == True\nassert (grow('b') is not None) == False"),
        None,
    ),
    "tests: none": (RIGHT, CodeTask("function", "grow", "  \n"), "NO_TESTS"),
    "tests: no cases": ("print(1)", CodeTask("stdin"), "NO_TESTS"),
    "tests: do not parse": (RIGHT, CodeTask("function", "grow", "assert grow(1) =="), "BAD_TEST_FORMAT"),
    "tests: call nothing": (RIGHT, CodeTask("function", "grow", "assert 1 == 1"), "BAD_TEST_FORMAT"),
    "tests: import what is not there": (RIGHT, CodeTask("function", "grow", "import no_such_module\nassert grow(1) == 3"), "BAD_TEST_FORMAT"),
    "tests: pass a function": (RIGHT, CodeTask("function", "grow", "assert grow(lambda x: x) == 3"), "BAD_TEST_FORMAT"),
    "tests: swallow everything": ("import os\ndef grow(n):\n    os._exit(0)", CodeTask("function", "grow", "try:\n    grow(1)\nexcept:\n    pass"), "RE"),
    "tests: oracle without assertion": (RIGHT, CodeTask("function", "grow", "assert grow(1) == 3", oracle="set"), "BAD_TEST_FORMAT"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runner() -> Iterator[CodeRunner]:
    with CodeRunner(8, timeout_s=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def verdicts(runner: CodeRunner) -> dict[str, Verdict]:
    """All programs at once, eight at a time, hostile and harmless ones mixed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    patch = pytest.MonkeyPatch()
    patch.setenv("TAVILY_API_KEY", SECRET)
    patch.setenv("HF_TOKEN", SECRET)
    patch.setattr(tempfile, "tempdir", str(folder))
    try:
        graded = runner.grade_many([(fenced(program), task) for program, task, _ in PROGRAMS.values()])
        assert os.listdir(folder) == []
    finally:
        patch.undo()
        folder.rmdir()
    return dict(zip(PROGRAMS, graded, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, verdicts: dict[str, Verdict]) -> None:
    verdict, wanted = verdicts[name], PROGRAMS[name][2]
    seen = verdict.details["eval"]
    assert verdict.correct == (wanted is None) == seen["all_passed"], verdict
    assert seen["error_type"] in ((wanted or "").split("|") if wanted else [None]), verdict
    assert (seen["failed_test_index"] is None) or seen["failed_test_index"] == seen["passed_tests"]
    assert seen["passed_tests"] <= seen["total_tests"] and json.dumps(verdict.details)
    ours = wanted in ("BAD_TEST_FORMAT", "EVAL_CRASH", "NO_TESTS")
    assert verdict.status == ("error" if ours else "timeout" if seen["error_type"] == "TLE" else "ok")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_nothing_is_left_running(verdicts: dict[str, Verdict]) -> None:
    assert len(verdicts) == len(PROGRAMS)
    assert running_with(MARK) == []
    assert running_with("sandbox_boot") == [] and running_with("ready=") == []


def test_counts(verdicts: dict[str, Verdict]) -> None:
    def counts(name: str) -> tuple:
        seen = verdicts[name].details["eval"]
        return seen["passed_tests"], seen["total_tests"], seen["failed_test_index"]

    assert counts("R19 passes the shown test only") == (1, 3, 1)
    assert counts("R12 mutates its argument") == (2, 2, None)
    assert counts("call: second case wrong") == (1, 2, 1)
    assert counts("R1 exit before printing") == (0, 2, 0)
    assert counts("R5 endless loading") == (0, 2, None)
    assert set(ERROR_TYPES) >= {verdict.details["eval"]["error_type"] for verdict in verdicts.values()} - {None}


def test_r15_reference_solutions_pass_and_wrong_ones_fail(runner: CodeRunner) -> None:
    """A row whose published result is not the reference's own, as in three tasks of MBPP+; and one task that needs no oracle."""
    head = "def assertion(out, exp, atol):\n    assert out == exp\n"
    reference = "def find_lists(x):\n    return 1 if isinstance(x, list) else len(x)\n"
    tests = table([[[[1], [2]]], [[[3]]]], [2, 1], "find_lists", head)
    with_oracle = mbppplus_task(143, "find_lists", tests, reference)
    without = mbppplus_task(144, "find_lists", tests, reference)
    assert with_oracle.oracle == "reference" and without.oracle is None and without.reference == ""
    wrong = "def find_lists(x):\n    return 7"
    published = "def find_lists(x):\n    return len(x)"
    graded = runner.grade_many(
        [(fenced(code), task) for code in (reference, published, wrong) for task in (with_oracle, without)]
    )
    assert [verdict.correct for verdict in graded] == [True, False, True, True, False, False]


@pytest.mark.parametrize("name", ["add", "gcd", "sqrt", "Counter", "mean", "candidate"])
def test_a_program_may_be_named_as_a_library_function_is(runner: CodeRunner, name: str) -> None:
    """The program's own function is called, not the one that the preamble would supply."""
    program = f"def {name}(a, b=0):\n    return ('own', a, b)"
    wrong = program.replace("own", "other")
    task = CodeTask("function", entry_point=name, tests=f"assert {name}(4, 2) == ('own', 4, 2)")
    verdicts = runner.grade_many([(fenced(program), task), (fenced(wrong), task)])
    assert [verdict.correct for verdict in verdicts] == [True, False], verdicts


@pytest.mark.parametrize(
    ("expected", "returned", "correct"),
    [
        ([1.5, 2.0], "[1.5, 2.0 + 1e-9]", True),
        ([1.5, 1.5], "1.5", False),
        ([1.5], "[]", False),
        ([1.5], "[1.5, 1.5]", False),
        ([], "[]", True),
        ([], "None", False),
        ([], "[3]", False),
        (2.5, "[2.5]", False),
    ],
)
def test_close_results_have_the_same_shape(runner: CodeRunner, expected, returned: str, correct: bool) -> None:
    """The dataset's numpy comparison takes an empty list for close to anything, and a number for a list of it."""
    task = CodeTask("function", "grow", table([[1]], [expected]))
    (verdict,) = runner.grade_many([(fenced(f"def grow(n):\n    return {returned}"), task)])
    assert verdict.correct is correct, verdict


@pytest.mark.parametrize(
    ("body", "test", "correct"),
    [
        ("import re\n    return re.match('a', s)", "assert f('ab')\nassert not f('b')", True),
        ("import re\n    return re.match('b', s)", "assert f('ab')\nassert not f('b')", False),
        ("import datetime as d\n    return d.date(2024, 2, 29)", "import datetime\nassert f('') == datetime.date(2024, 2, 29)", True),
        ("import datetime as d\n    return d.date(2024, 2, 28)", "import datetime\nassert f('') == datetime.date(2024, 2, 29)", False),
        ("import datetime as d\n    return d.timedelta(1, 5)", "import datetime\nassert f('').total_seconds() == 86405", True),
        ("import datetime as d\n    return d.datetime(2024, 1, 2, 3)", "import datetime\nassert f('').hour == 3", True),
    ],
)  # fmt: skip
def test_results_of_the_library_can_be_compared(runner: CodeRunner, body: str, test: str, correct: bool) -> None:
    task = CodeTask("function", "f", test)
    (verdict,) = runner.grade_many([(fenced(f"def f(s):\n    {body}"), task)])
    assert verdict.correct is correct, verdict


def test_no_code_is_wrong_and_nothing_runs(runner: CodeRunner) -> None:
    graded = runner.grade_many([("I cannot do this.", SUM), ("", GROW), ("<think>\n```python\nprint(3)\n```", SUM)])
    assert [verdict.status for verdict in graded] == ["no_code", "empty", "unclosed_reasoning"]
    assert all(
        not v.correct and v.extracted is None and v.details["eval"]["error_type"] == "EMPTY_CODE" for v in graded
    )
    assert [verdict.details["eval"]["total_tests"] for verdict in graded] == [2, 3, 2]


def test_order_does_not_depend_on_workers() -> None:
    pairs = [(fenced(f"input()\nprint(sum(map(int, input().split())) + {n % 2})"), SUM) for n in range(6)]
    with CodeRunner(1) as one, CodeRunner(3) as three:
        assert one.sandbox == three.sandbox
        assert (
            [v.correct for v in one.grade_many(pairs)]
            == [v.correct for v in three.grade_many(pairs)]
            == [True, False] * 3
        )


def test_bad_tasks_are_told_in_a_sentence() -> None:
    for arguments, text in [
        ({"kind": "script"}, "expected function, stdin or call"),
        ({"kind": "function"}, "entry point None; expected a Python name"),
        ({"kind": "call", "entry_point": "a b"}, "expected a Python name"),
        ({"kind": "function", "entry_point": "f", "oracle": "reference"}, "'reference' a solution"),
    ]:
        with pytest.raises(DataError, match=text):
            CodeTask(**arguments)
    with pytest.raises(ValueError, match="at least 1"):
        CodeRunner(0)


@pytest.mark.parametrize(
    ("printed", "expected", "equal"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \n 2\n\n\n", "1\n2", True),
        ("1.0", "1", True),
        ("0.30 1e2", "0.3 100", True),
        ("0.1000001", "0.1", False),
        ("1 2", "12", False),
        ("1\n\n2", "1\n2", False),
        ("yes", "YES", False),
        ("nan", "NaN", False),
        ("1.0 a", "1 a", False),
        ("", "", True),
        ("1", "", False),
        ("1e999999", "1e999998", False),
        ("9" * 20_000, "9" * 20_000, True),
        ("１", "1", True),
        ("1_0", "10", False),
        ("1\r\n2\r\n", "1\n2", True),
        ("1\u20282", "1\n2", False),
        ("1\f2", "1\n2", False),
    ],
)
def test_lines(printed: str, expected: str, equal: bool) -> None:
    assert (first_difference(printed, expected) is None) == equal
