"""Errors that a user can mend, and how a command line shows them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable


class InputError(ValueError):
    """Bad input, told in one sentence: which file or flag, what was found, what was expected, what to do."""


def exit_on_input_error(main: Callable[[], int | None], *kinds: type[Exception]) -> None:
    """Run `main` as a program: an `InputError` (or one of `kinds`) ends it with one line on stderr and exit code 2.

    Any other exception is a fault of the program and keeps its traceback.
    """
    # The hub client's notes on its retries would stand before the sentence, and say less. It may be imported already or not.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        code = main()
    except (InputError, *kinds) as err:
        sys.stdout.flush()
        print("error: " + " ".join(str(err).split()), file=sys.stderr)
        code = 2
    sys.exit(code or 0)
