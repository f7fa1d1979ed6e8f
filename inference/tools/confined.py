"""One sandboxed process from outside: feeding, draining within caps, and the end of everything that it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 30.0  # until the program may start; a machine with more than this to wait for a process is broken
_CHUNK = 65536
_POLL_SECONDS = 0.02  # only where the system has no descriptor for the end of a process (macOS)
_PARTING_SECONDS = 0.3  # for a process whose partner has ended, so that its own end can be seen
_SWEEPS = 50  # rounds of killing; each round leaves fewer, and a bomb is bounded by its limit of processes


class SandboxError(RuntimeError):
    """The sandbox itself failed, not the program in it."""


@dataclass(frozen=True)
class Outcome:
    """What one program did. `exit_code` is None and `signal` set if a signal ended it; `stdout` and `stderr` hold at most
    the limit's bytes; `timed_out`: ended at its wall or CPU limit; `overflow`: ended for writing too much."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    signal: int | None
    timed_out: bool
    overflow: bool
    seconds: float


@dataclass
class Stream:
    """A pipe read to at most `cap` bytes; what comes beyond sets `overflow` and ends the process."""

    fd: int
    cap: int
    data: bytearray = field(default_factory=bytearray)
    overflow: bool = False
    open: bool = True

    def drain(self) -> bool:
        """Read what is there now; whether anything was."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return False
        room = self.cap - len(self.data)
        self.data += chunk[:room]
        self.overflow = self.overflow or len(chunk) > room
        return not self.overflow

    def close(self) -> None:
        if self.open:
            self.open = False
            os.close(self.fd)


class Confined:
    """A started process. Made by `Sandbox.start`; `supervise` runs it to its end, `close` ends it and removes its folder."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        folder: Path,
        stdin: tuple[int, bytes],
        ready: int,
        streams: dict[str, Stream],
        wall_s: float,
        cpu_s: float,
        sweep: Callable[[], Iterable[int]],
        wrapped: bool,
        on_close: Callable[[], None],
    ) -> None:
        self.process = process
        self.streams = streams
        self.wall_s = wall_s
        self.timed_out = False
        self.started: float | None = None
        self.seconds = 0.0
        self._cpu_s = cpu_s
        self._folder = folder
        self._stdin, self._input = stdin[0], memoryview(stdin[1])
        self._ready = ready
        self._launched = time.monotonic()
        self._sweep = sweep
        self._wrapped = wrapped
        self._on_close = on_close
        self._killed = False
        self._by_itself = False
        self._cpu_used = 0.0
        self._closed = False
        self._end = _end_descriptor(process.pid)
        for fd in (self._stdin, ready, *(stream.fd for stream in streams.values())):
            os.set_blocking(fd, False)

    @property
    def overflow(self) -> bool:
        return any(stream.overflow for stream in self.streams.values())

    @property
    def deadline(self) -> float:
        """When it is killed, in the time of `time.monotonic`; the wall limit counts from the program's own start."""
        return self._launched + START_SECONDS if self.started is None else self.started + self.wall_s

    def register(self, selector: selectors.BaseSelector) -> None:
        """Name the descriptors to wait for, each with what to do about it."""
        if self._stdin >= 0:
            selector.register(self._stdin, selectors.EVENT_WRITE, self._feed)
        if self._ready >= 0:
            selector.register(self._ready, selectors.EVENT_READ, self._note_start)
        for stream in self.streams.values():
            if stream.open:
                selector.register(stream.fd, selectors.EVENT_READ, stream.drain)
        if self._end >= 0 and not self._killed:
            selector.register(self._end, selectors.EVENT_READ, bool)

    def _feed(self) -> None:
        try:
            written = os.write(self._stdin, self._input[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to read on
            written = len(self._input)
        self._input = self._input[written:]
        if not self._input:
            os.close(self._stdin)
            self._stdin = -1

    def _note_start(self) -> None:
        if os.read(self._ready, 1):
            self.started = time.monotonic()
        os.close(self._ready)
        self._ready = -1

    def ended(self) -> bool:
        """Whether the process has ended by itself; it is not reaped yet, so that its number stays its own."""
        if self.process.returncode is not None:
            return True
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        self._reap(os.WNOHANG)  # macOS lacks waitid before Python 3.13
        return self.process.returncode is not None

    def _reap(self, options: int = 0) -> None:
        """Wait for the process; its CPU time includes that of the children that were waited for."""
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, options)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_used = usage.ru_utime + usage.ru_stime

    def wait(self, seconds: float) -> None:
        """Give it some time to end by itself."""
        deadline = time.monotonic() + seconds
        while not self.ended() and (left := deadline - time.monotonic()) > 0:
            if self._end < 0:
                time.sleep(min(left, _POLL_SECONDS))
                continue
            with selectors.DefaultSelector() as selector:
                selector.register(self._end, selectors.EVENT_READ)
                selector.select(left)

    def kill(self) -> None:
        """End the process and everything it started, and keep what its pipes still hold."""
        if self._killed:
            return
        self._killed = True
        self._by_itself = self.ended()
        if self.started is not None:
            self.seconds = time.monotonic() - self.started
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()
        for _ in range(_SWEEPS):
            left = list(self._sweep())
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.002)
        if self._ready >= 0:
            with contextlib.suppress(BlockingIOError):
                self._note_start()
        for stream in self.streams.values():
            while stream.open and not stream.overflow and stream.drain():
                pass

    def outcome(self) -> Outcome:
        """What it did, once it has been killed or has ended. `SandboxError` if the program was never started."""
        if self.started is None:
            said = bytes(self.streams["stderr"].data[-500:]).decode(errors="replace").strip()
            raise SandboxError(
                f"the sandbox did not start a program: {said or f'exit status {self.process.returncode}'}"
            )
        code, number = self.process.returncode, None
        if code < 0:
            code, number = None, -code
        elif self._wrapped and code > 128:
            code, number = None, code - 128
        by_cpu = number == getattr(signal, "SIGXCPU", None) or (
            number == signal.SIGKILL and self._by_itself and self._cpu_used >= self._cpu_s
        )
        return Outcome(
            stdout=bytes(self.streams["stdout"].data),
            stderr=bytes(self.streams["stderr"].data),
            exit_code=code,
            signal=number,
            timed_out=self.timed_out or by_cpu,
            overflow=self.overflow,
            seconds=self.seconds,
        )

    def close(self) -> None:
        """End it and remove its folder. A second call does nothing."""
        if self._closed:
            return
        self.kill()
        self._closed = True
        for fd in (self._stdin, self._ready, self._end):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._ready = self._end = -1
        for stream in self.streams.values():
            stream.close()
        remove(self._folder)
        self._on_close()

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def supervise(lead: Confined, others: Sequence[Confined] = ()) -> None:
    """Feed and drain processes until `lead` has ended, is over its time or has written too much; then end them all.

    One of the `others` that writes too much is ended by itself; the lead, which talks to it, sees its pipe close.
    """
    everyone = (lead, *others)
    gone: set[int] = set()
    try:
        while not lead.ended() and not lead.overflow:
            wait = lead.deadline - time.monotonic()
            if wait <= 0:
                lead.timed_out = lead.started is not None
                break
            for index, other in enumerate(others):
                if index not in gone and (other.overflow or other.ended()):
                    other.kill()
                    gone.add(index)
            with selectors.DefaultSelector() as selector:
                for one in everyone:
                    one.register(selector)
                for key, _ in selector.select(wait if lead._end >= 0 else min(wait, _POLL_SECONDS)):
                    key.data()
        for other in others:
            if lead.ended():
                other.wait(_PARTING_SECONDS)
    finally:
        for one in everyone:
            one.kill()


def _end_descriptor(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the system has none."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return -1


def processes_with(mark: bytes, session: int, uid: int | None) -> list[int]:
    """Live processes of a run that has no process namespace: by its own user, else by its mark or session (Linux)."""
    found = []
    if not sys.platform.startswith("linux"):
        return found
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if uid is not None:
                ours = os.stat(entry.path).st_uid == uid or _status_uid(entry.path) == uid
            else:
                ours = os.stat(entry.path).st_uid == os.getuid() and (
                    mark in Path(entry.path, "environ").read_bytes() or os.getsid(int(entry.name)) == session
                )
            if ours and _state(entry.path) not in "ZX":
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue  # it ended while we looked
    return found


def _status_uid(path: str) -> int:
    for line in Path(path, "status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return -1


def _state(path: str) -> str:
    return Path(path, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]


def remove(folder: Path) -> None:
    """Delete a folder whatever a program left in it: locked folders, very deep trees."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", str(folder)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", str(folder)], stderr=subprocess.DEVNULL, check=False)
