"""Values as JSON lines between two processes that must not trust each other; runs inside the sandbox on both sides.

Only data passes: builtin types, Decimal, Fraction, dates and times, and numpy scalars and arrays. A subclass travels as its builtin base, so an
`__eq__` of the program's own never reaches the comparison. Anything else becomes a `Remote`: a number under which the
program's side keeps the object; it equals nothing but itself. Standard library only; this file is copied into the box.
"""

import json

MAX_LINE = (
    64 << 20
)  # bytes of one message: lists of some million numbers pass, a program cannot fill the other side's memory
_BIG_INT = 1 << 62
_CLOCK = ("hour", "minute", "second", "microsecond")
_DATES = {  # of the datetime module, those without a time zone
    "date": ("year", "month", "day"),
    "time": _CLOCK,
    "datetime": ("year", "month", "day", *_CLOCK),
    "timedelta": ("days", "seconds", "microseconds"),
}
_CONTAINERS = ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset"))


class WireError(ValueError):
    """A value that cannot pass, or a line that is not one of ours."""


class Remote:
    """An object that stayed on the program's side. `ask(operation, number, arguments)` acts on it there."""

    def __init__(self, number, ask):
        self._number = number
        self._ask = ask

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", self._number, (name,))

    def __call__(self, *arguments, **named):
        return self._ask("call", self._number, arguments, named)

    def __getitem__(self, key):
        return self._ask("item", self._number, (key,))

    def __iter__(self):
        return iter(self._ask("list", self._number, ()))

    def __bool__(self):
        return self._ask("truth", self._number, ())

    def __len__(self):
        return self._ask("length", self._number, ())

    def __str__(self):
        return self._ask("text", self._number, ())


def pack(value, keep=None):
    """A value as JSON data. `keep(object) -> number` stores what cannot pass; without it such a value is a `WireError`."""
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        value = int.__index__(value)
        return value if -_BIG_INT < value < _BIG_INT else {"int": hex(value)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    for base, name in _CONTAINERS:
        if isinstance(value, base):
            items = [pack(item, keep) for item in base.__iter__(value)]
            return items if base is list else {name: items}
    if isinstance(value, dict):
        return {"dict": [[pack(key, keep), pack(item, keep)] for key, item in dict.items(value)]}
    if isinstance(value, complex):
        return {"complex": [float(complex.real.__get__(value)), float(complex.imag.__get__(value))]}
    if isinstance(value, (bytes, bytearray)):
        return {kind.__name__ if kind in (bytes, bytearray) else "bytes": bytes(value).hex()}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if kind.__module__ == "datetime" and kind.__name__ in _DATES and getattr(value, "tzinfo", None) is None:
        return {kind.__name__: [getattr(value, part) for part in _DATES[kind.__name__]]}
    if isinstance(value, Remote):
        return {"remote": value._number}
    if kind.__module__ in ("decimal", "fractions", "collections", "numpy"):
        packed = _pack_library(value, kind, keep)
        if packed is not None:
            return packed
    if keep is None:
        raise WireError(f"a value of type {kind.__name__} cannot be passed to the program")
    return {"remote": keep(value)}


def _pack_library(value, kind, keep):
    name = kind.__name__
    if name == "Decimal":
        return {"decimal": str(value)}
    if name == "Fraction":
        return {"fraction": [hex(value.numerator), hex(value.denominator)]}
    if name == "deque":
        return {"deque": [pack(item, keep) for item in value]}
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        inner = value.tolist()
        return (
            {"array": pack(inner, keep)}
            if name == "ndarray"
            else pack(inner, keep)
            if type(inner) is not kind
            else None
        )
    return None


def unpack(data, remote):
    """The value of JSON data; `remote(number)` gives what stands for a kept object."""
    if isinstance(data, list):
        return [unpack(item, remote) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise WireError("a message holds a value of no known kind")
    ((kind, content),) = data.items()
    if kind == "dict":
        return {unpack(key, remote): unpack(item, remote) for key, item in content}
    if kind in ("tuple", "set", "frozenset", "deque", "array"):
        items = unpack(content, remote)
        if kind == "deque":
            from collections import deque

            return deque(items)
        if kind == "array":
            import numpy

            return numpy.array(items)
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
    if kind == "int":
        return int(content, 16)
    if kind == "complex":
        return complex(*content)
    if kind in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[kind].fromhex(content)
    if kind == "range":
        return range(*content)
    if kind == "decimal":
        from decimal import Decimal

        return Decimal(content)
    if kind == "fraction":
        from fractions import Fraction

        return Fraction(*(int(part, 16) for part in content))
    if kind in _DATES:
        import datetime

        return getattr(datetime, kind)(*content)
    if kind == "remote":
        return remote(content)
    raise WireError(f"a message holds a value of unknown kind {kind!r:.40}")


def send(file, message):
    """Write one message; `WireError` if it is too long."""
    line = json.dumps(message).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise WireError(f"a value of {len(line):,} bytes is over the limit of {MAX_LINE:,}")
    file.write(line)
    file.flush()


def receive(file):
    """Read one message, a JSON object; EOFError at the end of the pipe, `WireError` for anything else."""
    line = file.readline(MAX_LINE + 1)
    if not line:
        raise EOFError
    if not line.endswith(b"\n"):
        raise WireError(
            "the other side ended in the middle of a message" if len(line) <= MAX_LINE else "a message is too long"
        )
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("a message is not an object")
    return message
