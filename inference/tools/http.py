"""JSON over HTTP for the tools that pay for what they ask: search and judge.

    with JsonClient(RetryPolicy()) as client:
        reply = client.post("https://host/search", {"query": "..."}, key=read_key(text, "--tavily_keys_file keys.txt"))

A request that may succeed later (429, 408, 5xx, a broken connection, no reply in time) is sent again a bounded number of
times, after a wait that doubles, with jitter, or that the server names in Retry-After. What is left ends as `HttpFailure`, whose
`kind` says what happened. One client serves any number of threads.

Keys: a key lives in a `Secret`, which shows itself nowhere, and goes into the Authorization header alone. Failures carry no object
of the HTTP library (its exceptions hold the request with its headers), and what a server echoes is blotted out.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from inference.tools.errors import DataError

if TYPE_CHECKING:
    import requests

RETRY_AFTER_CAP_S = 60.0
"""Longest wait a server can ask for: a longer one would look like a hang, and the retries are bounded anyway."""
MAX_REPLY_BYTES = 8 * 2**20
"""Search results and verdicts are kilobytes; more is a fault, and would otherwise fill the memory."""
MAX_EXTRACT_CHARS = 200
"""How much of a server's error body an error text quotes: enough for its message, not for a whole page."""
MIN_BLOT_CHARS = 8
"""Shorter keys are placeholders of local servers ("x", "EMPTY"); blotting them out would maim good replies."""
READ_CHUNK_BYTES = 512
"""Small, so that the deadline is looked at while a server trickles."""
REQUEST_TIMEOUT, TOO_MANY_REQUESTS = 408, 429
KEY_STATUSES = (401, 403)
"""Statuses about the key. Their bodies are never quoted: services echo parts of the key there."""


class Secret:
    """A key. `reveal()` gives it; printing, formatting, JSON and pickle do not."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The key itself, for the Authorization header."""
        return self._text

    def __repr__(self) -> str:
        return "[key]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is neither pickled nor copied")


def read_key(text: str, where: str) -> Secret:
    """A key as it came from `where` (a flag, file and line, or variable). `DataError` if no header can carry it."""
    key = text.strip()
    if not key or not all("!" <= char <= "~" for char in key):
        found = "is empty" if not key else "holds a character that no key has (a space, or one that is not ASCII)"
        raise DataError(f"{where}: the key {found}; expected one key of printable ASCII characters")
    return Secret(key)


def read_url(text: str, where: str) -> str:
    """A base URL as it came from `where`, without a trailing slash.

    `DataError` if it is not http(s), or holds a user name and password (keys have their own place, and URLs are recorded).
    """
    url = text.strip()
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or re.search(r"\s", url):
        raise DataError(f"{where}: not a URL; expected http://HOST/PATH or https://HOST/PATH")
    if "@" in parts.netloc:
        raise DataError(f"{where}: holds a user name or password; leave them out of the URL and give the key as a key")
    return url.rstrip("/")


def public_url(url: str) -> str:
    """Scheme, host and path, without the query: what may stand in error texts and files."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def clean_text(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates (JSON may hold them as escapes) become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


class HttpFailure(Exception):
    """What a request came to.

    `kind`: timeout, connection, rate_limited, server_error, refused (another status that is no success, see `status`), malformed (a
    success whose body is not the JSON asked for), budget (not sent), closed, or one that a caller adds. `attempts`: how
    often it was sent. The text is for people and holds no key.
    """

    def __init__(self, kind: str, message: str, status: int | None = None, attempts: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.attempts = attempts


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often. Times in seconds; the k-th wait is drawn from [w/2, w], w = min(base * 2^(k-1), longest)."""

    attempts: int = 5
    base_s: float = 1.0
    longest_s: float = 30.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    """Longest silence of the server."""
    reply_timeout_s: float = 180.0
    """Longest time from sending to the reply's end: a server that trickles or sends blanks to keep alive is never silent."""
    seed: int = 0
    """Of the jitter."""


class Budget:
    """How many requests may be paid for (None or negative: any number); safe for threads.

    `used` counts those that were, or may have been, charged.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = None if limit is None or limit < 0 else limit
        self.used = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Reserve one request; False if none is left."""
        with self._lock:
            if self.limit is not None and self.used >= self.limit:
                return False
            self.used += 1
            return True

    def give_back(self) -> None:
        """Return one that was not charged."""
        with self._lock:
            self.used -= 1


@dataclass(frozen=True)
class _Outcome:
    """One attempt. `charged`: a success, or an unknown end after which the service may have charged."""

    reply: Any = None
    kind: str = ""
    message: str = ""
    status: int | None = None
    charged: bool = False
    retry: bool = False
    retry_after_s: float | None = None


class _Bearer:
    """Sets the header through `auth`, because a .netrc entry for the host would overrule one given in `headers`."""

    def __init__(self, key: Secret) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return request


class JsonClient:
    """Posts JSON; a context manager, for any number of threads.

    `sleep(seconds)` replaces the real wait between attempts; `connections`: how many are kept open for reuse.
    """

    def __init__(
        self, policy: RetryPolicy, connections: int = 8, sleep: Callable[[float], object] | None = None
    ) -> None:
        self.policy = policy
        self._connections = connections
        self._closed = threading.Event()
        self._sleep = self._closed.wait if sleep is None else sleep
        self._random = random.Random(policy.seed)
        self._lock = threading.Lock()
        self._session: requests.Session | None = None

    def __enter__(self) -> JsonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and wake the threads that wait for a retry; their requests fail as "closed"."""
        self._closed.set()
        with self._lock:
            if self._session is not None:
                self._session.close()

    def post(self, url: str, body: Mapping[str, Any], key: Secret, budget: Budget | None = None) -> dict[str, Any]:
        """The JSON object that the server answers to `body`. Raises `HttpFailure`.

        Every attempt that is, or may be, charged counts in `budget`, so that its limit holds whatever the network does. An
        attempt that timed out may have been charged and is counted and repeated.
        """
        data = json.dumps(body).encode("ascii")
        failure: HttpFailure | None = None
        reserved = False
        try:
            for attempt in range(1, self.policy.attempts + 1):
                if self._closed.is_set():
                    raise HttpFailure("closed", f"{public_url(url)}: the client was closed", attempts=attempt - 1)
                if budget is not None and not reserved:
                    if not budget.take():
                        raise failure or HttpFailure("budget", f"the limit of {budget.limit} paid requests is reached")
                    reserved = True
                outcome = self._send(url, data, key)
                reserved = reserved and not outcome.charged
                if not outcome.kind:
                    return outcome.reply
                times = "once" if attempt == 1 else f"{attempt} times"
                text = f"{public_url(url)} {outcome.message} (sent {times})"
                failure = HttpFailure(outcome.kind, text, outcome.status, attempt)
                if not outcome.retry or attempt == self.policy.attempts:
                    raise failure
                self._sleep(self._wait_s(attempt, outcome.retry_after_s))
            raise ValueError(f"RetryPolicy.attempts is {self.policy.attempts}; expected at least 1")
        finally:
            if reserved and budget is not None:
                budget.give_back()

    def _wait_s(self, attempt: int, retry_after_s: float | None) -> float:
        policy = self.policy
        with self._lock:
            jitter = self._random.random()
        if retry_after_s is not None:
            # A little later than asked, so that many threads told the same time do not come back as one.
            return min(retry_after_s, RETRY_AFTER_CAP_S) + jitter * policy.base_s
        return min(policy.base_s * 2 ** (attempt - 1), policy.longest_s) * (0.5 + 0.5 * jitter)

    def _open(self) -> requests.Session:
        with self._lock:
            if self._session is None:
                from http.cookiejar import DefaultCookiePolicy

                import requests
                from requests.adapters import HTTPAdapter

                session = requests.Session()
                adapter = HTTPAdapter(pool_maxsize=self._connections)
                session.mount("http://", adapter)
                session.mount("https://", adapter)
                # Cookies are the one thing a session changes while it is used, and threads share it.
                session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
                self._session = session
            return self._session

    def _send(self, url: str, data: bytes, key: Secret) -> _Outcome:
        """One attempt. Nothing is raised from inside an `except` here: the exception would drag the request along."""
        import requests

        policy = self.policy
        deadline = time.monotonic() + policy.reply_timeout_s
        try:
            # A redirect would be followed as a GET without the body; the address is wrong and the user should hear it.
            with self._open().post(
                url,
                data=data,
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                auth=_Bearer(key),
                timeout=(policy.connect_timeout_s, policy.read_timeout_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                body, whole = _read_body(response, deadline)
                status, headers = response.status_code, response.headers
        except requests.RequestException as err:
            return _broken(err, policy)
        if body is None:
            message = f"did not end its reply within {policy.reply_timeout_s:g} s"
            return _Outcome(kind="timeout", message=message, charged=True, retry=True)
        if not 200 <= status < 300:
            return _refusal(status, headers, body, key)
        reply = _parse(body) if whole else None
        if reply is None:
            found = "a body that is not one JSON object" if whole else f"more than {MAX_REPLY_BYTES} bytes"
            return _Outcome(kind="malformed", message=f"answered {found}", status=status, charged=True)
        secret = key.reveal()
        return _Outcome(_blot(reply, secret) if len(secret) >= MIN_BLOT_CHARS else reply, status=status, charged=True)


def _read_body(response: requests.Response, deadline: float) -> tuple[bytes | None, bool]:
    """The body and whether it is whole; None if the deadline passed, cut where it is too long."""
    parts, size = [], 0
    for part in response.iter_content(READ_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_REPLY_BYTES:
            return b"".join(parts), False
        if time.monotonic() > deadline:
            return None, False
    return b"".join(parts), True


def _broken(err: requests.RequestException, policy: RetryPolicy) -> _Outcome:
    """No reply. The exception's own text is not used: some of them quote headers."""
    import requests
    from urllib3.exceptions import NewConnectionError, ReadTimeoutError

    inner = err.args[0] if err.args else None
    reason = getattr(inner, "reason", None) or inner
    if isinstance(err, requests.ConnectTimeout):
        message = f"could not be connected within {policy.connect_timeout_s:g} s"
        return _Outcome(kind="timeout", message=message, retry=True)
    if isinstance(err, requests.Timeout) or isinstance(reason, ReadTimeoutError):
        message = f"sent nothing for {policy.read_timeout_s:g} s"
        return _Outcome(kind="timeout", message=message, charged=True, retry=True)
    before = isinstance(reason, NewConnectionError) or isinstance(
        err, requests.exceptions.SSLError | requests.exceptions.ProxyError
    )
    what = "could not be connected" if before else "broke the connection"
    return _Outcome(kind="connection", message=f"{what} ({type(err).__name__})", charged=not before, retry=True)


def _refusal(status: int, headers: Mapping[str, str], body: bytes, key: Secret) -> _Outcome:
    """A status that is no success."""
    message = f"answered status {status}"
    if status not in KEY_STATUSES:
        text = clean_text(body[: 16 * MAX_EXTRACT_CHARS].decode("utf-8", "replace"))
        text = " ".join(text.replace(key.reveal(), repr(key)).split())
        message += f": {text[:MAX_EXTRACT_CHARS]}" if text else ""
    if status == TOO_MANY_REQUESTS:
        kind = "rate_limited"
    elif status == REQUEST_TIMEOUT or status >= 500:
        kind = "server_error"
    else:
        return _Outcome(kind="refused", message=message, status=status)
    return _Outcome(kind=kind, message=message, status=status, retry=True, retry_after_s=retry_after_seconds(headers))


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds from now, not capped; None if it is absent or no number and no HTTP date.

    A date is compared with the server's own Date where it sends one, because clocks differ.
    """
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    until = _timestamp(text)
    if until is None:
        return None
    now = _timestamp(headers.get("Date", ""))
    return max(0.0, until - (time.time() if now is None else now))


def _timestamp(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _parse(body: bytes) -> dict[str, Any] | None:
    """The JSON object in `body`, strictly: no NaN, no Infinity."""
    try:
        value = json.loads(body, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _blot(value: Any, secret: str) -> Any:
    if isinstance(value, str):
        return value.replace(secret, "[key]")
    if isinstance(value, list):
        return [_blot(item, secret) for item in value]
    if isinstance(value, dict):
        return {_blot(name, secret): _blot(item, secret) for name, item in value.items()}
    return value
