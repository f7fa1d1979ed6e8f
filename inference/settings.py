"""Settings of an evaluation, each with where its value came from: a flag, the recommended table, the environment (the judge),
or the default.

A recommended value applies only where the flag is absent. The table holds the reference's settings of latent length and rounds
for each released style and benchmark; they were tuned on these test sets, so a comparison that must be fair across
settings should give its own by flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.scoring.judge import VARIABLES, judge_settings
from inference.tools.errors import DataError

FLAG, RECOMMENDED, DEFAULT, ENVIRONMENT = "flag", "recommended", "default", "environment"

DEFAULTS: dict[str, Any] = {
    "num_recursive_rounds": (3,),
    "latent_length": (32,),
    "num_samples": -1,
    "num_rollouts": 1,
    "batch_size": 8,
    "seed": 42,
    "sample_seed": -1,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": -1,
    "min_p": -1.0,
    "repetition_penalty": 1.0,
    "max_new_tokens": 1000,
    "enable_thinking": False,
    "ans": True,
    "max_tool_rounds": 5,
    "python_timeout": 10.0,
    "result_max_chars": 6000,
    "pass_k": (),
    "mbppplus_num_prompt_tests": 3,
    "mbppplus_timeout_s": 10.0,
    "lcb_release": "release_v6",
    "lcb_start_date": "",
    "lcb_end_date": "",
    "lcb_use_private_tests": True,
    "lcb_timeout_s": 6.0,
    "code_workers": 0,
    "hotpot_context": False,
    "judge": False,
    "judge_all": False,
    "judge_model": "",
    "max_judge_calls": -1,
    "device": "auto",
    "dtype": "auto",
    "offload": False,
    "trust_remote_code": False,
}

# How a run is carried out and told, which may differ between the parts of a resumed run. Everything else decides answers.
MACHINE = ("batch_size", "device", "offload", "code_workers", "max_judge_calls", "pass_k")

# Settings of styles whose speaker has tools.
TOOL_SETTINGS = ("max_tool_rounds", "python_timeout", "result_max_chars")

# Settings of some benchmarks only, or of a user's own rows of some task.
_CODE, _QA = ("mbppplus", "livecodebench", "code"), ("bamboogle", "hotpotqa", "qa")
SCOPE: dict[str, tuple[str, ...]] = {
    "mbppplus_num_prompt_tests": ("mbppplus",),
    "mbppplus_timeout_s": ("mbppplus", "code"),
    "lcb_release": ("livecodebench",),
    "lcb_start_date": ("livecodebench",),
    "lcb_end_date": ("livecodebench",),
    "lcb_use_private_tests": ("livecodebench",),
    "lcb_timeout_s": ("livecodebench", "code"),
    "code_workers": _CODE,
    "hotpot_context": ("hotpotqa",),
    "judge": _QA,
    "judge_all": _QA,
    "judge_model": _QA,
    "max_judge_calls": _QA,
}

_COLUMNS = ("math500", "medqa", "gpqa", "mbppplus", "aime25", "aime26", "livecodebench", "bamboogle", "hotpotqa")
# latent length / rounds, by column; "-" where the reference recommends nothing
_LENGTH_ROUNDS = {
    "sequential_light": "32/3 32/2 48/3 48/3 32/3 32/2 - - -",
    "sequential_scaled": "64/2 32/3 32/2 32/3 48/3 64/3 48/2 - -",
    "mixture": "64/3 48/2 48/3 32/3 16/3 32/2 16/2 - -",
    "distillation": "64/3 64/2 64/3 16/2 32/3 32/3 64/2 - -",
    "deliberation": "16/2 16/2 16/3 16/3 16/3 16/2 16/3 16/3 32/2",
}
_LCB_TEMPERATURE = {"distillation": 0.6, "deliberation": 0.6}
_BATCH = {"aime25": 15, "aime26": 15, "livecodebench": 12, "bamboogle": 8, "hotpotqa": 8}
_POCKET = {"pocket": 1, "pocket_loop": 2, "pocket_mixture": 1, "pocket_search": 1}  # rounds


@dataclass(frozen=True)
class Setting:
    """A value and its source."""

    value: Any
    source: str


def recommended(style: str, dataset: str) -> dict[str, Any]:
    """What the table says for a style and a benchmark; {} where it says nothing."""
    if dataset in _POCKET or style.startswith("pocket_"):
        # Small greedy models with short answers: sampling would only add noise to what the pocket system shows.
        return {
            "num_recursive_rounds": (_POCKET.get(dataset, 1),),
            "latent_length": (16,),  # what the links were trained with
            "batch_size": 50,
            "do_sample": False,
            "max_new_tokens": 64,
        }
    if style not in _LENGTH_ROUNDS or dataset not in _COLUMNS:
        return {}
    found: dict[str, Any] = {"batch_size": _BATCH.get(dataset, 16), "max_new_tokens": _max_new_tokens(style, dataset)}
    cell = _LENGTH_ROUNDS[style].split()[_COLUMNS.index(dataset)]
    if cell != "-":
        length, rounds = cell.split("/")
        found |= {"latent_length": (int(length),), "num_recursive_rounds": (int(rounds),)}
    if dataset == "mbppplus":
        found["temperature"] = 0.2
    elif dataset == "livecodebench":
        found["temperature"] = _LCB_TEMPERATURE.get(style, 0.2)
    elif dataset in {"aime25", "aime26"}:
        found["num_rollouts"] = 10
    return found


def _max_new_tokens(style: str, dataset: str) -> int:
    light = style == "sequential_light"
    if dataset == "math500":
        return 1000 if light else 2000
    if dataset in {"aime25", "aime26"}:
        return 8192 if light else 16000
    return 4096 if dataset == "livecodebench" else 4000


def resolve_settings(style: str, dataset: str, flags: Mapping[str, Any]) -> dict[str, Setting]:
    """Every setting of `DEFAULTS`: its flag where that is not None, else the recommended value, else the default.

    Those of other benchmarks (`SCOPE`) are among them; `in_scope` tells which count.
    """
    table = recommended(style, dataset)
    found = {}
    for name, default in DEFAULTS.items():
        if flags.get(name) is not None:
            found[name] = Setting(flags[name], FLAG)
        elif name in table:
            found[name] = Setting(table[name], RECOMMENDED)
        else:
            found[name] = Setting(default, DEFAULT)
    return found


def in_scope(name: str, subject: str) -> bool:
    """Whether a setting matters to a benchmark, or to a user's own rows of a task."""
    return name not in SCOPE or subject in SCOPE[name]


def set_judge(settings: dict[str, Setting], environ: Mapping[str, str]) -> None:
    """Turn the judge on where its variables are set and --judge says nothing; `DataError` if it cannot work as asked.

    The judge's model is a setting of its own: verdicts of two models must not mix in one run.
    """
    judge = settings["judge"]
    if judge.source == FLAG and not judge.value:
        return
    found = judge_settings(environ=environ)
    if found is not None:
        settings["judge"] = Setting(True, judge.source if judge.source == FLAG else ENVIRONMENT)
        settings["judge_model"] = Setting(found.model, ENVIRONMENT)
    elif judge.value:
        raise DataError(f"--judge 1: none of the variables {', '.join(VARIABLES)} is set; set all, or give --judge 0")


def plain(value: Any) -> Any:
    """A value for JSON: a list of one is its item."""
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    return value


def settings_lines(settings: Mapping[str, Setting]) -> list[str]:
    """Settings for people, each with its source."""

    def shown(value: Any) -> str:
        if isinstance(value, tuple):
            return ",".join(map(str, value)) or "all"
        return str(int(value) if isinstance(value, bool) else value) or "-"

    return [f"  {name:22} {shown(setting.value):>10}  ({setting.source})" for name, setting in settings.items()]
