"""Rows, role texts and their errors."""

from __future__ import annotations

import json

import pytest

from inference.mas.errors import InputError
from inference.mas.styles import load_style
from train.data.rows import fingerprint, load_rows
from train.data.texts import build_examples, split_heldout

ROWS = [
    {"question": "1+1?", "plan": "add", "refined_plan": "add well", "answer": "\\boxed{2}"},
    {"question": "2+2?", "answer": "4"},
]
STYLE = load_style("sequential_light")
ROLES = ["planner", "critic", "solver"]


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("a.json", {"data": ROWS, "version": 1}, None),
        ("a.json", {"data": ROWS}, "data"),
        ("a.json", {"train": ROWS}, "train"),
        ("a.json", ROWS, None),
        ("a.json", ROWS, "data"),
    ],
)
def test_json_forms(tmp_path, name, content, field):
    path = tmp_path / name
    path.write_text(json.dumps(content))
    assert load_rows(str(path), json_field=field) == ROWS


def test_jsonl_and_limit(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    assert load_rows(str(path)) == ROWS
    assert load_rows(str(path), limit=1) == ROWS[:1]
    # A line separator inside a string is no end of a row.
    path.write_text(json.dumps({"question": "a\u2028b", "answer": "c"}, ensure_ascii=False))
    assert load_rows(str(path)) == [{"question": "a\u2028b", "answer": "c"}]


@pytest.mark.parametrize(
    ("name", "text", "field", "message"),
    [
        ("a.jsonl", '{"question": "x"}\n{"question": \n', None, "line 2 is not JSON"),
        ("a.json", '{"data": [\n{"question": }]}', None, "broken JSON at line 2"),
        ("a.json", '{"rows": []}', None, "no field 'data'; found rows"),
        ("a.json", '{"data": 3}', None, "found int"),
        ("a.json", "[1]", None, "row 1 is a int"),
        ("a.json", "[]", None, "no rows"),
        ("a.json", "[]", "train", "bare list"),
        ("missing.json", None, None, "no such file"),
    ],
)
def test_bad_files_are_told(tmp_path, name, text, field, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_rows(str(path), json_field=field)


def test_examples_take_the_first_column_that_is_there_and_count_drops():
    found = build_examples(STYLE, ROLES, ROWS, "math", "rows")
    assert found.columns == {"planner": "plan", "critic": "refined_plan", "solver": "answer"}
    assert found.dropped == 1, "the second row has no plan"
    assert build_examples(STYLE, ["solver"], ROWS, "math", "rows").dropped == 0
    (example,) = found.items
    assert example.text("planner") == "add" and example.question.id == "0"


@pytest.mark.parametrize(
    ("row", "family", "kind", "fn_name"),
    [
        ({}, "math", None, None),
        ({"task_family": "choice"}, "choice", None, None),
        ({"task_family": "code"}, "code", "program", None),
        ({"task_family": "code", "type": "complete"}, "code", "program", None),
        ({"task_family": "code", "type": "function", "fn_name": "solve"}, "code", "function", "solve"),
    ],
)
def test_family_and_kind_of_a_row(row, family, kind, fn_name):
    (example,) = build_examples(STYLE, ["solver"], [{**ROWS[0], **row}], "math", "rows").items
    assert (example.question.family, example.question.kind, example.question.fn_name) == (family, kind, fn_name)


def test_round_columns():
    row = {**ROWS[0], "plan_round1": "first look", "plan_rounds": "no round"}
    (example,) = build_examples(STYLE, ROLES, [row], "math", "rows").items
    assert [example.text("planner", r) for r in (1, 2, 3)] == ["first look", "add", "add"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"answer": "4"}], "no column 'question'; found answer"),
        ([{"question": "x", "answer": "y"}], "no column for the text of role planner; expected plan"),
        ([{**ROWS[0], "task_family": "poetry"}], "row 1 has task_family 'poetry'"),
        ([{**ROWS[0], "plan": " "}], "every one of 1 rows"),
    ],
)
def test_bad_columns_are_told(rows, message):
    with pytest.raises(InputError, match=message):
        build_examples(STYLE, ROLES, rows, "math", "rows.json")


def test_held_out_split_is_fixed_and_disjoint():
    train, held = split_heldout(100, 0.1, 7)
    assert len(held) == 10 and sorted(train + held) == list(range(100))
    assert split_heldout(100, 0.1, 7) == (train, held) != split_heldout(100, 0.1, 8)
    assert split_heldout(5, 0.0, 7) == ([0, 1, 2, 3, 4], [])
    for fraction in (1.0, -0.1, 0.001):
        with pytest.raises(InputError, match="eval_fraction"):
            split_heldout(20, fraction, 7)


def test_fingerprint_sees_content_and_order():
    assert fingerprint(ROWS) == fingerprint([dict(row) for row in ROWS]) != fingerprint(ROWS[::-1])
