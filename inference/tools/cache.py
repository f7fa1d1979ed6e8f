"""What paid requests answered, kept in a file: one JSON object a line, appended and synced.

    cache = JsonlCache("run/search.jsonl")
    response, hit = cache.get_or_make({"query": "..."}, make=lambda: pay_for_it())
    replay = JsonlCache("run/search.jsonl", read_only=True)      # never makes anything: a miss raises ReplayMiss

A line is {"key": hash of the request, "request": ..., "response": ...}; `key` may be missing in a file written by hand. The request
holds no secret. The first response to a request stays the response. A line that a kill cut off is repaired when the next one is
written. Any number of threads share one object, any number of processes one file (not on Windows: it has no flock).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inference.tools.errors import DataError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


class ReplayMiss(LookupError):
    """A request that a read-only cache does not hold."""

    kind = "replay_miss"


def request_hash(request: Mapping[str, Any]) -> str:
    """SHA-256 over the request as canonical JSON: the order of its fields does not matter."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class JsonlCache:
    """Requests and responses in `path`; None keeps them in memory only. The file is made with the first response.

    `DataError` if the file cannot be read, holds another kind of line, or is missing with `read_only`.
    """

    def __init__(self, path: str | Path | None, read_only: bool = False) -> None:
        self.path = Path(path) if path is not None else None
        self.read_only = read_only
        self._responses: dict[str, Any] = {}
        self._read_to = 0
        """Bytes of whole lines that were read."""
        self._lines = 0
        self._lock = threading.Lock()
        self._making: dict[str, tuple[threading.Lock, int]] = {}
        if read_only and (self.path is None or not self.path.is_file()):
            raise DataError(f"{self.path}: no such file; expected a recorded cache (one JSON object a line)")
        self._refresh()

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, request: Mapping[str, Any]) -> Any | None:
        """The response to a request, also one that another process has just written; None if there is none."""
        key = request_hash(request)
        with self._lock:
            if key not in self._responses and not self.read_only:
                self._refresh()
            return self._responses.get(key)

    def put(self, request: Mapping[str, Any], response: Any) -> Any:
        """Write a response and return what the cache now holds: an earlier response to the request stays.

        `DataError` if the file cannot be written.
        """
        if self.read_only:
            raise ValueError(f"{self.path} was opened for reading only")
        key = request_hash(request)
        with self._lock:
            if self.path is None:
                return self._responses.setdefault(key, response)
            line = json.dumps({"key": key, "request": request, "response": response}, allow_nan=False)
            try:
                self._append(key, line.encode("ascii") + b"\n")
            except OSError as err:
                raise DataError(
                    f"{self.path}: cannot be written ({err.strerror}); give another place or make room"
                ) from err
            return self._responses.setdefault(key, response)

    def get_or_make(self, request: Mapping[str, Any], make: Callable[[], Any]) -> tuple[Any, bool]:
        """The response, and whether it was there. Else `make()` is called and its response written.

        Threads that ask the same thing at once wait for the first, so that it is paid for once. Two processes that do may both pay
        (the first to write is kept). `ReplayMiss` if read-only; what `make` raises passes through, and nothing is kept.
        """
        with self._one_at_a_time(request_hash(request)):
            response = self.get(request)
            if response is not None:
                return response, True
            if self.read_only:
                raise ReplayMiss(f"{self.path}: holds no such request")
            return self.put(request, make()), False

    @contextmanager
    def _one_at_a_time(self, key: str) -> Iterator[None]:
        with self._lock:
            lock, users = self._making.get(key, (threading.Lock(), 0))
            self._making[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._making.pop(key)
                if users > 1:
                    self._making[key] = (lock, users - 1)

    def _refresh(self) -> bytes:
        """Read the lines that are new in the file, and return what follows the last line end."""
        try:
            size = self.path.stat().st_size if self.path is not None else 0
            if self.path is None or size == self._read_to:
                return b""
            if size < self._read_to:  # the file was replaced
                self._read_to = self._lines = 0
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                data = file.read()
        except FileNotFoundError:
            self._read_to = self._lines = 0
            return b""
        except OSError as err:
            raise DataError(f"{self.path}: cannot be read ({err.strerror}); expected a cache file") from err
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._lines += 1
            self._read_to += len(line) + 1
            if line.strip() and not self._take(line):
                raise DataError(
                    f"{self.path}, line {self._lines}: not a cache entry; expected a JSON object with request and response, "
                    f"and the request's hash as key; delete the line or give another file"
                )
        self._take(rest)  # whole if only its line end was cut off: part of an object is never valid JSON
        return rest

    def _take(self, line: bytes) -> bool:
        try:
            entry = json.loads(line)
            request, response = entry["request"], entry["response"]
            key = request_hash(request)
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        if not isinstance(request, dict) or response is None or entry.get("key", key) != key:
            return False
        self._responses.setdefault(key, response)
        return True

    def _append(self, key: str, line: bytes) -> None:
        """Under the file's lock: see what others wrote, mend a cut last line, and write unless the key is there now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX)
            rest = self._refresh()
            if key in self._responses:
                return
            if rest and self._take(rest):
                line = b"\n" + line
            elif rest:
                os.ftruncate(fd, self._read_to)
            size = os.fstat(fd).st_size
            try:
                if os.write(fd, line) != len(line):
                    raise OSError(0, "the line was written in part")
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)  # gives the lock back
