"""A local HTTP server that answers from a script and records what it is asked, for the tests of the HTTP tools.

    with LocalServer([Reply(429, headers={"Retry-After": "0"}), Reply(body={"results": []})]) as server:
        client.post(f"{server.url}/search", {...}, key)
    assert [request.path for request in server.requests] == ["/search", "/search"]

A script is a list, used up in order of arrival, or a function from `Request` to `Reply`. Asked more than the list holds, the
server answers 599, so that a test sees it in the number of requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request as it arrived; `json` is its body."""

    path: str
    headers: Mapping[str, str]
    json: Any

    @property
    def key(self) -> str:
        """The bearer key."""
        return self.headers.get("Authorization", "").removeprefix("Bearer ")


@dataclass(frozen=True)
class Reply:
    """One answer. `body`: JSON value, or text as it is. `hang_s`: silence before it. `drop`: "at_once" closes the connection without
    an answer, "midway" after half of the body. `trickle_s`: pause between the characters of the body."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    drop: str = ""
    trickle_s: float = 0.0


class LocalServer:
    """The server; a context manager. `requests` lists what arrived, in order."""

    def __init__(self, script: Sequence[Reply] | Callable[[Request], Reply]) -> None:
        self._script = script if callable(script) else list(script)
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.closing = threading.Event()

    def __enter__(self) -> LocalServer:
        local = self

        class Handler(_Handler):
            owner = local

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply_to(self, request: Request) -> Reply:
        """Record a request and find its answer."""
        with self._lock:
            self.requests.append(request)
            if not callable(self._script):
                return self._script.pop(0) if self._script else Reply(599, "the script is used up")
        return self._script(request)


class _Handler(BaseHTTPRequestHandler):
    owner: LocalServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.owner.reply_to(Request(self.path, dict(self.headers), json.loads(raw)))
        if reply.hang_s:
            self.owner.closing.wait(reply.hang_s)
        if reply.drop == "at_once":
            self.close_connection = True
            return
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        data = text.encode("utf-8", "surrogatepass")
        try:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.trickle_s:
                self._trickle(data, reply.trickle_s)
                return
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if reply.drop == "midway":
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
            else:
                self.wfile.write(data)
        except OSError:  # the client gave up, as some tests want it to
            self.close_connection = True

    do_GET = do_POST

    def _trickle(self, data: bytes, pause_s: float) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for byte in data:
            if self.owner.closing.wait(pause_s):
                break
            self.wfile.write(b"1\r\n%c\r\n" % byte)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Quiet: what was asked is in `requests`."""
