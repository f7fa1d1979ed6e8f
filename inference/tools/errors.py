"""The error of everything that reads data: benchmark rows, gold answers, tool settings."""


class DataError(ValueError):
    """Bad data, told in one sentence: which file and row or flag, what was found, what was expected, what to do."""
