"""Inside the sandbox, in a process of its own: runs the tests and asks the program's process for every result.

Results arrive as plain data, are compared here, and the verdict goes to the grader through a pipe that only this process has,
signed with the run's random token. No line of the program runs here. Arguments of the script: descriptors to ask and to hear
the program, one for the verdict, seconds for each call (0: no limit of its own), the task's entry point, and the kind of the
tests: "tests" for `tests.py` (asserts that call the entry point; names it needs stand in `test_names.py`), followed by names to
fetch from the program, or "cases" for `cases.json` ([[argument lines, expected], ...]). The token is the first line of stdin.
"""

import json
import os
import select
import sys
from importlib.machinery import SourceFileLoader

BOX = __file__.rpartition("/")[0]
wire = type(sys)("wire")
SourceFileLoader("wire", f"{BOX}/wire.py").exec_module(wire)


class Stop(BaseException):
    """The tests cannot go on; `kind` is the error type. Not an Exception, so that no test can catch it."""

    def __init__(self, kind, detail):
        super().__init__(detail)
        self.kind = kind


class ProgramError(Exception):
    """An exception of the program that has no builtin type."""


class Examiner:
    """Talks to the program's process; counts calls of the entry point."""

    def __init__(self, to_program, from_program, verdict, seconds, entry_point, token):
        self._to, self._from = to_program, from_program
        self._verdict, self._token = verdict, token
        self._seconds = seconds
        self._entry_point = entry_point
        self.calls = 0
        self.raised = None  # what the last call raised
        self.stopped = None
        self.last_call = (), {}

    def note(self, **message):
        self._verdict.write(json.dumps({"token": self._token, **message}).encode() + b"\n")
        self._verdict.flush()

    def stop(self, kind, detail):
        """The first reason to stop, also if a test's bare `except` swallowed it."""
        self.stopped = self.stopped or Stop(kind, detail)
        return self.stopped

    def exchange(self, request, seconds=0):
        if self.stopped:
            raise self.stopped
        try:
            wire.send(self._to, request)
            if seconds and not select.select([self._from], [], [], seconds)[0]:
                raise self.stop("TLE", f"no result after {seconds:g} s")
            return wire.receive(self._from)
        except (EOFError, BrokenPipeError):
            raise self.stop("RE", "the program ended before it gave a result") from None
        except wire.WireError as error:
            raise self.stop("RE", str(error)) from None

    def wait_loaded(self):
        try:
            loaded = wire.receive(self._from)
        except (EOFError, wire.WireError):
            raise Stop("RE", "the program ended while it was loaded") from None
        if loaded.get("loaded") is not True:
            text = f"{loaded.get('type')}: {loaded.get('text')}"
            raise Stop("RE" if loaded.get("compiled", True) else "CE", text)
        self.require(self._entry_point)

    def require(self, name):
        if self.exchange({"operation": "has", "name": name}).get("value") is not True:
            raise Stop("NO_FUNC", f"the program defines no function or class {name}")

    def ask(self, operation, target, arguments, named=None):
        request = {"operation": operation, "target": target}
        try:
            request.update(arguments=wire.pack(list(arguments)), named=wire.pack(named or {}))
        except wire.WireError as error:
            raise self.stop("BAD_TEST_FORMAT", str(error)) from None
        return self.result(request)

    def result(self, request):
        self.raised = None
        reply = self.exchange(request, self._seconds)
        if "raised" in reply:
            self.raised = f"{reply.get('type')}: {reply.get('text')}"
            raise _exception(reply)
        try:
            return wire.unpack(reply["value"], self.remote)
        except (wire.WireError, TypeError, ValueError, KeyError, RecursionError, OverflowError, ImportError) as error:
            raise self.stop("RE", f"the program's result cannot be read: {error}") from None

    def remote(self, number):
        return wire.Remote(number, self.ask)

    def call(self, *arguments, **named):
        self.calls += 1
        self.last_call = arguments, named
        self.note(asked=self.calls)
        value = self.ask("call", self._entry_point, arguments, named)
        self.note(heard=self.calls)
        return value


def _exception(reply):
    import builtins

    for name in reply["raised"] if isinstance(reply["raised"], list) else ():
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(str(reply.get("text")))
            except TypeError:  # such as UnicodeDecodeError, which takes more than a text
                continue
    return ProgramError(f"{reply.get('type')}: {reply.get('text')}")


def reference_of(examiner, entry_point):
    """A function without arguments: the reference solution's result for the last call's arguments."""
    module = type(sys)("reference")
    SourceFileLoader("reference", f"{BOX}/reference.py").exec_module(module)

    def result():
        from copy import deepcopy

        arguments, named = deepcopy(examiner.last_call)
        return vars(module)[entry_point](*arguments, **named)

    return result


def compare_shapes_too():
    """`numpy.allclose` as the tests mean it. The library's stretches shapes: an empty list is close to anything, 3 to [3, 3].

    Replaced in this process, which runs nothing but one task's tests, because the tests import numpy themselves.
    """
    import numpy

    close = numpy.allclose

    def allclose(a, b, *arguments, **named):
        return numpy.shape(a) == numpy.shape(b) and close(a, b, *arguments, **named)

    numpy.allclose = allclose


def run_tests(examiner, entry_point, others):
    """The tests' own text, as a module whose entry point is a call to the program. A test is one such call.

    `others` are names that the tests use and do not define: classes or helpers of the program. A function `check(candidate)`
    is called if the tests define one."""
    module = type(sys)("tests")
    for name in others:
        examiner.require(name)
        vars(module)[name] = examiner.result({"operation": "named", "name": name})
    vars(module)[entry_point] = examiner.call
    if os.path.exists(f"{BOX}/reference.py"):
        vars(module)["_reference_result"] = reference_of(examiner, entry_point)
    with open(f"{BOX}/tests.py", encoding="utf-8") as file:
        if "allclose" in file.read():
            compare_shapes_too()
    try:
        for name in ("test_names.py", "tests.py"):
            module.__file__ = f"{BOX}/{name}"
            SourceFileLoader("tests", module.__file__).exec_module(module)
        if callable(vars(module).get("check")):
            vars(module)["check"](examiner.call)
        if examiner.stopped:
            raise examiner.stopped
    except Stop:
        raise
    except SyntaxError as error:
        raise Stop("BAD_TEST_FORMAT", f"SyntaxError: {error}") from None
    except (NameError, ImportError) as error:
        kind = "RE" if examiner.raised else "BAD_TEST_FORMAT"
        raise Stop(kind, f"{type(error).__name__}: {error}") from None
    except AssertionError as error:
        kind = "RE" if (examiner.raised or "").startswith("AssertionError") else "WA"
        raise Stop(kind, str(error)[:500] or "an assertion does not hold") from None
    except BaseException as error:
        kind = "RE" if examiner.raised else "WA"
        raise Stop(kind, f"{type(error).__name__}: {str(error)[:500]}") from None
    return examiner.calls


def run_cases(examiner, entry_point):
    """Functional cases: JSON arguments by the line, the result equal to the expected value after tuple -> list at the top."""
    with open(f"{BOX}/cases.json", encoding="utf-8") as file:
        cases = json.load(file)
    for lines, expected_text in cases:
        try:
            for line in lines:
                json.loads(line)
            expected = json.loads(expected_text)
        except ValueError as error:
            raise Stop("BAD_TEST_FORMAT", f"a case is not JSON: {error}") from None
        examiner.calls += 1
        examiner.note(asked=examiner.calls)
        try:
            value = examiner.result({"operation": "call", "target": entry_point, "json": lines})
        except Exception:
            raise Stop("RE", examiner.raised) from None
        examiner.note(heard=examiner.calls)
        value = list(value) if isinstance(value, tuple) else value
        try:
            equal = bool(expected == value)
        except RecursionError:
            equal = False
        if not equal:
            raise Stop("WA", f"expected {expected_text[:200]}, got {repr(value)[:200]}")
    return len(cases)


def main():
    asking, hearing, verdict, seconds, entry_point, kind, *others = sys.argv[1:]
    token = sys.stdin.readline().strip()
    with open(int(asking), "wb") as to, open(int(hearing), "rb") as back, open(int(verdict), "wb") as out:
        examiner = Examiner(to, back, out, float(seconds), entry_point, token)
        try:
            examiner.wait_loaded()
            examiner.note(loaded=True)
            passed = run_cases(examiner, entry_point) if kind == "cases" else run_tests(examiner, entry_point, others)
            examiner.note(passed=passed)
        except Stop as stop:
            examiner.note(error=stop.kind, detail=str(stop))


if __name__ == "__main__":
    main()
