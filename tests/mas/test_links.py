"""Links against their formulas, their files, and every way a file can be wrong."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from inference.mas.errors import InputError
from inference.mas.links import (
    ALIASES,
    INNER_TYPES,
    OUTER_TYPES,
    InnerLink,
    OuterLink,
    canonical_inner,
    canonical_outer,
    load_inner_state,
    load_outer_state,
)


def formula(state, x, spec, pre, post, residual):
    """The table of link types, written with plain matrices."""

    def linear(name, value):
        return value @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name, value):
        return layer_norm(value, value.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    y = linear("proj1", norm(pre, x) if spec.norm else x)
    if spec.depth == 2:
        y = linear("proj2", gelu(y))
    if spec.residual:
        y = y + residual(linear, x)
    return norm(post, y) if spec.norm else y


def randomised(link):
    """The link with every parameter moved off its initial value (norms start as the identity)."""
    with torch.no_grad():
        for parameter in link.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.3
            )
    return link


@pytest.mark.parametrize("name", INNER_TYPES)
def test_inner_formula(name):
    link = randomised(InnerLink(6, name))
    x = torch.randn(2, 3, 6)
    expected = formula(link.state_dict(), x, INNER_TYPES[name], "pre_ln", "post_ln", lambda linear, x: x)
    assert torch.allclose(link(x), expected, atol=1e-6)


@pytest.mark.parametrize("name", OUTER_TYPES)
def test_outer_formula(name):
    link = randomised(OuterLink(6, 4, name))
    x = torch.randn(2, 3, 6)
    residual = lambda linear, x: linear("residual_proj", x)  # noqa: E731
    expected = formula(link.state_dict(), x, OUTER_TYPES[name], "ln_source", "ln_target", residual)
    assert link(x).shape == (2, 3, 4)
    assert torch.allclose(link(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("width", "millions"), [(1536, 4.728), (2048, 8.401), (2560, 13.123), (3072, 18.893), (4096, 33.579)]
)
def test_parameter_counts_of_the_released_inner_links(width, millions):
    with torch.device("meta"):
        assert sum(p.numel() for p in InnerLink(width).parameters()) / 1e6 == pytest.approx(millions, abs=6e-4)


def test_parameter_counts_of_the_released_outer_links():
    def total(pairs):
        with torch.device("meta"):
            return sum(p.numel() for s, t in pairs for p in OuterLink(s, t).parameters()) / 1e6

    assert total([(2048, 2048), (2048, 1536), (1536, 2048)]) == pytest.approx(53.0, abs=0.06)
    assert total([(2560, 3072), (3072, 2560), (2560, 2560)]) == pytest.approx(112.0, abs=0.06)


def test_state_dict_keys_of_the_default_types():
    ln = [f"{n}.{p}" for n in ("pre_ln", "proj1", "proj2", "post_ln") for p in ("weight", "bias")]
    assert sorted(InnerLink(4).state_dict()) == sorted(ln)
    outer = {k: tuple(v.shape) for k, v in OuterLink(3, 4).state_dict().items()}
    assert outer == {
        "ln_source.weight": (3,), "ln_source.bias": (3,), "proj1.weight": (8, 3), "proj1.bias": (8,), "proj2.weight": (4, 8),
        "proj2.bias": (4,), "residual_proj.weight": (4, 3), "residual_proj.bias": (4,), "ln_target.weight": (4,), "ln_target.bias": (4,),
    }  # fmt: skip


@pytest.mark.parametrize("name", INNER_TYPES)
def test_inner_round_trip(name):
    link = randomised(InnerLink(6, name)).to(torch.bfloat16)
    back = load_inner_state(link.state_dict(), where="adapter.pt", declared_type=name, width=6)
    assert back.dtype == torch.bfloat16, "dtype auto is the file's"
    x = torch.randn(2, 6)
    assert torch.equal(back(x), link(x))
    assert load_inner_state(link.state_dict(), where="adapter.pt", dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("name", OUTER_TYPES)
def test_outer_type_follows_from_keys(name):
    link = randomised(OuterLink(6, 4, name))
    back = load_outer_state(link.state_dict(), where="outer_12.pt")
    assert (back.link_type, back.source_width, back.target_width) == (name, 6, 4)
    assert torch.equal(back(torch.ones(2, 6)), link(torch.ones(2, 6)))


def test_inner_type_without_manifest_prefers_the_residual_form():
    assert load_inner_state(InnerLink(4, "adapter").state_dict(), where="a.pt").link_type == "res_adapter"
    assert load_inner_state(InnerLink(4).state_dict(), where="a.pt").link_type == "ln_res_adapter"


def test_aliases():
    assert {alias: canonical_inner(alias) for alias in ALIASES} == ALIASES
    assert canonical_outer("2layer_ln_res") == canonical_outer("outer_ln_res_adapter") == "outer_ln_res_adapter"
    with pytest.raises(InputError, match="unknown type 'lora'"):
        canonical_inner("lora")


def test_input_is_cast_to_the_links_dtype_and_output_to_the_wanted_one():
    link = InnerLink(4)
    assert link(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32
    assert link(torch.ones(2, 4, dtype=torch.bfloat16), torch.bfloat16).dtype == torch.bfloat16


def without(state, key):
    return {k: v for k, v in state.items() if k != key}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: {}, "expected a state dict"),
        (lambda s: [1, 2], "expected a state dict"),
        (lambda s: {**s, "proj1.weight": "text"}, "not a floating tensor"),
        (lambda s: {**s, "proj1.weight": s["proj1.weight"] * torch.nan}, "NaN or infinite"),
        (lambda s: without(s, "proj1.bias"), "'proj1.bias' is missing"),
        (lambda s: {**s, "extra.weight": torch.ones(2)}, "unexpected entry 'extra.weight'"),
        (lambda s: {**s, "proj2.weight": torch.ones(4, 5)}, r"has shape \[4, 5\], expected \[4, 4\]"),
        (lambda s: {**s, "proj1.weight": torch.ones(4)}, "expected a matrix"),
        (lambda s: {"lm_head.weight": torch.ones(2, 2)}, "not those of a link"),
    ],
)
def test_a_bad_state_is_told_with_its_file(spoil, message):
    with pytest.raises(InputError, match=message) as caught:
        load_inner_state(spoil(InnerLink(4).state_dict()), where="dir/adapter.pt")
    assert str(caught.value).startswith("dir/adapter.pt: ")


def test_wrong_width_and_wrong_declared_type_are_told():
    with pytest.raises(InputError, match="width is 4, but the model's is 8"):
        load_inner_state(InnerLink(4).state_dict(), where="a.pt", width=8)
    with pytest.raises(InputError, match="target width is 4, but the model's is 5"):
        load_outer_state(OuterLink(3, 4).state_dict(), where="o.pt", source_width=3, target_width=5)
    with pytest.raises(InputError, match="manifest says outer_adapter"):
        load_outer_state(OuterLink(3, 4).state_dict(), where="o.pt", declared_type="outer_adapter")
