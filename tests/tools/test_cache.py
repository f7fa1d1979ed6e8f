"""JsonlCache: what is written stays, a cut line is mended, threads and processes share a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.tools.cache import JsonlCache, ReplayMiss, request_hash
from inference.tools.errors import DataError

ROOT = Path(__file__).resolve().parents[2]


def ask(n: int) -> dict:
    return {"query": f"question {n}", "n": n}


def entries(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def never():
    raise AssertionError("must not be made")


def test_made_once_and_there_for_the_next(tmp_path):
    path = tmp_path / "deep" / "cache.jsonl"
    cache = JsonlCache(path)
    assert not path.exists()
    assert cache.get_or_make(ask(1), lambda: {"answer": "é \ud800"}) == ({"answer": "é \ud800"}, False)
    assert cache.get_or_make(ask(1), never) == ({"answer": "é \ud800"}, True)
    assert JsonlCache(path).get_or_make({"n": 1, "query": "question 1"}, never) == ({"answer": "é \ud800"}, True)
    assert entries(path) == [{"key": request_hash(ask(1)), "request": ask(1), "response": {"answer": "é \ud800"}}]


def test_without_a_path_it_lives_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = JsonlCache(None)
    cache.put(ask(1), {"a": 1})
    assert cache.get_or_make(ask(1), never) == ({"a": 1}, True)
    assert list(tmp_path.iterdir()) == []


def test_the_first_response_stays(tmp_path):
    path = tmp_path / "cache.jsonl"
    one, two = JsonlCache(path), JsonlCache(path)
    assert one.put(ask(1), {"from": "one"}) == {"from": "one"}
    assert two.put(ask(1), {"from": "two"}) == {"from": "one"}
    assert two.get(ask(1)) == {"from": "one"}
    assert len(entries(path)) == 1


def test_what_another_writes_is_seen(tmp_path):
    one, two = JsonlCache(tmp_path / "cache.jsonl"), JsonlCache(tmp_path / "cache.jsonl")
    one.put(ask(1), {"a": 1})
    assert two.get_or_make(ask(1), never) == ({"a": 1}, True)


def test_a_failure_is_not_kept(tmp_path):
    cache = JsonlCache(tmp_path / "cache.jsonl")

    def fail():
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        cache.get_or_make(ask(1), fail)
    assert cache.get_or_make(ask(1), lambda: {"a": 1}) == ({"a": 1}, False)


def test_every_cut_of_the_last_line_is_mended(tmp_path):
    path = tmp_path / "cache.jsonl"
    whole = JsonlCache(path)
    whole.put(ask(1), {"a": 1})
    first = path.read_bytes()
    whole.put(ask(2), {"a": 2})
    both = path.read_bytes()
    for size in range(len(first), len(both)):
        path.write_bytes(both[:size])
        cache = JsonlCache(path)
        only_the_line_end_is_missing = size == len(both) - 1
        assert cache.get(ask(1)) == {"a": 1}
        assert cache.get(ask(2)) == ({"a": 2} if only_the_line_end_is_missing else None)
        assert path.read_bytes() == both[:size]  # reading changes nothing
        cache.put(ask(3), {"a": 3})
        kept = [1, 2, 3] if only_the_line_end_is_missing else [1, 3]
        assert [entry["response"]["a"] for entry in entries(path)] == kept


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "cache.jsonl"
    JsonlCache(path).put(ask(1), {"a": 1})
    good = path.read_text()
    other_key = {"key": "0" * 64, "request": ask(2), "response": {}}
    for bad in (
        "{broken\n",
        "[]\n",
        '{"request": {}}\n',
        '{"request": {"n": 1}, "response": null}\n',
        f"{json.dumps(other_key)}\n",
    ):
        path.write_text(good + bad + good)
        with pytest.raises(DataError, match=r"cache\.jsonl, line 2: not a cache entry"):
            JsonlCache(path)
    with pytest.raises(DataError, match="cannot be read"):
        JsonlCache(tmp_path)


def test_a_file_written_by_hand_needs_no_key_and_may_hold_blank_lines(tmp_path):
    path = tmp_path / "facts.jsonl"
    path.write_text(json.dumps({"request": ask(1), "response": {"a": 1}}) + "\n\n")
    assert JsonlCache(path, read_only=True).get(ask(1)) == {"a": 1}


def test_replay_reads_only(tmp_path):
    path = tmp_path / "cache.jsonl"
    JsonlCache(path).put(ask(1), {"a": 1})
    path.write_bytes(path.read_bytes() + b'{"key": "cut o')
    before = path.read_bytes()
    replay = JsonlCache(path, read_only=True)
    assert replay.get_or_make(ask(1), never) == ({"a": 1}, True)
    with pytest.raises(ReplayMiss) as caught:
        replay.get_or_make(ask(2), never)
    assert caught.value.kind == "replay_miss"
    with pytest.raises(ValueError, match="reading only"):
        replay.put(ask(2), {})
    assert path.read_bytes() == before
    with pytest.raises(DataError, match=r"nothing\.jsonl: no such file"):
        JsonlCache(tmp_path / "nothing.jsonl", read_only=True)


def test_a_full_disk_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with pytest.raises(DataError, match=r"^/dev/full: cannot be written"):
        JsonlCache("/dev/full").put(ask(1), {"a": 1})


def test_threads_pay_once_for_the_same_and_side_by_side_for_others(tmp_path):
    cache = JsonlCache(tmp_path / "cache.jsonl")
    made: list[int] = []
    together = threading.Barrier(4, timeout=60)

    def make(n):
        together.wait()  # passes only if the four different requests are made at the same time
        made.append(n)
        return {"a": n}

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: cache.get_or_make(ask(i % 4), lambda: make(i % 4)), range(16)))
    assert sorted(made) == [0, 1, 2, 3]
    assert [response["a"] for response, _ in found] == [i % 4 for i in range(16)]
    assert sum(hit for _, hit in found) == 12
    assert len(entries(cache.path)) == 4


def test_a_writer_waits_for_the_files_lock_and_then_looks_again(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "cache.jsonl"
    cache = JsonlCache(path)
    cache.put(ask(1), {"by": "us"})
    with path.open("ab") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        ours = pool.submit(cache.put, ask(2), {"by": "us"})
        time.sleep(0.3)  # time enough to write, if nothing held it back
        assert not ours.done()
        other.write(json.dumps({"request": ask(2), "response": {"by": "another"}}).encode() + b"\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert ours.result(60) == {"by": "another"}
    assert len(entries(path)) == 2


def test_processes_share_a_file(tmp_path):
    path = tmp_path / "cache.jsonl"
    code = (
        "import sys\n"
        "from inference.tools.cache import JsonlCache\n"
        "cache, own = JsonlCache(sys.argv[1]), int(sys.argv[2])\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for n in range(40):\n"
        "    cache.get_or_make({'shared': n}, lambda: {'by': own, 'pad': 'x' * 5000})\n"
        "    cache.put({'own': own, 'n': n}, {'a': n})\n"
        "print(sum(cache.get({'shared': n})['by'] for n in range(40)))\n"
    )
    how = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen([sys.executable, "-c", code, str(path), str(i)], **how) for i in range(3)]
    assert [run.stdout.readline() for run in runs] == ["ready\n"] * 3  # so that they write at the same time
    for run in runs:
        run.stdin.write("\n")
        run.stdin.flush()
    told = [run.communicate(timeout=120)[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    lines = entries(path)
    assert len(lines) == 40 + 3 * 40
    assert len({entry["key"] for entry in lines}) == len(lines)
    assert len(set(told)) == 1  # all three saw the same responses


def test_killed_writers_leave_a_file_that_goes_on(tmp_path):
    path = tmp_path / "cache.jsonl"
    code = (
        "import sys\n"
        "from inference.tools.cache import JsonlCache\n"
        "cache, n = JsonlCache(sys.argv[1]), 0\n"
        "while True:\n"
        "    n = len(cache)\n"
        "    cache.put({'n': n}, {'pad': 'x' * 20000})\n"
        "    print(n, flush=True)\n"
    )
    seen = 0
    for _ in range(3):
        run = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        told = [int(run.stdout.readline()) for _ in range(5)]
        run.kill()
        run.wait()
        run.stdout.close()
        assert told[0] >= seen  # what was told as written is there
        seen = told[-1] + 1
        assert all(JsonlCache(path).get({"n": n}) is not None for n in range(seen))
