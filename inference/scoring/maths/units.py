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
}  # fmt: skip
_NAMES = {
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres", "dm": "decimeter decimeters",
    "cm": "centimeter centimeters centimetre centimetres", "mm": "millimeter millimeters millimetre millimetres",
    "in": "inch inches", "ft": "foot feet", "yd": "yard yards", "mi": "mile miles",
    "g": "gram grams", "kg": "kilogram kilograms", "mg": "milligram milligrams", "t": "ton tons tonne tonnes",
    "lb": "lbs pound pounds", "oz": "ounce ounces", "s": "sec secs second seconds", "ms": "millisecond milliseconds",
    "min": "mins minute minutes", "h": "hr hrs hour hours", "day": "days", "week": "weeks", "month": "months",
    "year": "years yr yrs", "l": "liter liters litre litres", "ml": "milliliter milliliters", "cl": "centiliter centiliters",
    "gal": "gallon gallons", "qt": "quart quarts", "dollar": "dollars usd", "cent": "cents",
    "mi/h": "mph", "km/h": "kmh kph",
}  # fmt: skip
_CANONICAL = {alias: unit for unit, aliases in _NAMES.items() for alias in (unit, *aliases.split())}
# Words that name a count and not a unit of their own; an answer may carry them or not.
_COUNTS = {"unit", "units", "people", "ways", "students", "times", "points", "solutions", "integers", "numbers", "coins", "apples", "books", "edges", "digits"}  # fmt: skip
PERCENT = {"percent", "percentage", "per cent", "pct", "%"}
DEGREES = {"degree", "degrees", "deg", "^\\circ", "^\\circ c", "^\\circ f"}
# Words that multiply the number before them.
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
# Words that say something about a number, so that "5 or more" is not 5 with a unit.
_NOT_UNITS = frozenset(
    """or and nor but more less fewer greater least most plus minus negative half halves thirds fourths fifths sixths eighths tenths hundredths thousandths squared cubed factorial root mod modulo
    over under above below to than between by out divided multiplied not no never none incorrect wrong false true maybe perhaps pi
    infinity if for when where is are was only all except unless january february march april may june july august september
    october november december""".split()
)
_LETTERS = frozenset("mgshtlLNJWVACFK")  # units of one letter; any other letter is an unknown


def is_unit_word(word: str) -> bool:
    """Whether a bare word after a number is a unit. Single letters are not: they may be unknowns."""
    word = word.casefold()
    return len(word) > 1 and (
        word in _CANONICAL or word in _COUNTS or word in SCALES or word in ("sq", "square", "cubic")
    )


def is_unit(text: str) -> bool:
    """Whether words in a text command after a number can name what is counted: no digits, signs, comparisons, denials."""
    if canonical_unit(text):
        return True
    text = re.sub(r"\s*\^\s*\{?[23]\}?$", "", text.strip(" .,;:"))
    words = [word for word in re.split(r"[\s/.'-]+", text) if word]
    if not words or re.search(r"\btimes (?!as\b|per\b|a\b)", text.casefold()):
        return False
    return all(
        word.isalpha()
        and word.casefold() not in _NOT_UNITS
        and (not re.fullmatch("[b-zB-Z]", word) or word in _LETTERS)
        for word in words
    )


def canonical_unit(text: str) -> str:
    """The unit named by a text ("square meters" -> "m^2", "miles per hour" -> "mi/h"); "" where it is none we know."""
    parts = re.split(r"\s*/\s*|\s+per\s+", re.sub(r"[{}()\\.,]", "", text.replace("**", "^")).strip(), maxsplit=1)
    units = [_one_unit(part) for part in parts]
    return "/".join(units) if all(units) else ""


def _one_unit(text: str) -> str:
    if len(text) > 1:
        text = text.casefold()
    power = ""
    if match := re.fullmatch(r"(square|squared|sq|cubic|cu)\s+(.*)", text):
        power, text = ("^2" if match.group(1).startswith("sq") else "^3"), match.group(2)
    elif match := re.fullmatch(r"(.*?)(?:\s*\^\s*([23])|\s+(squared|cubed))", text):
        power, text = "^" + (match.group(2) or ("2" if match.group(3) == "squared" else "3")), match.group(1)
    unit = _CANONICAL.get(text, "") or ("l" if text == "L" else "")
    return unit + power if unit else ""


def unit_ratio(left: str, right: str) -> Fraction | None:
    """How many `right` make one `left` (canonical units); 1 where one is unknown; None where they do not convert."""
    if left == right or not left or not right:
        return Fraction(1)
    tops, bottoms = zip(left.partition("/")[::2], right.partition("/")[::2], strict=True)
    factors = [_one_ratio(*tops), _one_ratio(*bottoms)]
    return None if None in factors else factors[0] / factors[1]


def _one_ratio(left: str, right: str) -> Fraction | None:
    if left == right:
        return Fraction(1)
    (left_unit, _, left_power), (right_unit, _, right_power) = left.partition("^"), right.partition("^")
    for sizes in _KINDS.values():
        if left_power == right_power and sizes.get(left_unit) and sizes.get(right_unit):
            return (Fraction(sizes[left_unit]) / Fraction(sizes[right_unit])) ** int(left_power or 1)
    return None
