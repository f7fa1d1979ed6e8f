"""Miniatures of the benchmarks: a few made-up rows each, in the columns, file names and formats of the hub's datasets.

add_benchmarks(hub.folder)             # repos for a `tests.mini_hub.MiniHub`
ROWS["math500"]                        # the rows as they are in its files
SOLUTIONS["livecodebench"]             # right answers where the data has none
"""

from __future__ import annotations

import base64
import csv
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]


def _math500() -> list[Row]:
    table = [
        ("What is $\\frac{1}{4} + \\frac{1}{2}$?", "\\frac{3}{4}", "Prealgebra", 1),
        ("Solve $2x - 7 = 9$ for $x$.", "8", "Algebra", 1),
        ("Write $\\sqrt{50}$ in simplest radical form.", "5\\sqrt{2}", "Algebra", 2),
        ("Find the interval on which $t^2 < 4$.", "(-2, 2)", "Intermediate Algebra", 3),
        ("How many subsets does a set of ten elements have?", "1024", "Counting & Probability", 2),
        ("Convert the point $(0, 3)$ to polar coordinates.", "\\left( 3, \\frac{\\pi}{2} \\right)", "Precalculus", 2),
        ("What is the remainder of $7^{30}$ divided by $6$?", "1", "Number Theory", 4),
    ]
    return [
        {
            "problem": problem, "solution": f"We find $\\boxed{{{answer}}}$.", "answer": answer, "subject": subject, "level": level,
            "unique_id": f"test/{subject.lower().replace(' ', '_')}/{n}.json",
        }
        for n, (problem, answer, subject, level) in enumerate(table)
    ]  # fmt: skip


def _aime(words: str) -> list[tuple[str, int]]:
    return [(f"{words} {n}: find the number of ways to order {n + 3} lamps so that lamp 1 is first.", _factorial(n + 2)) for n in range(6)]  # fmt: skip


def _factorial(n: int) -> int:
    return n * _factorial(n - 1) if n else 1


def _gpqa() -> list[Row]:
    table = [
        ("Which particle carries the strong force?", "The gluon", ["The photon", "The W boson", "The graviton"], "Physics"),
        ("Which base pairs with adenine in RNA?", "Uracil", ["Thymine", "Guanine", "Cytosine"], "Biology"),
        ("What is the hybridisation of carbon in methane?", "sp3", ["sp", "sp2", "dsp2"], "Chemistry"),
        ("Which quantity does a Michelson setup compare?", "Optical path lengths", ["Masses", "Spins", "Charges"], "Physics"),
        ("Which organelle has its own circular DNA?", "The mitochondrion", ["The ribosome", "The vacuole", "The centriole"], "Biology"),
        ("Which gas evolves when zinc meets dilute acid?", "Hydrogen", ["Oxygen", "Chlorine", "Nitrogen"], "Chemistry"),
    ]  # fmt: skip
    return [
        {
            "Pre-Revision Question": "", "Question": question, "Correct Answer": correct + "\n", "Incorrect Answer 1": wrong[0],
            "Incorrect Answer 2": wrong[1], "Incorrect Answer 3": wrong[2], "Explanation": "From a text book.",
            "Subdomain": f"{domain} (general)", "High-level domain": domain, "Record ID": f"rec{n:04d}",
        }
        for n, (question, correct, wrong, domain) in enumerate(table)
    ]  # fmt: skip


def _medqa() -> list[Row]:
    table = [
        ("A child barks when coughing at night.", ["Croup", "Asthma", "C. difficile colitis", "Measles"], "A"),
        ("Diarrhoea after clindamycin in a ward.", ["Croup", "E. coli", "C. difficile colitis", "Giardiasis"], "C"),
        ("A farmer has a black, painless eschar.", ["Plague", "Anthrax", "Tularaemia", "Brucellosis"], "B"),
        ("A runner feels heel pain at first steps.", ["Gout", "Stress fracture", "Bursitis", "Plantar fasciitis"], "D"),
        ("A sailor's gums bleed after months at sea.", ["Scurvy", "Pellagra", "Beriberi", "Rickets"], "A"),
        ("A baker wheezes at work only.", ["Sarcoidosis", "Occupational asthma", "Angina", "Pneumonia"], "B"),
    ]
    return [
        {
            "question": question, "answer": options["ABCD".index(letter)], "options": dict(zip("ABCD", options, strict=True)),
            "meta_info": "step1" if n % 2 else "step2&3", "answer_idx": letter, "metamap_phrases": question.lower().split(),
        }
        for n, (question, options, letter) in enumerate(table)
    ]  # fmt: skip


def medqa_local() -> list[Row]:
    """The same questions in the format of the reference's own file, which names the answer by its text."""
    return [
        {
            "idx": n, "question": row["question"], "options": list(row["options"].values()), "answer": row["answer"],
            "query": row["question"] + "\n" + "\n".join(f"{k}: {v}" for k, v in row["options"].items()),
            "gen_text_store": "", "pid": n, "image": None,
        }
        for n, row in enumerate(ROWS["medqa"])
    ]  # fmt: skip


# In the shape of the plus tests: helpers, inputs, results and a loop that calls the function.
_PLUS = """import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)) and x:
        return all(isinstance(i, float) for i in x)
    return isinstance(x, np.ndarray) and x.dtype in (np.float64, np.float32)

def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp, f"out: {{out}}, exp: {{exp}}"

inputs = {inputs}
results = {results}
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion({name}(*inp), exp, 0)
"""


def _mbppplus() -> list[Row]:
    table = [
        ("common_items", "Write a function to find the items that two tuples share.",
         "def common_items(a, b):\n    return tuple(sorted(set(a) & set(b)))", [((1, 2, 3), (2, 3, 4)), ((5,), (6,)), ((1, 1), (1,))]),
        ("is_woodall", "Write a function to check whether a number has the form k * 2**k - 1.",
         "def is_woodall(n):\n    return any(k * 2**k - 1 == n for k in range(1, 64))", [(1,), (7,), (8,), (23,), (-1,)]),
        ("mean_of", "Write a function to find the mean of a list of numbers, 0 for an empty one.",
         "def mean_of(xs):\n    return sum(xs) / len(xs) if xs else 0", [([1, 2],), ([0.1, 0.2],), ([],)]),
        ("reverse_words", "Write a function to reverse the order of the words of a text.",
         "def reverse_words(text):\n    return ' '.join(reversed(text.split()))", [("a b c",), ("",), ("one",)]),
        ("largest", "Write a function to find the n largest items of a list, in descending order.",
         "import heapq\n\ndef largest(xs, n):\n    return heapq.nlargest(n, xs)", [([3, 1, 2], 2), ([1], 1), ([2, 2, 5], 3)]),
        ("digits_sum", "Write a function to add the digits of a whole number, whatever its sign.",
         "def helper(c):\n    return int(c)\n\ndef digits_sum(n):\n    return sum(helper(c) for c in str(abs(n)))", [(123,), (-45,), (0,)]),
    ]  # fmt: skip
    rows = []
    for n, (name, prompt, code, inputs) in enumerate(table):
        space: dict[str, Any] = {}
        exec(code, space)
        results = [space[name](*given) for given in inputs]
        shown = [
            f"assert {name}({', '.join(map(repr, given))}) == {result!r}"
            for given, result in zip(inputs, results, strict=True)
        ]
        rows.append({
            "task_id": n + 2, "code": code, "prompt": prompt, "source_file": "Made up.ipynb", "test_imports": [], "test_list": shown,
            "test": _PLUS.format(inputs=[list(given) for given in inputs], results=results, name=name),
        })  # fmt: skip
    return rows


def packed(tests: Any, as_text: bool = True) -> str:
    """Private tests as the hub has them: base64 of zlib of a pickle of JSON text."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests) if as_text else tests))).decode()


def _livecodebench() -> list[Row]:
    stdin = [
        ("add", "Read two whole numbers and print their sum.", [("1 2\n", "3"), ("-5 5\n", "0"), ("10 20\n", "30")]),
        ("lines", "Read n and then n words; print them in reverse, one a line.",
         [("2\na\nb\n", "b\na"), ("1\nx\n", "x"), ("3\np\nq\nr\n", "r\nq\np")]),
        ("half", "Read a number and print half of it.", [("3\n", "1.5"), ("4\n", "2"), ("-1\n", "-0.5")]),
        ("count", "Read a text and print how many vowels it has.", [("banana\n", "3"), ("xyz\n", "0"), ("queue\n", "4")]),
    ]  # fmt: skip
    calls = [
        ("double", "Return the list with every number doubled.", "def double(self, xs: List[int]) -> List[int]:",
         [("[1, 2]", "[2, 4]"), ("[]", "[]"), ("[-1]", "[-2]")]),
        ("join", "Return both words with a dash between.", "def join(self, a: str, b: str) -> str:",
         [('"a"\n"b"', '"a-b"'), ('""\n""', '"-"'), ('"x"\n"y"', '"x-y"')]),
        ("isEven", "Return whether the number is even.", "def isEven(self, n: int) -> bool:",
         [("2", "true"), ("7", "false"), ("0", "true")]),
    ]  # fmt: skip
    problems = [(name, text, "", cases) for name, text, cases in stdin] + calls
    rows = []
    for n, (name, text, signature, cases) in enumerate(problems):
        kind = "functional" if signature else "stdin"
        tests = [{"input": given, "output": out, "testtype": kind} for given, out in cases]
        rows.append({
            "question_title": name, "question_content": text, "platform": "leetcode" if signature else "atcoder",
            "question_id": name, "contest_id": f"c{n}", "contest_date": f"2024-0{n + 1}-15T00:00:00",
            "starter_code": f"class Solution:\n    {signature}\n        " if signature else "",
            "difficulty": ("easy", "medium", "hard")[n % 3], "public_test_cases": json.dumps(tests[:1]),
            # Both forms of the released files: plain JSON and the packed one.
            "private_test_cases": json.dumps(tests[1:]) if n == 0 else packed(tests[1:]),
            "metadata": json.dumps({"func_name": name} if signature else {}),
        })  # fmt: skip
    return rows


def _bamboogle() -> list[Row]:
    table = [
        ("Who led the town in which the inventor of the zig lamp was born?", "Mara Quill"),
        ("When did the team that won the first Harbour Cup fold?", "1931"),
        ("What is the river that passes the birthplace of Oda Finch?", "The Weal"),
        ("Which metal is named after the moon of the planet Tarn?", "tarnium"),
        ("Who wrote the hymn of the country whose capital is Velo?", "Ivo Brandt"),
        ("How tall is the tower next to the oldest bridge of Ansel?", "98 metres"),
    ]
    return [{"Question": question, "Answer": answer} for question, answer in table]


def _hotpotqa() -> list[Row]:
    table = [
        ("Were Lena Park and Otto Reed of the same trade?", "yes", "comparison", "easy"),
        ("What band did the drummer of Grey Tin found?", "Loud Yard", "bridge", "hard"),
        ("In which county is the school that Ann Low left?", "Kent", "bridge", "medium"),
        ("Which is older, Fen Hall or Moor House?", "Fen Hall", "comparison", "easy"),
        ("Who directed the film in which Kit Dow made her debut?", "Sam O'Hara", "bridge", "hard"),
        ("Are both Pim and Pom islands?", "no", "comparison", "medium"),
    ]
    return [
        {
            "id": f"{n:024x}", "question": question, "answer": answer, "type": kind, "level": level,
            "supporting_facts": {"title": [f"Page {n}"], "sent_id": [0]},
            "context": {"title": [f"Page {n}", "Other"], "sentences": [[f"Fact {n}.", " More."], ["Nothing here."]]},
        }
        for n, (question, answer, kind, level) in enumerate(table)
    ]  # fmt: skip


# Programs that pass, where the data has none.
SOLUTIONS = {
    "add": "print(sum(map(int, input().split())))",
    "lines": "n = int(input())\nfor word in [input() for _ in range(n)][::-1]:\n    print(word)",
    "half": "print(float(input()) / 2)",
    "count": "import sys\nprint(sum(c in 'aeiou' for c in sys.stdin.read()))",
    "double": "class Solution:\n    def double(self, xs):\n        return [2 * x for x in xs]",
    "join": "class Solution:\n    def join(self, a, b):\n        return a + '-' + b",
    "isEven": "class Solution:\n    def isEven(self, n: int) -> bool:\n        return n % 2 == 0",
}
ROWS: dict[str, list[Row]] = {
    "math500": _math500(),
    "aime24": [{"id": 60 + n, "problem": q, "solution": "", "answer": f"{a:03d}", "url": "", "year": "2024"} for n, (q, a) in enumerate(_aime("Row"))],
    "aime25": [{"problem": q, "answer": str(a), "id": str(n)} for n, (q, a) in enumerate(_aime("Shelf"))],
    "aime26": [{"problem_idx": n + 1, "answer": a, "problem": q, "problem_type": ["Combinatorics"]} for n, (q, a) in enumerate(_aime("Street"))],
    "gsm8k": [{"question": f"Tom buys {n} bags of {n + 1} pens. How many pens?", "answer": f"{n} * {n + 1} = <<{n}*{n + 1}={n * n + n}>>{n * n + n}\n#### {n * n + n}"} for n in range(2, 8)],
    "gpqa": _gpqa(),
    "medqa": _medqa(),
    "mbppplus": _mbppplus(),
    "livecodebench": _livecodebench(),
    "bamboogle": _bamboogle(),
    "hotpotqa": _hotpotqa(),
}  # fmt: skip


def jsonl(path: Path, rows: list[Row]) -> Path:
    """Write rows as lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def parquet(path: Path, rows: list[Row]) -> None:
    """Write rows as a parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def _card(repo: Path, configs: dict[str, dict[str, str]]) -> None:
    """The dataset card, whose head names the files of each config and split."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [line for split, files in splits.items() for line in (f"  - split: {split}", f"    path: {files}")]
    (repo / "README.md").write_text("\n".join([*lines, "---", ""]))


def add_benchmarks(folder: str | Path) -> None:
    """Put every benchmark's repo into a hub's folder, in the layout of the real one."""
    repos = Path(folder) / "datasets"
    jsonl(repos / "HuggingFaceH4/MATH-500/test.jsonl", ROWS["math500"])
    parquet(repos / "HuggingFaceH4/aime_2024/data/train-00000-of-00001.parquet", ROWS["aime24"])
    jsonl(repos / "math-ai/aime25/test.jsonl", ROWS["aime25"])
    parquet(repos / "MathArena/aime_2026/data/train-00000-of-00001.parquet", ROWS["aime26"])
    gsm8k = repos / "openai/gsm8k"
    parquet(gsm8k / "main/test-00000-of-00001.parquet", ROWS["gsm8k"])
    parquet(gsm8k / "socratic/test-00000-of-00001.parquet", ROWS["gsm8k"][:1])
    _card(gsm8k, {"main": {"test": "main/test-*"}, "socratic": {"test": "socratic/test-*"}})
    gpqa = repos / "Idavidrein/gpqa"
    gpqa.mkdir(parents=True)
    for config, rows in (("diamond", ROWS["gpqa"]), ("main", ROWS["gpqa"][:1])):
        with (gpqa / f"gpqa_{config}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    _card(gpqa, {f"gpqa_{config}": {"train": f"gpqa_{config}.csv"} for config in ("diamond", "main")})
    medqa = repos / "GBaker/MedQA-USMLE-4-options"
    jsonl(medqa / "phrases_no_exclude_test.jsonl", ROWS["medqa"])
    jsonl(medqa / "phrases_no_exclude_train.jsonl", ROWS["medqa"][:1])
    parquet(repos / "evalplus/mbppplus/data/test-00000-of-00001.parquet", ROWS["mbppplus"])
    lcb = repos / "livecodebench/code_generation_lite"
    for n in range(6):  # the sixth release added two problems, the others one each
        name = f"test{n + 1 if n else ''}.jsonl"
        jsonl(lcb / name, ROWS["livecodebench"][n : n + 1] if n < 5 else ROWS["livecodebench"][5:])
    (lcb / "code_generation_lite.py").write_text("raise SystemExit('a loading script that must never run')\n")
    parquet(repos / "chiayewken/bamboogle/data/test-00000-of-00001.parquet", ROWS["bamboogle"])
    hotpot = repos / "hotpotqa/hotpot_qa"
    parquet(hotpot / "distractor/validation-00000-of-00001.parquet", ROWS["hotpotqa"])
    parquet(hotpot / "distractor/train-00000-of-00001.parquet", ROWS["hotpotqa"][:1])
    parquet(hotpot / "fullwiki/test-00000-of-00001.parquet", ROWS["hotpotqa"][:1])
    distractor = {split: f"distractor/{split}-*" for split in ("train", "validation")}
    _card(hotpot, {"distractor": distractor, "fullwiki": {"test": "fullwiki/test-*"}})
