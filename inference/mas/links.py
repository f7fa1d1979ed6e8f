"""The links: the only trained part of a system.

An *inner link* maps an agent's last hidden states to its own input embeddings (width D to D); an *outer link* maps them
on to another agent's input embeddings (width S to T). Both are the same small network; an outer link sends its residual
through a matrix because its two ends differ:

    x -> [pre-norm] -> W1 -> gelu -> W2 -> + residual(x) -> [post-norm]

The residual takes the raw, un-normed x. GELU is exact (erf); norms and initialisation are PyTorch's defaults. Names,
shapes and state-dict keys are those of the released files, so weights go in and out unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inference.mas.errors import InputError


@dataclass(frozen=True)
class LinkType:
    """What a link type is made of."""

    depth: int  # linear layers on the main path: 1 or 2
    residual: bool
    norm: bool
    wide: bool = False  # the two outer types with norms have a hidden width of twice the target's


INNER_TYPES: dict[str, LinkType] = {
    "linear_adapter": LinkType(1, False, False),
    "linear_res_adapter": LinkType(1, True, False),
    "adapter": LinkType(2, False, False),
    "res_adapter": LinkType(2, True, False),
    "ln_res_adapter": LinkType(2, True, True),
}
OUTER_TYPES: dict[str, LinkType] = {
    "outer_linear_adapter": LinkType(1, False, False),
    "outer_linear_res_adapter": LinkType(1, True, False),
    "outer_adapter": LinkType(2, False, False),
    "outer_res_adapter": LinkType(2, True, False),
    "outer_ln_adapter": LinkType(2, False, True, wide=True),
    "outer_ln_res_adapter": LinkType(2, True, True, wide=True),
}
ALIASES: dict[str, str] = {
    "1layer": "linear_adapter",
    "1layer_res": "linear_res_adapter",
    "2layer": "adapter",
    "2layer_res": "res_adapter",
    "2layer_ln_res": "ln_res_adapter",
}
DEFAULT_INNER = "ln_res_adapter"
DEFAULT_OUTER = "outer_ln_res_adapter"


def canonical_inner(name: str, where: str = "inner link type") -> str:
    """The canonical inner type for `name`, an alias or a type; `InputError` if it is neither."""
    found = ALIASES.get(name, name)
    if found not in INNER_TYPES:
        raise InputError(f"{where}: unknown type {name!r}; expected one of {', '.join([*INNER_TYPES, *ALIASES])}")
    return found


def canonical_outer(name: str, where: str = "outer link type") -> str:
    """The canonical outer type for `name`, an alias (with or without `outer_`) or a type; `InputError` otherwise."""
    bare = name.removeprefix("outer_")
    found = "outer_" + ALIASES.get(bare, bare)
    if found not in OUTER_TYPES:
        raise InputError(f"{where}: unknown type {name!r}; expected one of {', '.join([*OUTER_TYPES, *ALIASES])}")
    return found


class _Link(nn.Module):
    """The network that both kinds share; the kinds differ in names of the norms and in the residual's matrix."""

    link_type: str
    source_width: int
    target_width: int
    pre_name: str
    post_name: str

    def _build(self, spec: LinkType) -> None:
        source, target = self.source_width, self.target_width
        hidden = 2 * target if spec.wide else target
        if spec.norm:
            self.add_module(self.pre_name, nn.LayerNorm(source))
        self.proj1 = nn.Linear(source, hidden if spec.depth == 2 else target)
        self.proj2 = nn.Linear(hidden, target) if spec.depth == 2 else None
        if spec.norm:
            self.add_module(self.post_name, nn.LayerNorm(target))
        self.residual = spec.residual

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, in which the link computes."""
        return self.proj1.weight.dtype

    def forward(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """Map `x` [..., source_width] to [..., target_width], in `out_dtype` (default: the link's own)."""
        x = x.to(self.dtype)
        pre, post = getattr(self, self.pre_name, None), getattr(self, self.post_name, None)
        y = self.proj1(pre(x) if pre is not None else x)
        if self.proj2 is not None:
            y = self.proj2(F.gelu(y))
        if self.residual:
            y = y + self._residual(x)
        if post is not None:
            y = post(y)
        return y if out_dtype is None else y.to(out_dtype)

    def _residual(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class InnerLink(_Link):
    """Hidden states of an agent to its own input embeddings: [..., D] to [..., D]."""

    pre_name, post_name = "pre_ln", "post_ln"

    def __init__(self, width: int, link_type: str = DEFAULT_INNER) -> None:
        super().__init__()
        self.link_type = canonical_inner(link_type)
        self.source_width = self.target_width = width
        self._build(INNER_TYPES[self.link_type])

    def _residual(self, x: Tensor) -> Tensor:
        return x


class OuterLink(_Link):
    """What an agent thought, as the input embeddings of another agent: [..., S] to [..., T]."""

    pre_name, post_name = "ln_source", "ln_target"

    def __init__(self, source_width: int, target_width: int, link_type: str = DEFAULT_OUTER) -> None:
        super().__init__()
        self.link_type = canonical_outer(link_type)
        self.source_width, self.target_width = source_width, target_width
        spec = OUTER_TYPES[self.link_type]
        self._build(spec)
        self.residual_proj = nn.Linear(source_width, target_width) if spec.residual else None

    def _residual(self, x: Tensor) -> Tensor:
        assert self.residual_proj is not None
        return self.residual_proj(x)


def _checked(state: Mapping[str, Tensor], where: str) -> torch.dtype:
    """The dtype of the first floating tensor; `InputError` unless all entries are finite tensors."""
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{where}: expected a state dict of tensors, found {type(state).__name__}")
    for key, value in state.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise InputError(f"{where}: entry {key!r} is not a floating tensor; expected the state dict of a link")
        if not torch.isfinite(value).all():
            raise InputError(f"{where}: entry {key!r} holds NaN or infinite values; train or download the link again")
    return next(iter(state.values())).dtype


def _inferred_type(
    keys: set[str], types: Mapping[str, LinkType], pre: str, residual_key: str | None, where: str
) -> list[str]:
    """The types whose state dict could have these keys (inner: the residual leaves no key, so two may fit)."""
    found = [
        name
        for name, spec in types.items()
        if (spec.depth == 2) == ("proj2.weight" in keys)
        and spec.norm == (f"{pre}.weight" in keys)
        and (residual_key is None or spec.residual == (residual_key in keys))
    ]
    if not found or "proj1.weight" not in keys:
        raise InputError(f"{where}: keys {', '.join(sorted(keys))} are not those of a link; expected proj1.weight, ...")
    return found


def _pick_type(found: list[str], declared: str | None, where: str) -> str:
    if declared is None:
        # Where keys leave it open (inner links without norms), the residual form is the one the paper recommends.
        return found[-1]
    if declared not in found:
        raise InputError(f"{where}: the manifest says {declared}, but the weights are of type {' or '.join(found)}")
    return declared


def _fill(link: _Link, state: Mapping[str, Tensor], dtype: torch.dtype, where: str) -> None:
    expected = {key: tuple(value.shape) for key, value in link.state_dict().items()}
    for key in sorted(expected.keys() | state.keys()):
        if key not in state:
            raise InputError(f"{where}: {key!r} is missing; a {link.link_type} needs {', '.join(expected)}")
        if key not in expected:
            raise InputError(f"{where}: unexpected entry {key!r}; a {link.link_type} has only {', '.join(expected)}")
        if tuple(state[key].shape) != expected[key]:
            raise InputError(f"{where}: {key!r} has shape {list(state[key].shape)}, expected {list(expected[key])}")
    link.to(dtype)
    link.load_state_dict(dict(state), strict=True)


def _check_width(what: str, found: int, expected: int | None, where: str) -> None:
    if expected is not None and found != expected:
        raise InputError(
            f"{where}: {what} width is {found}, but the model's is {expected}; this link belongs to another model"
        )


def _rows_cols(state: Mapping[str, Tensor], key: str, where: str) -> tuple[int, int]:
    if state[key].dim() != 2:
        raise InputError(f"{where}: {key!r} has {state[key].dim()} dimensions, expected a matrix")
    return state[key].shape[0], state[key].shape[1]


def load_inner_state(
    state: Mapping[str, Tensor],
    *,
    where: str,
    declared_type: str | None = None,
    width: int | None = None,
    dtype: torch.dtype | None = None,
) -> InnerLink:
    """An inner link from its state dict.

    The type is `declared_type` or follows from keys; loading is strict. Raises `InputError` naming `where` (the file)
    for wrong keys, shapes, widths, types or values that are not finite. `dtype` None keeps the file's own.
    """
    own_dtype = _checked(state, where)
    found = _inferred_type(set(state), INNER_TYPES, "pre_ln", None, where)
    link_type = _pick_type(found, canonical_inner(declared_type, where) if declared_type else None, where)
    _, found_width = _rows_cols(state, "proj1.weight", where)
    _check_width("its", found_width, width, where)
    link = InnerLink(found_width, link_type)
    _fill(link, state, dtype or own_dtype, where)
    return link


def load_outer_state(
    state: Mapping[str, Tensor],
    *,
    where: str,
    declared_type: str | None = None,
    source_width: int | None = None,
    target_width: int | None = None,
    dtype: torch.dtype | None = None,
) -> OuterLink:
    """An outer link from its state dict; as `load_inner_state`, with a width for either end."""
    own_dtype = _checked(state, where)
    found = _inferred_type(set(state), OUTER_TYPES, "ln_source", "residual_proj.weight", where)
    link_type = _pick_type(found, canonical_outer(declared_type, where) if declared_type else None, where)
    rows, source = _rows_cols(state, "proj1.weight", where)
    target = _rows_cols(state, "proj2.weight", where)[0] if "proj2.weight" in state else rows
    _check_width("its source", source, source_width, where)
    _check_width("its target", target, target_width, where)
    link = OuterLink(source, target, link_type)
    _fill(link, state, dtype or own_dtype, where)
    return link
