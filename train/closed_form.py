"""Links set to a least-squares map in closed form, as a start for training.

`fit_link(link, x, y)` gives any link type the weights with which it maps the rows of `x` to the rows of `y` as well as a
linear map can. The two-layer path is made linear exactly where its width allows it (gelu(z) - gelu(-z) = z), else by
running GELU far to the right, where it is the identity. Types with an output norm keep the map's directions; the
norm's weight and bias give every channel the spread and mean that it has in `y`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inference.mas.links import InnerLink, OuterLink

PENALTIES = tuple(10.0**power for power in range(-6, 2))  # of the ridge, in units of the mean squared channel
GELU_SHIFT = 12.0  # gelu(z) is z to fp32 precision from z = 6 on: inputs are scaled to stay within 6 of the shift
MAX_PAIRS = 20_000  # more pairs cost time and change nothing


@dataclass(frozen=True)
class Fit:
    """How well a link meets its pairs: mean cosine, and R² of the underlying map on pairs left out one at a time."""

    pairs: int
    penalty: float
    r2_left_out: float
    cosine: float


def ridge(x: Tensor, y: Tensor, penalties: Sequence[float] = PENALTIES) -> tuple[Tensor, float, float]:
    """The matrix [T, S] that maps x [n, S] to y [n, T], its penalty, and R² over left-out pairs, by which it is chosen.

    Leaving each pair out in turn has a closed form: the residual divided by one minus the pair's leverage.
    """
    values, vectors = torch.linalg.eigh(x.T @ x)
    values = values.clamp(min=0)
    turned = x @ vectors
    right = turned.T @ y
    best: tuple[float, float, Tensor] | None = None
    for factor in penalties:
        penalty = factor * float(values.mean().clamp(min=1e-30))
        weights = right / (values + penalty).unsqueeze(1)
        leverage = (turned.square() / (values + penalty)).sum(1, keepdim=True).clamp(max=1 - 1e-6)
        error = float(((y - turned @ weights) / (1 - leverage)).square().sum())
        if best is None or error < best[0]:
            best = (error, factor, (vectors @ weights).T)
    error, factor, matrix = best
    return matrix, factor, 1 - error / max(float((y - y.mean(0)).square().sum()), 1e-30)


@torch.no_grad()
def fit_link(link: InnerLink | OuterLink, x: Tensor, y: Tensor, penalties: Sequence[float] = PENALTIES) -> Fit:
    """Give `link` the weights of the best linear map from x [n, source width] to y [n, target width].

    `penalties` are those to choose from by pairs left out; one alone is taken as it is.
    """
    device = link.proj1.weight.device
    x, y = (part[:MAX_PAIRS].to(device).double() for part in (x, y))
    pre, post = (getattr(link, name, None) for name in (link.pre_name, link.post_name))
    for norm in (pre, post):
        if norm is not None:
            norm.reset_parameters()
    z = F.layer_norm(x, x.shape[1:]) if pre is not None else x
    goal = y
    if post is not None:
        # Scale is lost in the norm, so the map may work at the scale that suits the input.
        goal = y * (x.square().mean().sqrt() / y.square().mean().sqrt().clamp(min=1e-30))
    if isinstance(link, OuterLink) and link.residual_proj is not None:
        penalty, r2 = _write_affine(link.residual_proj, x, goal, penalties, bias=post is None)
        nn.init.zeros_((link.proj2 or link.proj1).weight)
        nn.init.zeros_((link.proj2 or link.proj1).bias)
    else:
        # Without a matrix of its own, the residual adds x itself: the path has to say the rest.
        rest = goal - x if link.residual else goal
        if link.proj2 is None:
            penalty, r2 = _write_affine(link.proj1, z, rest, penalties, bias=True)
        else:
            penalty, r2 = _write_two_layers(link, z, rest, penalties)
    if post is not None:
        normed = link(x.to(link.dtype)).double()
        spread = y.std(0) / normed.std(0).clamp(min=1e-6)
        post.weight.copy_(spread)
        post.bias.copy_(y.mean(0) - spread * normed.mean(0))
    cosine = F.cosine_similarity(link(x.to(link.dtype)).double(), y, dim=-1).mean()
    return Fit(len(x), penalty, r2, float(cosine))


def _affine(x: Tensor, y: Tensor, penalties: Sequence[float], bias: bool) -> tuple[Tensor, Tensor, float, float]:
    """Matrix, bias, penalty, R². A map without bias keeps its direction at any scale of x."""
    middle_x, middle_y = (x.mean(0), y.mean(0)) if bias else (torch.zeros_like(x[0]), torch.zeros_like(y[0]))
    matrix, penalty, r2 = ridge(x - middle_x, y - middle_y, penalties)
    return matrix, middle_y - matrix @ middle_x, penalty, r2


def _write_affine(
    layer: nn.Linear, x: Tensor, y: Tensor, penalties: Sequence[float], bias: bool
) -> tuple[float, float]:
    matrix, offset, penalty, r2 = _affine(x, y, penalties, bias)
    layer.weight.copy_(matrix)
    layer.bias.copy_(offset)
    return penalty, r2


def _write_two_layers(
    link: InnerLink | OuterLink, z: Tensor, y: Tensor, penalties: Sequence[float]
) -> tuple[float, float]:
    """Write an affine map into proj2(gelu(proj1(z)))."""
    matrix, offset, penalty, r2 = _affine(z, y, penalties, bias=True)
    hidden, target, device = link.proj1.out_features, matrix.shape[0], matrix.device
    nn.init.zeros_(link.proj1.bias)
    if hidden == 2 * target:
        link.proj1.weight.copy_(torch.cat([matrix, -matrix]))
        link.proj2.weight.copy_(torch.cat([torch.eye(target, device=device), -torch.eye(target, device=device)], dim=1))
        link.proj2.bias.copy_(offset)
        return penalty, r2
    # The hidden width is the target's: carry the outputs, each scaled to stay within 6 of the shift.
    carried = z @ matrix.T
    scale = (GELU_SHIFT / 2) / carried.abs().amax(0).clamp(min=1e-12)
    link.proj1.weight.copy_(matrix * scale.unsqueeze(1))
    link.proj1.bias.fill_(GELU_SHIFT)
    link.proj2.weight.copy_(torch.diag(1 / scale))
    link.proj2.bias.copy_(offset - GELU_SHIFT / scale)
    return penalty, r2
