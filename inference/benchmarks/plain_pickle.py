"""Reads pickles of plain values, and nothing else: lists, tuples, dicts, text, numbers, booleans, None.

`pickle.loads` runs whatever a pickle tells it to, so downloaded ones never reach it. This reader walks the opcodes (as
`pickletools.genops` decodes them, without executing any) and knows only those that build plain values: a pickle that names a
class, a function or a persistent object is refused at that opcode. Memory is bounded by the pickle's own length, as every opcode
adds at most one reference.
"""

from __future__ import annotations

import pickletools
from typing import Any

MAX_OPCODES = 5_000_000
"""Far above any list of tests (some opcodes a test), and still seconds."""

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SCALARS = frozenset(
    "INT LONG LONG1 LONG4 BININT BININT1 BININT2 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8".split()
)
_IGNORED = frozenset(("PROTO", "FRAME"))


class RefusedPickle(ValueError):
    """A pickle that is broken or holds more than plain values; the text says what."""


class _Mark:
    """The place on the stack where a group of items starts."""


def loads(data: bytes) -> Any:
    """The value of a pickle of any protocol. Raises `RefusedPickle`."""
    try:
        return _Machine().run(data)
    except RefusedPickle:
        raise
    # genops and the stack raise these for every kind of broken input.
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        raise RefusedPickle(f"broken pickle ({type(err).__name__})") from err


class _Machine:
    """The part of the pickle machine that builds plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                raise RefusedPickle(f"more than {MAX_OPCODES} opcodes")
            if opcode.name == "STOP":
                break
            self.step(opcode.name, argument)
        (value,) = self.stack
        if isinstance(value, _Mark):
            raise RefusedPickle("broken pickle (no value)")
        return value

    def step(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self.memo
        if name in _IGNORED:
            return
        if name in _SCALARS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_Mark())
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in {"PUT", "BINPUT", "LONG_BINPUT"}:
            memo[argument] = stack[-1]
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            stack.append(memo[argument])
        elif name in {"LIST", "TUPLE", "DICT"}:
            items = self.group()
            stack.append(_pairs(items) if name == "DICT" else list(items) if name == "LIST" else tuple(items))
        elif name in _TUPLES:
            size = _TUPLES[name]
            if len(stack) < size:
                raise RefusedPickle("broken pickle (stack)")
            stack[-size:] = [tuple(stack[-size:])]
        elif name in {"APPEND", "APPENDS"}:
            items = [stack.pop()] if name == "APPEND" else self.group()
            self.target(list).extend(items)
        elif name in {"SETITEM", "SETITEMS"}:
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.group()
            self.target(dict).update(_pairs(items))
        else:
            raise RefusedPickle(f"opcode {name}; expected lists, dicts, text and numbers only")

    def target(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise RefusedPickle("broken pickle (items for a value that holds none)")
        return self.stack[-1]

    def group(self) -> list[Any]:
        """The items above the last mark, which goes with them."""
        start = len(self.stack) - 1
        while not isinstance(self.stack[start], _Mark):
            start -= 1
            if start < 0:
                raise RefusedPickle("broken pickle (no mark)")
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
