"""The search tool against a local server."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from inference.tools.cache import JsonlCache
from inference.tools.errors import DataError
from inference.tools.http import RetryPolicy, Secret
from inference.tools.search_tool import (
    FAILED,
    KEY_VARIABLE,
    SENTINEL_EVENT,
    URL_VARIABLE,
    KeyRing,
    SearchSettings,
    SearchTool,
    check_search,
    read_keys_file,
    result_text,
    search_request,
    search_settings,
)
from tests.local_server import LocalServer, Reply, Request

KEYS = ["tvly-first-key-0001", "tvly-second-key-0002", "tvly-third-key-0003"]
FAST = RetryPolicy(attempts=3, base_s=0.001, longest_s=0.002, read_timeout_s=5, reply_timeout_s=10)
DUNE = {
    "title": "Dune (novel)",
    "url": "https://example.org/dune",
    "content": "Dune is a novel by Frank Herbert.",
    "score": 0.9,
}
FOUND = Reply(body={"query": "x", "results": [DUNE], "response_time": 1.2})


def make(tmp_path, server_url, keys=KEYS[:1], **how) -> SearchSettings:
    """Settings as a command line makes them, from a keys file and the environment."""
    keys_file = tmp_path / "keys.txt"
    keys_file.write_text("# keys\n\n" + "\n".join(keys) + "\n")
    how = {"cache_file": tmp_path / "search.jsonl", "retry": FAST} | how
    return search_settings(keys_file=keys_file, environ={URL_VARIABLE: server_url}, **how)


def no_key_in(tmp_path, *texts) -> bool:
    """Whether no key stands in these texts or in any file but the keys file."""
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != "keys.txt"]
    return not any(key in text for key in KEYS for text in [*files, *map(str, texts)])


def test_a_search(tmp_path):
    with LocalServer([FOUND]) as server, SearchTool(make(tmp_path, server.url + "/mirror/")) as search:
        found = search.search("  Who wrote\n Dune? ")
        assert [(r.path, r.key, r.json) for r in server.requests] == [
            ("/mirror/search", KEYS[0], {"query": "Who wrote Dune?", "search_depth": "advanced", "max_results": 4})
        ]
    assert found.text == (
        "Query: Who wrote Dune?\nSearch results:\n[1] Dune (novel)\nhttps://example.org/dune\nDune is a novel by Frank Herbert."
    )
    assert (found.status, found.source) == ("ok", "paid")
    assert search.counts() == {
        "calls_paid": 1,
        "cache_hits": 0,
        "failures": 0,
        "failure_kinds": {},
        "refused_by_budget": 0,
        "keys_set_aside": {},
    }


def test_four_results_of_320_characters_each_on_lines_of_their_own():
    results = [
        {"title": f"t\n{i}", "url": f"https://e.org/{i}", "content": f"{i} word\n\t " * 200} for i in range(1, 7)
    ]
    lines = result_text("q", results).split("\n")
    assert len(lines) == 2 + 3 * 4
    assert lines[2:4] == ["[1] t 1", "https://e.org/1"]
    assert all(len(line) <= 320 for line in lines)
    assert lines[4].startswith("1 word 1 word")
    assert len(lines[4]) >= 318
    assert result_text("q", []) == "Query: q\nNo results."


def test_odd_results(tmp_path):
    odd = Reply(body='{"results": [{"title": null, "content": "lone \\ud800 surrogate"}]}')
    with LocalServer([odd]) as server, SearchTool(make(tmp_path, server.url)) as search:
        text = search("q")
    assert text == "Query: q\nSearch results:\n[1] (no title)\n\nlone ? surrogate"


def test_long_queries_are_cut_at_a_word_as_the_service_refuses_them():
    assert search_request("word " * 200)["query"] == ("word " * 80).strip()
    assert len(search_request("x" * 5000)["query"]) == 400
    assert search_request("x" * 390 + " " + "y" * 300)["query"] == "x" * 390
    assert search_request("short " + "y" * 600)["query"] == "short " + "y" * 394


def test_an_empty_query_is_not_sent(tmp_path):
    with LocalServer([]) as server, SearchTool(make(tmp_path, server.url)) as search:
        found = search.search(" \n ")
        assert server.requests == []
    assert (found.status, search.counts()["failures"]) == ("empty_query", 1)


@pytest.mark.parametrize("status", [401, 403, 432, 433])
def test_a_used_up_key_is_set_aside_and_the_next_one_asked(tmp_path, status):
    def script(request: Request) -> Reply:
        return Reply(status, {"detail": request.key}) if request.key == KEYS[0] else FOUND

    with LocalServer(script) as server, SearchTool(make(tmp_path, server.url, KEYS)) as search:
        for i in range(5):
            assert search.search(f"q{i}").status == "ok"
        assert [r.key for r in server.requests].count(KEYS[0]) == 1
        assert {r.key for r in server.requests} == set(KEYS)
    assert search.counts()["calls_paid"] == 5
    assert search.counts()["keys_set_aside"] == {str(status): 1}
    assert no_key_in(tmp_path, search.counts())


def test_keys_take_turns(tmp_path):
    with LocalServer(lambda request: FOUND) as server, SearchTool(make(tmp_path, server.url, KEYS)) as search:
        for i in range(6):
            search(f"q{i}")
        assert [r.key for r in server.requests] == KEYS * 2


def test_the_ring_keeps_turns_when_a_key_leaves():
    one, two, three = keys = [Secret(text) for text in KEYS]
    ring = KeyRing(keys)
    assert [ring.take() for _ in range(4)] == [one, two, three, one]
    assert not ring.set_aside(one, 401)
    assert not ring.set_aside(one, 401)  # a second thread's report of the same key
    assert [ring.take() for _ in range(3)] == [two, three, two]
    assert not ring.set_aside(three, 432)
    assert [ring.take() for _ in range(2)] == [two, two]
    assert ring.set_aside(two, 432)
    assert not ring.set_aside(two, 432)  # only one thread is the one that found the last
    assert ring.take() is None
    assert ring.statuses() == {"401": 1, "432": 2}


def test_429_waits_as_told(tmp_path):
    waits: list[float] = []
    script = [Reply(429, headers={"Retry-After": "11"}), FOUND]
    with LocalServer(script) as server, SearchTool(make(tmp_path, server.url), sleep=waits.append) as search:
        assert search.search("q").status == "ok"
        assert len(server.requests) == 2
    assert len(waits) == 1
    assert 11 <= waits[0] < 11.01
    assert search.counts()["calls_paid"] == 1


def test_500_then_ok(tmp_path):
    with LocalServer([Reply(500), FOUND]) as server, SearchTool(make(tmp_path, server.url)) as search:
        assert search.search("q").status == "ok"
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("script", "kind", "paid"),
    [
        ([Reply(500, "SECRET-EVIDENCE")] * 3, "server_error", 0),
        ([Reply(429)] * 3, "rate_limited", 0),
        ([Reply(400, "SECRET-EVIDENCE")], "refused", 0),
        ([Reply(drop="at_once")] * 3, "connection", 3),
        ([Reply(body='{"results": [SECRET-EVIDENCE')], "malformed", 1),
        ([Reply(body={"answer": "SECRET-EVIDENCE"})], "malformed", 1),
        ([Reply(body={"results": ["SECRET-EVIDENCE"]})], "malformed", 1),
        ([Reply(body={"results": [{"title": {"a": "SECRET-EVIDENCE"}}]})], "malformed", 1),
    ],
)
def test_a_failure_is_never_evidence(tmp_path, script, kind, paid):
    with LocalServer([*script, FOUND]) as server, SearchTool(make(tmp_path, server.url)) as search:
        found = search.search("who?")
        assert found.text.startswith(FAILED)
        assert "The search failed" in found.text
        assert "SECRET-EVIDENCE" not in found.text
        assert (found.status, found.source) == (kind, None)
        assert found.detail
        counts = search.counts()
        assert (counts["failures"], counts["failure_kinds"], counts["calls_paid"]) == (1, {kind: 1}, paid)
        # Nothing of it was kept: the same query is asked again, and found.
        assert search.search("who?").status == "ok"


def test_timeout(tmp_path):
    retry = dataclasses.replace(FAST, attempts=1, read_timeout_s=0.2)
    with LocalServer([Reply(hang_s=30)]) as server, SearchTool(make(tmp_path, server.url, retry=retry)) as search:
        found = search.search("q")
    assert found.status == "timeout"
    assert found.text == (
        f"{FAILED} The search failed: the search service did not answer in time. "
        "There are no results; this is no evidence for any answer.\nQuery: q"
    )


def test_all_keys_used_up_writes_the_sentinel_and_asks_no_more(tmp_path):
    sentinel = tmp_path / "out" / "used_up.json"

    def script(request: Request) -> Reply:
        return Reply(401 if request.key == KEYS[0] else 432, f"key {request.key} is no good")

    settings = make(tmp_path, "http://127.0.0.1:1", KEYS, sentinel_file=sentinel)
    with LocalServer(script) as server, SearchTool(dataclasses.replace(settings, base_url=server.url)) as search:
        assert not sentinel.exists()
        first, second = search.search("a"), search.search("b")
        assert len(server.requests) == 3
    told = json.loads(sentinel.read_text())
    assert (told["event"], told["keys"], told["statuses"]) == (SENTINEL_EVENT, 3, {"401": 1, "432": 2})
    assert first.status == second.status == "no_key"
    assert search.counts()["failure_kinds"] == {"no_key": 2}
    assert search.counts()["calls_paid"] == 0
    assert no_key_in(tmp_path, first, second, search.counts(), settings)


def test_an_old_sentinel_goes_and_another_file_stays(tmp_path):
    sentinel = tmp_path / "sentinel"
    sentinel.write_text(json.dumps({"event": SENTINEL_EVENT}))
    SearchTool(make(tmp_path, "http://127.0.0.1:1", sentinel_file=sentinel)).close()
    assert not sentinel.exists()
    for text in ("precious", "[]", '{"event": "other"}', ""):
        sentinel.write_text(text)
        with pytest.raises(DataError, match="no sentinel of an earlier run"):
            check_search(make(tmp_path, "http://127.0.0.1:1", sentinel_file=sentinel), "dataset bamboogle")
        assert sentinel.read_text() == text


def test_a_rerun_pays_nothing_and_replay_needs_no_network(tmp_path):
    with LocalServer(lambda request: FOUND) as server:
        settings = make(tmp_path, server.url)
        with SearchTool(settings) as search:
            paid = [search(f"q{i}") for i in range(3)]
        with SearchTool(settings) as search:
            assert [search(f" q{i}\n") for i in range(3)] == paid
            assert search.counts()["calls_paid"] == 0
            assert search.counts()["cache_hits"] == 3
            assert search.search("q0").source == "cache"
        assert len(server.requests) == 3
    # The server is down, there is no key, and the environment is not looked at.
    recorded = (tmp_path / "search.jsonl").read_bytes()
    settings = search_settings(
        replay_file=tmp_path / "search.jsonl", environ={KEY_VARIABLE: "bad key", URL_VARIABLE: "bad url"}
    )
    assert settings.keys == ()
    with SearchTool(settings) as search:
        assert [search(f"q{i}") for i in range(3)] == paid
        assert search.search("q0").source == "replay"
        missed = search.search("never asked")
    assert missed.status == "replay_miss"
    assert missed.text.startswith(FAILED)
    assert search.counts()["calls_paid"] == 0
    assert search.counts()["failure_kinds"] == {"replay_miss": 1}
    assert (tmp_path / "search.jsonl").read_bytes() == recorded
    assert no_key_in(tmp_path)


def test_a_replay_file_made_by_hand(tmp_path):
    path = tmp_path / "facts.jsonl"
    JsonlCache(path).put(search_request("Who wrote Dune?"), {"results": [DUNE]})
    with SearchTool(search_settings(replay_file=path, environ={})) as search:
        assert "Frank Herbert" in search(" Who wrote  Dune?")
    JsonlCache(path).put(search_request("odd"), {"rows": []})
    with SearchTool(search_settings(replay_file=path, environ={})) as search:
        assert search.search("odd").status == "malformed"


def test_the_budget_stops_spending_and_not_the_run(tmp_path):
    with LocalServer(lambda request: FOUND) as server:
        with SearchTool(make(tmp_path, server.url, max_search_calls=2)) as search:
            ends = [search.search(f"q{i % 4}").status for i in range(8)]
        assert len(server.requests) == 2
    assert ends == ["ok", "ok", "budget", "budget"] * 2
    counts = search.counts()
    assert (counts["calls_paid"], counts["cache_hits"], counts["refused_by_budget"], counts["failures"]) == (2, 2, 4, 0)


def test_threads(tmp_path):
    """Many threads, few queries, a bad key among good ones: each query is paid for once."""

    def script(request: Request) -> Reply:
        if request.key == KEYS[1]:
            return Reply(401)
        return Reply(body={"results": [{**DUNE, "content": request.json["query"]}]})

    with LocalServer(script) as server, SearchTool(make(tmp_path, server.url, KEYS)) as search:
        with ThreadPoolExecutor(12) as pool:
            texts = list(pool.map(lambda i: search(f"query {i % 10}"), range(120)))
        assert sum(request.key != KEYS[1] for request in server.requests) == 10
    assert all(text.endswith(f"query {i % 10}") for i, text in enumerate(texts))
    counts = search.counts()
    assert (counts["calls_paid"], counts["cache_hits"], counts["failures"]) == (10, 110, 0)
    assert counts["keys_set_aside"] == {"401": 1}


def test_closing_ends_waiting_searches(tmp_path):
    retry = dataclasses.replace(FAST, base_s=500, longest_s=500)
    answered = threading.Event()

    def script(request: Request) -> Reply:
        answered.set()
        return Reply(500)

    with LocalServer(script) as server:
        search = SearchTool(make(tmp_path, server.url, retry=retry))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(search.search, "q")
            answered.wait(60)
            search.close()
            assert future.result(60).status == "closed"


def test_no_key_anywhere(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    echo = Reply(body={"results": [{**DUNE, "content": f"your key is {KEYS[0]}"}]})
    script = [echo, Reply(400, f"bad: {KEYS[0]}"), Reply(401, KEYS[0])]
    settings = make(tmp_path, "http://127.0.0.1:1", sentinel_file=tmp_path / "sentinel.json")
    with LocalServer(script) as server, SearchTool(dataclasses.replace(settings, base_url=server.url)) as search:
        ends = [search.search(query) for query in ("a", "b", "c", "d")]
    assert [end.status for end in ends] == ["ok", "refused", "no_key", "no_key"]
    assert "your key is [key]" in ends[0].text
    shown = [ends, search.counts(), settings, settings.describe(), caplog.text, *capfd.readouterr()]
    assert no_key_in(tmp_path, *shown)
    assert (tmp_path / "sentinel.json").exists()
    json.dumps(settings.describe())


# Settings


def test_where_keys_come_from(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_bytes(b"\xef\xbb\xbf# mine\r\n  tvly-a  \r\n\r\n#tvly-off\r\ntvly-b\r\ntvly-a\r\n")
    assert [key.reveal() for key in read_keys_file(path)] == ["tvly-a", "tvly-b"]
    environ = {KEY_VARIABLE: " tvly-env \n"}
    assert [key.reveal() for key in search_settings(path, environ=environ).keys] == ["tvly-a", "tvly-b"]
    assert [key.reveal() for key in search_settings("", environ=environ).keys] == ["tvly-env"]
    assert search_settings(environ=environ).base_url == "https://api.tavily.com"
    assert search_settings(environ={}).available is False


def test_search_without_a_key_is_refused_before_anything_else():
    for environ in ({}, {KEY_VARIABLE: ""}, {KEY_VARIABLE: "  "}):
        settings = search_settings(environ=environ)
        with pytest.raises(
            DataError, match=r"^dataset bamboogle needs the search tool.*--tavily_keys_file.*--search_replay"
        ):
            check_search(settings, "dataset bamboogle")
        with pytest.raises(DataError):
            SearchTool(settings)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# none\n\n", "holds no key"),
        ("tvly-ok\ntvly two words\n", "line 2: the key holds a character"),
        ("tvly-\u20ac\n", "line 1: the key holds a character"),
    ],
)
def test_bad_keys_files_are_told_without_their_content(tmp_path, content, expected):
    path = tmp_path / "keys.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=expected) as caught:
        search_settings(path, environ={})
    assert str(path) in str(caught.value)
    assert "tvly" not in str(caught.value)


def test_other_bad_settings(tmp_path):
    with pytest.raises(DataError, match=r"--tavily_keys_file .*nothing\.txt: cannot be read"):
        search_settings(tmp_path / "nothing.txt", environ={})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"cannot be read \(not UTF-8"):
        search_settings(tmp_path / "binary", environ={})
    with pytest.raises(DataError, match=f"^{URL_VARIABLE}: not a URL"):
        search_settings(environ={URL_VARIABLE: "tavily.com"})
    with pytest.raises(DataError, match=r"gone\.jsonl: no such file"):
        check_search(search_settings(replay_file=tmp_path / "gone.jsonl", environ={}), "style deliberation")
    for content in (b"", b"\xff\xfe"):
        (tmp_path / "empty.jsonl").write_bytes(content)
        with pytest.raises(DataError, match=r"empty\.jsonl: holds no recorded search"):
            check_search(search_settings(replay_file=tmp_path / "empty.jsonl", environ={}), "style deliberation")
    (tmp_path / "broken.jsonl").write_text("nonsense\n")
    for how in ({"replay_file": tmp_path / "broken.jsonl"}, {"cache_file": tmp_path / "broken.jsonl"}):
        with pytest.raises(DataError, match=r"broken\.jsonl, line 1: not a cache entry"):
            check_search(search_settings(environ={KEY_VARIABLE: "k"}, **how), "style deliberation")
