"""An agent: one frozen language model, its tokenizer and its inner link.

It can do three things with a prompt: `embed` it (text and messages of other agents, one left-padded batch), `think`
(m latent steps: no text, one forward of one position each) and `speak` (text).

    pad  pad  [ text ......... ][ message ][ text ... ]           mask       0 0 1 1 1 1 1 1
    pad  [ text ........... ][ message ][ text ....... ]          positions  0 0 0 1 2 3 4 5

Only the bare decoder runs, never a full list of hidden states; logits exist where a token is chosen or a loss is taken.
The prompt is run in one forward and then single positions, because hybrid (linear attention) models are wrong when a
prompt arrives in chunks. Position ids are given on every call: left-padded batches are wrong without them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from inference.mas import caches
from inference.mas.decoding import Generation, Sampling, generate
from inference.mas.errors import InputError
from inference.mas.links import InnerLink
from inference.mas.prompts import Pieces, Slot
from inference.mas.styles import Role
from inference.mas.tools import ToolUse
from inference.mas.writing import MAX_TOOL_THREADS, FindSuffix, ToolDesk, Writer


@dataclass(frozen=True)
class Batch:
    """Left-padded inputs: embeds [B, L, D], mask [B, L] (1 = real), positions [B, L], real positions of each row."""

    embeds: Tensor
    mask: Tensor
    positions: Tensor
    prompt_tokens: list[int]


class Session:
    """A batch that has been run and can be stepped on: the KV cache and what every next step needs.

    `last` [B, D] is the hidden state at the newest position, after the final norm.
    """

    def __init__(self, agent: Agent, batch: Batch) -> None:
        self.agent = agent
        self.mask = batch.mask
        self.position = batch.positions[:, -1:]
        out = agent.decoder(
            inputs_embeds=batch.embeds, attention_mask=batch.mask, position_ids=batch.positions, use_cache=True
        )
        self.cache = out.past_key_values
        self.last = out.last_hidden_state[:, -1]

    def step(self, embeds: Tensor) -> Tensor:
        """Run one more position, given its input embeddings [B, D]; returns the new `last` [B, D]."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        self.position = self.position + 1
        out = self.agent.decoder(
            inputs_embeds=embeds.unsqueeze(1).to(self.agent.dtype),
            attention_mask=self.mask,
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.last = out.last_hidden_state[:, -1]
        return self.last

    def feed(self, tokens: Tensor) -> Tensor:
        """Run the tokens [B]; returns the logits after them [B, V]."""
        return self.agent.logits(self.step(self.agent.embedding(tokens)))

    def run(self, tokens: Sequence[int]) -> None:
        """Run one token a row."""
        self.step(self.agent.embedding(torch.tensor(tokens, device=self.mask.device)))

    def logits(self, rows: Sequence[int]) -> Tensor:
        """Logits [b, V] after the newest position of these rows."""
        last = self.last if len(rows) == len(self.last) else self.last[list(rows)]
        return self.agent.logits(last)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows (repeats allowed), in this order."""
        index = torch.tensor(rows, device=self.mask.device)
        # Every cache class of transformers 5.3 has `reorder_cache`, an index_select that takes any index.
        self.cache.reorder_cache(index)
        self.mask, self.position, self.last = self.mask[index], self.position[index], self.last[index]

    def split(self, row: int) -> Session:
        """This row as a session of its own; this one keeps it too."""
        part = copy.copy(self)
        part.cache = caches.copy_rows(self.cache, torch.tensor([row], device=self.mask.device))
        part.mask, part.position, part.last = (t[row : row + 1] for t in (self.mask, self.position, self.last))
        return part

    def join(self, others: Sequence[Session]) -> None:
        """Take in the rows of other sessions of this agent, after its own, padded at the left to one length."""
        parts = [self, *others]
        length = max(int(part.mask.sum(1).max()) for part in parts)
        self.cache = caches.join([part.cache for part in parts], length)
        self.mask = torch.cat([caches.align(part.mask, length, dim=-1) for part in parts])
        self.position = torch.cat([part.position for part in parts])
        self.last = torch.cat([part.last for part in parts])


class Agent:
    """A role's frozen model with the means to think and to speak; see the module's docstring.

    Without an inner link (None) it can speak alone.
    """

    def __init__(
        self,
        role: Role,
        model: Any,
        tokenizer: Any,
        inner_link: InnerLink | None,
        device: torch.device | str | None = None,
    ) -> None:
        self.role = role
        self.name = role.name
        self.model = model
        self.tokenizer = tokenizer
        self.inner_link = inner_link
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.embedding: nn.Module = model.get_input_embeddings()
        self.decoder = _decoder(model)
        self.eos_ids = _eos_ids(model, tokenizer)
        if inner_link is not None and inner_link.source_width != self.width:
            raise InputError(
                f"role {role.name}: its inner link has width {inner_link.source_width}, its model {self.width}"
            )

    @property
    def width(self) -> int:
        """The width D of hidden states and input embeddings."""
        return self.embedding.weight.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of input embeddings."""
        return self.embedding.weight.dtype

    def embed(
        self,
        prompts: Sequence[Pieces],
        inbox: Mapping[str, Sequence[Tensor]] | None = None,
        targets: Sequence[Sequence[int]] | None = None,
    ) -> Batch:
        """Prompts as one left-padded batch of input embeddings.

        `inbox[slot][i]` [m, D] is the message for slot `slot` of prompt i; `targets[i]` are token ids put after it
        (teacher forcing). Messages keep their gradients and are cast to the embeddings' dtype.
        """
        tails = targets if targets is not None else [()] * len(prompts)
        rows = [[*prompt, list(tail)] for prompt, tail in zip(prompts, tails, strict=True)]
        # All text of the batch is embedded in one call; rows are then put together from views.
        ids = [token for row in rows for piece in row if not isinstance(piece, Slot) for token in piece]
        vectors = self.embedding(torch.tensor(ids, dtype=torch.long, device=self.device))
        taken, built = 0, []
        for index, row in enumerate(rows):
            pieces = []
            for piece in row:
                if isinstance(piece, Slot):
                    pieces.append(self._message(piece, index, inbox or {}))
                else:
                    pieces.append(vectors[taken : taken + len(piece)])
                    taken += len(piece)
            built.append(torch.cat(pieces))
        lengths = [len(row) for row in built]
        longest = max(lengths)
        embeds = torch.stack([nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in built])
        starts = longest - torch.tensor(lengths, device=self.device).unsqueeze(1)
        places = torch.arange(longest, device=self.device).unsqueeze(0)
        mask = (places >= starts).long()
        return Batch(embeds, mask, (places - starts).clamp(min=0), lengths)

    def _message(self, slot: Slot, index: int, inbox: Mapping[str, Sequence[Tensor]]) -> Tensor:
        if slot.name not in inbox:
            raise InputError(
                f"role {self.name}: no message for slot <<{slot.name}>>; filled are {', '.join(inbox) or 'none'}"
            )
        message = inbox[slot.name][index]
        if message.dim() != 2 or message.shape[1] != self.width:
            raise InputError(
                f"role {self.name}: the message for slot <<{slot.name}>> has shape {list(message.shape)}, expected [m, {self.width}]"
            )
        return message.to(self.device, self.dtype)

    def states(self, batch: Batch) -> Tensor:
        """Hidden states [B, L, D] after the final norm; keeps gradients, uses no cache."""
        return self.decoder(
            inputs_embeds=batch.embeds, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
        ).last_hidden_state

    def think(self, batch: Batch, steps: int) -> Tensor:
        """Roll out `steps` latent steps and return thoughts [B, steps, D] = inner(h_1), ..., inner(h_steps).

        h_1 is the state at the last prompt position; inner(h_k) is both the next input and the k-th vector of the
        message, so the last one is computed but never run. One prefill, then steps - 1 cached single steps.
        """
        if steps == 0:
            return batch.embeds.new_zeros(len(batch.embeds), 0, self.width, dtype=self.inner_link.dtype)
        session = Session(self, batch)
        thoughts = [self.inner_link(session.last)]
        while len(thoughts) < steps:
            thoughts.append(self.inner_link(session.step(thoughts[-1])))
        return torch.stack(thoughts, dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., D], with the scalings that some families put on them."""
        scores = self.model.get_output_embeddings()(hidden)
        config = self.model.config.get_text_config()
        if getattr(config, "logit_scale", None):
            scores = scores * config.logit_scale
        if getattr(config, "logits_scaling", None):
            scores = scores / config.logits_scaling
        cap = getattr(config, "final_logit_softcapping", None)
        return scores if not cap else torch.tanh(scores / cap) * cap

    @torch.no_grad()
    def speak(
        self,
        batch: Batch,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        *,
        tools: ToolUse | None = None,
        suffixes: Sequence[FindSuffix] | None = None,
        names: Sequence[str] | None = None,
    ) -> list[list[Generation]]:
        """Write text: `len(seeds[i])` samples of row i, all from one prefill.

        With `tools`, the tools that the role declares are run where the text calls them (see `writing`). `suffixes[i]` says
        how an answer of row i goes on that lacks its form. `names[i]` is what row i is called where tools are run.
        """
        session = Session(self, batch)
        # Every greedy sample of a row is the same text: it is written once and copied.
        counts = [1 if sampling.greedy else len(row) for row in seeds]
        places = [index for index, count in enumerate(counts) for _ in range(count)]
        if len(places) > len(seeds):
            session.select(places)
        with ThreadPoolExecutor(MAX_TOOL_THREADS) as pool:
            desk = ToolDesk(tools, self.role.tools, pool) if tools and self.role.tools else None
            rows = [
                Writer(
                    seed,
                    sampling.max_new_tokens,
                    self.eos_ids,
                    self.tokenizer,
                    row_id=f"{names[index]}:{rollout}" if names else f"{index}:{rollout}",
                    desk=desk,
                    find_suffix=suffixes[index] if suffixes else None,
                )
                for index, (row, count) in enumerate(zip(seeds, counts, strict=True))
                for rollout, seed in enumerate(row[:count])
            ]
            generate(session, rows, sampling)
        written = [row.generation() for row in rows]
        if sampling.greedy:
            return [[replace(one, seed=seed) for seed in row] for one, row in zip(written, seeds, strict=True)]
        texts = iter(written)
        return [[next(texts) for _ in row] for row in seeds]


def _decoder(model: Any) -> nn.Module:
    """The bare text decoder inside a causal language model."""
    decoder = model.get_decoder()
    if decoder is model:
        raise InputError(f"{type(model).__name__} has no decoder of its own; expected a causal language model")
    return decoder


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a turn: the union of tokenizer, config and generation config, which disagree for some models."""
    found: set[int] = set()
    for source in (tokenizer, model.config.get_text_config(), model.generation_config):
        ids = getattr(source, "eos_token_id", None)
        found |= set(ids) if isinstance(ids, (list, tuple)) else {ids}
    return frozenset(found - {None})
