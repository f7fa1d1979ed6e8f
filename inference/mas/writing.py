"""An answer as it is written: its text follows the tokens, tools are called, and a missing answer form is asked for.

What is run (and so stands in the cache) is exactly: the written tokens; after a complete tool block the tokens of its result; after an
answer without its form the tokens of a suffix. Nothing is tokenised twice, with one exception: where the token that closes a
block has text behind the tag, that text is dropped, and the part up to the tag is tokenised anew. The token itself was only drawn, not
run, so the cache needs no repair. If no tokens spell that part alone, the token stays whole and its tail stands before the result.

A row's budget counts the tokens that it wrote and kept. A block that the budget's last token completes is not run: nothing could be
written about its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from inference.mas.decoding import Generation, Row
from inference.mas.tools import LIMIT_REACHED, Call, Tags, ToolUse, count, result_block, unavailable

MAX_TOOL_THREADS = 8  # calls at once; more would wait for the CPU (programs) or for the server's rate limit (search)


@dataclass(frozen=True)
class Suffix:
    """How an answer without its form goes on: a text that opens the form, and tokens to fill it."""

    text: str
    max_new_tokens: int = 16


FindSuffix = Callable[[str], "Suffix | None"]  # gradable text -> suffix, or None if its form is there


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text that is no prompt: special tokens that it spells stay text."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


class TextStream:
    """The text of growing token ids, behind ids that stand `before` it. Reading after each token decodes a few ids only."""

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.ids = list(before)
        self._settled = ""  # text of ids[:_mark]
        self._start, self._mark = 0, len(self.ids)  # ids[_start:_mark] are decoded along, for spaces at the seam
        self._undo = (self._settled, self._start, self._mark)

    def _decode(self, ids: Sequence[int]) -> str:
        # As written: no clean-up, which would change spaces in code.
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def read(self) -> str:
        """The text so far. It ends with U+FFFD while the newest character is incomplete."""
        seam = len(self._decode(self.ids[self._start : self._mark]))
        text = self._settled + self._decode(self.ids[self._start :])[seam:]
        if not text.endswith("\ufffd") and len(self.ids) > self._mark:
            self._settled, self._start, self._mark = text, self._mark, len(self.ids)
        return text

    def push(self, token: int) -> str:
        """Add a token; returns the text so far."""
        self._undo = (self._settled, self._start, self._mark)
        self.ids.append(token)
        return self.read()

    def respell(self, ids: Sequence[int], text: str) -> bool:
        """Put `ids` in the place of the newest token if the text is then `text`; False if it would not be."""
        token, now = self.ids.pop(), (self._settled, self._start, self._mark)
        self._settled, self._start, self._mark = self._undo
        self.ids += ids
        if ids and self.read() == text:
            return True
        self.ids[len(self.ids) - len(ids) :] = [token]
        self._settled, self._start, self._mark = now
        return False


class ToolDesk:
    """Runs the tools of all rows of a batch, each call in a thread."""

    def __init__(self, use: ToolUse, names: Sequence[str], pool: ThreadPoolExecutor) -> None:
        self.use = use
        self.tags = Tags(names)
        self._pool = pool

    def call(self, call: Call, row_id: str) -> Future[tuple[str, bool]] | tuple[str, bool]:
        """The coming result, or what there is to say at once; with each, whether the call failed."""
        if call.name not in self.use.box.names:
            return unavailable(call.name), True
        return self._pool.submit(self.use.box.run, call.name, call.body, row_id)


class Writer(Row):
    """A row with tools (`desk`) and a check of the answer's form (`find_suffix`); both may be missing."""

    def __init__(
        self,
        seed: int,
        max_new_tokens: int,
        eos_ids: frozenset[int],
        tokenizer: Any,
        row_id: str = "",
        desk: ToolDesk | None = None,
        find_suffix: FindSuffix | None = None,
    ) -> None:
        super().__init__(seed, max_new_tokens, eos_ids)
        self.tokenizer = tokenizer
        self.row_id = row_id
        self.desk = desk
        self.tools_open = desk is not None
        self.find_suffix = find_suffix
        self.stream = TextStream(tokenizer)
        self.parts: list[tuple[str, bool]] = []  # (text, is a result) of all that stands before the stream
        self.calls: list[str] = []
        self.failures = self.tool_tokens = self.suffix_tokens = 0
        self.before: str | None = None

    def take(self, token: int) -> None:
        if token in self.eos_ids:
            self.tokens.append(token)
            self.end("eos")
            return
        call, ids = self.push(token)
        self.tokens += ids
        self.queue.extend(ids)  # at the end of the budget they are run only if a suffix follows
        if len(self.tokens) >= self.limit:
            self.end("length")
        elif call:
            self.start(call)

    def push(self, token: int) -> tuple[Call | None, list[int]]:
        """Add a token to the text; returns the block that it completes, and the ids to run for it."""
        if not self.tools_open:
            self.stream.ids.append(token)
            return None, [token]
        before = len(self.stream.read().rstrip("\ufffd"))
        text = self.stream.push(token)
        call = self.desk.tags.find(text, len(text) - before)
        if call is None or call.end == len(text):
            return call, [token]
        part = encode(self.tokenizer, text[before : call.end])
        fits = len(self.tokens) + len(part) <= self.limit
        if fits and self.stream.respell(part, text[: call.end]):
            return call, part
        return call, [token]

    def start(self, call: Call) -> None:
        """Run a block's tool, or say that none is left."""
        if len(self.calls) >= self.desk.use.max_rounds:
            self.tools_open = False  # told once; further tags are plain text
            self.add_result(LIMIT_REACHED)
            return
        self.calls.append(call.name)
        result = self.desk.call(call, self.row_id)
        if isinstance(result, Future):
            self.waits_for = result
        else:
            self.resume(*result)

    def resume(self, result: str, failed: bool) -> None:
        self.failures += failed
        self.add_result(result)

    def add_result(self, result: str) -> None:
        text = result_block(result, self.desk.use.result_max_chars)
        ids = encode(self.tokenizer, text)
        self.tool_tokens += len(ids)
        self.close_part(text, ids, is_result=True)

    def close_part(self, text: str, ids: list[int], is_result: bool) -> None:
        """Put a text that is not the model's behind what it wrote; it writes on after it."""
        self.queue.extend(ids)
        self.parts += [(self.stream.read(), False), (text, is_result)]
        self.stream = TextStream(self.tokenizer, ids[-1:])

    def end(self, finish: str) -> None:
        if self.before is not None:
            self.done = True
            return
        self.finish = finish
        gradable = self.answer_text()
        suffix = self.find_suffix(gradable) if self.find_suffix else None
        if suffix is None:
            self.done = True
            return
        self.before, self.tools_open = gradable, False
        self.limit = len(self.tokens) + suffix.max_new_tokens
        ids = encode(self.tokenizer, suffix.text)
        self.suffix_tokens = len(ids)
        self.close_part(suffix.text, ids, is_result=False)

    def text(self) -> str:
        """The whole transcript."""
        return "".join([*(text for text, _ in self.parts), self.stream.read()]).strip()

    def answer_text(self) -> str:
        """What the model wrote, and the suffix, without tool blocks and results; a space stands for each result."""
        written = [" " if is_result else self.plain(text) for text, is_result in self.parts]
        return "".join([*written, self.plain(self.stream.read())]).strip()

    def plain(self, text: str) -> str:
        return self.desk.tags.remove(text) if self.desk else text

    def generation(self) -> Generation:
        """The answer, once done."""
        text, answer = self.text(), self.answer_text()
        return Generation(
            text=text,
            tokens=self.tokens,
            finish=self.finish,
            seed=self.seed,
            answer_text=None if answer == text else answer,
            tool_calls=count(self.calls),
            tool_failures=self.failures,
            tool_tokens=self.tool_tokens,
            text_before_retry=self.before,
            suffix_tokens=self.suffix_tokens,
        )
