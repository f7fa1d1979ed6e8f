"""Statistics against enumeration and published numbers."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scoring import statistics as s


@pytest.mark.parametrize(
    "correct, n, low, high",
    # Newcombe (1998), Statistics in Medicine 17, 857-872, table I, Wilson without correction.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_published(correct, n, low, high):
    assert s.wilson(correct, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_is_the_inverted_score_test():
    for n, correct in [(7, 0), (7, 3), (30, 29), (400, 380)]:
        p = correct / n
        for limit in s.wilson(correct, n):
            if limit not in (0.0, 1.0):
                assert abs(p - limit) / math.sqrt(limit * (1 - limit) / n) == pytest.approx(s.Z95)


def test_mcnemar_equals_enumeration_of_all_sign_patterns():
    for n in range(9):
        for better in range(n + 1):
            gap = abs(better - (n - better))
            patterns = list(itertools.product((1, -1), repeat=n))
            as_extreme = sum(abs(sum(pattern)) >= gap for pattern in patterns)
            assert s.mcnemar_exact(better, n - better) == pytest.approx(as_extreme / len(patterns))


def test_pass_at_k_equals_enumeration_of_draws():
    for n in range(1, 7):
        for correct in range(n + 1):
            rollouts = [i < correct for i in range(n)]
            for k in range(1, n + 1):
                draws = list(itertools.combinations(rollouts, k))
                assert s.pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="1 <= k <= n"):
        s.pass_at_k(3, 1, 4)


def pair_tables(a: int, b: int, c: int, d: int) -> tuple[list, list]:
    """a: both right, b: only the first, c: only the second, d: none."""
    first = [[True]] * (a + b) + [[False]] * (c + d)
    second = [[True]] * a + [[False]] * b + [[True]] * c + [[False]] * d
    return first, second


def newcombe_10(a: int, b: int, c: int, d: int) -> tuple[float, float]:
    """Newcombe's method 10 from its table form, for second minus first."""
    n = a + b + c + d
    p1, p2 = (a + c) / n, (a + b) / n  # p1: the second method
    (l1, u1), (l2, u2) = s.wilson(a + c, n), s.wilson(a + b, n)
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    cross = a * d - b * c
    phi = 0.0 if margins == 0 else (max(cross - n / 2, 0) if cross > 0 else cross) / math.sqrt(margins)
    down = math.sqrt((p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2)
    up = math.sqrt((u1 - p1) ** 2 - 2 * phi * (u1 - p1) * (p2 - l2) + (p2 - l2) ** 2)
    return p1 - p2 - down, p1 - p2 + up


@pytest.mark.parametrize(
    "cells", [(20, 2, 12, 16), (5, 0, 0, 5), (10, 0, 0, 0), (0, 6, 9, 0), (36, 12, 2, 0), (1, 1, 1, 1)]
)
def test_paired_difference_is_newcombes_method_10(cells):
    diff = s.paired_difference(*pair_tables(*cells))
    low, high = newcombe_10(*cells)
    assert (diff.low, diff.high) == pytest.approx((max(-1, low), min(1, high)))
    assert diff.value == pytest.approx((cells[2] - cells[1]) / sum(cells))
    assert diff.p == s.mcnemar_exact(cells[2], cells[1])


def test_paired_difference_published():
    # Newcombe (1998), Statistics in Medicine 17, 2635-2650, table II, method 10.
    diff = s.paired_difference(*pair_tables(36, 12, 2, 0))
    assert (diff.value, diff.low, diff.high) == pytest.approx((-0.2, -0.3404, -0.0569), abs=5e-5)


def power(n: int, share: float, difference: float) -> float:
    """Exact power of the exact McNemar test at 5 %: all numbers of questions that differ, and all ways in which they do."""
    better = (share + difference) / (2 * share)  # of the questions that differ
    total = 0.0
    for m in range(n + 1):
        rejected = sum(
            math.comb(m, b) * better**b * (1 - better) ** (m - b)
            for b in range(m + 1)
            if s.mcnemar_exact(b, m - b) < 0.05
        )
        total += math.comb(n, m) * share**m * (1 - share) ** (n - m) * rejected
    return total


@pytest.mark.parametrize("n, share", [(12, 0.0), (30, 0.1), (30, 0.5), (60, 0.2), (100, 0.5)])
def test_smallest_difference_has_the_power_that_it_says(n, share):
    """The formula is an approximation: exact power lies a little below 80 %; at half the difference it is far below."""
    found = s.smallest_difference(n, share)
    assert 0.65 < power(n, max(share, found), found) < 0.82
    assert power(n, max(share, found / 2), found / 2) < 0.45


def test_smallest_difference_inverts_the_sample_size():
    # n = (1.96 sqrt(0.3) + 0.8416 sqrt(0.3 - 0.01))^2 / 0.01 = 233.1 for 10 % against 20 % of the pairs
    assert s.smallest_difference(233, 0.3) == pytest.approx(0.1, abs=1e-4)
    assert s.smallest_difference(400, 0.3) < s.smallest_difference(200, 0.3) < s.smallest_difference(200, 0.6)
    # Fewer than six questions cannot give p < 0.05, whatever the answers.
    assert s.mcnemar_exact(5, 0) > 0.05 > s.mcnemar_exact(6, 0)
    assert s.smallest_difference(5, 0.5) is None and s.smallest_difference(6, 0.0) > 0.8


def test_discordance():
    first, second = pair_tables(3, 2, 4, 1)
    assert s.discordance(first, second) == pytest.approx(0.6)
    assert s.discordance([[True, False]], [[True, True]]) == 0.25 and s.discordance([], []) == 0.0
    # What unrelated faults would give, by drawing them.
    rng = random.Random(2)
    rows = [[rng.random() < 0.7] for _ in range(4000)]
    others = [[rng.random() < 0.7] for _ in range(4000)]
    assert s.unrelated_discordance(rows) == pytest.approx(s.discordance(rows, others), abs=0.03)
    rows, others = ([[rng.random() < 0.5 for _ in range(4)] for _ in range(4000)] for _ in range(2))
    assert s.unrelated_discordance(rows) == pytest.approx(s.discordance(rows, others), abs=0.01)
    assert s.unrelated_discordance([]) == 0.0


def test_mcnemar_of_many_questions():
    assert s.mcnemar_exact(6, 16) == pytest.approx(2 * sum(math.comb(22, i) for i in range(7)) / 2**22)
    assert s.mcnemar_exact(5000, 5000) == 1.0 and s.mcnemar_exact(5000, 4700) == s.mcnemar_exact(4700, 5000)
    # The normal approximation with continuity correction.
    z = (300 - 1) / math.sqrt(9700)
    assert s.mcnemar_exact(5000, 4700) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-2)
    assert s.mcnemar_exact(4000, 0) == 0.0


def test_paired_interval_covers():
    """Exact coverage by enumerating every table of n pairs: about 95 % for several truths."""
    n = 20
    for a, b, c in [(0.5, 0.1, 0.1), (0.6, 0.05, 0.25), (0.3, 0.2, 0.4), (0.8, 0.1, 0.05)]:
        d, covered = 1 - a - b - c, 0.0
        for i, j, k in itertools.product(range(n + 1), repeat=3):
            rest = n - i - j - k
            if rest < 0:
                continue
            ways = math.comb(n, i) * math.comb(n - i, j) * math.comb(n - i - j, k)
            low, high = newcombe_10(i, j, k, rest)
            covered += ways * a**i * b**j * c**k * d**rest if low <= c - b <= high else 0.0
        assert 0.93 <= covered <= 0.99


def test_rollouts_of_a_question_are_not_new_questions():
    alike = [[True] * 10] * 12 + [[False] * 10] * 8  # ten copies of one answer are worth one
    single = [[True]] * 12 + [[False]] * 8
    assert s.interval(alike) == pytest.approx(s.interval(single))
    rng = random.Random(0)
    free = [[rng.random() < 0.6 for _ in range(10)] for _ in range(200)]
    size = s.effective_size(free)
    assert 1500 < size <= 2000
    assert s.interval([[True] * 4] * 5) == s.wilson(5, 5)
    diff = s.paired_difference(alike, [[True] * 10] * 20)
    assert (diff.better, diff.worse, diff.value) == (8, 0, pytest.approx(0.4))


def test_clustered_interval_covers():
    rng = random.Random(1)
    hits = 0
    for _ in range(400):
        rates = [rng.betavariate(1.2, 0.8) for _ in range(40)]
        low, high = s.interval([[rng.random() < rate for _ in range(5)] for rate in rates])
        hits += low <= 0.6 <= high
    assert hits / 400 > 0.92


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=30), st.randoms())
def test_estimates_lie_inside_their_intervals(table, rng):
    low, high = s.interval(table)
    assert 0 <= low <= s.mean_at_k(table) <= high <= 1
    other = [rng.sample(row, 3) for row in table]
    same = s.paired_difference(table, other)
    assert same.low <= same.value <= same.high and same.value == pytest.approx(0) and same.p == 1
    assert s.mean_pass_at_k(table, 1) == pytest.approx(s.mean_at_k(table))
    assert s.mean_pass_at_k(table, 3) == pytest.approx(sum(map(any, table)) / len(table))


def test_nothing_asked():
    assert s.interval([]) == (0.0, 1.0) and s.mean_at_k([]) == 0.0 and s.mean_pass_at_k([], 1) == 0.0
    with pytest.raises(ValueError, match="same questions"):
        s.paired_difference([[True]], [])
