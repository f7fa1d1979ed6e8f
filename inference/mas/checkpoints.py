"""Which files a system is made of, and writing what a training run leaves.

    resolved = resolve(style, task="math", overrides={"planner": "train/ckpts/planner"})     # finds, downloads, checks
    inner, outer = read_links(resolved)                                                      # links, checked
    write_inner_dir("train/ckpts/planner", link, base_id="Qwen/Qwen3-1.7B", train_args={...})

What is written here is read back by `resolve` and by readers of the reference's layout.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference.mas.errors import InputError
from inference.mas.fetch import (
    SMALL_FILES,
    TOKENIZERS,
    Folder,
    check_tokenizer,
    complete_weights,
    open_folder,
    sample_hash,
)
from inference.mas.link_files import LinkFile, inner_file, outer_files, read_state, recorded_base
from inference.mas.links import InnerLink, OuterLink, load_inner_state, load_outer_state
from inference.mas.lm_loading import read_config
from inference.mas.styles import Role, Style

FORMATS = ("pt", "safetensors")


@dataclass(frozen=True)
class RoleFiles:
    """Where a role's model and inner link come from. `base_id` names the base model, for people and manifests."""

    role: str
    model: Folder
    base_id: str
    inner: LinkFile | None
    link: Folder

    @property
    def model_dir(self) -> Path:
        """Directory of model and tokenizer."""
        return self.model.path

    def weights_key(self) -> tuple[str, ...]:
        """Equal for two roles with the same base model, also if two repos hold a copy each.

        The hub's cache names large files by their sha256, so two repos with the same weights share these names.
        """
        files = [self.model_dir / name for name in ("config.json", *complete_weights(self.model))]
        real = [Path(os.path.realpath(file)) for file in files]
        return tuple(file.name if file.parent.name == "blobs" else str(file) for file in real)


@dataclass(frozen=True)
class Resolved:
    """Every file of a system. `link_set` is the set of released links in use ("math" or "code")."""

    style: Style
    roles: dict[str, RoleFiles]
    outer: dict[str, LinkFile]
    outer_folder: Folder | None
    link_set: str

    def describe(self) -> dict[str, Any]:
        """Ids, revisions and file names, for a plan or a run's manifest."""
        shown: dict[str, Any] = {"link_set": self.link_set}
        for name, files in self.roles.items():
            shown[name] = {"model": files.model.id, "base": files.base_id, "revision": files.model.revision}
            if files.inner is not None:
                shown[name] |= {
                    "inner": files.inner.path.name,
                    "inner_from": files.link.id,
                    "inner_revision": files.link.revision,
                }
        if self.outer_folder is not None:
            shown["outer"] = {"from": self.outer_folder.id, "revision": self.outer_folder.revision}
            shown["outer"] |= {key: file.path.name for key, file in self.outer.items()}
        return shown


def parse_overrides(items: Iterable[str]) -> dict[str, str]:
    """`--ckpt_override KEY=PATH` flags as {key: path}."""
    found: dict[str, str] = {}
    for item in items:
        key, equals, path = item.partition("=")
        if not key or not equals or not path:
            raise InputError(f"--ckpt_override {item}: expected KEY=PATH, such as planner=train/ckpts/planner")
        if key in found:
            raise InputError(f"--ckpt_override {item}: {key} is given twice")
        found[key] = path
    return found


def resolve(
    style: Style,
    *,
    task: str = "math",
    overrides: Mapping[str, str | Path] | None = None,
    revisions: str | Mapping[str, str] | None = None,
    cache_dir: str | Path | None = None,
    download: bool = True,
    weights: bool = True,
    inner: bool = True,
    outer: bool = True,
    trust_remote_code: bool = False,
) -> Resolved:
    """Find (and download) every file that `style` needs for a task family or dataset.

    `overrides` replaces folders by role name (or label or training name) and `outer`: a folder with a model replaces
    the role's model and link, a folder with a link only keeps the style's model. `revisions` pins hub repos: one for
    all, or by the same keys. `download=False` looks in the cache only; `weights=False` leaves the models' weights for
    `fetch_weights`; `inner=False`, `outer=False` leave out the links. Raises `InputError`.
    """
    _check_link_keys(style)
    chosen = _by_key(style, overrides or {}, "--ckpt_override")
    pinned = revisions if isinstance(revisions, str) else _by_key(style, revisions or {}, "--revision")
    link_set = style.link_set(task)
    patterns = (*SMALL_FILES, "*.py") if trust_remote_code else SMALL_FILES

    def opened(key: str, source: str | Path) -> Folder:
        where = f"--ckpt_override {key}" if source == chosen.get(key) else f"style {style.name}, {key}"
        revision = pinned if isinstance(pinned, str) else pinned.get(key)
        return open_folder(where, source, patterns, revision=revision, cache_dir=cache_dir, download=download)

    roles = {}
    for role in style.roles:
        own = opened(role.name, chosen.get(role.name, role.repo))
        model, base_id = own, recorded_base(own) or own.id
        if not own.has("config.json"):
            model = opened(role.name, role.repo)
            if not model.has("config.json"):
                model = opened(role.name, role.model)
            base_id = role.model
            _check_base(own, role, model)
        found = inner_file(own, link_set, f"role {role.name}") if inner else None
        roles[role.name] = RoleFiles(role.name, model, base_id, found, own)
    resolved = Resolved(style, roles, {}, None, link_set)
    if outer and style.links:
        source = chosen.get("outer", style.outer_repo)
        if not source:
            raise InputError(f"style {style.name}: no outer_repo; name one or give --ckpt_override outer=DIRECTORY")
        resolved = with_outer(resolved, opened("outer", source))
    if weights:
        fetch_weights(resolved)
    return resolved


def with_outer(resolved: Resolved, folder: Folder) -> Resolved:
    """`resolved` with the outer links of a folder in place of its own."""
    found = outer_files(folder, resolved.style, resolved.link_set)
    return replace(resolved, outer=found, outer_folder=folder)


def _check_link_keys(style: Style) -> None:
    """Links are kept in a torch module, which has attributes of its own."""
    taken = torch.nn.ModuleDict()
    for link in style.links:
        if hasattr(taken, link.key):
            raise InputError(
                f"{style.path}: links.{link.key}: {link.key!r} is taken by torch; call the link outer_{link.key}"
            )


def fetch_weights(resolved: Resolved) -> None:
    """Download and check the models' weights and tokenizers; `InputError` names what is missing or cut short."""
    for files in resolved.roles.values():
        complete_weights(files.model)
        check_tokenizer(files.model)


def _by_key(style: Style, given: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """`given` with its keys turned into role names; `InputError` for an unknown key or one given by two names."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        try:
            name = "outer" if key == "outer" else style.role(key).name
        except InputError as err:
            keys = ", ".join([*(role.name for role in style.roles), "outer"])
            raise InputError(f"{flag} {key}=...: unknown key; style {style.name} has {keys}") from err
        if name in found:
            raise InputError(f"{flag} {key}=...: {name} is given twice")
        found[name] = value
    return found


def _check_base(own: Folder, role: Role, model: Folder) -> None:
    """A link on its own must have been trained on the model that it will run with."""
    recorded = recorded_base(own)
    known = {_base_name(source) for source in (role.model, role.repo, model.id, str(model.path))}
    if recorded is None or _base_name(recorded) in known or Path(recorded).expanduser().resolve() == model.path:
        return
    raise InputError(
        f"{own}: its link was trained on {recorded}, but role {role.name} runs {role.model}; put that model's files "
        "into the directory too, or correct `backbone` in its adapter_config.json if they are the same model"
    )


def _base_name(source: str) -> str:
    """The model's own name in a hub id, a directory or a snapshot in the hub's cache."""
    for part in Path(source).parts:
        if part.startswith("models--"):
            return part.split("--")[-1].lower()
    return Path(source).name.lower()


def read_links(
    resolved: Resolved, dtype: torch.dtype | None = None, trust_remote_code: bool = False
) -> tuple[dict[str, InnerLink], dict[str, OuterLink]]:
    """All links, checked against the models' configs: type, keys, shapes, widths, finite values.

    Needs no model weights, so a bad link is told before anything large is loaded. `dtype` None keeps each file's own.
    """
    widths = {
        name: int(read_config(files.model_dir, trust_remote_code).hidden_size) for name, files in resolved.roles.items()
    }
    inner = {
        name: load_inner_state(
            read_state(files.inner.path),
            where=str(files.inner.path),
            declared_type=files.inner.type,
            width=widths[name],
            dtype=dtype,
        )
        for name, files in resolved.roles.items()
        if files.inner is not None
    }
    outer = {}
    for link in resolved.style.links:
        if link.key not in resolved.outer:
            continue
        file = resolved.outer[link.key]
        outer[link.key] = load_outer_state(
            read_state(file.path),
            where=str(file.path),
            declared_type=file.type,
            source_width=widths[link.source],
            target_width=widths[link.target],
            dtype=dtype,
        )
        for name, told, real in (
            ("in_dim", file.in_dim, outer[link.key].source_width),
            ("out_dim", file.out_dim, outer[link.key].target_width),
        ):
            if told is not None and told != real:
                raise InputError(f"{file.path}: its manifest says {name} {told}, but the weights have {real}")
    return inner, outer


def fingerprint(resolved: Resolved) -> dict[str, str]:
    """A short hash for every model and link: equal files, equal hashes, wherever they lie.

    Each is 16 hex digits of the sha256 over its files' names, sizes and samples (see `sample_hash`); a model's are its
    weights, config and tokenizer.
    """
    found = {}
    for name, files in resolved.roles.items():
        names = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", *TOKENIZERS)
        model = [files.model_dir / file for file in (*names, *complete_weights(files.model)) if files.model.has(file)]
        found[f"{name}.model"] = sample_hash(model)
        if files.inner is not None:
            found[f"{name}.inner"] = sample_hash([files.inner.path])
    return found | {key: sample_hash([file.path]) for key, file in resolved.outer.items()}


def write_inner_dir(
    folder: str | Path,
    inner_link: InnerLink,
    base_id: str,
    train_args: Mapping[str, Any],
    save_format: str = "pt",
    model: Any = None,
    tokenizer: Any = None,
) -> None:
    """Write an inner link as the reference's trainer does, with the base model beside it if `model` is given.

    `adapter.pt` (or `.safetensors`), `adapter_config.json`, `train_args.json`. Reference readers look for `adapter_type`
    only; `backbone` and `width` say which model the link belongs to. Complete or not at all: see `_write_folder`.
    """

    def fill(new: Path) -> None:
        if model is not None:
            model.save_pretrained(new)
            # Kept only when given: a tokenizer alone would not make a model's folder.
            if tokenizer is not None:
                tokenizer.save_pretrained(new)
        _save_link(new, "adapter", inner_link, save_format)
        _save_json(new / "train_args.json", train_args)
        config = {"adapter_type": inner_link.link_type, "backbone": base_id, "width": inner_link.source_width}
        _save_json(new / "adapter_config.json", config)

    _write_folder(Path(folder), fill, ["adapter"], last=["adapter_config.json"])


def write_outer_dir(
    folder: str | Path,
    outer_links: Mapping[str, OuterLink],
    style: Style,
    task: str,
    train_args: Mapping[str, Any],
    save_format: str = "pt",
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write outer links as the reference's trainer does: `<key>.pt` each, both manifests and `train_args.json`.

    `extra` goes into `outer_adapter_config.json` (rounds, loss weights, model and link paths). Complete or not at all:
    see `_write_folder`.
    """
    labels = {link.key: (style.role(link.source).label, style.role(link.target).label) for link in style.links}

    def fill(new: Path) -> None:
        legacy: dict[str, Any] = {"mas_shape": style.mas_shape, "mas_task": task}
        entries = []
        for key, link in outer_links.items():
            name = _save_link(new, key, link, save_format)
            sizes = {"in_dim": link.source_width, "out_dim": link.target_width}
            legacy |= {f"{key}_type": link.link_type} | {f"{key}_{what}": size for what, size in sizes.items()}
            ends = dict(zip(("source_role", "target_role"), labels[key], strict=True))
            entries.append({"legacy_key": key, "filename": name, "adapter_type": link.link_type} | sizes | ends)
        _save_json(new / "train_args.json", train_args)
        _save_json(new / "outer_adapter_config.json", legacy | dict(extra or {}))
        manifest = {
            "format_version": 1,
            "paradigm": style.paradigm,
            "variant": style.variant,
            "legacy_config_filename": "outer_adapter_config.json",
            "adapters": entries,
        }
        _save_json(new / "outerlink_config.json", {key: value for key, value in manifest.items() if value is not None})

    _write_folder(Path(folder), fill, list(outer_links), last=["outer_adapter_config.json", "outerlink_config.json"])


def _save_link(folder: Path, stem: str, link: InnerLink | OuterLink, save_format: str) -> str:
    if save_format not in FORMATS:
        raise InputError(f"--save_format {save_format}: expected one of {', '.join(FORMATS)}")
    state = {key: value.detach().to("cpu").contiguous() for key, value in link.state_dict().items()}
    name = f"{stem}.{save_format}"
    if save_format == "pt":
        torch.save(state, folder / name)
    else:
        save_file(state, folder / name)
    return name


def _save_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=False, default=str) + "\n", encoding="utf-8")


def _write_folder(target: Path, fill: Callable[[Path], None], stems: list[str], last: list[str]) -> None:
    """Let `fill` write a new folder beside `target`, then put it in its place.

    A new `target` appears in one rename. Into an existing one, which may hold `checkpoint-N` folders, every file is
    moved by a rename of its own, those named in `last` at the end; a link of the same stem in the other format is
    removed, so that no reader can take the older one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(new)
        new.chmod(0o777 & ~_umask())
        if not target.exists():
            new.rename(target)
            return
        for path in sorted(new.iterdir(), key=lambda path: (path.name in last, path.name)):
            os.replace(path, target / path.name)
            for stem in stems:
                for other in FORMATS:
                    if path.stem == stem and path.suffix != f".{other}":
                        (target / f"{stem}.{other}").unlink(missing_ok=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _umask() -> int:
    """The process's file mode mask (`mkdtemp` ignores it); it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
