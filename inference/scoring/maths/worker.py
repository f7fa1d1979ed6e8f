"""The worker process: reads pairs of answers as JSON lines on stdin, answers with JSON lines on stdout.

For each pair a line with the numeric verdict, and, where the sides agree, a second one after exact confirmation. The
parent ends a worker that takes too long; a verdict that stands by then counts.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from inference.scoring.maths.compare import compare_trees
from inference.scoring.maths.judge import NumericJudge
from inference.scoring.maths.limits import WORKER_BYTES


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system; the time limit still holds
        return
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_BYTES, WORKER_BYTES))


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until the input ends."""

    def reply(**fields: object) -> None:
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    # The first exact confirmation loads parts of sympy; nobody's answer should pay for that.
    warm = NumericJudge()
    compare_trees(r"\sqrt{8}", r"2\sqrt{2}", warm)
    warm.confirm()
    reply(ready=True)
    for line in requests:
        left, right = json.loads(line)
        judge = NumericJudge()
        try:
            outcome = compare_trees(left, right, judge)
        except (MemoryError, RecursionError) as error:
            reply(equal=False, rule=f"limit: {type(error).__name__}", status="too_large", final=True)
            continue
        except Exception as error:  # a fault of the engine must not end the run; the status counts it
            reply(equal=False, rule=f"{type(error).__name__}", status="error", final=True)
            continue
        assert outcome is not None  # the numeric judge decides every pair
        if not outcome.equal or not judge.agreed:
            rule = outcome.rule if outcome.status != "ok" or outcome.rule == "text" else "numeric"
            reply(equal=outcome.equal, rule=rule, status=outcome.status, final=True)
            continue
        reply(equal=True, rule="numeric", status="ok", final=False)
        try:
            proof = judge.confirm()
        except Exception:  # sympy fails in many ways on unusual input; the numeric verdict then stands
            proof = None
        reply(equal=proof is not False, rule="numeric" if proof is None else "exact", status="ok", final=True)


if __name__ == "__main__":
    _limit_memory()
    serve(sys.stdin, sys.stdout)
