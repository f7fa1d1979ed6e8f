"""Functions graded by asserts: MBPP+, and the tests of every code sample as the runner takes them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inference.benchmarks import livecodebench
from inference.benchmarks.base import Options, Sample, shown, text_of
from inference.tools.errors import DataError

if TYPE_CHECKING:
    from inference.scoring.code import CodeTask


def mbppplus_sample(row: dict[str, Any], index: int, where: str, default_id: str, options: Options) -> Sample:
    """Columns `prompt`, `code`, `test`, `test_list`, `task_id`. The prompt shows the first asserts, `test` is what counts."""
    code, tests = text_of(row, ("code",), where), text_of(row, ("test",), where)
    asserts = row.get("test_list")
    if not isinstance(asserts, (list, tuple)) or not all(isinstance(line, str) for line in asserts):
        raise DataError(f"{where}: 'test_list' is {shown(asserts)}; expected a list of asserts as text")
    question = text_of(row, ("prompt",), where)
    if examples := asserts[: options.mbppplus_num_prompt_tests]:
        question += "\n\nYour code must pass these tests:\n" + "\n".join(examples)
    name = function_name(asserts, code)
    if name is None:
        raise DataError(f"{where}: neither 'test_list' nor 'code' names a function")
    sample_id = text_of(row, ("task_id",), where) if "task_id" in row else default_id
    meta: dict[str, Any] = {"tests": tests}
    if (number := sample_id.rpartition("/")[2]).isdecimal():
        meta["mbppplus_id"] = int(number)
    return Sample(index, sample_id, question, code, "code", "function", name, meta)


def function_name(asserts: Sequence[str], code: str) -> str | None:
    """The function under test: the first that the asserts call and the code defines, else the first they call that is no
    builtin, else the last that the code defines. None if there is none."""
    defined = [node.name for node in _parsed(code).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    nodes = ast.walk(_parsed("\n".join(asserts)))
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    called = [name for name in calls if not hasattr(builtins, name) or name in defined]
    known = [name for name in called if name in defined]
    return (known or called or defined[-1:] or [None])[0]


def _parsed(code: str) -> ast.Module:
    """The syntax tree; an empty one if the code cannot be parsed."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def code_task(sample: Sample, options: Options) -> CodeTask:
    """The tests of a code sample as the runner takes them: asserts, cases, or prepared cases of LiveCodeBench."""
    from inference.scoring.code import CodeTask, mbppplus_task

    if "mbppplus_id" in sample.meta:  # some published tests reject their own solution; the scorer knows which
        return mbppplus_task(sample.meta["mbppplus_id"], sample.fn_name or "", sample.meta["tests"], sample.gold)
    if "tests" in sample.meta:
        return CodeTask(kind="function", entry_point=sample.fn_name, tests=sample.meta["tests"])
    if "cases" in sample.meta:
        cases = [tuple(case) for case in sample.meta["cases"]]
    else:
        cases = livecodebench.load_tests(sample, options.lcb_use_private_tests)
    return CodeTask(kind="call" if sample.fn_name else "stdin", entry_point=sample.fn_name, cases=cases)
