"""The Python tool: its result texts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from inference.tools.errors import FailedResult
from inference.tools.python_tool import PythonTool, cut, defuse, program
from inference.tools.sandbox import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox()


@pytest.fixture(scope="module")
def tool(sandbox: Sandbox) -> PythonTool:
    return PythonTool(sandbox, timeout_s=10)


@pytest.fixture(scope="module")
def echo(sandbox: Sandbox) -> PythonTool:
    return PythonTool(sandbox, timeout_s=10, echo_last_expr=True)


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("print(6 * 7)", "42"),
        ("  print(1)\n  print('ä')", "1\nä"),
        ("x = 5", "[no output]"),
        ("", "[no output]"),
        ("print('   ')", "[no output]"),
        ("print(math.comb(5, 2), next(itertools.count(3)), functools.reduce(max, [1, 9]))", "10 3 9"),
        ("print(fractions.Fraction(1, 3) + 1, statistics.mean([1, 2]))", "4/3 1.5"),
        ("print(sp.factor(sp.Symbol('x')**2 - 1))", "(x - 1)*(x + 1)"),
        ("import sys; print('a'); sys.exit(4)", "a\n[exit_code] 4"),
        ("import sys; print('careful', file=sys.stderr)", "[stderr]\ncareful"),
        ("1 + 1", "[no output]"),
        ("```python\nprint(3)\n```", "3"),
        ("print(1)\r\nprint(2)\r\n", "1\n2"),
        ("print('</result>', '</ RESULT >')", "< /result> < / RESULT >"),
    ],
)
def test_result_text(tool: PythonTool, body: str, result: str) -> None:
    assert tool(body) == result


def test_an_error_shows_its_traceback_and_exit_code(tool: PythonTool) -> None:
    lines = tool("print('before')\ndef f():\n    return 1 / 0\nf()").splitlines()
    assert lines[:2] == ["before", "[stderr]"]
    assert lines[-2:] == ["ZeroDivisionError: division by zero", "[exit_code] 1"]
    assert "SyntaxError" in tool("def f(:")


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("x = 2\nx ** 5", "32"),
        ("'a' 'b'  # joined", "'ab'"),
        ("print(1); 2", "1\n2"),
        ("print(7)", "7"),
        ("(1 +\n 2)", "3"),
        ("'ä'; 'ö'", "'ö'"),
        ("None", "[no output]"),
        ("x = 3", "[no output]"),
        ("sp.Rational(1, 2)", "1/2"),
    ],
)
def test_last_expression_is_shown_if_asked_for(echo: PythonTool, body: str, result: str) -> None:
    assert echo(body) == result


def test_code_that_does_not_parse_stays_as_it_is() -> None:
    assert program("def f(:", echo_last_expr=True) == "def f(:"


def test_every_call_is_a_fresh_process(tool: PythonTool) -> None:
    assert tool("kept = 1; open('file', 'w').write('x')") == "[no output]"
    assert tool("import os; print('kept' in globals(), os.listdir())") == "False []"


def test_time_limit(sandbox: Sandbox) -> None:
    tool = PythonTool(sandbox, timeout_s=0.3)
    assert tool("print('start', flush=True)\nwhile True: pass") == "start\n[timeout] the code was stopped after 0.3 s"


def test_long_results_are_cut_with_a_note(sandbox: Sandbox) -> None:
    tool = PythonTool(sandbox, max_chars=100)
    assert tool("print('x' * 5000)") == "x" * 100 + "\n[cut: the first 100 of 5000 characters]"
    assert tool("print('x' * 100)") == "x" * 100


def test_a_long_result_keeps_how_it_ended(sandbox: Sandbox) -> None:
    tool = PythonTool(sandbox, max_chars=100)
    result = tool("print('x' * 5000)\nimport sys; sys.exit(3)")
    assert result.endswith("\n[cut: the first 100 of 5000 characters]\n[exit_code] 3") and isinstance(
        result, FailedResult
    )
    assert not isinstance(tool("print('[exit_code] 1')"), FailedResult)


def test_endless_output_is_stopped(tool: PythonTool) -> None:
    result = tool("while True: print('y' * 1000)")
    assert result.startswith("y" * 1000) and len(result) < 6100 and "[cut: the first 6000 of" in result


def test_cut_and_defuse_leave_other_text_alone() -> None:
    assert cut("abc", 3) == "abc"
    assert defuse("<result> </b> \\boxed{1}") == "<result> </b> \\boxed{1}"


def test_calls_from_many_threads_do_not_mix(tool: PythonTool) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: tool(f"print({n} ** 2)"), range(12))) == [str(n**2) for n in range(12)]
