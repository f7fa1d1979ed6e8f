"""A language model that writes what a test tells it, through the real code: a GPT-2 whose weights were set by hand.

Attention and MLPs add nothing, the position embedding of place p holds the token that follows, and token embeddings are small: so
the model says script[p] after place p, whatever stands there. Rows of a batch get scripts of their own by the length of their
prompts. A test that miscounts one position gets other text.

    model = Scripted([["<python>", "1+1", "</python>"], Result("2"), [" so 2", EOS]])
    model.agent.speak(model.batch(), ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from inference.mas.agent import Agent, Batch
from inference.mas.links import InnerLink
from inference.mas.styles import Role
from inference.mas.tools import result_block
from inference.tools.errors import FailedResult

EOS = "<|end|>"
STRIDE = 700  # places between the starts of two rows' scripts


@dataclass(frozen=True)
class Result:
    """A tool's result as the tool gives it: its place in the script."""

    text: str
    max_chars: int = 6000


@dataclass(frozen=True)
class Given:
    """A text that the loop puts in as it is."""

    text: str


@dataclass(frozen=True)
class Cut:
    """A token of which only the start, `kept`, stays in the context."""

    piece: str
    kept: str


Part = list[str] | Result | Given | Cut


def byte_tokenizer(pieces: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A token for each byte, one for each of `pieces`, and a stop token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    bpe.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in pieces])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, pad_token=EOS)


class Scripted:
    """An agent whose row i writes `scripts[i]`: lists of pieces (a token each) with results and given texts between them.

    `starts` are the lengths of the prompts, if a test has prompts of its own.
    """

    def __init__(
        self,
        *scripts: Sequence[Part],
        tools: tuple[str, ...] = ("python", "search"),
        starts: Sequence[int] | None = None,
    ) -> None:
        parts = [part for script in scripts for part in script]
        written = [piece for part in parts if isinstance(part, list) for piece in part]
        written += [part.piece for part in parts if isinstance(part, Cut)]
        self.tokenizer = byte_tokenizer(list(dict.fromkeys(p for p in written if len(p.encode()) > 1 and p != EOS)))
        self.scripts = scripts
        vocab = len(self.tokenizer)
        # No heads to speak of: the width is the vocabulary's, so that a place can name any token.
        config = GPT2Config(
            vocab_size=vocab, n_positions=STRIDE * (len(scripts) + 1), n_embd=vocab, n_layer=1, n_head=1,
            eos_token_id=self.tokenizer.eos_token_id, bos_token_id=self.tokenizer.eos_token_id,
        )  # fmt: skip
        model = GPT2LMHeadModel(config).eval().requires_grad_(False)
        for name, weight in model.named_parameters():
            if ".h." in name and "ln" not in name:
                weight.zero_()
        model.transformer.wte.weight.copy_(torch.eye(vocab))  # tied to the head
        places = torch.zeros(config.n_positions, vocab)
        self.prompt_lengths = []
        for index, script in enumerate(scripts):
            place = starts[index] - 1 if starts else index * STRIDE
            self.prompt_lengths.append(place + 1)
            for part in script:
                if isinstance(part, list):
                    for piece in part:
                        places[place, self.id_of(piece)] = 10.0
                        place += piece != EOS  # a stop token is drawn and never run
                    continue
                if isinstance(part, Cut):
                    places[place, self.id_of(part.piece)] = 10.0
                place += len(self.ids_of(part))
            assert starts or place < (index + 1) * STRIDE, "the script runs into the next row's"
        model.transformer.wpe.weight.copy_(places)
        model.generation_config = GenerationConfig(eos_token_id=self.tokenizer.eos_token_id)
        role = Role("speaker", "Speaker", "", "", "speaker", "agent1", "", {}, {}, (), tools=tools)
        self.agent = Agent(role, model, self.tokenizer, InnerLink(vocab))

    def id_of(self, piece: str) -> int:
        ids = self.tokenizer(piece, add_special_tokens=False)["input_ids"]
        assert len(ids) == 1, piece
        return ids[0]

    def ids_of(self, part: Result | Given | Cut) -> list[int]:
        """Token ids of what the loop puts in, or leaves of a cut token."""
        texts = {
            Result: lambda: result_block(part.text, part.max_chars),
            Given: lambda: part.text,
            Cut: lambda: part.kept,
        }
        text = texts[type(part)]()
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def batch(self) -> Batch:
        """Prompts of the lengths that lead each row into its script."""
        return self.agent.embed([[[0] * length] for length in self.prompt_lengths])


class Tools:
    """A tool box of plain functions that keeps what it was asked."""

    def __init__(self, **functions) -> None:
        self.names = tuple(functions)
        self.functions = functions
        self.asked: list[tuple[str, str, str]] = []

    def run(self, name: str, body: str, row_id: str) -> tuple[str, bool]:
        self.asked.append((row_id, name, body))
        result = self.functions[name](body)
        return result, isinstance(result, FailedResult)


class Positions:
    """Counts the positions that a decoder runs, padding not among them."""

    def __init__(self, agent: Agent) -> None:
        self.sizes: list[int] = []  # rows of each single step
        self.prefilled = 0
        self._hook = agent.decoder.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module, args, kwargs) -> None:
        embeds = kwargs["inputs_embeds"]
        if kwargs.get("past_key_values") is None:
            self.prefilled += int(kwargs["attention_mask"].sum())
        else:
            assert embeds.shape[1] == 1, "after the prompt only single steps are right for every family"
            self.sizes.append(len(embeds))

    @property
    def total(self) -> int:
        return self.prefilled + sum(self.sizes)

    def __enter__(self) -> Positions:
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
