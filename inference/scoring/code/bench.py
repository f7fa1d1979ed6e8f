"""How fast stdin tasks are graded: 200 programs with 10 tests each, with several workers and with one.

python -m inference.scoring.code.bench
python -m inference.scoring.code.bench --programs 40 --workers 4
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tqdm import tqdm

from inference.scoring.code.runner import CodeRunner
from inference.scoring.code.task import CodeTask

_PROGRAM = """```python
n = int(input())
numbers = list(map(int, input().split()))
assert len(numbers) == n
print(sum(number * (number + {shift}) for number in numbers))
print(*sorted(set(numbers)))
```"""


def pairs(programs: int, tests: int) -> list[tuple[str, CodeTask]]:
    """Right programs with their tests; every tenth program fails its last test."""
    made = []
    for index in range(programs):
        cases = []
        for test in range(tests):
            numbers = [(index * 31 + test * 17 + place * 7) % 1000 for place in range(50)]
            total = sum(number * (number + index) for number in numbers)
            wrong = index % 10 == 9 and test == tests - 1
            cases.append(
                (
                    f"50\n{' '.join(map(str, numbers))}\n",
                    f"{total + wrong}\n{' '.join(map(str, sorted(set(numbers))))}\n",
                )
            )
        made.append((_PROGRAM.format(shift=index), CodeTask("stdin", cases=cases)))
    return made


def measure(work: list[tuple[str, CodeTask]], workers: int) -> tuple[float, int, str]:
    """Seconds, programs that pass, and the sandbox layer."""
    with CodeRunner(workers) as runner:
        start = time.perf_counter()
        passed = 0
        with tqdm(total=len(work), desc=f"{workers} workers", file=sys.stderr) as bar:
            for begin in range(0, len(work), 20):
                passed += sum(verdict.correct for verdict in runner.grade_many(work[begin : begin + 20]))
                bar.update(min(20, len(work) - begin))
        return time.perf_counter() - start, passed, runner.sandbox


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    work = pairs(args.programs, args.tests)
    runs = args.programs * args.tests
    one, passed, layer = measure(work, 1)
    many, passed_again, _ = measure(work, args.workers)
    if passed != passed_again:
        raise SystemExit(f"{passed} programs pass with one worker and {passed_again} with {args.workers}")
    print(f"{args.programs} programs, {args.tests} tests each, sandbox {layer}: {passed} pass")
    print(f"1 worker:   {one:7.1f} s  {1000 * one / runs:6.1f} ms a test")
    print(f"{args.workers} workers:  {many:7.1f} s  {1000 * many / runs:6.1f} ms a test  speed-up {one / many:.2f}")
    summary = {
        "sandbox": layer,
        "programs": args.programs,
        "tests": args.tests,
        "passed": passed,
        "workers": args.workers,
    }
    print(
        json.dumps(
            {**summary, "seconds_one": round(one, 2), "seconds": round(many, 2), "speed_up": round(one / many, 2)}
        )
    )


if __name__ == "__main__":
    main()
