"""How outer links start: fresh, read from a directory, or as the least-squares map over pairs of vectors.

    vocab   input embeddings of the token strings that both vocabularies share
    ridge   what the source thinks over its gold texts, and the receiver's embeddings of the tokens that it thinks of

A thought inner(h) stands for the next token, so ridge pairs meet the vectors that the link will really be given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.mas.agent import Agent
from inference.mas.errors import InputError
from inference.mas.recursion import MultiAgentSystem
from inference.mas.styles import Link
from train.closed_form import MAX_PAIRS, PENALTIES, Fit, fit_link
from train.data.pieces import role_tokens, upstream_texts
from train.data.texts import Example

INITS = ("default", "ridge", "vocab")
# A message is made of the strings that the fit has seen, so they are to be met closely; a stronger penalty would serve
# strings that were left out, which no link can know.
VOCAB_PENALTY = 1e-3
MIN_PAIRS = 16  # fewer pairs say nothing about a map between two spaces


@dataclass(frozen=True)
class StartFit:
    """How a fitted link meets its pairs, and what they are."""

    what: str
    fit: Fit

    def __str__(self) -> str:
        return f"fitted to {self.fit.pairs} {self.what} (R² {self.fit.r2_left_out:.2f}, cosine {self.fit.cosine:.2f})"


def fit_links(
    system: MultiAgentSystem, init: str, examples: Sequence[Example], batch: int, enable_thinking: bool = False
) -> Mapping[str, StartFit]:
    """Set every outer link of `system` as `init` says; {} for "default". `examples` need a text of every source."""
    if init == "default":
        return {}
    fits = {}
    for link in system.style.links:
        source, target = system.agents[link.source], system.agents[link.target]
        module = system.outer_links[link.key]
        if init == "vocab":
            pairs, what, penalties = vocab_pairs(source, target), "shared token strings", (VOCAB_PENALTY,)
        else:
            pairs = thought_pairs(system, link, examples, batch, enable_thinking)
            what, penalties = "thoughts over gold texts", PENALTIES
        if len(pairs[0]) < MIN_PAIRS:
            raise InputError(
                f"--outer_init {init}: {link.source} and {link.target} have {len(pairs[0])} {what} in common, too few to "
                f"fit {link.key} (at least {MIN_PAIRS}); use --outer_init default"
            )
        fits[link.key] = StartFit(what, fit_link(module, *pairs, penalties))
    return fits


def token_strings(tokenizer: Any) -> dict[str, int]:
    """The text of every ordinary token, as it reads inside a sentence, with its id (the lowest where two read alike).

    Tokens are decoded after an anchor, so that a leading space counts and is not stripped; special tokens and pieces
    of a character are left out.
    """
    special = set(tokenizer.all_special_ids)
    anchor = next(iter(tokenizer("a", add_special_tokens=False)["input_ids"]), None)
    if anchor is None:
        return {}
    head = tokenizer.decode([anchor], clean_up_tokenization_spaces=False)
    ids = [i for i in range(len(tokenizer)) if i not in special]
    texts = tokenizer.batch_decode([[anchor, i] for i in ids], clean_up_tokenization_spaces=False)
    found: dict[str, int] = {}
    for token, text in zip(ids, texts, strict=True):
        text = text.removeprefix(head)
        if text and "\ufffd" not in text:
            found.setdefault(text, token)
    return found


@torch.no_grad()
def _embedded(agent: Agent, tokens: Iterable[int]) -> Tensor:
    ids = torch.tensor(list(tokens), dtype=torch.long, device=agent.embedding.weight.device)
    return agent.embedding(ids).float().cpu()


def vocab_pairs(source: Agent, target: Agent) -> tuple[Tensor, Tensor]:
    """Input embeddings [n, S] and [n, T] of strings that both tokenizers have as tokens."""
    ours, theirs = token_strings(source.tokenizer), token_strings(target.tokenizer)
    shared = [text for text in ours if text in theirs]
    if len(shared) > MAX_PAIRS:
        # Evenly over the vocabulary: the first ids are its most frequent strings, the last its rarest.
        shared = [shared[i * len(shared) // MAX_PAIRS] for i in range(MAX_PAIRS)]
    return _embedded(source, (ours[text] for text in shared)), _embedded(target, (theirs[text] for text in shared))


def _spans(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of a text and the characters [start, end) of each, without the white space before a word."""
    if not tokenizer.is_fast:
        raise InputError(
            f"--outer_init ridge: tokenizer {tokenizer.name_or_path!r} does not tell where its tokens stand; "
            "use --outer_init vocab or default"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    # Tokenizers differ in whether a word's leading space belongs to its place.
    words = [text[start:end].lstrip() for start, end in encoded["offset_mapping"]]
    places = [
        (end - len(word) if word else start, end)
        for word, (start, end) in zip(words, encoded["offset_mapping"], strict=True)
    ]
    return encoded["input_ids"], places


@torch.no_grad()
def thought_pairs(
    system: MultiAgentSystem, link: Link, examples: Sequence[Example], batch: int, enable_thinking: bool = False
) -> tuple[Tensor, Tensor]:
    """Thoughts [n, S] of a link's source over its gold texts, and the receiver's embeddings [n, T] of the same tokens.

    A pair is a piece of text that is one token for both; the thought is the one before it, inner(h) of the position that
    predicts it. Up to `MAX_PAIRS` from the first examples on.
    """
    style, target = system.style, system.agents[link.target]
    thoughts: list[Tensor] = []
    wanted: list[int] = []
    for start in range(0, len(examples), batch):
        source = system.activate(link.source)
        prompts, golds, meets = [], [], []
        for example in examples[start : start + batch]:
            ids, places = _spans(source.tokenizer, example.text(link.source))
            their_ids, their_places = _spans(target.tokenizer, example.text(link.source))
            theirs = dict(zip(their_places, their_ids, strict=True))
            texts = upstream_texts(style, link.source, example)
            prompts.append(
                role_tokens(
                    style,
                    link.source,
                    source.tokenizer,
                    example,
                    texts=texts,
                    with_target=False,
                    enable_thinking=enable_thinking,
                ).prompt
            )
            golds.append(ids)
            # An empty place is part of a character that takes several tokens.
            meets.append([(i, theirs[p]) for i, p in enumerate(places) if p[0] < p[1] and p in theirs])
        hidden = source.states(source.embed(prompts, targets=golds))
        for row, ids, found in zip(hidden, golds, meets, strict=True):
            before = torch.tensor([len(row) - len(ids) - 1 + index for index, _ in found], dtype=torch.long)
            thoughts.append(source.inner_link(row[before.to(row.device)]).float().cpu())
            wanted += [token for _, token in found]
        if len(wanted) >= MAX_PAIRS:
            break
    return torch.cat(thoughts)[:MAX_PAIRS], _embedded(target, wanted[:MAX_PAIRS])
