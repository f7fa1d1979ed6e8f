"""Bad data (benchmark rows, gold answers, tool settings), and results of tool calls that failed."""


class DataError(ValueError):
    """Bad data, told in one sentence: which file and row or flag, what was found, what was expected, what to do."""


class FailedResult(str):
    """The result text of a tool call that failed: an error, a timeout, an exit code. It is no evidence for any answer.

    A mark on the text, as what a tool finds may itself read like an error.
    """
