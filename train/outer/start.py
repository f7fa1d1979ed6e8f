"""How outer links start: fresh, read from a directory, or fitted to the two vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.mas.agent import Agent
from inference.mas.errors import InputError
from inference.mas.links import OuterLink
from inference.mas.styles import Link
from train.closed_form import MAX_PAIRS, Fit, fit_link

# A message is made of the strings that the fit has seen, so they are to be met closely; a stronger penalty would serve
# strings that were left out, which no link can know.
PENALTY = 1e-3
MIN_SHARED = 16  # fewer shared strings say nothing about a map between two spaces


@dataclass(frozen=True)
class VocabFit:
    """How a link fitted to two vocabularies meets them."""

    shared: int
    fit: Fit


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
    return agent.embedding(torch.tensor(list(tokens), device=agent.device)).float().cpu()


def fit_vocab(link: OuterLink, source: Agent, target: Agent, where: Link) -> VocabFit:
    """Set `link` to the least-squares map between the input embeddings of strings that both tokenizers have."""
    ours, theirs = token_strings(source.tokenizer), token_strings(target.tokenizer)
    shared = [text for text in ours if text in theirs]
    if len(shared) < MIN_SHARED:
        raise InputError(
            f"--outer_init vocab: {where.source} and {where.target} share {len(shared)} token strings, too few to fit "
            f"{where.key} (at least {MIN_SHARED}); use --outer_init default"
        )
    if len(shared) > MAX_PAIRS:
        # Evenly over the vocabulary: the first ids are its most frequent strings, the last its rarest.
        shared = [shared[i * len(shared) // MAX_PAIRS] for i in range(MAX_PAIRS)]
    x = _embedded(source, (ours[text] for text in shared))
    y = _embedded(target, (theirs[text] for text in shared))
    return VocabFit(len(shared), fit_link(link, x, y, (PENALTY,)))
