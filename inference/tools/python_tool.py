"""The Python interpreter that a model may use while it thinks: one block of code in, a text for its result block out."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

from inference.tools.errors import FailedResult
from inference.tools.sandbox import Limits, Outcome, Sandbox, SandboxError

# What the reference preloads. Imported only where the code names it: sympy alone costs a third of a second.
PRELOADED = {
    "math": "import math",
    "itertools": "import itertools",
    "functools": "import functools",
    "fractions": "import fractions",
    "statistics": "import statistics",
    "sp": "import sympy as sp",
}
MEMORY_MB = 2048  # address space; sympy and numpy together map some 500 MB
_MAX_OUTPUT_BYTES = 1 << 20  # a program that writes more is ended; the result shows 6,000 characters of it
_WALL_FACTOR = 2.0  # the limit is CPU time, and so much wall time at most, so that a busy machine changes no answer
_CLOSING_TAG = re.compile(r"<(/\s*result\s*>)", re.IGNORECASE)
_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)


class PythonTool:
    """Runs code blocks in a sandbox, each in a fresh process; may be called from many threads.

    `timeout_s` CPU seconds a block; `max_chars` of a result; `echo_last_expr` shows the value of a last line that is an
    expression, as an interactive interpreter does.
    """

    def __init__(
        self, sandbox: Sandbox, timeout_s: float = 10.0, max_chars: int = 6000, echo_last_expr: bool = False
    ) -> None:
        self._sandbox = sandbox
        self._timeout_s = timeout_s
        self._max_chars = max_chars
        self._echo = echo_last_expr

    def __call__(self, body: str) -> str:
        """The result text of one block: output, `[stderr]`, `[exit_code] N`, `[timeout]`, `[no output]`; never raises for what
        the code does. A `FailedResult` where it did not end well. A sandbox that fails says so in an `[error]` line, so that
        it is not taken for a result of the code."""
        code = program(body, self._echo)
        imports = [line for name, line in PRELOADED.items() if re.search(rf"\b{name}\b", code)]
        files = {"preloaded.py": "\n".join(imports) + "\n", "code.py": code}
        limits = Limits(
            wall_s=self._timeout_s * _WALL_FACTOR,
            cpu_s=self._timeout_s,
            memory_mb=MEMORY_MB,
            output_bytes=_MAX_OUTPUT_BYTES,
        )
        try:
            outcome = self._sandbox.run(files, ["preloaded.py", "code.py"], limits=limits)
        except SandboxError as error:
            return FailedResult(defuse(f"[error] {error}"))
        said, fault = cut(defuse(output(outcome)), self._max_chars), fault_line(outcome, self._timeout_s)
        return FailedResult(f"{said}\n{fault}".lstrip("\n")) if fault else said or "[no output]"


def program(body: str, echo_last_expr: bool = False) -> str:
    """A block as a program: without a Markdown fence around it, dedented, its last expression printed if asked for."""
    fenced = _FENCE.fullmatch(body)
    code = textwrap.dedent((fenced.group(1) if fenced else body).replace("\r\n", "\n")).strip("\n")
    if not echo_last_expr:
        return code
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # running it tells the model what is wrong
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return code
    lines = [line.encode("utf-8", "surrogatepass") for line in code.split("\n")]
    end = (last.end_lineno or last.lineno) - 1
    lines[end] = lines[end][: last.end_col_offset] + b")" + lines[end][last.end_col_offset :]
    first = last.lineno - 1
    lines[first] = lines[first][: last.col_offset] + b"_ = (" + lines[first][last.col_offset :]
    return b"\n".join([*lines, b"if _ is not None:", b"    print(repr(_))"]).decode("utf-8", "surrogatepass")


def output(outcome: Outcome) -> str:
    """What a program wrote, in the layout of the reference."""
    stdout, stderr = (data.decode("utf-8", "replace").strip("\n") for data in (outcome.stdout, outcome.stderr))
    parts = [stdout] if stdout.strip() else []
    return "\n".join([*parts, f"[stderr]\n{stderr}"] if stderr.strip() else parts)


def fault_line(outcome: Outcome, timeout_s: float) -> str:
    """How a program ended, empty if it ended well."""
    if outcome.timed_out:
        return f"[timeout] the code was stopped after {timeout_s:g} s"
    if outcome.overflow:
        return f"[stopped] the code wrote more than {_MAX_OUTPUT_BYTES:,} bytes"
    if outcome.exit_code != 0:
        return f"[exit_code] {outcome.exit_code if outcome.exit_code is not None else -(outcome.signal or 0)}"
    return ""


def cut(text: str, max_chars: int) -> str:
    """The first `max_chars` characters, with a note of how many there were."""
    return (
        text
        if len(text) <= max_chars
        else f"{text[:max_chars]}\n[cut: the first {max_chars} of {len(text)} characters]"
    )


def defuse(text: str) -> str:
    """A closing result tag inside a result, broken by a blank, so that it does not end the result block."""
    return _CLOSING_TAG.sub(r"< \1", text)
