"""Worker processes for comparisons that need computer algebra: started when first needed, killed when late."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from inference.scoring.maths.compare import Outcome
from inference.scoring.maths.limits import COMPARE_SECONDS, START_SECONDS

_ROOT = Path(__file__).resolve().parents[3]
_DIED = Outcome(False, "the worker ended", "error")
_TIMEOUT = Outcome(False, f"limit: {COMPARE_SECONDS} s", "timeout")


class _Worker:
    """One process and its pipes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inference.scoring.maths.worker"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        )
        self._buffer = b""
        self._ready = False

    def reply(self, deadline: float) -> dict[str, object] | None:
        """The next line of the worker; None at the deadline. EOFError if the worker has ended."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    return None
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    raise EOFError
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def wait_ready(self) -> None:
        """Wait until the worker has loaded its libraries; that time is not the answer's."""
        if self._ready:
            return
        with contextlib.suppress(EOFError):
            self._ready = self.reply(time.monotonic() + START_SECONDS) is not None
        if not self._ready:
            self.close()
            raise RuntimeError("the worker that compares formulas did not start; are sympy and mpmath installed?")

    def compare(self, left: str, right: str) -> Outcome | None:
        """The worker's verdict; the numeric one where the exact confirmation is late; None if the worker died."""
        self.wait_ready()
        assert self.process.stdin is not None
        outcome = None
        try:
            self.process.stdin.write((json.dumps([left, right]) + "\n").encode())
            self.process.stdin.flush()
            deadline = time.monotonic() + COMPARE_SECONDS
            while answer := self.reply(deadline):
                outcome = Outcome(bool(answer["equal"]), str(answer["rule"]), str(answer["status"]))
                if answer["final"]:
                    return outcome
        except (BrokenPipeError, EOFError):
            self.close()
            return outcome
        except BaseException:  # an interrupt: a reply on its way must not meet the next request
            self.close()
            raise
        self.close()
        return outcome or _TIMEOUT

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class ComparePool:
    """Up to `workers` comparisons at a time, from any thread. Use as a context manager, or call `close`."""

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; a pool needs at least 1")
        self._free: queue.Queue[_Worker | None] = queue.Queue()
        for _ in range(workers):
            self._free.put(None)  # a place; its process starts at first use
        self._workers = workers
        self._lock = threading.Lock()
        self._closed = False

    def compare(self, left: str, right: str) -> Outcome:
        """Whether two answers are equal, within COMPARE_SECONDS after the worker is up."""
        worker = self._free.get()
        try:
            if self._closed:
                raise ValueError("the pool is closed")
            for _ in range(2):  # a worker that died while idle is replaced once
                if worker is None or not worker.alive:
                    worker = _Worker()
                outcome = worker.compare(left, right)
                if outcome is not None:
                    if not worker.alive:
                        worker.close()
                        worker = _Worker()  # starts while nobody waits for it
                    return outcome
                worker.close()
            return _DIED
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End all worker processes. Waits for comparisons in progress; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._workers):
                worker = self._free.get()
                if worker is not None:
                    worker.close()
            for _ in range(self._workers):
                self._free.put(None)

    def __enter__(self) -> ComparePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
