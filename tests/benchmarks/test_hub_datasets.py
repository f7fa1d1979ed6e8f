"""MATH-500 through the real `datasets` client, from a small hub of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.dataset_hub import COMMIT

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    {"problem": "What is 1+1?", "solution": "two", "answer": "2", "level": 1, "unique_id": "test/algebra/1.json"},
    {
        "problem": "Half of one?",
        "solution": "x",
        "answer": "\\frac{1}{2}",
        "level": 2,
        "unique_id": "test/algebra/2.json",
    },
]
PROGRAM = """
import json, sys
from inference.benchmarks.registry import load_benchmark
from inference.tools.errors import DataError
for revision in json.loads(sys.argv[1]):
    try:
        b = load_benchmark("math500", revision=revision)
        print(json.dumps([b.revision, b.source, [[s.id, s.question, s.gold] for s in b.samples]]))
    except DataError as err:
        print(json.dumps(str(err)))
"""


@pytest.fixture
def hub(tmp_path) -> Iterator[str]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    script = [sys.executable, "tests/benchmarks/dataset_hub.py", "HuggingFaceH4/MATH-500", f"test={rows}"]
    with subprocess.Popen(script, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def load(endpoint: str, home: Path, revisions: list[str | None]) -> list:
    """What a fresh process with an empty cache sees of each revision."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGINGFACE_"))}
    env = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(revisions)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_math500_from_the_hub(hub, tmp_path):
    default, pinned, unknown = load(hub, tmp_path / "cache", [None, COMMIT, "nope"])
    assert default == [COMMIT, "HuggingFaceH4/MATH-500", [[r["unique_id"], r["problem"], r["answer"]] for r in ROWS]]
    assert pinned == default
    assert "HuggingFaceH4/MATH-500, split 'test' at revision nope: cannot be loaded" in unknown


def test_hub_out_of_reach(tmp_path):
    (told,) = load("http://127.0.0.1:9", tmp_path / "cache", [None])
    assert "cannot be loaded" in told and "--dataset_file" in told
