"""Pairs of answers that are, or are not, the same; each in both directions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference.scoring.maths import ComparePool, equivalent

SAME = {
    "numbers": r"""
        1.5e3 = 1500 ; 3\times10^8 = 300000000 ; 1.5\cdot10^{-3} = 0.0015 ; 007 = 7 ; -0 = 0 ; 1,234,567 = 1234567
        1,234.5 = 1234.5 ; 24,112 = 24, 112 ; 0.\overline{12} = \frac{4}{33} ; 0.1\overline{6} = 1/6 ; ½ = 0.5
        -2\frac12 = -2.5 ; 2 1/2 = 5/2 ; \frac{10!}{8!} = 90 ; 2^{10} = 1024 ; \dfrac{1}{1+\frac{1}{2}} = 2/3
        1.41421356 = \sqrt2 ; 0.333333 = 1/3 ; \infty = +\infty ; |{-3}| = 3 ; \lfloor 2.5\rfloor = 2 ; \binom{5}{2} = 10""",
    "roots and functions": r"""
        \sqrt{50} = 5\sqrt2 ; \frac{1}{\sqrt{2}} = \frac{\sqrt{2}}{2} ; \sqrt[3]{-8} = -2 ; √2 = \sqrt{2}
        \sqrt{3+2\sqrt2} = 1+\sqrt2 ; e^{i\pi} = -1 ; \ln e^2 = 2 ; \log_2 8 = 3 ; \sin 30^\circ = 1/2
        \cos\frac{\pi}{3} = 1/2 ; \tan^{-1}(1) = \frac{\pi}{4} ; 2i = \sqrt{-4} ; 8(\sqrt[10]{2^{7}}) = 2^{37/10}""",
    "algebra": r"""
        (x+1)(x-1) = x^2-1 ; xy = yx ; \frac{x^2-1}{x-1} = x+1 ; \frac1x+\frac1y = \frac{x+y}{xy} ; e^{x+y} = e^x e^y
        \sin^2 x+\cos^2 x = 1 ; 2^x\cdot 2^x = 4^x ; \log(x^2) = 2\log x ; \sqrt{x^2} = |x| ; -1/2x = -\frac{x}{2}
        cab = abc ; xyz = zyx ; πr² = \pi r^2 ; \sqrt{q/s} = \frac{\sqrt{q}}{\sqrt{s}}""",
    "dress": r"""
        \color{red}42 = 42 ; \color{red}{42} = 42 ; \textcolor{blue}{42} = 42 ; \large 42 = 42 ; \text{The answer is }42 = 42
        \text{The final answer is 42} = 42 ; \text{minus }5 = -5 ; negative 5 = -5 ; 4^{\text{th}} = 4 ; 4\text{th} = 4 ; 4^{th} = 4""",
    "units": r"""
        10 cm = 10 ; 10\text{ cm} = 0.1\text{ m} ; 5 apples = 5 ; 5\text{ square units} = 5 ; 60 miles per hour = 60
        576\pi\;m^{2} = 576\pi ; 36\sqrt{7}cm^{3} = 36\sqrt{7} ; 5 dollars = 500\text{ cents} ; 1:58 am = 1:58 a.m.
        5am = 5:00 AM ; 42\text{ million} = 42000000 ; 42 million = 42,000,000 ; 3\text{ dozen} = 36 ; 2 dozen eggs = 24
        1.5\text{ million dollars} = 1500000 ; 3\text{ hundred thousand} = 300000 ; 36 km/h = 10\text{ m/s} ; 60 mph = 60 miles per hour
        5\text{ km}/\text{h} = 5 km/h ; 5\text{ meters squared} = 5\text{ m}^2 ; 25 m^2 = 25 ; 5 m = 5 ; 9.8 m/s^2 = 9.8
        5\text{ (cm)} = 5 ; 5\text{ sq. units} = 5 ; 5\text{个} = 5 ; 3\text{ times as many} = 3 ; \frac34\text{ of the total} = \frac34
        5\text{ pi} = 5\pi ; 5\text{x} = 5x ; 20 June = \text{June 20} ; June 20th, 1999 = 20 June 1999 ; 50\% = \frac12 ; 12.5\% = 12.5 ; 90^\circ = \frac{\pi}{2} ; 45 degrees = 45 ; 3:4 = 6:8 ; 3:4 = 3/4""",
    "sets and lists": r"""
        2,3 = \{3,2\} ; 3,2 = (3,2) ; x\in\{1,2\} = 2,1 ; \pm\sqrt2 = \sqrt2,-\sqrt2 ; \frac12\text{ or }0.5 = 0.5
        [1,2]\cup[2,3] = [1,3] ; (1,2)\cup\{2\} = (1,2] ; \mathbb{R} = (-\infty,\infty) ; \emptyset = \text{No solution.}
        \langle 1,2,3\rangle = (1,2,3) ; \begin{pmatrix}1\\2\end{pmatrix} = (1,2) ; (1,2),(3,4) = \{(3,4),(1,2)\}
        \pm1\pm i = 1+i,1-i,-1+i,-1-i ; \pm1\mp i = 1-i,-1+i ; \text{all real numbers} = (-\infty,\infty)
        \{x\in\mathbb{R}|x>2\} = (2,\infty) ; \{x\in\mathbb{Z}|x>2\} = \{n\in\mathbb{Z}:2<n\}
        \begin{pmatrix}1&2\\3&4\end{pmatrix} = [[1,2],[3,4]] ; \begin{pmatrix}1/2\\1\end{pmatrix} = \frac12\begin{pmatrix}1\\2\end{pmatrix}
        -\begin{pmatrix}1\\2\end{pmatrix} = (-1,-2) ; \text{SE} = SE ; \text{HTH} = HTH ; \mathrm{AB} = AB
        \begin{bmatrix}1&2\end{bmatrix} = \begin{pmatrix}1&2\end{pmatrix} ; \text{A and B} = B, A""",
}  # fmt: skip
SAME_RELATIONS = [
    (r"x=2 \text{ or } x=3", "2,3"), ("x=1,y=2", "(1,2)"), ("y=2,x=1", "x=1,y=2"), ("x = 2, -2", r"\pm 2"), ("5=x", "x=5"),
    (r"x \neq 0", r"(-\infty,0)\cup(0,\infty)"), (r"x \neq 0", r"\mathbb{R}\setminus\{0\}"), ("2x+1<3", "x<1"),
    (r"x<1 \text{ or } x>3", r"(-\infty,1)\cup(3,\infty)"), (r"\{x\mid -2\leq x<1\}", "[-2,1)"), (r"1<2x+1\le 3", "(0,1]"),
    ("3>x>1", "(1,3)"), ("y=2x+1", "2x-y+1=0"), ("y=2x+1", "2x+1"), ("f(x)=2x", "2x"), ("xy=1", r"y=\frac1x"),
    ("b>a>c", "c<a<b"), ("|AB|=4", "4"), (r"\text{Area}=5", "5"), (r"P(A)=\frac12", "0.5"), ("a_n=2n+1", "2n+1"),
    (r"|x|\le 5", r"-5\le x\le 5"), (r"|x-1|<2", "(-1,3)"), (r"|x|>2", r"x<-2 \text{ or } x>2"), ("x^2<4", "-2<x<2"),
    (r"x^2\ge 5", r"x\le-\sqrt5 \text{ or } x\ge\sqrt5"), (r"x \ne \pm5", r"(-\infty,-5)\cup(-5,5)\cup(5,\infty)"),
    (r"x\in\{1,2\}", r"x=1 \text{ or } x=2"), (r"x\in\{1,2\}", "x=2, x=1"), (r"\angle ABC=50", "50"), (r"\text{(1)(3)}", "(1)(3)"), ("Yes!", "yes"), ("5?", "5"), ("|AB|=4", "AB=4"), ("|x|=5", "5"),
]  # fmt: skip
DIFFERENT = [
    ("3/4", "1/4"), ("x^2+1", "2"), ("-0.5", "0.9"), ("0.33", "1/3"), ("3.14", r"\pi"), ("5", "-5"), ("x", "y"), ("", "5"),
    ("0.1", "0.10001"), ("99999999999", "99999999998"), ("3.0000001", "3"), ("24112", "24, 112"), ("1000", "1"),
    (r"1 + 10^{-60}\pi", "1"), (r"\frac{1}{\pi 10^{60}}", "0"), ("x+10^{-90}", "x"), (r"\sqrt{x^2}", "x"), (r"\sin(x)", "x"),
    ("(0,1)", "[0,1]"), ("[0,1)", "(0,1]"), (r"\{1,2\}", "(1,2)"), ("1", "1,2"), ("(1,2)", "(2,1)"), ("2,2", "2"),
    ("x<1", r"x\le 1"), ("x<1", "x>1"), ("0<x<1", "0<y<1"), ("x=5", "y=5"), ("AB=4", "CD=4"), ("x=2", "x=2,3"), ("y=2x", "y=3x"),
    ("4,5", "AB=5,CD=4"), (r"10\text{ cm}", r"10\text{ m}"), ("5am", "5pm"), ("1:2", "2:1"), ("204_5", "204_6"), ("204_5", "204"),
    ("2", "2x"), ("i", "1"), ("2 125/300", "2125/300"), (r"\text{even}", r"\text{odd}"), (r"\text{Evelyn}", r"\text{Eve}"),
    (r"\frac{1}{0}", "0"), ("2^{2^{2^{49}}}", "2^{2^{2^{48}}}"), ("(10^{10})!", "1"), (r"\sin(10^{10^{10}})", "0"), ("12", "(3)(4)"),
    # words are no products of letters
    (r"\text{red}", r"\text{der}"), (r"\text{red}", "der"), (r"\text{SE}", r"\text{ES}"), (r"\text{ab}", r"\text{ba}"), ("CAB", "ABC"),
    ("SAS", "SSA"), ("HTH", "THH"), ("XI", "IX"), ("AAA", "A^3"), ("A, CAB", "A, ABC"), (r"\text{M4}", r"\text{4M}"), (r"\angle ABC", r"\angle CAB"),
    # words after a number that are no units
    ("42", r"42\text{ million}"), ("42", "42 million"), ("1.5 million", "1.5 billion"), ("3", r"3\text{ dozen}"), ("5", r"5\text{ or less}"),
    ("42", r"42 \text{ or more}"), ("42", "42 or more"), ("5", r"5\text{ plus 1}"), ("5", r"5\text{ times 6}"), ("5", r"5\text{ times six}"),
    ("5", r"5\text{ and a half}"), ("5", r"5\text{ factorial}"), ("5", r"5\text{ squared}"), ("5", "5 squared"), ("5", r"5\text{x}"), ("5", r"5\text{ pi}"),
    ("5", r"5\text{ (incorrect)}"), ("5", r"5 \text{ false}"), ("5", r"\text{not }5"), ("5", r"5\text{+}"), ("5", r"5\text{!}"), ("5", r"5\text{ tenths}"),
    ("5", r"5\text{ cm}/2"), ("5", "5x"), ("5", "5m"), ("20", "20 June"), ("20 June", "20 July"), ("20 June 1999", "20 June 2000"),
    ("60 mph", "60 km/h"), (r"5\text{ m/s}", r"5\text{ m/s}^2"), (r"5\text{ km}", r"5\text{ kg}"), ("10 minutes", "10 hours"),
    # sets and their neighbours
    (r"\{x\in\mathbb{Z}|x>2\}", r"(2,\infty)"), (r"\{n\in\mathbb{N}:n>2\}", r"\{x\in\mathbb{R}:x>2\}"), (r"\{x\in\mathbb{Z}^+|x>2\}", "x>2"),
    (r"\{\emptyset\}", r"\emptyset"), (r"\pm1\pm i", "1+i,-1-i"), (r"\pm1\mp i", "1+i,1-i,-1+i,-1-i"), ("|x|=5", "x=5"), (r"|x|\le5", r"x\le5"),
    (r"|x|\le5", "[0,5]"), ("x^2<4", "x<2"), ("x^3<8", "-2<x<2"), (r"x\in\{1,2\}", r"y=1 \text{ or } y=2"), (r"x\in\{1,2\}", "x=1,y=2"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,3],[2,4]]"), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[1,2,3,4]"),
    (r"2\begin{pmatrix}1\\2\end{pmatrix}", "(2,2)"), (r"\text{all real numbers}", r"(0,\infty)"),
]  # fmt: skip
PAIRS = [
    tuple(pair.strip().split(" = "))
    for lines in SAME.values()
    for pair in lines.replace("\n", " ; ").split(" ; ")
    if pair.strip()
]


@pytest.fixture(scope="module")
def pool() -> Iterator[ComparePool]:
    with ComparePool() as opened:
        yield opened


def _spaced(pair: tuple[str, ...]) -> str:
    return "  vs  ".join(pair)


@pytest.mark.parametrize("pair", [*PAIRS, *SAME_RELATIONS], ids=_spaced)
def test_same(pair: tuple[str, str], pool: ComparePool) -> None:
    assert equivalent(*pair, pool).equal
    assert equivalent(*reversed(pair), pool).equal


@pytest.mark.parametrize("pair", DIFFERENT, ids=_spaced)
def test_different(pair: tuple[str, str], pool: ComparePool) -> None:
    assert not equivalent(*pair, pool).equal
    assert not equivalent(*reversed(pair), pool).equal


def test_rules_name_the_means(pool: ComparePool) -> None:
    assert equivalent("1 000", "1000", pool).rule == "string"
    assert equivalent("0.5", "1/2", pool).rule == "rational"
    assert equivalent("Odd", r"\text{odd}", pool).rule == "text"
    assert equivalent(r"\sqrt{8}", r"2\sqrt{2}", pool).rule == "exact"
    assert equivalent(r"\sqrt{8}", "3", pool).rule == "numeric"
