"""Where a setting's value comes from."""

from __future__ import annotations

import pytest

from inference.settings import DEFAULTS, recommended, resolve_settings, settings_lines


def test_flag_over_recommended_over_default():
    settings = resolve_settings("sequential_light", "math500", {"latent_length": (16,), "temperature": None})
    assert (settings["latent_length"].value, settings["latent_length"].source) == ((16,), "flag")
    assert (settings["num_recursive_rounds"].value, settings["num_recursive_rounds"].source) == ((3,), "recommended")
    assert (settings["temperature"].value, settings["temperature"].source) == (0.6, "default")
    assert list(settings) == list(DEFAULTS)
    assert len(settings_lines(settings)) == len(DEFAULTS)


def test_a_flag_equal_to_false_or_zero_is_a_flag():
    settings = resolve_settings("mixture", "mbppplus", {"do_sample": False, "temperature": 0.0, "latent_length": (0,)})
    assert [settings[name].source for name in ("do_sample", "temperature", "latent_length")] == ["flag"] * 3


@pytest.mark.parametrize(
    "style, dataset, expected",
    [
        ("sequential_light", "math500", {"latent_length": (32,), "num_recursive_rounds": (3,), "max_new_tokens": 1000, "batch_size": 16}),
        ("sequential_scaled", "math500", {"latent_length": (64,), "num_recursive_rounds": (2,), "max_new_tokens": 2000}),
        ("sequential_light", "aime26", {"num_recursive_rounds": (2,), "num_rollouts": 10, "max_new_tokens": 8192, "batch_size": 15}),
        ("mixture", "mbppplus", {"temperature": 0.2, "max_new_tokens": 4000}),
        ("sequential_scaled", "livecodebench", {"latent_length": (48,), "temperature": 0.2, "max_new_tokens": 4096, "batch_size": 12}),
        ("deliberation", "livecodebench", {"latent_length": (16,), "num_recursive_rounds": (3,), "temperature": 0.6}),
        ("deliberation", "hotpotqa", {"latent_length": (32,), "num_recursive_rounds": (2,), "batch_size": 8}),
        ("my_style", "pocket_loop", {"num_recursive_rounds": (2,), "do_sample": False}),
    ],
)  # fmt: skip
def test_recommended_table(style, dataset, expected):
    table = recommended(style, dataset)
    assert {name: table[name] for name in expected} == expected


def test_no_recommendation():
    assert "latent_length" not in recommended("sequential_light", "livecodebench")
    assert recommended("my_style", "math500") == recommended("mixture", "my_rows") == {}
