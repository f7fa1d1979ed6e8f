"""From flags to a checked plan, before any weights are loaded: style, data, settings, conditions, files, fingerprint."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open

from inference.benchmarks.base import Benchmark
from inference.benchmarks.hub import UnreachableError
from inference.benchmarks.registry import load_benchmark
from inference.evaluation import Plan, make_conditions, shuffle_donors
from inference.mas.checkpoints import Resolved, fetch_weights, fingerprint, parse_overrides, read_links, resolve
from inference.mas.decoding import Sampling
from inference.mas.errors import InputError
from inference.mas.lm_loading import pick_device, pick_dtype
from inference.mas.styles import CONTROLS, METHODS, Style, load_style
from inference.results import Condition, short_hash
from inference.settings import MACHINE, Setting, plain, resolve_settings

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("transformers", "tokenizers", "datasets", "huggingface-hub", "safetensors", "numpy")


@dataclass(frozen=True)
class Job:
    """A command line made sense of. `benchmark` and `resolved` are None where a dry run could not reach the hub."""

    style: Style
    settings: dict[str, Setting]
    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    sampling: Sampling
    device: torch.device
    dtype: torch.dtype
    benchmark: Benchmark | None
    resolved: Resolved | None
    unreachable: tuple[str, ...]

    def value(self, name: str) -> Any:
        """A setting's value."""
        return self.settings[name].value

    @property
    def task(self) -> str:
        """The task family, which picks prompts and the default set of links."""
        return self.benchmark.rows[0].family if self.benchmark else "math"

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
        return {
            "style": {"name": self.style.name, "sha256": short_hash(_style_content(self.style))},
            "settings": settings,
            "data": {**self.benchmark.fingerprint(), "samples": samples},
            "weights": fingerprint(self.resolved),
        }

    def manifest(self) -> dict[str, Any]:
        """The run's manifest: the fingerprint, and what else is worth knowing later."""
        return {
            "format": 1,
            "fingerprint": self.fingerprint(),
            "machine": {name: self.shown_settings()[name] for name in MACHINE},
            "data_from": {"source": self.benchmark.source, "revision": self.benchmark.revision},
            "weights_from": self.resolved.describe(),
            "setting_sources": {name: setting.source for name, setting in self.settings.items()},
            "versions": versions(),
            "git_commit": git_commit(),
        }

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
    try:
        benchmark = _benchmark(flags)
        dataset = benchmark.name
    except UnreachableError as err:
        if not dry_run:
            raise
        benchmark, dataset = None, flags["dataset"]
        unreachable.append(str(err))
    settings = resolve_settings(style.name, dataset, flags)
    value = {name: setting.value for name, setting in settings.items()}
    names = _names(flags)
    conditions = make_conditions(names, value["num_recursive_rounds"], value["latent_length"])
    if benchmark and "shuffle" in names:
        shuffle_donors(benchmark.rows, benchmark.samples)
    sampling = Sampling(**{name: value[name] for name in Sampling.__dataclass_fields__})
    device = pick_device(value["device"])
    dtype = pick_dtype(value["dtype"], device)
    task = dataset if dataset in style.link_sets or benchmark is None else benchmark.rows[0].family
    resolved = None
    try:
        resolved = resolve(
            style,
            task=task,
            overrides=parse_overrides(flags["ckpt_override"]),
            revisions=_revisions(flags["revision"]),
            download=not dry_run,
            weights=False,
            trust_remote_code=value["trust_remote_code"],
        )
        read_links(resolved, trust_remote_code=value["trust_remote_code"])  # a bad link is told before a download
        if not dry_run or all(files.model.origin == "local" for files in resolved.roles.values()):
            fetch_weights(resolved)
    except InputError as err:
        if not (dry_run and isinstance(err.__cause__, LocalEntryNotFoundError)):
            raise
        unreachable.append(str(err))
    return Job(style, settings, names, conditions, sampling, device, dtype, benchmark, resolved, tuple(unreachable))


def _benchmark(flags: Mapping[str, Any]) -> Benchmark:
    return load_benchmark(
        flags["dataset"],
        split=flags["dataset_split"],
        num_samples=-1 if flags["num_samples"] is None else flags["num_samples"],
        shuffle_seed=flags["shuffle_seed"],
        sample_ids=flags["sample_ids"],
        dataset_file=flags["dataset_file"],
        revision=flags["dataset_revision"],
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
