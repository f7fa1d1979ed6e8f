"""From flags to a checked plan, before any weights are loaded: style, data, settings, conditions, files, fingerprint."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open

from inference.benchmarks.base import FAMILY, Benchmark, Options
from inference.benchmarks.hub import UnreachableError
from inference.benchmarks.registry import BENCHMARKS, load_benchmark
from inference.evaluation import Plan, make_conditions, shuffle_donors
from inference.mas.checkpoints import Resolved, fetch_weights, fingerprint, parse_overrides, read_links, resolve
from inference.mas.decoding import Sampling
from inference.mas.errors import InputError
from inference.mas.lm_loading import pick_device, pick_dtype
from inference.mas.styles import CONTROLS, METHODS, Style, load_style
from inference.results import FORMAT, Condition, short_hash
from inference.settings import FLAG, MACHINE, TOOL_SETTINGS, Setting, in_scope, plain, resolve_settings, set_judge
from inference.tools.errors import DataError
from inference.tools.search_tool import SearchSettings, search_settings
from inference.tools.toolbox import ToolSettings

ROOT = Path(__file__).resolve().parents[1]
SEARCH_FLAGS = ("tavily_keys_file", "tavily_sentinel_file", "search_replay", "max_search_calls")
# Questions about facts that no model of this size knows; without search their scores would say nothing of the style.
NEED_SEARCH = ("bamboogle", "hotpotqa", "pocket_search")
PACKAGES = ("transformers", "tokenizers", "datasets", "huggingface-hub", "safetensors", "numpy")


@dataclass(frozen=True)
class Job:
    """A command line made sense of. `benchmark` and `resolved` are None where a dry run could not reach the hub.

    `dataset` is the benchmark's name; `task` how it is graded; `unused` names flags that this benchmark has no use for.
    """

    style: Style
    dataset: str
    task: str
    unused: tuple[str, ...]
    settings: dict[str, Setting]
    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    sampling: Sampling
    device: torch.device
    dtype: torch.dtype
    benchmark: Benchmark | None
    resolved: Resolved | None
    unreachable: tuple[str, ...]
    tools: ToolSettings | None = None

    def value(self, name: str) -> Any:
        """A setting's value."""
        return self.settings[name].value

    @property
    def family(self) -> str:
        """The task family, which picks prompts and the default set of links."""
        return FAMILY[self.task]

    def plan(self) -> Plan:
        """What the evaluation needs; only where everything could be reached."""
        sample_seed = self.value("sample_seed")
        return Plan(
            style=self.style.name,
            mas_shape=self.style.mas_shape,
            benchmark=self.benchmark,
            conditions=self.conditions,
            sampling=self.sampling,
            num_rollouts=self.value("num_rollouts"),
            seed=sample_seed if sample_seed >= 0 else self.value("seed"),
            enable_thinking=self.value("enable_thinking"),
            ans=self.value("ans"),
            tools=self.tools,
        )

    def shown_settings(self) -> dict[str, Any]:
        """Settings as plain JSON values, the methods among them."""
        shown = {name: plain(setting.value) for name, setting in self.settings.items()}
        return {"methods": list(self.names), **shown, "device": str(self.device), "dtype": _dtype_name(self.dtype)}

    def fingerprint(self) -> dict[str, Any]:
        """All that decides answers. Rerunning with another one into the same folder is refused."""
        settings = {name: value for name, value in self.shown_settings().items() if name not in MACHINE}
        ids = [sample.id for sample in self.benchmark.samples]
        samples = {"count": len(ids), "sha256": short_hash(ids)}
        tools = {"tools": list(self.tools.offered)} if self.tools else {}
        return {
            "style": {"name": self.style.name, "sha256": short_hash(_style_content(self.style))},
            "settings": settings,
            "data": {**self.benchmark.fingerprint(), "samples": samples},
            "weights": fingerprint(self.resolved),
            **tools,
        }

    def manifest(self) -> dict[str, Any]:
        """The run's manifest: the fingerprint, and what else is worth knowing later."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint(),
            "machine": {name: value for name, value in self.shown_settings().items() if name in MACHINE},
            "data_from": {"source": self.benchmark.source, "revision": self.benchmark.revision},
            "weights_from": self.resolved.describe(),
            "setting_sources": {name: setting.source for name, setting in self.settings.items()},
            **({"tools": self.tools.describe()} if self.tools else {}),
            "versions": versions(),
            "git_commit": git_commit(),
        }

    def most_judge_calls(self) -> int | None:
        """The requests to the judge that the run may pay for; None if the number of samples is not known."""
        if not self.settings.get("judge") or not self.value("judge"):
            return 0
        limit = self.value("max_judge_calls")
        if self.benchmark is None:
            return limit if limit >= 0 else None
        # A reply that is no verdict is asked for once more.
        calls = 2 * len(self.benchmark.samples) * len(self.conditions) * self.value("num_rollouts")
        return min(calls, limit) if limit >= 0 else calls

    def most_searches(self) -> int | None:
        """The searches that the run may pay for; None if the number of samples is not known."""
        if self.tools is None or "search" not in self.tools.offered or self.tools.search.replay_file:
            return 0
        limit = self.tools.search.max_search_calls
        if self.benchmark is None:
            return limit if limit is not None and limit >= 0 else None
        conditions = sum(condition.method != "single" for condition in self.conditions)
        # Greedy copies of an answer share its calls.
        copies = 1 if self.sampling.greedy else self.value("num_rollouts")
        calls = len(self.benchmark.samples) * conditions * copies * self.tools.max_rounds
        return calls if limit is None or limit < 0 else min(calls, limit)

    def default_folder(self) -> Path:
        """`runs/<style>-<dataset>-<hash of the fingerprint>`: the same command finds its own run again."""
        name = f"{self.style.name}-{self.benchmark.name}-{short_hash(self.fingerprint())}"
        return Path("runs") / re.sub(r"[^\w.-]+", "_", name)


def make_job(flags: Mapping[str, Any], *, dry_run: bool = False) -> Job:
    """Check all flags and find all files. Raises `InputError` or `DataError`; loads no weights.

    A dry run downloads no weights, and what only the hub has is noted in `unreachable` instead.
    """
    style = load_style(flags["style"], prompts=flags["prompts"])
    unreachable: list[str] = []
    spec = BENCHMARKS.get(flags["dataset"])
    dataset = flags["dataset"] if spec else Path(flags["dataset"]).stem
    settings = resolve_settings(style.name, dataset, flags)
    judge = _set_judge(settings)
    benchmark = None
    try:
        benchmark = _benchmark(flags, settings, download=not dry_run)
    except UnreachableError as err:
        if not dry_run:
            raise
        unreachable.append(str(err))
    task = benchmark.task if benchmark else spec.task
    subject = dataset if spec else task
    if judge is not None and in_scope("judge", subject):
        raise judge
    unused = tuple(n for n, setting in settings.items() if setting.source == FLAG and not in_scope(n, subject))
    settings = {name: setting for name, setting in settings.items() if in_scope(name, subject)}
    names = _names(flags)
    # The plain prompt of `single` offers no tools.
    tooled = bool(style.role(style.speaker).tools) and set(names) != {"single"}
    if not tooled:
        unused += tuple(name for name in TOOL_SETTINGS if settings[name].source == FLAG)
        settings = {name: setting for name, setting in settings.items() if name not in TOOL_SETTINGS}
    value = {name: setting.value for name, setting in settings.items()}
    tools = _tools(style, dataset, flags, value) if tooled else None
    try:
        if tools:
            _check_search(tools, dataset, value)
    except DataError as err:
        if not dry_run:
            raise
        unreachable.append(str(err))
    if tools is None or "search" not in tools.declared:
        unused += tuple(flag for flag in SEARCH_FLAGS if flags[flag] is not None)
    if value["pass_k"] and max(value["pass_k"]) > value["num_rollouts"]:
        raise InputError(
            f"--pass_k {max(value['pass_k'])}: more than --num_rollouts {value['num_rollouts']} answers to a question; "
            "lower the one or raise the other"
        )
    conditions = make_conditions(names, value["num_recursive_rounds"], value["latent_length"])
    if benchmark and "shuffle" in names:
        shuffle_donors(benchmark.rows, benchmark.samples)
    sampling = Sampling(**{name: value[name] for name in Sampling.__dataclass_fields__})
    device = pick_device(value["device"])
    dtype = pick_dtype(value["dtype"], device)
    latent = any(condition.method == "latent" for condition in conditions)  # text alone needs no links
    resolved = None
    try:
        resolved = resolve(
            style,
            task=dataset if dataset in style.link_sets else FAMILY[task],
            overrides=parse_overrides(flags["ckpt_override"]),
            revisions=_revisions(flags["revision"]),
            download=not dry_run,
            weights=False,
            inner=latent,
            outer=latent,
            trust_remote_code=value["trust_remote_code"],
        )
        read_links(resolved, trust_remote_code=value["trust_remote_code"])  # a bad link is told before a download
        if not dry_run or all(files.model.origin == "local" for files in resolved.roles.values()):
            fetch_weights(resolved)
    except InputError as err:
        if not (dry_run and isinstance(err.__cause__, LocalEntryNotFoundError)):
            raise
        unreachable.append(str(err))
    return Job(
        style, dataset, task, unused, settings, names, conditions, sampling, device, dtype, benchmark, resolved,
        tuple(unreachable), tools,
    )  # fmt: skip


def _tools(style: Style, dataset: str, flags: Mapping[str, Any], value: Mapping[str, Any]) -> ToolSettings:
    """The speaker's tools."""
    limit = flags["max_search_calls"]
    declared = style.role(style.speaker).tools
    search = SearchSettings()
    if "search" in declared:
        search = search_settings(
            flags["tavily_keys_file"], flags["tavily_sentinel_file"], flags["search_replay"], max_search_calls=limit
        )
    try:
        return ToolSettings(
            declared, value["max_tool_rounds"], value["python_timeout"], value["result_max_chars"], search
        )
    except DataError as err:
        raise InputError(f"{style.path}: roles.{style.speaker}.tools: {err}") from err


def _check_search(tools: ToolSettings, dataset: str, value: Mapping[str, Any]) -> None:
    """Search without a key is refused where questions need it, else not offered."""
    needs_search = dataset in NEED_SEARCH and not value.get("hotpot_context")
    tools.check(f"--dataset {dataset}" if needs_search else "")


def _set_judge(settings: dict[str, Setting]) -> DataError | None:
    """Settle the judge's settings; what is wrong with its variables matters only where there is something to judge."""
    try:
        set_judge(settings, os.environ)
    except DataError as err:
        return err
    return None


def _benchmark(flags: Mapping[str, Any], settings: Mapping[str, Setting], download: bool) -> Benchmark:
    return load_benchmark(
        flags["dataset"],
        split=flags["dataset_split"],
        num_samples=-1 if flags["num_samples"] is None else flags["num_samples"],
        shuffle_seed=flags["shuffle_seed"],
        sample_ids=flags["sample_ids"],
        dataset_file=flags["dataset_file"],
        revision=flags["dataset_revision"],
        options=Options(**{field.name: settings[field.name].value for field in fields(Options)}),
        download=download,
    )


def _names(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods and controls to run, from --compare, or --method and --latent_control."""
    method, control, compare = flags["method"], flags["latent_control"], flags["compare"]
    if compare:
        if method or control:
            raise InputError(
                "--compare: names all methods and controls by itself; leave out --method and --latent_control"
            )
        known = (*METHODS, *CONTROLS)
        for name in compare:
            if name not in known:
                raise InputError(f"--compare: unknown method {name!r}; expected some of {', '.join(known)}")
        if len(set(compare)) != len(compare):
            raise InputError(f"--compare {','.join(compare)}: a method stands twice; name each once")
        return tuple(compare)
    if control and method not in (None, "latent"):
        raise InputError(
            f"--latent_control {control}: replaces latent messages, but --method is {method}; leave one out"
        )
    return (control or method or "latent",)


def _revisions(items: list[str]) -> str | dict[str, str] | None:
    """One revision for all repos, or KEY=REVISION for some."""
    if len(items) == 1 and "=" not in items[0]:
        return items[0]
    found = dict(item.partition("=")[::2] for item in items)
    if len(found) != len(items) or not all(found) or not all(found.values()):
        raise InputError(
            f"--revision {' '.join(items)}: expected one revision for all, or KEY=REVISION for each of several"
        )
    return found or None


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _style_content(style: Style) -> dict[str, Any]:
    """What of a style decides answers: prompts and graph. Where its files lie does not; weights have their own hashes."""
    content = asdict(style)
    for key in ("path", "outer_repo"):
        content.pop(key)
    for role in content["roles"]:
        role.pop("model")
        role.pop("repo")
    return content


def versions() -> dict[str, str]:
    """Versions of the packages that answers may depend on."""
    # torch's own version names its build (CPU or CUDA), the package's does not.
    named = {"python": platform.python_version(), "torch": torch.__version__}
    return named | {name: metadata.version(name) for name in PACKAGES}


def git_commit() -> str | None:
    """Commit of this checkout, with "-dirty" after it if files differ; None outside of git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def memory_estimate(job: Job) -> dict[str, Any] | None:
    """Bytes of weights and links as loaded, from the headers of their files; None if some are not here.

    Base models that roles share count once; with --offload only the largest one sits on the device. Activations and KV
    cache come on top.
    """
    if job.resolved is None:
        return None
    try:
        models = {files.weights_key(): files for files in job.resolved.roles.values()}
    except InputError:
        return None  # only in a dry run: weights that the hub has and the cache has not
    sizes = {}
    for files in models.values():
        elements = sum(_elements(path) for path in sorted(files.model_dir.glob("*.safetensors")))
        sizes[files.base_id] = elements * job.dtype.itemsize
    links = [files.inner.path for files in job.resolved.roles.values() if files.inner]
    links += [file.path for file in job.resolved.outer.values()]
    link_bytes = sum(path.stat().st_size for path in links)
    at_once = max(sizes.values()) if job.value("offload") else sum(sizes.values())
    return {"models": sizes, "links": link_bytes, "device_total": at_once + link_bytes}


def _elements(path: Path) -> int:
    with safe_open(path, framework="pt") as file:
        total = 0
        for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
            count = 1
            for size in file.get_slice(name).get_shape():
                count *= size
            total += count
    return total
