"""The training loop of both trainers: steps, schedule, metrics, checkpoints, resume.

    task.outcome(rows)  ->  sum of losses and its weight, over micro-batches
    gradients           ->  summed over micro-batches and processes, divided once by the summed weight

so accumulation (or several processes) gives the gradient of the large batch, also where rows weigh differently or were
skipped. Every random choice is a function of (seed, epoch), so a data position is one number; a checkpoint holds the
links' weights, optimiser, step and generator state, and a resumed run ends with the same bits as an unbroken one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from inference.mas.errors import InputError

BETAS = (0.9, 0.95)
# A run whose first or next this many steps in a row found nothing finite will not recover.
MAX_BAD_STEPS = 20
STATE_FILE = "training_state.pt"
METRICS_FILE = "metrics.jsonl"


@dataclass
class Outcome:
    """What some rows gave. `total` is the sum to differentiate (None: no usable row), `weight` what it is divided by.

    `sums` are logged quantities as (sum, count); `skipped` counts rows whose loss was not finite or that did not fit.
    """

    total: Tensor | None
    weight: float
    tokens: int = 0
    skipped: int = 0
    sums: dict[str, tuple[Any, float]] = field(default_factory=dict)


class Task(Protocol):
    """What the loop trains."""

    links: Mapping[str, nn.Module]
    train_rows: Sequence[int]

    def outcome(self, rows: Sequence[int], probe: bool = False) -> Outcome:
        """The loss over rows (indices), with a graph; `probe` asks for costlier metrics at a logged step."""

    def probed(self, weight: float) -> dict[str, float]:
        """Metrics collected since the last call during probed outcomes whose summed weight is `weight`."""

    def evaluate(self) -> dict[str, Any]:
        """Held-out metrics; empty without held-out rows."""

    def save(self, folder: Path) -> None:
        """Write the links and their manifests."""


@dataclass(frozen=True)
class LoopSettings:
    """How to train. `free` names settings that do not change the result and may differ on resume."""

    save_dir: Path | None
    settings: dict[str, Any]
    free: frozenset[str]
    max_steps: int
    num_train_epochs: float
    step_rows: int
    micro_rows: int
    lr: float
    schedule: str
    warmup_steps: int
    weight_decay: float
    decay_all: bool
    max_grad_norm: float
    log_every: int
    save_steps: int
    eval_every: int
    seed: int
    shuffle: bool
    resume: bool


def learning_rate(step: int, steps: int, base: float, schedule: str, warmup: int) -> float:
    """The rate of step `step` (0-based): linear warm-up, then a cosine to zero or a constant."""
    if step < warmup:
        return base * (step + 1) / warmup
    if schedule == "constant":
        return base
    done = (step - warmup) / max(1, steps - warmup)
    return base * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class DataOrder:
    """Rows in training order: epochs of whole batches, each epoch shuffled by (seed, epoch) alone."""

    def __init__(self, rows: Sequence[int], batch: int, seed: int, shuffle: bool) -> None:
        if len(rows) < batch:
            raise InputError(
                f"--batch_size: a step takes {batch} rows, but there are only {len(rows)} to train on; lower it"
            )
        self.rows, self.batch, self.seed, self.shuffle = list(rows), batch, seed, shuffle
        self.steps_per_epoch = len(self.rows) // batch
        self._epoch: tuple[int, list[int]] = (-1, [])

    def step(self, step: int) -> list[int]:
        """The rows of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            order = self.rows
            if self.shuffle:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = [self.rows[i] for i in torch.randperm(len(self.rows), generator=generator).tolist()]
            self._epoch = (epoch, order)
        return self._epoch[1][place * self.batch : (place + 1) * self.batch]


class Window:
    """Running sums of logged quantities between two log lines."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

    def add(self, sums: Mapping[str, tuple[Any, float]]) -> None:
        for name, (value, count) in sums.items():
            entry = self.sums.setdefault(name, [0.0, 0.0])
            entry[0] += float(value)
            entry[1] += float(count)

    def means(self) -> dict[str, float]:
        """Means so far; starts a new window."""
        means = {name: total / count for name, (total, count) in self.sums.items() if count}
        self.sums = {}
        return means


class Loop:
    """One training run; `run` returns its summary."""

    def __init__(self, task: Task, settings: LoopSettings, accelerator: Accelerator) -> None:
        self.task, self.settings, self.accelerator = task, settings, accelerator
        self.order = DataOrder(task.train_rows, settings.step_rows, settings.seed, settings.shuffle)
        epochs = math.ceil(settings.num_train_epochs * self.order.steps_per_epoch)
        self.steps = settings.max_steps if settings.max_steps > 0 else epochs
        self.named = [(f"{key}.{name}", p) for key, link in task.links.items() for name, p in link.named_parameters()]
        self.optimizer = torch.optim.AdamW(self._groups(), lr=settings.lr, betas=BETAS)
        self.window = Window()
        self.done = 0
        self.counts = {"skipped": 0, "bad_steps": 0, "tokens": 0, "seconds": 0.0}
        self.last_loss: float | None = None
        self.bad_in_a_row = 0

    def _groups(self) -> list[dict[str, Any]]:
        """Parameters with and without weight decay."""
        decay = [p for _, p in self.named if self.settings.decay_all or p.dim() > 1]
        plain = [p for _, p in self.named if not (self.settings.decay_all or p.dim() > 1)]
        groups = [{"params": decay, "weight_decay": self.settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    @property
    def main(self) -> bool:
        """True in the one process that writes."""
        return self.accelerator.is_main_process

    def run(self) -> dict[str, Any]:
        """Train to the last step, write the links, and return the summary."""
        self._start()
        settings, evaluated = self.settings, {}
        with tqdm(total=self.steps, initial=self.done, desc="train", unit="step", disable=not self.main) as bar:
            began, tokens_before = time.perf_counter(), self.counts["tokens"]
            seconds_before = self.counts["seconds"]
            while self.done < self.steps:
                step = self.done
                logged = settings.log_every > 0 and ((step + 1) % settings.log_every == 0 or step + 1 == self.steps)
                extra = self._step(step, probe=logged)
                self.done += 1
                seconds = time.perf_counter() - began
                self.counts["seconds"] = seconds_before + seconds
                bar.update()
                if logged:
                    speed = (self.counts["tokens"] - tokens_before) / max(1e-9, seconds)
                    self._log({"step": self.done, **self.window.means(), **extra, "tokens_per_second": round(speed, 1)})
                    if self.last_loss is not None:
                        bar.set_postfix(loss=f"{self.last_loss:.4f}")
                if settings.eval_every and self.done % settings.eval_every == 0 and self.done < self.steps:
                    evaluated = self._evaluate()
                if settings.save_steps and self.done % settings.save_steps == 0:
                    self._checkpoint()
        evaluated = self._evaluate() or evaluated
        if self.main and settings.save_dir is not None:
            self.task.save(settings.save_dir)
        self.accelerator.wait_for_everyone()
        return {"steps": self.done, "final_loss": self.last_loss, **self.counts, **evaluated}

    def _step(self, step: int, probe: bool) -> dict[str, Any]:
        """One optimiser step; returns metrics of this step alone. Losses are over all processes, their parts over one's own."""
        settings = self.settings
        rows = self.order.step(step)
        # Every process gets a part, also of a step that one process would run at once.
        size = min(settings.micro_rows, math.ceil(len(rows) / self.accelerator.num_processes))
        micros = [rows[i : i + size] for i in range(0, len(rows), size)]
        weight = tokens = skipped = total = 0.0
        gathered: list[dict[str, tuple[float, float]]] = []
        for micro in micros[self.accelerator.process_index :: self.accelerator.num_processes]:
            outcome = self.task.outcome(micro, probe=probe)
            tokens, skipped = tokens + outcome.tokens, skipped + outcome.skipped
            if outcome.total is not None:
                if outcome.total.requires_grad:
                    outcome.total.backward()
                weight, total = weight + outcome.weight, total + float(outcome.total.detach())
                gathered.append({name: (float(value), float(count)) for name, (value, count) in outcome.sums.items()})
        weight, tokens, skipped, total = self._across([weight, tokens, skipped, total])
        self.counts["tokens"] += int(tokens)
        self.counts["skipped"] += int(skipped)
        rate = learning_rate(step, self.steps, settings.lr, settings.schedule, settings.warmup_steps)
        if weight == 0 or not self._update(rate, weight):
            self._bad_step(step)
            return {"lr": rate}
        self.bad_in_a_row = 0
        for sums in gathered:
            self.window.add(sums)
        self.last_loss = total / weight
        self.window.add({"loss": (total / weight, 1), "grad_norm": (self.grad_norm, 1)})
        return {"lr": rate, **(self.task.probed(weight) if probe else {}), **(self.link_norms if probe else {})}

    def _update(self, rate: float, weight: float) -> bool:
        """Divide, clip and apply the summed gradients; False (and nothing applied) if they are not finite."""
        for _, parameter in self.named:
            if self.accelerator.num_processes > 1:
                own = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                parameter.grad = self.accelerator.reduce(own, reduction="sum")
            if parameter.grad is not None:
                parameter.grad /= weight
        squares: dict[str, Tensor] = {}
        for name, parameter in self.named:
            if parameter.grad is not None:
                key = name.split(".", 1)[0]
                squares[key] = squares.get(key, 0) + parameter.grad.float().square().sum()
        # Links may sit on several devices, so their shares are added as numbers.
        norm = math.sqrt(sum(float(square) for square in squares.values()))
        finite = math.isfinite(norm)
        if finite:
            self.grad_norm = norm
            self.link_norms = {f"grad_norm/{key}": float(value.sqrt()) for key, value in squares.items()}
            limit = self.settings.max_grad_norm
            if limit > 0 and norm > limit:
                for _, parameter in self.named:
                    if parameter.grad is not None:
                        parameter.grad *= limit / (norm + 1e-6)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return finite

    def _across(self, values: list[float]) -> list[float]:
        """Sums over processes."""
        if self.accelerator.num_processes == 1:
            return values
        # float64: token counts pass 2**24; MPS has none, but is a single process.
        there = torch.tensor(values, dtype=torch.float64, device=self.accelerator.device)
        return self.accelerator.reduce(there, reduction="sum").tolist()

    def _bad_step(self, step: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.task.probed(1.0)
        self.counts["bad_steps"] += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= MAX_BAD_STEPS or self.counts["bad_steps"] == self.steps:
            raise InputError(
                f"training stopped at step {step + 1}: {self.bad_in_a_row} steps in a row had no finite loss or gradient "
                f"({self.counts['skipped']} rows skipped in all); check the data and the links, lower the learning rate, "
                "or use --dtype float32"
            )

    def _evaluate(self) -> dict[str, Any]:
        if not self.main:
            self.accelerator.wait_for_everyone()
            return {}
        with torch.no_grad():
            found = self.task.evaluate()
        if found:
            self._log({"step": self.done, **found})
        self.accelerator.wait_for_everyone()
        return found

    def _log(self, line: Mapping[str, Any]) -> None:
        if not self.main:
            return
        shown = " ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items() if _headline(k)
        )
        tqdm.write(shown)
        if self.settings.save_dir is not None:
            with (self.settings.save_dir / METRICS_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _checkpoint(self) -> None:
        """Write `checkpoint-<step>`; the state file comes last and whole, so a folder that has one can be resumed."""
        if not self.main or self.settings.save_dir is None:
            return
        folder = self.settings.save_dir / f"checkpoint-{self.done}"
        self.task.save(folder)
        state = {
            "step": self.done,
            "settings": json.dumps(self.settings.settings, default=str),
            "links": {key: link.state_dict() for key, link in self.task.links.items()},
            "optimizer": self.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "counts": dict(self.counts),
            "window": self.window.sums,
            "last_loss": self.last_loss,
            "bad_in_a_row": self.bad_in_a_row,
        }
        partial = folder / f"{STATE_FILE}.partial"
        torch.save(state, partial)
        os.replace(partial, folder / STATE_FILE)

    def _start(self) -> None:
        """Set up the folder, or continue from its newest checkpoint."""
        folder = self.settings.save_dir
        if folder is None:
            return
        newest = newest_checkpoint(folder)
        if self.settings.resume and newest is not None:
            self._restore(newest)
        if self.main:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise InputError(f"--save_dir {folder}: cannot be made ({err.strerror}); give another place") from err
            _trim_metrics(folder / METRICS_FILE, self.done)
            _drop_unfinished(folder)
        self.accelerator.wait_for_everyone()

    def _restore(self, checkpoint: Path) -> None:
        state = _read_state(checkpoint / STATE_FILE)
        _check_same(json.loads(state["settings"]), self.settings, checkpoint)
        for key, link in self.task.links.items():
            link.load_state_dict(state["links"][key])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])
        self.done, self.counts, self.last_loss = state["step"], state["counts"], state["last_loss"]
        self.window.sums, self.bad_in_a_row = state["window"], state["bad_in_a_row"]
        if self.main:
            print(f"[resume] {checkpoint} (step {self.done} of {self.steps})")


def _headline(name: str) -> bool:
    """True for what a person wants on the screen; the rest is in the metrics file."""
    return "/" not in name or name.startswith(("loss/", "heldout"))


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a run that can be resumed, by step."""
    found = [path.parent for path in folder.glob(f"checkpoint-*/{STATE_FILE}") if _step_of(path.parent) is not None]
    return sorted(found, key=_step_of)


def _step_of(folder: Path) -> int | None:
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else None


def newest_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint that was written whole."""
    found = checkpoints(folder)
    return found[-1] if found else None


def check_save_dir(folder: Path, resume: bool) -> None:
    """Refuse a folder that another run has written to, unless it is to be resumed."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--save_dir {folder}: is a file; expected a directory")
    if not resume and folder.is_dir() and ((folder / METRICS_FILE).exists() or any(folder.glob("checkpoint-*"))):
        raise InputError(
            f"--save_dir {folder}: holds another run; continue it with --resume 1, or give another directory"
        )


def _read_state(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # torch raises many unrelated kinds for a file that is not its own or cut short
        raise InputError(
            f"{path}: cannot be read ({type(err).__name__}); delete its folder to resume from an earlier one"
        ) from err


def _check_same(old: Mapping[str, Any], settings: LoopSettings, checkpoint: Path) -> None:
    new = json.loads(json.dumps(settings.settings, default=str))
    changed = [k for k in sorted(old.keys() | new.keys()) if k not in settings.free and old.get(k) != new.get(k)]
    if changed:
        told = "; ".join(f"{k} was {old.get(k)!r}, is {new.get(k)!r}" for k in changed)
        raise InputError(
            f"--resume 1: {checkpoint} belongs to a run with other settings ({told}); use the old ones or another --save_dir"
        )


def _trim_metrics(path: Path, step: int) -> None:
    """Drop metrics after `step` (and a line cut short), so that a resumed run writes none twice."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    partial = path.with_suffix(".partial")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, path)


def _drop_unfinished(folder: Path) -> None:
    """Remove checkpoints without a state: an interrupted run left them half-written."""
    for path in folder.glob("checkpoint-*"):
        if path.is_dir() and _step_of(path) is not None and not (path / STATE_FILE).exists():
            shutil.rmtree(path)
