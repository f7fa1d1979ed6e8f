"""JsonClient against a local server: retries, waits, failure kinds, budget, and a key that shows itself nowhere."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import pytest

from inference.tools.errors import DataError
from inference.tools.http import (
    MAX_REPLY_BYTES,
    RETRY_AFTER_CAP_S,
    Budget,
    HttpFailure,
    JsonClient,
    RetryPolicy,
    Secret,
    public_url,
    read_key,
    read_url,
    retry_after_seconds,
)
from tests.local_server import LocalServer, Reply

KEY_TEXT = "tvly-Zq81-very-secret"
KEY = Secret(KEY_TEXT)
FAST = RetryPolicy(attempts=3, base_s=0.001, longest_s=0.002, connect_timeout_s=5, read_timeout_s=5, reply_timeout_s=10)
OK = Reply(body={"fine": True})


class Waits(list):
    """Takes the place of sleeping and remembers how long it would have been."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def post(script, policy=FAST, sleep=None, budget=None, key=KEY):
    """One request to a server with this script: (reply or HttpFailure, requests that arrived)."""
    with LocalServer(script) as server, JsonClient(policy, sleep=sleep) as client:
        try:
            return client.post(f"{server.url}/path", {"n": 1}, key, budget), server.requests
        except HttpFailure as err:
            return err, server.requests


def test_what_is_sent_and_what_comes_back():
    reply, requests = post([Reply(body={"text": "naïve €", "list": [1, None]})])
    assert reply == {"text": "naïve €", "list": [1, None]}
    assert [(r.path, r.json, r.key, r.headers["Content-Type"]) for r in requests] == [
        ("/path", {"n": 1}, KEY_TEXT, "application/json")
    ]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_passing_trouble_is_sent_again(status):
    reply, requests = post([Reply(status, "busy"), Reply(status, "busy"), OK])
    assert reply == {"fine": True}
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("script", "kind", "status", "sent"),
    [
        ([Reply(429)] * 3, "rate_limited", 429, 3),
        ([Reply(500, "oops")] * 3, "server_error", 500, 3),
        ([Reply(drop="at_once")] * 3, "connection", None, 3),
        ([Reply(body={"a": "b" * 50}, drop="midway")] * 3, "connection", None, 3),
        ([Reply(400, {"error": "no such model"})], "refused", 400, 1),
        ([Reply(404)], "refused", 404, 1),
        ([Reply(307, headers={"Location": "/elsewhere"})], "refused", 307, 1),
        ([Reply(body="{broken")], "malformed", 200, 1),
        ([Reply(body="<html>busy</html>")], "malformed", 200, 1),
        ([Reply(body="")], "malformed", 200, 1),
        ([Reply(body="[1, 2]")], "malformed", 200, 1),
        ([Reply(body='{"n": NaN}')], "malformed", 200, 1),
        ([Reply(body='{"n":' + "[" * 200_000)], "malformed", 200, 1),
        ([Reply(body='{"n": "' + "x" * MAX_REPLY_BYTES + '"}')], "malformed", 200, 1),
    ],
)
def test_kinds_of_failure(script, kind, status, sent):
    failure, requests = post(script)
    assert (failure.kind, failure.status, failure.attempts, len(requests)) == (kind, status, sent, sent)


def test_server_messages_are_quoted_short_and_on_one_line():
    failure, _ = post([Reply(400, "no such\n model " + "x" * 5000)])
    assert "answered status 400: no such model xxx" in str(failure)
    assert len(str(failure)) < 300


def test_silence_is_a_timeout_and_is_sent_again():
    policy = dataclasses.replace(FAST, read_timeout_s=0.2, attempts=2)
    failure, requests = post([Reply(hang_s=30), Reply(hang_s=30)], policy)
    assert (failure.kind, failure.attempts, len(requests)) == ("timeout", 2, 2)
    reply, _ = post([Reply(hang_s=30), OK], policy)
    assert reply == {"fine": True}


def test_a_server_that_trickles_meets_the_deadline():
    policy = dataclasses.replace(FAST, reply_timeout_s=0.3, attempts=1)
    failure, _ = post([Reply(body=" " * 100_000, trickle_s=0.02)], policy)
    assert failure.kind == "timeout"
    assert "did not end its reply" in str(failure)


def test_nobody_there():
    with LocalServer([]) as server:
        url = server.url
    with (
        JsonClient(FAST) as client,
        pytest.raises(HttpFailure, match=r"could not be connected .*sent 3 times") as caught,
    ):
        client.post(url, {}, KEY, budget := Budget(5))
    assert caught.value.kind == "connection"
    assert budget.used == 0


def test_waits_double_with_jitter_up_to_the_longest_and_are_seeded():
    policy = RetryPolicy(attempts=6, base_s=1.0, longest_s=5.0, seed=3)
    first, again, other = Waits(), Waits(), Waits()
    post([Reply(500)] * 6, policy, first)
    post([Reply(500)] * 6, policy, again)
    post([Reply(500)] * 6, dataclasses.replace(policy, seed=4), other)
    assert first == again != other
    assert len(first) == 5
    for wait, full in zip(first, [1, 2, 4, 5, 5], strict=True):
        assert full / 2 <= wait <= full


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7.001),
        ("0", 0, 0.001),
        ("1.5", 1.5, 1.501),
        ("86400", RETRY_AFTER_CAP_S, RETRY_AFTER_CAP_S + 0.001),
        ("9" * 400, RETRY_AFTER_CAP_S, RETRY_AFTER_CAP_S + 0.001),
        ("soon", 0.0005, 0.001),
        ("-3", 0.0005, 0.001),
        ("", 0.0005, 0.001),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds(status, header, least, most):
    waits = Waits()
    reply, _ = post([Reply(status, headers={"Retry-After": header}), OK], sleep=waits)
    assert reply == {"fine": True}
    assert len(waits) == 1
    assert least <= waits[0] <= most


@pytest.mark.parametrize(
    ("seconds", "least", "most"), [(20, 15, 20.1), (-100, 0, 0.1), (10**6, RETRY_AFTER_CAP_S, RETRY_AFTER_CAP_S + 0.1)]
)
def test_retry_after_as_a_date(seconds, least, most):
    waits = Waits()
    post([Reply(429, headers={"Retry-After": formatdate(time.time() + seconds, usegmt=True)}), OK], sleep=waits)
    assert least <= waits[0] <= most


def test_a_date_is_compared_with_the_servers_clock():
    headers = {"Date": formatdate(1000, usegmt=True), "Retry-After": formatdate(1030, usegmt=True)}
    assert retry_after_seconds(headers) == 30
    assert retry_after_seconds({"Retry-After": "Thu, 99 Foo 2020"}) is None
    assert retry_after_seconds({}) is None


def test_the_real_wait_is_used_without_a_replacement():
    reply, requests = post([Reply(429, headers={"Retry-After": "0.01"}), OK])
    assert reply == {"fine": True}
    assert len(requests) == 2


def test_closing_wakes_a_waiting_request():
    policy = dataclasses.replace(FAST, base_s=500, longest_s=500)
    caught = []
    with LocalServer([Reply(500)] * 3) as server:
        client = JsonClient(policy)
        arrived = threading.Event()

        def ask():
            arrived.set()
            try:
                client.post(server.url, {}, KEY)
            except HttpFailure as err:
                caught.append(err.kind)

        thread = threading.Thread(target=ask)
        thread.start()
        arrived.wait()
        while not server.requests:
            time.sleep(0.005)
        client.close()
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert caught == ["closed"]


def test_budget_counts_what_may_have_been_charged():
    budget = Budget(10)
    post([Reply(500), Reply(429), OK], budget=budget)
    assert budget.used == 1  # the two refusals cost nothing
    post([Reply(400)], budget=budget)
    assert budget.used == 1
    post([Reply(body="{broken")], budget=budget)
    assert budget.used == 2
    post([Reply(drop="midway", body={"a": "b" * 50}), OK], budget=budget)
    assert budget.used == 4  # who knows whether the broken one was charged


def test_budget_is_a_ceiling_also_for_retries():
    budget = Budget(1)
    failure, requests = post([Reply(drop="at_once"), OK], budget=budget)
    assert (failure.kind, len(requests), budget.used) == ("connection", 1, 1)
    failure, requests = post([OK], budget=budget)
    assert (failure.kind, failure.attempts, len(requests)) == ("budget", 0, 0)


def test_budget_holds_over_threads():
    budget = Budget(7)
    with LocalServer(lambda request: OK) as server, JsonClient(FAST) as client, ThreadPoolExecutor(8) as pool:

        def ask(_):
            try:
                return bool(client.post(server.url, {}, KEY, budget))
            except HttpFailure as err:
                return err.kind

        ends = list(pool.map(ask, range(30)))
        assert len(server.requests) == 7
    assert ends.count(True) == 7
    assert ends.count("budget") == 23
    assert Budget(-1).limit is None


# Keys


@pytest.mark.parametrize(
    "script",
    [
        [Reply(401, f"bad key {KEY_TEXT}")],
        [Reply(403, {"error": KEY_TEXT})],
        [Reply(400, f"no good: Bearer {KEY_TEXT} " * 20)],
        [Reply(500, f"{KEY_TEXT}")] * 3,
        [Reply(body=f"{{broken {KEY_TEXT}")],
        [Reply(drop="at_once")] * 3,
    ],
)
def test_failures_do_not_hold_the_key(script, caplog):
    caplog.set_level(logging.DEBUG)
    failure, requests = post(script)
    assert {request.key for request in requests} == {KEY_TEXT}
    assert failure.__context__ is None
    assert failure.__cause__ is None
    shown = "".join(traceback.format_exception(failure)) + repr(failure) + repr(vars(failure)) + caplog.text
    assert KEY_TEXT not in shown
    assert KEY_TEXT.encode() not in pickle.dumps((failure.args, vars(failure)))


def test_a_key_that_the_server_echoes_is_blotted_out_of_the_reply():
    reply, _ = post([Reply(body={"a": [f"for {KEY_TEXT}"], KEY_TEXT: {"b": KEY_TEXT}, "n": 3})])
    assert reply == {"a": ["for [key]"], "[key]": {"b": "[key]"}, "n": 3}
    reply, _ = post([Reply(body={"text": "xerox"})], key=Secret("x"))
    assert reply == {"text": "xerox"}


def test_a_secret_shows_itself_nowhere():
    holder = dataclasses.make_dataclass("Holder", ["key"])(KEY)
    assert KEY_TEXT not in f"{KEY} {KEY!r} {[KEY]} {holder}"
    with pytest.raises(TypeError):
        json.dumps({"key": KEY})
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    assert KEY.reveal() == KEY_TEXT
    assert Secret("a") == Secret("a") != Secret("b")


def test_netrc_does_not_overrule_the_key(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    _, requests = post([OK])
    assert requests[0].key == KEY_TEXT


def test_cookies_are_not_kept():
    _, requests = post([Reply(500, headers={"Set-Cookie": "a=b"}), OK])
    assert "Cookie" not in requests[1].headers


@pytest.mark.parametrize("text", ["", "  ", "two words", "key\nX-Other: 1", "schlüssel", "tab\tkey"])
def test_what_is_no_key(text):
    with pytest.raises(DataError, match=r"FILE, line 3: the key") as caught:
        read_key(text, "FILE, line 3")
    assert not text.strip() or text not in str(caught.value)


def test_keys_and_urls_are_trimmed():
    assert read_key(f" {KEY_TEXT}\n", "X") == KEY
    assert read_url(" http://host:80/v1/ ", "X") == "http://host:80/v1"
    assert public_url("https://host/v1/chat?token=abc") == "https://host/v1/chat"


@pytest.mark.parametrize(
    "text",
    ["", "host/v1", "ftp://host", "http://", "http://host:port", "https://me:pw@host/v1", "http://a b/", "http://[::1"],
)
def test_what_is_no_url(text):
    with pytest.raises(DataError, match=r"^API_BASE_URL: ") as caught:
        read_url(text, "API_BASE_URL")
    assert "pw" not in str(caught.value).replace("password", "")


def test_importing_loads_neither_torch_nor_requests():
    code = (
        "import sys\n"
        "import inference.tools.http, inference.tools.cache, inference.tools.search_tool, inference.scoring.judge\n"
        "print([name for name in ('torch', 'requests', 'numpy') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
