"""The limits of the maths engine, each with its reason. A model may write anything; nothing it writes may cost much."""

from __future__ import annotations

MAX_ANSWER_CHARS = 2_000  # the longest gold answer of the benchmarks has under 200 characters
MAX_DEPTH = 120  # open rules of the grammar, about three a bracket: real answers stay under 30, Python's stack ends near 1,000 frames
MAX_POSTFIX = 8  # factorials, percent signs and powers after one atom
MAX_ITEMS = 200  # members of a list, set or matrix: unordered matching compares every pair
MAX_SIGNS = 5  # plus-or-minus signs of one expression: each doubles its values
MAX_DIGITS = 1_000  # digits of one number literal: Python's int parser is quadratic in them
MAX_EXACT_BITS = 20_000  # size of an exact power or factorial: 2^20000 is computed in microseconds
MAX_EXACT_FACTORIAL = 400  # 400! fits in MAX_EXACT_BITS; larger factorials are compared in floating point
MAX_LOG2 = 10.0**12  # floating point: numbers up to 2^(10^12), their exponents are still machine-sized integers
MAX_ANGLE = 10.0**30  # reducing an angle needs as many extra digits as the angle has
DIGITS = 40  # first numeric pass
MORE_DIGITS = 110  # second pass: what does not shrink between the two is a true difference
POINTS = 5  # random points at which two expressions must agree
TRIES = 24  # points tried until POINTS of them are defined for both sides
APPROX_DIGITS = 6  # a decimal with so many correct significant digits stands for the exact value it rounds
COMPARE_SECONDS = 1.5  # one comparison in a worker; with overhead a pair stays under 2 s
START_SECONDS = 60.0  # start of a worker (imports sympy): long, because a loaded machine is no reason for a wrong grade
WORKER_BYTES = 2 * 1024**3  # address space of a worker: a blow-up ends the worker, not the run


class LimitError(ValueError):
    """An answer beyond a limit; the message names the limit."""


class NotMathError(ValueError):
    """A text that the grammar does not read as mathematics; it is compared as text."""
