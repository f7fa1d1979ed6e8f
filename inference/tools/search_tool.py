"""The search tool: a query in, the text of a few results out (Tavily's interface over `JsonClient`).

    settings = search_settings(keys_file="keys.txt", cache_file=folder / "search.jsonl", max_search_calls=500)
    check_search(settings, "dataset bamboogle")     # before any model loads
    with SearchTool(settings) as search:
        text = search("Who wrote Dune?")

Each query is paid for once: answers are kept in `cache_file` (`JsonlCache`), and `replay_file`, such a file of an earlier run, takes the
place of the network altogether. A file for replay can be made by hand:

    cache = JsonlCache("facts.jsonl")
    cache.put(search_request("Who wrote Dune?"), {"results": [{"title": "Dune", "url": "https://...", "content": "..."}]})

A search that fails never looks like one that found something: its text starts with `FAILED` and says so, it is counted, and
nothing of what the server said about the error reaches the model.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from inference.tools.cache import JsonlCache, ReplayMiss
from inference.tools.errors import DataError, FailedResult
from inference.tools.http import (
    Budget,
    HttpFailure,
    JsonClient,
    RetryPolicy,
    Secret,
    clean_text,
    public_url,
    read_key,
    read_url,
)

BASE_URL = "https://api.tavily.com"
KEY_VARIABLE, URL_VARIABLE = "TAVILY_API_KEY", "TAVILY_BASE_URL"
SEARCH_DEPTH = "advanced"
MAX_RESULTS = 4
MAX_CONTENT_CHARS = 320
"""Depth, results and characters of each are the reference's (system.md section 5)."""
MAX_TITLE_CHARS = 200
"""Titles are a line; a page can put anything there."""
MAX_URL_CHARS = 300
"""Longer ones are tracking parameters."""
MAX_QUERY_CHARS = 400
"""The service refuses longer queries."""
USED_UP_STATUSES = frozenset({401, 403, 432, 433})
"""Bad key, forbidden, plan limit and pay-as-you-go limit reached: the same key will not do better in this run."""
SENTINEL_EVENT = "all search keys are used up"
FAILED = "[search error]"
"""How the text of a failed search begins, as the reference's does."""
_TOLD = {
    "timeout": "the search service did not answer in time",
    "connection": "the search service could not be reached",
    "rate_limited": "the search service is limiting requests",
    "server_error": "the search service had an error",
    "refused": "the search service refused the request",
    "malformed": "the search service sent something unreadable",
    "budget": "this run's limit of searches is reached",
    "no_key": "all search keys are used up",
    "replay_miss": "this query is not among the recorded searches",
    "empty_query": "the query is empty",
    "closed": "the search tool was closed",
}


@dataclass(frozen=True)
class SearchSettings:
    """Where searches go and what they may cost. Keys never show in its text; `describe` is what a manifest may hold.

    `replay_file` set: no network, keys and cache are not used. `cache_file` None: results are kept in memory only. `max_search_calls`
    None or negative: no limit.
    """

    keys: tuple[Secret, ...] = ()
    base_url: str = BASE_URL
    cache_file: Path | None = None
    replay_file: Path | None = None
    sentinel_file: Path | None = None
    max_search_calls: int | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def available(self) -> bool:
        """Whether a search can be made at all."""
        return bool(self.keys) or self.replay_file is not None

    def describe(self) -> dict[str, Any]:
        """What of this decides or explains answers, without keys."""
        return {
            "source": "replay" if self.replay_file is not None else public_url(self.base_url),
            "keys": len(self.keys),
            "depth": SEARCH_DEPTH,
            "max_results": MAX_RESULTS,
            "max_content_chars": MAX_CONTENT_CHARS,
            "max_search_calls": self.max_search_calls,
        }


def read_keys_file(path: str | Path) -> tuple[Secret, ...]:
    """Keys of `--tavily_keys_file`: one a line, blank lines and lines that start with # ignored, repeated keys once.

    `DataError` if the file cannot be read, holds no key, or a line is no key (the line is named by number, never quoted).
    """
    flag = f"--tavily_keys_file {path}"
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        found = err.strerror if isinstance(err, OSError) else "not UTF-8"
        raise DataError(f"{flag}: cannot be read ({found}); expected a text file with one key a line") from None
    keys = {
        read_key(line, f"{flag}, line {number}"): None
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    if not keys:
        raise DataError(f"{flag}: holds no key; expected one key a line (blank lines and # lines are ignored)")
    return tuple(keys)


def search_settings(
    keys_file: str | Path | None = None,
    sentinel_file: str | Path | None = None,
    replay_file: str | Path | None = None,
    cache_file: str | Path | None = None,
    max_search_calls: int | None = None,
    retry: RetryPolicy | None = None,
    environ: Mapping[str, str] | None = None,
) -> SearchSettings:
    """Settings from flags and environment; an empty path is an absent one.

    Keys come from `keys_file`, else from TAVILY_API_KEY; the address from TAVILY_BASE_URL, if set. With `replay_file` neither is
    looked at. `DataError` for what cannot be used; whether there is a key at all is `check_search`'s question.
    """
    environ = os.environ if environ is None else environ
    keys: tuple[Secret, ...] = ()
    base_url = BASE_URL
    if not replay_file:
        if keys_file:
            keys = read_keys_file(keys_file)
        elif environ.get(KEY_VARIABLE, "").strip():
            keys = (read_key(environ[KEY_VARIABLE], KEY_VARIABLE),)
        if environ.get(URL_VARIABLE, "").strip():
            base_url = read_url(environ[URL_VARIABLE], URL_VARIABLE)
    return SearchSettings(
        keys=keys,
        base_url=base_url,
        cache_file=Path(cache_file) if cache_file else None,
        replay_file=Path(replay_file) if replay_file else None,
        sentinel_file=Path(sentinel_file) if sentinel_file else None,
        max_search_calls=max_search_calls,
        retry=retry or RetryPolicy(),
    )


def check_search(settings: SearchSettings, needed_by: str) -> None:
    """Raise `DataError` if no search can be made, or a file of the settings cannot be used. Sends and writes nothing.

    `needed_by` names what needs the search ("dataset bamboogle"). To be called before any model loads.
    """
    if not settings.available:
        raise DataError(
            f"{needed_by} needs the search tool, and neither a key nor recorded searches are given; give --tavily_keys_file FILE "
            f"(one key a line), set {KEY_VARIABLE}, or give --search_replay FILE (the search cache of an earlier run)"
        )
    if settings.replay_file is not None:
        if not len(JsonlCache(settings.replay_file, read_only=True)):
            raise DataError(
                f"--search_replay {settings.replay_file}: holds no recorded search; expected the search cache of an earlier run"
            )
        return
    JsonlCache(settings.cache_file)
    if settings.sentinel_file is not None:
        _check_sentinel(settings.sentinel_file)


def _check_sentinel(path: Path) -> None:
    """Refuse a file that is something else than an earlier run's sentinel: it would be removed or written over."""
    try:
        if not path.exists() or json.loads(path.read_text(encoding="utf-8"))["event"] == SENTINEL_EVENT:
            return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(
        f"--tavily_sentinel_file {path}: exists and is no sentinel of an earlier run; give the name of a file that this run may write"
    )


def search_request(query: str) -> dict[str, Any]:
    """What is sent for a query, and what its answer is kept under (no key, no host: a file moves between mirrors)."""
    text = " ".join(clean_text(query).split())
    if len(text) > MAX_QUERY_CHARS:
        head, _, cut_word = text[: MAX_QUERY_CHARS + 1].rpartition(" ")
        text = head if head and len(cut_word) < MAX_QUERY_CHARS // 2 else text[:MAX_QUERY_CHARS]
    return {"query": text, "search_depth": SEARCH_DEPTH, "max_results": MAX_RESULTS}


def result_text(query: str, results: Sequence[Mapping[str, str]]) -> str:
    """Query line, heading, and for each result its number and title, its URL, and its content cut (system.md section 5)."""
    lines = [f"Query: {query}"]
    if not results:
        return "\n".join([*lines, "No results."])
    lines.append("Search results:")
    for i, result in enumerate(results[:MAX_RESULTS], 1):
        title = _one_line(result["title"], MAX_TITLE_CHARS) or "(no title)"
        lines += [f"[{i}] {title}", _one_line(result["url"], MAX_URL_CHARS)]
        lines.append(_one_line(result["content"], MAX_CONTENT_CHARS))
    return "\n".join(lines)


def _one_line(text: str, limit: int) -> str:
    return " ".join(clean_text(text).split())[:limit].rstrip()


@dataclass(frozen=True)
class SearchResult:
    """One search. `status` is "ok" or the kind of failure; `source` where it came from: "paid", "cache", "replay", None if it failed.

    `text` is for the model; `detail` the failure in words, for the record (no key in it).
    """

    text: str
    status: str
    source: str | None = None
    detail: str = ""


class KeyRing:
    """Keys in turn; a key that is set aside is not given again. Safe for threads."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._keys = list(keys)
        self._turn = 0
        self._aside: dict[Secret, int] = {}
        self._lock = threading.Lock()

    def take(self) -> Secret | None:
        """The next key; None if all are set aside."""
        with self._lock:
            if not self._keys:
                return None
            key = self._keys[self._turn % len(self._keys)]
            self._turn += 1
            return key

    def set_aside(self, key: Secret, status: int) -> bool:
        """Take a key out, with the status it answered; True if this was the last one."""
        with self._lock:
            if key not in self._keys:
                return False  # another thread was first
            self._turn %= len(self._keys)
            place = self._keys.index(key)
            self._keys.remove(key)
            self._turn -= place < self._turn
            self._aside[key] = status
            return not self._keys

    def statuses(self) -> dict[str, int]:
        """How many keys were set aside, by status."""
        with self._lock:
            return dict(Counter(str(status) for status in self._aside.values()))


class SearchTool:
    """Searches for any number of threads; a context manager. Called with a query it gives the result's text.

    Makes no connection before the first search. A sentinel that an earlier run left is removed, so that the file says that *this* run's
    keys are used up. `sleep(seconds)` replaces the wait between attempts.
    """

    def __init__(self, settings: SearchSettings, sleep: Callable[[float], object] | None = None) -> None:
        check_search(settings, "the search tool")
        self.settings = settings
        self._replay = settings.replay_file is not None
        self._cache = JsonlCache(settings.replay_file or settings.cache_file, read_only=self._replay)
        self._client = JsonClient(settings.retry, sleep=sleep)
        self._ring = KeyRing(settings.keys)
        self._budget = Budget(settings.max_search_calls)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        if settings.sentinel_file is not None and not self._replay:
            settings.sentinel_file.unlink(missing_ok=True)

    def __enter__(self) -> SearchTool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; searches that wait for a retry fail."""
        self._client.close()

    def __call__(self, query: str) -> str:
        """The text of a search for the model; a `FailedResult`, which starts with `FAILED`, if there are no results to be had."""
        found = self.search(query)
        return found.text if found.status == "ok" else FailedResult(found.text)

    def search(self, query: str) -> SearchResult:
        """One search. Network trouble, used-up keys and budget end as a status, never as an exception.

        `DataError` if the cache or the sentinel cannot be written: then the run would pay again for what it has.
        """
        request = search_request(query)
        try:
            if not request["query"]:
                raise HttpFailure("empty_query", "the query is empty")
            response, hit = self._cache.get_or_make(request, lambda: self._fetch(request))
            results = _results(response)
            if results is None:
                raise HttpFailure("malformed", "the recorded response is not a list of results")
        except (HttpFailure, ReplayMiss) as err:
            self._count("refused_by_budget" if err.kind == "budget" else f"failed {err.kind}")
            told = f"{FAILED} The search failed: {_TOLD[err.kind]}. There are no results; this is no evidence for any answer."
            return SearchResult(f"{told}\nQuery: {request['query']}", err.kind, detail=str(err))
        if hit:
            self._count("hits")
        source = ("replay" if self._replay else "cache") if hit else "paid"
        return SearchResult(result_text(request["query"], results), "ok", source)

    def counts(self) -> dict[str, Any]:
        """Counters for the summary.

        calls_paid (requests that were, or after a timeout may have been, charged), cache_hits (also from replay), failures (searches
        without results, budget apart) and failure_kinds, refused_by_budget, keys_set_aside by status.
        """
        with self._lock:
            kinds = {name.removeprefix("failed "): n for name, n in self._counts.items() if name.startswith("failed ")}
            return {
                "calls_paid": self._budget.used,
                "cache_hits": self._counts["hits"],
                "failures": sum(kinds.values()),
                "failure_kinds": kinds,
                "refused_by_budget": self._counts["refused_by_budget"],
                "keys_set_aside": self._ring.statuses(),
            }

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _fetch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Pay for a search, with the next key that still works, and reduce the answer to what is shown."""
        while True:
            key = self._ring.take()
            if key is None:
                raise HttpFailure("no_key", f"all {len(self.settings.keys)} search keys are used up")
            try:
                reply = self._client.post(f"{self.settings.base_url}/search", request, key, self._budget)
            except HttpFailure as err:
                if err.status not in USED_UP_STATUSES:
                    raise
                if self._ring.set_aside(key, err.status):
                    self._write_sentinel()
                continue
            results = _results(reply)
            if results is None:
                raise HttpFailure(
                    "malformed", f"{public_url(self.settings.base_url)}/search answered no list of results"
                )
            return {"results": results}

    def _write_sentinel(self) -> None:
        path = self.settings.sentinel_file
        if path is None:
            return
        told = {
            "event": SENTINEL_EVENT,
            "keys": len(self.settings.keys),
            "statuses": self._ring.statuses(),
            "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(path.name + ".tmp")
            draft.write_text(json.dumps(told) + "\n", encoding="utf-8")
            draft.replace(path)
        except OSError as err:
            raise DataError(f"--tavily_sentinel_file {path}: cannot be written ({err.strerror})") from err


def _results(response: Any) -> list[dict[str, str]] | None:
    """Title, URL and content of the first results; None if the response has another form. Missing texts are empty."""
    found = response.get("results") if isinstance(response, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        return None
    fields = ("title", "url", "content")
    rows = [{name: item.get(name) or "" for name in fields} for item in found[:MAX_RESULTS]]
    return rows if all(isinstance(text, str) for row in rows for text in row.values()) else None
