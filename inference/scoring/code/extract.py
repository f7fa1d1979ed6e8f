"""Finding the program in a model's text.

In order: reasoning is cut away; fenced blocks, those tagged as Python first, and among them the last one that parses (and, for a
function task, defines the function); an unclosed last block, as far as it parses; text without a fence, whole or its longest run
of lines that is a program. Nothing is run that does not parse, and prose is never run.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["function", "program"]

MAX_CHARS = 400_000  # text looked at, from its end; longer answers are repetitions
MAX_LINES = 20_000
MAX_FENCE_LINES = 1_000
MAX_PROGRAM_CHARS = 100_000
MAX_BLOCKS = 60  # fenced blocks looked at, from the end
MAX_TRIES = 200  # parses for one answer, and what they may cost: some 10 ms for 10,000 characters
MAX_PARSED_CHARS = 1_000_000
MAX_SCANNED_LINES = 200_000  # looked at for fences, counted anew for fences inside blocks
_MAX_RUN = 1_000  # lines of a program that stands without a closed fence
_MAX_NESTING = 4  # fences in fences
_MAX_CLOSERS = 8  # further closing fences tried for a block that does not parse, for fences inside docstrings

_THINK = re.compile(r"<(/?)(?:think|thinking)>", re.IGNORECASE)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OPENER = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,}(?!`)|~{3,}(?!~))(?P<info>[^`]*)$")
_LATE_OPENER = re.compile(r"(?P<ticks>(?<!`)`{3,}(?!`))(?P<info>[ \t]*(?:python3?|py)[ \t]*)$", re.IGNORECASE)
_LLAMA = re.compile(r"^[ \t]*\[(?P<close>/?)PYTHON\][ \t]*$", re.IGNORECASE)
_INLINE = re.compile(r"```(?:python3?|py)?[ \t]([^`\n]+)```", re.IGNORECASE)
_FENCE_LINE = re.compile(r"[ \t]*(?:```|~~~|\[/?PYTHON\])|.*```", re.IGNORECASE)
_PYTHON = re.compile(r"\{?\.?(?:python|py)[\d.]*(?![\w+#-])", re.IGNORECASE)
_OTHER = re.compile(
    r"(?:text|txt|plain\w*|output|console|stdout|input|bash|sh|shell|zsh|json|ya?ml|xml|html|css|sql|c|cpp|c\+\+|csharp|java"
    r"|javascript|js|typescript|ts|go|rust|ruby|kotlin|swift|latex|tex|diff|pycon|math|markdown|md)(?![\w+#-])",
    re.IGNORECASE,
)
_STARTS = re.compile(
    r"(?:def|class|import|from|async|@|if|for|while|try|with|print|[A-Za-z_][\w.\[\], ]*[+-]?=(?!=)|[A-Za-z_][\w.]*\()"
)
_DOES = frozenset({"print", "input", "open", "exec", "exit", "main", "solve"})


@dataclass(frozen=True)
class Extracted:
    """A program found in a text. `status`: "ok", "truncated" (only a part of it was there), or why `code` is None: "empty",
    "no_code", "unclosed_reasoning". `rule` names what found it."""

    code: str | None
    status: str
    rule: str


@dataclass(frozen=True)
class _Block:
    lines: list[str]
    indent: int
    info: str
    closed: bool
    later: tuple[int, ...] = ()  # further places where the block could end
    full: tuple[str, ...] = ()  # its lines up to the last of these

    @property
    def rank(self) -> int:
        info = self.info.strip()
        return 0 if _PYTHON.match(info) else 2 if _OTHER.match(info) else 1


class _Budget:
    """What the search for one answer may still spend, so that its work is bounded."""

    def __init__(self) -> None:
        self.tries = MAX_TRIES
        self.chars = MAX_PARSED_CHARS
        self.lines = MAX_SCANNED_LINES

    @property
    def spent(self) -> bool:
        return self.tries <= 0 or self.chars <= 0

    def parse(self, code: str) -> ast.Module | SyntaxError | None:
        """The tree; where it breaks; None if it is no program at all, too long, or the budget is spent."""
        if self.spent or len(code) > MAX_PROGRAM_CHARS:
            return None
        self.tries -= 1
        cost = len(code)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "\d" in a plain string is the program's own affair
                tree = ast.parse(code)
        except SyntaxError as error:
            cost = min(cost, 100 + (cost * (error.lineno or 1)) // (code.count("\n") + 1))  # it read no further
            return error
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return None
        finally:
            self.chars -= cost
        return tree if tree.body else None


def extract(text: str, entry_point: str | None = None, kind: Kind = "program") -> Extracted:
    """The program in `text`; for a function task the one that defines `entry_point`, without module-level asserts and prints.

    Never raises; the work is bounded whatever the text is.
    """
    text = text[-MAX_CHARS:].replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "").replace("\ufeff", "")
    text = _ANSI.sub("", text)
    if not text.strip():
        return Extracted(None, "empty", "empty text")
    visible = _after_reasoning(text)
    if visible is None:
        return Extracted(None, "unclosed_reasoning", "unclosed reasoning")
    lines = _last_lines(visible)
    search = _Search(entry_point if kind == "function" else None)
    found = search.fenced(lines) or search.bare(lines)
    if found is None:
        return Extracted(None, "no_code", "nothing parses")
    code, rule, whole = found
    if kind == "function":
        code = _without_checks(code)
    return Extracted(code.strip("\n"), "ok" if whole else "truncated", rule)


def parse(code: str) -> ast.Module | None:
    """The syntax tree of a program, None if it does not parse."""
    tree = _Budget().parse(code)
    return tree if isinstance(tree, ast.Module) else None


def _after_reasoning(text: str) -> str | None:
    """What follows the last closed reasoning block; None if a block is still open there."""
    tags = list(_THINK.finditer(text))
    closers = [tag for tag in tags if tag.group(1)]
    start = closers[-1].end() if closers else 0
    opened = next((tag for tag in tags if not tag.group(1) and tag.start() >= start), None)
    if opened is None:
        return text[start:]
    before = text[start : opened.start()]
    # A tag inside a line of code or of a sentence is text about reasoning, not reasoning.
    return None if not before.rpartition("\n")[2].strip() else text[start:]


def _last_lines(text: str) -> list[str]:
    """The text's last lines, with at most MAX_FENCE_LINES of them about fences."""
    lines = text.split("\n")[-MAX_LINES:]
    fences = [index for index, line in enumerate(lines) if _FENCE_LINE.match(line)]
    return lines[fences[-MAX_FENCE_LINES] :] if len(fences) > MAX_FENCE_LINES else lines


class _Search:
    """One answer's search: candidates are tried best first, within one budget of parses."""

    def __init__(self, entry_point: str | None) -> None:
        self._entry_point = entry_point
        self._budget = _Budget()

    def fenced(self, lines: list[str]) -> tuple[str, str, bool] | None:
        """A program from fenced blocks. The last blocks are looked at first, so that a spent budget loses the oldest."""
        blocks = list(_blocks(lines))[-MAX_BLOCKS:]
        parsed = [found for block in reversed(blocks) for found in reversed(list(self._programs(block, 0)))]
        for wanted in (self._defines, _is_program):
            for rank in (0, 1, 2):
                for found_rank, code, tree in parsed:
                    if found_rank == rank and wanted(tree) and (rank < 2 or _is_program(tree)):
                        return code, ("tagged block", "untagged block", "block of another tag")[rank], True
        for block in reversed(blocks):
            if not block.closed and block.rank < 2:
                code = self._prefix(_dedent(block.lines, block.indent).split("\n"))
                if code is not None:
                    return code[0], "unclosed block", code[1]
        for line in reversed(lines):
            for match in _INLINE.finditer(line):
                code = match.group(1).strip()
                tree = self._budget.parse(code)
                if isinstance(tree, ast.Module) and self._acts(tree):
                    return code, "inline block", True
        return None

    def _programs(self, block: _Block, depth: int) -> Iterator[tuple[int, str, ast.Module]]:
        """(rank, code, tree) of a block; of its inner blocks if it is no program itself."""
        for lines in (block.lines, *(block.full[:end] for end in block.later)):
            for code in _readings(lines, block.indent):
                tree = self._budget.parse(code)
                if isinstance(tree, ast.Module):
                    yield block.rank, code, tree
                    return
        inside = list(block.full) or block.lines
        self._budget.lines -= len(inside)
        if depth < _MAX_NESTING and self._budget.lines > 0 and not self._budget.spent:
            for inner in list(_blocks(inside))[-MAX_BLOCKS:]:
                yield from self._programs(inner, depth + 1)

    def bare(self, lines: list[str]) -> tuple[str, str, bool] | None:
        """A program without fences: the whole text, or the longest run of its lines."""
        lines = _outside_fences(lines)
        whole = textwrap.dedent("\n".join(lines)).strip("\n")
        tree = self._budget.parse(whole)
        if isinstance(tree, ast.Module):
            return (whole, "whole text", True) if self._acts(tree) else None
        best: tuple[int, int, str] | None = None
        end_of_best = 0
        for start, line in enumerate(lines):
            if self._budget.spent:
                break
            if start < end_of_best or not _STARTS.match(line):
                continue
            found = self._prefix(lines[start : start + _MAX_RUN], bare=True)
            if found is None:
                continue
            code = found[0]
            end_of_best = start + code.count("\n") + 1
            defined = int(self._defines(parse(code) or ast.Module([], [])))
            if best is None or (defined, len(code)) > best[:2]:
                best = (defined, len(code), code)
        return (best[2], "longest run of lines", True) if best else None

    def _prefix(self, lines: Sequence[str], bare: bool = False) -> tuple[str, bool] | None:
        """The longest beginning that parses and is a program, and whether it is all of it: cut where the parser stumbles, or
        before. Three back-ticks behind a line of code end it too."""
        taken: list[str] = []
        room = MAX_PROGRAM_CHARS
        for line in lines[:_MAX_RUN]:
            room -= len(line) + 1
            if room < 0:
                break
            ends = line.rstrip().endswith("```")
            taken.append(line.rstrip().rstrip("`") if ends else line)
            if ends:
                lines = lines[: len(taken)]
                break
        whole = len(taken) == len(lines)
        while taken and not self._budget.spent:
            candidate = "\n".join(taken)
            tree = self._budget.parse(candidate)
            if isinstance(tree, ast.Module):
                if bare:
                    return (_without_remarks(candidate, tree), whole) if self._acts(tree) else None
                good = self._defines(tree) and _is_program(tree)
                return (candidate.rstrip(), whole) if good else None
            if tree is None and candidate.strip():
                return None  # nested too deeply for the parser
            whole = False
            stumble = tree.lineno if isinstance(tree, SyntaxError) and tree.lineno else len(taken)
            del taken[max(0, min(stumble, len(taken)) - 1) :]
            while taken and not taken[-1].strip():
                taken.pop()
        return None

    def _defines(self, tree: ast.Module) -> bool:
        return self._entry_point is None or _defined(tree.body, self._entry_point)

    def _acts(self, tree: ast.Module) -> bool:
        """Whether unfenced text is a program for sure: it defines or imports, or reads or prints. `Yes` parses too."""
        if self._entry_point is not None:
            return _defined(tree.body, self._entry_point)
        return any(
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))
            or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _DOES)
            for node in ast.walk(tree)
        )


def _without_remarks(code: str, tree: ast.Module) -> str:
    """The program without sentences behind it that happen to parse (`Note: done`)."""
    last = max((index for index, node in enumerate(tree.body) if _is_program(ast.Module([node], []))), default=-1)
    return "\n".join(code.split("\n")[: tree.body[last].end_lineno])


def _is_program(tree: ast.Module) -> bool:
    """Whether a block does anything: a bare name, number or string is an example of an output."""
    return any(
        not (
            isinstance(node, ast.Expr) and not any(isinstance(inner, (ast.Call, ast.Await)) for inner in ast.walk(node))
        )
        and not (isinstance(node, ast.AnnAssign) and node.value is None)
        for node in tree.body
    )


def _defined(body: Sequence[ast.stmt], name: str) -> bool:
    """Whether a module's top level binds `name`: function, class, assignment, import, or method of a class."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == name or (isinstance(node, ast.ClassDef) and _defined(node.body, name)):
                return True
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any((alias.asname or alias.name) == name for alias in node.names):
                return True
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return True
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            for handler in getattr(node, "handlers", []):
                inner += handler.body
            if _defined(inner, name):
                return True
    return False


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Fenced blocks from top to bottom; the last may be unclosed."""
    place = 0
    while place < len(lines):
        llama = _LLAMA.match(lines[place])
        opener = _OPENER.match(lines[place]) or _LATE_OPENER.match(lines[place])
        if not (opener or (llama and not llama.group("close"))):
            place += 1
            continue
        indent = (
            len(lines[place]) - len(lines[place].lstrip()) if "indent" in (opener.groupdict() if opener else {}) else 0
        )
        closers: list[int] = []
        for index in range(place + 1, len(lines)):
            if len(closers) > _MAX_CLOSERS:
                break
            if _closes(lines[index], opener["ticks"] if opener else None, indent):
                closers.append(index)
        body = lines[place + 1 :]
        info = opener["info"] if opener else "python"
        if not closers:
            yield _Block(body, indent, info, closed=False)
            return
        ends = [closer - place - 1 for closer in closers]
        yield _Block(body[: ends[0]], indent, info, True, tuple(ends[1:]), tuple(body[: ends[-1]]))
        place = closers[0] + 1


def _closes(line: str, ticks: str | None, indent: int) -> bool:
    if ticks is None:
        match = _LLAMA.match(line)
        return bool(match and match.group("close")) or _is_fence_end(line, "```", indent)
    return _is_fence_end(line, ticks, indent)


def _is_fence_end(line: str, ticks: str, indent: int) -> bool:
    """At least as long as the opener, nothing behind it, and not indented into the code (a fence in a docstring)."""
    bare = line.strip()
    deeper = len(line) - len(line.lstrip()) - indent
    return len(bare) >= len(ticks) and set(bare) == {ticks[0]} and deeper <= 3


def _readings(lines: Sequence[str], indent: int) -> Iterator[str]:
    """A block's text as it stands under its fence, dedented, and with odd blanks made plain; each only if it differs."""
    text = _dedent(lines, indent)
    seen = set()
    for reading in (text, textwrap.dedent("\n".join(lines)), text.replace("\xa0", " ").lstrip()):
        if reading not in seen and reading.strip():
            seen.add(reading)
            yield reading


def _dedent(lines: Sequence[str], indent: int) -> str:
    """Lines without the indentation of their fence; dedented as a whole where that leaves any."""
    cut = [line[min(indent, len(line) - len(line.lstrip())) :] for line in lines]
    return textwrap.dedent("\n".join(cut)).strip("\n")


def _outside_fences(lines: list[str]) -> list[str]:
    """The text's lines with fenced blocks blanked out; they had their turn."""
    kept = []
    inside: str | None = None
    for line in lines:
        opener = _OPENER.match(line)
        if inside is None and opener:
            inside = opener["ticks"]
            kept.append("")
        elif inside is not None and _is_fence_end(line, inside, len(line) - len(line.lstrip())):
            inside = None
            kept.append("")
        else:
            kept.append(line if inside is None else "")
    return kept


def _without_checks(code: str) -> str:
    """The program without module-level asserts and prints, the rest of its text as it was."""
    tree = parse(code)
    if tree is None:
        return code
    lines = [line.encode("utf-8", "surrogatepass") for line in code.split("\n")]
    for node in reversed(tree.body):
        is_print = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id == "print"
        )
        if not (is_print or isinstance(node, ast.Assert)):
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        if not before.strip() and (not after.strip() or after.lstrip().startswith(b"#")):
            del lines[first : last + 1]
        else:  # it shares its line with other statements
            lines[first : last + 1] = [before + b"pass" + after]
    return b"\n".join(lines).decode("utf-8", "surrogatepass")
