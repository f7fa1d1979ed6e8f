"""Intervals and tests for accuracies over the same questions.

A method's results are a table `correct[question][rollout]` of booleans, every question with the same number k of rollouts.
Questions are the independent units: rollouts of one question are a cluster and never counted as if they were new questions.

    interval(table)            accuracy with a Wilson score interval (Wilson 1927); with k > 1 on the effective sample size
    paired_difference(a, b)    accuracy(b) - accuracy(a) with Newcombe's paired interval and the exact McNemar p
    pass_at_k, mean_at_k       over k rollouts, unbiased (Chen et al. 2021)
    smallest_difference(n, d)  what n questions can show between two methods (Connor 1987)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054  # 97.5 % point of the normal distribution: two-sided 95 %
Z80 = 0.8416212335729143  # 80 % point: the power usually asked of a comparison
LEAST_PAIRS = 6  # with fewer questions that differ, no exact two-sided McNemar p is below 0.05 (2 / 2**5 = 0.0625)
Table = Sequence[Sequence[bool]]


@dataclass(frozen=True)
class Difference:
    """`value` = accuracy of the second minus the first; `better`, `worse`: questions on which the second gained or lost."""

    value: float
    low: float
    high: float
    p: float
    better: int
    worse: int


def wilson(correct: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a proportion; `n` may be an effective sample size. No samples: (0, 1)."""
    if n <= 0:
        return 0.0, 1.0
    p = correct / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # The limits of 0 and n correct are 0 and 1 exactly; rounding must not leave the estimate outside its interval.
    return min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half))


def means(table: Table) -> list[float]:
    """Share of correct rollouts of each question."""
    return [sum(row) / len(row) for row in table]


def mean_at_k(table: Table) -> float:
    """Mean accuracy over questions and rollouts."""
    return sum(means(table)) / len(table) if table else 0.0


def effective_size(table: Table) -> float:
    """How many independent answers the table is worth: between its questions and its answers.

    p(1-p) / variance of the mean over questions, as in surveys with clusters (Korn and Graubard 1998). With one rollout, or
    where nothing varies, it is the number of questions.
    """
    n, k = len(table), max((len(row) for row in table), default=0)
    if n < 2 or k == 1:
        return float(n)
    shares = means(table)
    p = sum(shares) / n
    variance = sum((share - p) ** 2 for share in shares) / (n - 1) / n
    if variance == 0 or p in (0.0, 1.0):
        return float(n)
    return min(float(n * k), max(float(n), p * (1 - p) / variance))


def interval(table: Table, z: float = Z95) -> tuple[float, float]:
    """95 % interval of the accuracy: Wilson on the effective sample size (plain Wilson when k = 1)."""
    size = effective_size(table)
    return wilson(mean_at_k(table) * size, size, z)


def mcnemar_exact(better: int, worse: int) -> float:
    """Two-sided exact McNemar p: the sign test over questions on which two methods differ. No such question: 1."""
    n, low = better + worse, min(better, worse)
    tail = term = 1  # C(n, 0); the next ones by a step each, which stays fast for thousands of questions
    for i in range(low):
        term = term * (n - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**n)


def paired_difference(first: Table, second: Table, z: float = Z95) -> Difference:
    """Accuracy of `second` minus `first` over the same questions.

    Interval: Newcombe (1998, Statistics in Medicine 17, 2635-2650), method 10: the two Wilson intervals joined with the
    correlation of the pairs, its numerator reduced by the continuity correction. With several rollouts the same formula on
    question means and clustered Wilson limits (Zou and Donner 2008). p: exact sign test over questions, McNemar's when k = 1.
    """
    if len(first) != len(second):
        raise ValueError(f"paired methods must have the same questions, got {len(first)} and {len(second)}")
    a, b = means(first), means(second)
    better = sum(y > x for x, y in zip(a, b, strict=True))
    worse = sum(y < x for x, y in zip(a, b, strict=True))
    p1, p2 = mean_at_k(first), mean_at_k(second)
    (low1, high1), (low2, high2) = interval(first, z), interval(second, z)
    rho = _correlation(a, b)
    value = p2 - p1
    down, up = _join(p2 - low2, high1 - p1, rho), _join(high2 - p2, p1 - low1, rho)
    return Difference(value, max(-1.0, value - down), min(1.0, value + up), mcnemar_exact(better, worse), better, worse)


def discordance(first: Table, second: Table) -> float:
    """Mean squared difference of the question means: with one rollout, the share of questions on which two methods differ."""
    return sum((y - x) ** 2 for x, y in zip(means(first), means(second), strict=True)) / len(first) if first else 0.0


def unrelated_discordance(table: Table) -> float:
    """The discordance to expect between these results and those of as good a method whose faults are unrelated to them.

    Twice the variance of a question's share of correct rollouts: 2 p (1 - p) with one rollout.
    """
    if not table:
        return 0.0
    p = mean_at_k(table)
    return 2 * p * (1 - p) * len(table) / effective_size(table)


def smallest_difference(n: int, discordance: float, z: float = Z95, z_power: float = Z80) -> float | None:
    """The smallest true difference in accuracy that a paired test over `n` questions finds with 80 % power at p < 0.05.

    Connor (1987, Biometrics 43, 207-211), sample size of McNemar's test, solved for the difference d at a discordance D:
    n d^2 = (z sqrt(D) + z_power sqrt(D - d^2))^2. Where D is below d, all questions that differ do so in one direction and D
    is d. A normal approximation: the exact test has a little less power. None if no difference can be shown.
    """
    if n < LEAST_PAIRS:
        return None

    def shown(d: float) -> bool:
        share = max(discordance, d)
        return n * d * d >= (z * math.sqrt(share) + z_power * math.sqrt(max(0.0, share - d * d))) ** 2

    low, high = 0.0, 1.0
    if not shown(high):
        return None
    for _ in range(50):  # halvings: far below any digit that is told
        middle = (low + high) / 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def _join(x: float, y: float, rho: float) -> float:
    return math.sqrt(max(0.0, x * x - 2 * rho * x * y + y * y))


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of pairs with a positive covariance reduced by 1/(2n), not below 0 (Newcombe's correction of phi)."""
    n = len(a)
    if n == 0:
        return 0.0
    mean_a, mean_b = sum(a) / n, sum(b) / n
    spread = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) / n
    if spread == 0:
        return 0.0
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)) / n
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * n))
    return covariance / spread


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k of n rollouts, drawn without replacement, hold a correct one: 1 - C(n-c, k) / C(n, k)."""
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= correct <= n, got k={k}, n={n}, correct={correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def mean_pass_at_k(table: Table, k: int) -> float:
    """Unbiased pass@k, averaged over questions."""
    return sum(pass_at_k(len(row), sum(row), k) for row in table) / len(table) if table else 0.0
