"""The pickle reader: what it reads equals what `pickle` wrote, and nothing else is read."""

from __future__ import annotations

import os
import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.benchmarks.plain_pickle import RefusedPickle, loads

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=20,
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_of_every_protocol(value, protocol):
    assert loads(pickle.dumps(value, protocol=protocol)) == value


def test_long_texts_and_shared_values():
    tests = [{"input": "x" * 70_000, "output": "y" * 300}] * 2000
    assert loads(pickle.dumps(tests)) == tests
    assert loads(pickle.dumps("é" * 100_000)) == "é" * 100_000


class Command:
    """Unpickled by `pickle`, it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_everything_else_is_refused_without_running(tmp_path, protocol):
    path = str(tmp_path / "made")
    for value in (
        Command(path),
        [1, Command(path)],
        {"a": Command(path)},
        os.mkdir,
        Command,
        {1, 2},
        b"bytes",
        1j,
        range(3),
    ):
        with pytest.raises(RefusedPickle, match="opcode"):
            loads(pickle.dumps(value, protocol=protocol))
    assert not os.path.exists(path)


def plain_or_refused(data: bytes) -> bool:
    """Whether a pickle is refused, or read as containers and scalars alone."""
    try:
        todo = [loads(data)]
    except RefusedPickle:
        return True
    seen = set()
    while todo:
        value = todo.pop()
        if isinstance(value, (list, tuple, dict)) and id(value) not in seen:
            seen.add(id(value))
            todo += [*value, *value.values()] if isinstance(value, dict) else value
        elif not isinstance(value, (list, tuple, dict, str, int, float, bool, type(None))):
            return False
    return True


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(data):
    assert plain_or_refused(data)


@given(VALUES, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_pickle_is_read_or_refused(value, damage):
    data = bytearray(pickle.dumps(value))
    for place, byte in damage:
        data[place % len(data)] = byte
    assert plain_or_refused(bytes(data))


def test_a_memo_far_away_costs_no_memory():
    """The C unpickler would take gigabytes for this index."""
    data = b"\x80\x02" + pickle.NONE + pickle.LONG_BINPUT + (2**31 - 1).to_bytes(4, "little") + pickle.STOP
    assert [opcode.name for opcode, _, _ in pickletools.genops(data)] == ["PROTO", "NONE", "LONG_BINPUT", "STOP"]
    assert loads(data) is None
