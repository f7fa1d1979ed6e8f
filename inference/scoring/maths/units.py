"""Units of measure: names, and the factors between units of one kind."""

from __future__ import annotations

import re
from fractions import Fraction

# unit -> (kind, size in the kind's first unit)
_KINDS = {
    "length": {"m": 1, "km": 1000, "dm": "1/10", "cm": "1/100", "mm": "1/1000", "in": "127/5000", "ft": "381/1250", "yd": "1143/1250", "mi": "201168/125"},
    "mass": {"g": 1, "kg": 1000, "mg": "1/1000", "t": 1000000, "lb": "45359237/100000", "oz": "45359237/1600000"},
    "time": {"s": 1, "ms": "1/1000", "min": 60, "h": 3600, "day": 86400, "week": 604800, "month": None, "year": None},
    "volume": {"l": 1, "ml": "1/1000", "cl": "1/100", "gal": None, "qt": None},
    "money": {"dollar": 1, "cent": "1/100"},
    "speed": {"mph": 1, "kmh": None},
}  # fmt: skip
_NAMES = {
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres", "dm": "decimeter decimeters",
    "cm": "centimeter centimeters centimetre centimetres", "mm": "millimeter millimeters millimetre millimetres",
    "in": "inch inches", "ft": "foot feet", "yd": "yard yards", "mi": "mile miles",
    "g": "gram grams", "kg": "kilogram kilograms", "mg": "milligram milligrams", "t": "ton tons tonne tonnes",
    "lb": "lbs pound pounds", "oz": "ounce ounces", "s": "sec secs second seconds", "ms": "millisecond milliseconds",
    "min": "mins minute minutes", "h": "hr hrs hour hours", "day": "days", "week": "weeks", "month": "months",
    "year": "years yr yrs", "l": "liter liters litre litres", "ml": "milliliter milliliters", "cl": "centiliter centiliters",
    "gal": "gallon gallons", "qt": "quart quarts", "dollar": "dollars usd", "cent": "cents", "mph": "", "kmh": "kph",
}  # fmt: skip
_CANONICAL = {alias: unit for unit, aliases in _NAMES.items() for alias in (unit, *aliases.split())}
# Words that name a count and not a unit of their own; an answer may carry them or not.
_COUNTS = {"unit", "units", "people", "ways", "students", "times", "points", "solutions", "integers", "numbers", "coins", "apples", "books", "edges", "digits"}  # fmt: skip
PERCENT = {"percent", "percentage", "per cent", "pct"}
DEGREES = {"degree", "degrees", "deg"}


def is_unit_word(word: str) -> bool:
    """Whether a bare word after a number is a unit. Single letters are not: they may be unknowns."""
    word = word.casefold()
    return len(word) > 1 and (word in _CANONICAL or word in _COUNTS or word in ("sq", "square", "cubic"))


def canonical_unit(text: str) -> str:
    """The unit named by a text ("square meters" -> "m^2"); "" where the words name no unit we know."""
    text = re.sub(r"[{}\\.]", "", text.casefold().replace("**", "^")).strip()
    power = ""
    if match := re.match(r"(square|sq|cubic|cu)\s+(.*)", text):
        power, text = ("^2" if match.group(1).startswith("sq") else "^3"), match.group(2)
    elif match := re.match(r"(.*?)\s*\^\s*([23])$", text):
        power, text = "^" + match.group(2), match.group(1)
    unit = _CANONICAL.get(text.strip(), "")
    return unit + power if unit else ""


def unit_ratio(left: str, right: str) -> Fraction | None:
    """How many `right` make one `left` (canonical units); 1 where one is unknown; None where they do not convert."""
    if left == right or not left or not right:
        return Fraction(1)
    (left_unit, _, left_power), (right_unit, _, right_power) = left.partition("^"), right.partition("^")
    for sizes in _KINDS.values():
        if left_power == right_power and sizes.get(left_unit) and sizes.get(right_unit):
            return (Fraction(sizes[left_unit]) / Fraction(sizes[right_unit])) ** int(left_power or 1)
    return None
