"""Grading programs: every one in sandboxed processes, many at a time.

How a verdict is kept out of the program's reach
- "stdin": the expected output never enters the sandbox; the grader compares what was printed.
- "function" and "call": two sandboxed processes. The program's answers calls (`solution_side.py`); the examiner's holds the
  tests and expected values, compares, and reports through a pipe that the program's process does not have, signed with a random
  token of the run (`examiner.py`). Between them pass plain data only. An exit code decides nothing: without the examiner's
  signed last line there is no pass.

What remains. A program can answer rightly by any means, such as knowing the tests by heart. It may see how often and with which
arguments it is called. In the "rlimits" layer without root both processes belong to one user, so a program could trace or kill
the examiner or the grader; in the other layers, and as root in any, it cannot. Arguments pass by value: a test that looks at its
argument after the call sees no change, and functions cannot be passed to the program (BAD_TEST_FORMAT).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import math
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from inference.scoring.code.extract import extract, parse
from inference.scoring.code.lines import first_difference
from inference.scoring.code.names import supply
from inference.scoring.code.oracles import with_oracle
from inference.scoring.code.task import OUR_FAULTS, CodeTask, Evaluation
from inference.scoring.verdict import Verdict
from inference.tools.sandbox import Confined, Limits, Outcome, Sandbox, SandboxError, Stream, supervise

SECONDS = {"function": 10.0, "stdin": 6.0, "call": 6.0}  # the reference's: all tests together; a test; a call
# Limits are CPU time, so that a busy machine changes no verdict; a program that waits or sleeps is ended by these:
WALL_FACTOR = 3.0  # times the CPU limit
WALL_SPARE = 10.0  # and so many seconds more, for libraries that are loaded
MEMORY_MB = 2048  # address space; solutions of contest tasks keep tables of some hundred MB
_SPARE_OUTPUT = 1 << 16  # bytes beyond twice the expected output
_CHATTER = 1 << 20  # bytes that a program may print while its function is tested
_REPORT = 8 << 20  # the examiner's notes: some 100 bytes a call
_HERE = Path(__file__).parent


class CodeRunner:
    """Grades code answers with up to `workers` at a time. Use as a context manager.

    `timeout_s` is CPU time: of all tests for function tasks, of one test for the others (default: `SECONDS`); the wall limit is
    `WALL_FACTOR` times as long and `WALL_SPARE` more. `sandbox`: a sandbox to use (default: the strongest that works here).
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        timeout_s: float | None = None,
        memory_mb: int = MEMORY_MB,
        sandbox: Sandbox | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}; a runner needs at least 1")
        self._workers = workers or os.cpu_count() or 1
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._sandbox = sandbox or Sandbox()
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="grade")

    @property
    def sandbox(self) -> str:
        """Name of the sandbox layer in use."""
        return self._sandbox.layer

    def grade_many(self, pairs: Sequence[tuple[str, CodeTask]]) -> list[Verdict]:
        """The verdicts on (model output, task) pairs, in their order."""
        futures = [self._threads.submit(self.grade, text, task) for text, task in pairs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def grade(self, text: str, task: CodeTask) -> Verdict:
        """The verdict on one model output. `details["eval"]` has the counts and the error type."""
        found = extract(text, task.entry_point, "program" if task.kind == "stdin" else "function")
        status = found.status
        if found.code is None:
            result = Evaluation(0, _count(task), "EMPTY_CODE", found.rule)
        else:
            try:
                result = self.evaluate(found.code, task)
            except SandboxError as error:
                result = Evaluation(0, _count(task), "EVAL_CRASH", str(error))
            if result.error_type in OUR_FAULTS or result.error_type == "NO_TESTS":
                status = "error"
            elif result.error_type == "TLE":
                status = "timeout"
        details = {"eval": result.record(), "extraction": {"status": found.status, "rule": found.rule}}
        rule = f"{task.kind}: {result.error_type or 'all tests passed'}"
        return Verdict(result.all_passed, found.code, status, rule, details)

    def evaluate(self, code: str, task: CodeTask) -> Evaluation:
        """Run a program against its tests. `SandboxError` if the sandbox fails."""
        tree = parse(code)
        if tree is None:
            return Evaluation(0, _count(task), "CE", "the program does not parse")
        try:
            compile(code, "program.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return Evaluation(0, _count(task), "CE", f"{type(error).__name__}: {error}")
        if not (task.tests.strip() if task.kind == "function" else task.cases):
            return Evaluation(0, 0, "NO_TESTS", "the task has no tests")
        names = supply(tree)[0]
        return self._run_script(code, names, task) if task.kind == "stdin" else self._examine(code, names, task)

    def _seconds(self, task: CodeTask) -> float:
        return self._timeout_s if self._timeout_s is not None else SECONDS[task.kind]

    def _run_script(self, code: str, names: str, task: CodeTask) -> Evaluation:
        """A script against (stdin, stdout) pairs: a fresh process and real pipes for each."""
        seconds = self._seconds(task)
        for index, (given, expected) in enumerate(task.cases):
            outcome = self._sandbox.run(
                {"names.py": names, "program.py": code},
                ["names.py", "program.py"],
                stdin=given.encode("utf-8", "surrogatepass"),
                limits=Limits(
                    wall_s=seconds * WALL_FACTOR + WALL_SPARE,
                    cpu_s=seconds,
                    memory_mb=self._memory_mb,
                    output_bytes=_SPARE_OUTPUT + 2 * len(expected.encode("utf-8", "surrogatepass")),
                ),
            )
            failure = _script_failure(outcome, expected)
            if failure is not None:
                return Evaluation(index, len(task.cases), *failure, failed_test_index=index)
        return Evaluation(len(task.cases), len(task.cases))

    def _examine(self, code: str, names: str, task: CodeTask) -> Evaluation:
        """A function, called by the examiner in another process."""
        prepared = _tests(task)
        if isinstance(prepared, Evaluation):
            return prepared
        files, wanted = prepared
        seconds = self._seconds(task)
        calls = len(task.cases) if task.kind == "call" else 1
        wall = seconds * WALL_FACTOR * calls + WALL_SPARE
        per_call = seconds if task.kind == "call" else 0
        token = secrets.token_hex(16)
        with contextlib.ExitStack() as stack:
            ends = stack.enter_context(_Descriptors())
            ask_read, ask_write = ends.pipe()
            reply_read, reply_write = ends.pipe()
            report_read, report_write = ends.pipe()
            cpu = str(math.ceil(per_call))
            program = stack.enter_context(
                self._sandbox.start(
                    {**_sources("solution_side"), "names.py": names, "solution.py": code},
                    ["solution_side.py"],
                    arguments=[str(ask_read), str(reply_write), cpu, "names.py", "solution.py"],
                    limits=Limits(wall, seconds * calls, self._memory_mb, output_bytes=_CHATTER),
                    keep=(ask_read, reply_write),
                )
            )
            ends.close(ask_read, reply_write)  # only the program holds them now: if it ends, the examiner sees it
            arguments = [
                ask_write,
                reply_read,
                report_write,
                per_call and per_call * WALL_FACTOR + WALL_SPARE / 2,
                task.entry_point,
                *wanted,
            ]
            examiner = stack.enter_context(
                self._sandbox.start(
                    {**_sources("examiner"), **files},
                    ["examiner.py"],
                    stdin=token.encode() + b"\n",
                    arguments=[str(argument) for argument in arguments],
                    limits=Limits(wall, seconds + WALL_SPARE / 2, self._memory_mb, output_bytes=_CHATTER),
                    keep=(ask_write, reply_read, report_write),
                    streams={"report": Stream(ends.release(report_read), _REPORT)},
                )
            )
            ends.close(ask_write, reply_read, report_write)
            supervise(examiner, [program])
            return _judge(token, examiner, program, _count(task))

    def close(self) -> None:
        """Wait for what is being graded and end the threads."""
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> CodeRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Descriptors:
    """Pipe ends of this process; what is still open at the end of the block is closed."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def release(self, end: int) -> int:
        self._open.remove(end)
        return end

    def close(self, *ends: int) -> None:
        for end in ends:
            os.close(self.release(end))

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(*tuple(self._open))


def _sources(name: str) -> dict[str, str]:
    """A side's script and what both sides share, for the box."""
    return {file: (_HERE / file).read_text(encoding="utf-8") for file in (f"{name}.py", "wire.py")}


def _count(task: CodeTask) -> int:
    """How many tests a task has, as far as its text shows."""
    if task.kind != "function":
        return len(task.cases)
    survey = _survey(task.tests, task.entry_point)
    return survey[0] if survey else 0


@functools.lru_cache(maxsize=1024)  # one task is graded many times, and tests are long
def _survey(tests: str, entry_point: str | None) -> tuple[int, str, frozenset[str]] | None:
    """Of test code: the number of tests (rows of MBPP+'s table `inputs`, else asserts at the top level), the imports that it
    needs, and the names that only the program can define. None if it does not parse."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    count = sum(isinstance(node, ast.Assert) for node in tree.body)
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            named = any(isinstance(target, ast.Name) and target.id == "inputs" for target in node.targets)
            count += len(node.value.elts) if named else 0
    return count, *supply(tree, frozenset({entry_point, "candidate"}))


def _tests(task: CodeTask) -> tuple[dict[str, str], list[str]] | Evaluation:
    """The examiner's files and its last arguments: kind of the tests, and names to fetch from the program."""
    if task.kind == "call":
        cases = [[given.split("\n"), expected] for given, expected in task.cases]
        return {"cases.json": json.dumps(cases)}, ["cases"]
    survey = _survey(task.tests, task.entry_point)
    if survey is None:
        return Evaluation(0, 0, "BAD_TEST_FORMAT", "the tests do not parse")
    count, names, others = survey
    files = {"tests.py": task.tests, "test_names.py": names}
    if task.oracle:
        tests = with_oracle(task.tests, task.oracle)
        if tests is None:
            return Evaluation(0, count, "BAD_TEST_FORMAT", "the oracle found no function assertion in the tests")
        files |= {"tests.py": tests, "reference.py": task.reference}
    return files, ["tests", *sorted(others)]


def _script_failure(outcome: Outcome, expected: str) -> tuple[str, str] | None:
    if outcome.timed_out:
        return "TLE", f"ended after {outcome.seconds:.1f} s"
    if outcome.overflow:
        return "WA", "it printed far more than expected"
    if outcome.exit_code != 0:
        return "RE", _last_words(outcome)
    difference = first_difference(outcome.stdout.decode("utf-8", "replace"), expected)
    return None if difference is None else ("WA", difference)


def _last_words(outcome: Outcome) -> str:
    end = f"signal {outcome.signal}" if outcome.signal is not None else f"exit code {outcome.exit_code}"
    said = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"{end}: {said[-1][:500]}" if said else end


def _judge(token: str, examiner: Confined, program: Confined, expected: int) -> Evaluation:
    """The grade from the examiner's notes and from how both processes ended."""
    ours, theirs = examiner.outcome(), program.outcome()
    notes: dict[str, Any] = {}
    for line in bytes(examiner.streams["report"].data).splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue  # the last line, cut when the examiner was ended
        if note.pop("token", None) == token:
            notes |= note
    asked = notes.get("asked", 0)
    total = max(expected, asked)
    failed = {"failed_test_index": asked - 1} if asked else {}
    before = max(asked - 1, 0)
    if "passed" in notes:
        if not asked:
            return Evaluation(0, total, "BAD_TEST_FORMAT", "the tests never call the entry point")
        return Evaluation(total, total)
    if "error" in notes:
        kind, detail = notes["error"], notes["detail"]
        if kind == "RE" and program.overflow:
            detail = f"it printed more than {_CHATTER:,} bytes"
        elif kind == "RE" and theirs.timed_out:
            kind, detail = "TLE", f"ended after {theirs.seconds:.1f} s"
        elif kind == "RE" and theirs.stderr and theirs.exit_code not in (0, None):
            detail = f"{detail} ({_last_words(theirs)})"
        return Evaluation(before, total, kind, detail, **failed)
    if examiner.overflow:
        return Evaluation(before, total, "EVAL_BAD_OUTPUT", "the tests wrote more than they may", **failed)
    if ours.timed_out and ("loaded" not in notes or asked > notes.get("heard", 0)):
        return Evaluation(before, total, "TLE", f"no result after {ours.seconds:.1f} s", **failed)
    why = (
        f"the tests ran for {ours.seconds:.1f} s" if ours.timed_out else f"the tests ended early ({_last_words(ours)})"
    )
    return Evaluation(before, total, "EVAL_CRASH", why, **failed)
