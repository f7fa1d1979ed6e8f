"""Rows that leave a running batch and come back: copying and joining key/value caches.

Rows that ran on their own have different lengths. They are joined as a prompt batch is, aligned at the right:

    [ k k k k k k k ]                     [ k k k k k k k ]     mask 1 1 1 1 1 1 1
    [ k k k ]           -> length 7 ->    [ 0 0 0 0 k k k ]     mask 0 0 0 0 1 1 1

Full attention: zeros in front, hidden by the mask. Sliding windows keep their last positions only, and the window is measured in
places from the right, so that the same alignment is right. States of linear attention have no length and are stacked.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from inference.mas.errors import InputError

# Cache classes of hybrid models (Qwen3.5, Qwen3-Next and their kin) are no `Cache`; these are their per-layer lists.
_BY_LENGTH = ("key_cache", "value_cache")
_STATES = ("conv_states", "recurrent_states")


def copy_rows(cache: Any, rows: Tensor) -> Any:
    """A cache of its own with these rows (indices [b]); `cache` stays as it is."""
    taken = copy.copy(cache)
    if isinstance(cache, Cache):
        taken.layers = [copy.copy(layer) for layer in cache.layers]
    for name in (*_BY_LENGTH, *_STATES):
        if hasattr(cache, name):
            setattr(taken, name, list(getattr(cache, name)))
    taken.reorder_cache(rows)
    return taken


def align(tensor: Tensor, length: int, dim: int = -2) -> Tensor:
    """`tensor` with `length` places along `dim`: zeros put in front, or places in front cut off."""
    extra = length - tensor.shape[dim]
    if extra <= 0:
        return tensor.narrow(dim, -extra, length)
    return nn.functional.pad(tensor, [0, 0] * (-dim - 1) + [extra, 0])


def join(caches: Sequence[Any], length: int) -> Any:
    """One cache with the rows of all, each aligned to `length`; it takes the place of the first."""
    first = caches[0]
    if isinstance(first, Cache):
        for layers in zip(*(cache.layers for cache in caches), strict=True):
            _join_layer(layers, length)
        return first
    if not all(hasattr(first, name) for name in (*_BY_LENGTH, *_STATES)):
        raise InputError(
            f"{type(first).__name__}: rows of this model's cache can not be joined, so it can not use tools"
        )
    for name in (*_BY_LENGTH, *_STATES):
        for index, part in enumerate(getattr(first, name)):
            if part is not None:
                parts = [getattr(cache, name)[index] for cache in caches]
                parts = [align(tensor, length) for tensor in parts] if name in _BY_LENGTH else parts
                getattr(first, name)[index] = torch.cat(parts)
    return first


def _join_layer(layers: Sequence[Any], length: int) -> None:
    first, kept = layers[0], length
    if type(first) is DynamicSlidingWindowLayer:
        kept = min(length, first.sliding_window - 1)
        first.cumulative_length = length
    elif type(first) is not DynamicLayer:
        raise InputError(
            f"{type(first).__name__}: rows of this model's cache can not be joined, so it can not use tools"
        )
    first.keys = torch.cat([align(layer.keys, kept) for layer in layers])
    first.values = torch.cat([align(layer.values, kept) for layer in layers])
