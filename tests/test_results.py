"""The run's folder: what is refused, repaired and shared; and the table."""

from __future__ import annotations

import json
import time

import pytest

from inference.results import Condition, RunFolder, summarise, table_text
from inference.tools.errors import DataError

MANIFEST = {
    "fingerprint": {"settings": {"seed": 42, "rounds": [1, 2]}, "weights": {"planner": "ab"}},
    "machine": {"batch_size": 8},
}
LATENT, SINGLE = Condition("latent", None, 1, 4), Condition("single", None, None, None)


def record(condition: Condition, index: int, correct: bool) -> dict:
    return {
        "sample_id": f"s{index}", "method": condition.method, "control": condition.control, "rounds": condition.rounds,
        "latent_length": condition.latent_length, "rollouts": [{"correct": correct, "status": "ok"}],
        "prompt_tokens": 10, "latent_steps": 4, "generated_tokens": 2, "seconds": {"solver.speak": 0.25},
    }  # fmt: skip


def opened(path, manifest=MANIFEST, **how) -> RunFolder:
    folder = RunFolder(path, manifest, **how)
    folder.read()
    folder.open()
    return folder


def test_reading_writes_nothing(tmp_path):
    RunFolder(tmp_path / "run", MANIFEST).read()
    assert not (tmp_path / "run").exists()


def test_a_run_continues_in_its_folder_only(tmp_path):
    folder = opened(tmp_path / "run")
    folder.append([record(LATENT, 0, True)])
    folder.close()
    again = opened(tmp_path / "run", {**MANIFEST, "machine": {"batch_size": 2}})
    assert list(again.done) == [(LATENT, "s0")]
    again.close()
    other = json.loads(json.dumps(MANIFEST))
    other["fingerprint"]["settings"]["seed"] = 43
    other["fingerprint"]["weights"]["critic"] = "cd"
    with pytest.raises(DataError) as err:
        RunFolder(tmp_path / "run", other).read()
    assert "settings.seed is 42 there and 43 here; weights.critic is null there" in str(err.value)
    with pytest.raises(DataError, match=r'result_jsonl is "records\.jsonl" there'):
        RunFolder(tmp_path / "run", MANIFEST, tmp_path / "elsewhere.jsonl").read()


def test_a_cut_line_is_removed_and_a_broken_one_refused(tmp_path):
    folder = opened(tmp_path / "run")
    folder.append([record(LATENT, i, True) for i in range(3)])
    folder.close()
    whole = folder.path.read_bytes()
    # The rest of a long line, longer than the block in which its start is searched.
    folder.path.write_bytes(whole + whole[:40] + b"x" * 200_000)
    again = opened(tmp_path / "run")
    again.close()
    assert again.path.read_bytes() == whole and len(again.done) == 3
    folder.path.write_bytes(b'{"sample')
    opened(tmp_path / "run").close()
    assert folder.path.read_bytes() == b""
    folder.path.write_bytes(whole + b"{broken}\n" + whole)
    with pytest.raises(DataError, match=r"records\.jsonl, line 4: not a record"):
        RunFolder(tmp_path / "run", MANIFEST).read()


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds todo\.txt but no manifest\.json"):
        RunFolder(tmp_path / "notes", MANIFEST).read()
    with pytest.raises(DataError, match="is a file"):
        RunFolder(tmp_path / "notes" / "todo.txt", MANIFEST).read()
    with pytest.raises(DataError, match="exists and belongs to another run"):
        RunFolder(tmp_path / "new", MANIFEST, tmp_path / "notes" / "todo.txt").read()
    (tmp_path / "notes" / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="not a run's manifest"):
        RunFolder(tmp_path / "notes", MANIFEST).read()


def test_two_writers(tmp_path):
    folder = opened(tmp_path / "run")
    with pytest.raises(DataError, match="another process is writing"):
        opened(tmp_path / "run")
    folder.close()
    opened(tmp_path / "run").close()


def test_table_and_ten_thousand_records():
    ids = [f"s{i}" for i in range(5000)]
    records = {
        (c, f"s{i}"): record(c, i, i % (2 if c is LATENT else 4) == 0) for c in (LATENT, SINGLE) for i in range(5000)
    }
    start = time.perf_counter()
    entries = summarise(records, (LATENT, SINGLE), ids)
    assert time.perf_counter() - start < 2
    assert entries[1]["difference"]["value"] == -0.25
    assert (entries[1]["difference"]["better"], entries[1]["difference"]["worse"]) == (0, 1250)
    head, rule, first, second = table_text((LATENT, SINGLE), entries).split("\n")
    assert head.split()[:3] == ["method", "R", "m"] and set(rule) == {"-"}
    assert first.split()[:7] == ["latent", "1", "4", "50.0", "48.6", "to", "51.4"]
    assert second.split()[:8] == ["single", "-", "-", "25.0", "23.8", "to", "26.2", "-25.0"]
    assert first.split()[-5:] == ["10.0", "4.0", "2.0", "0.250", "0"]
