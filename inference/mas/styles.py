"""A collaboration style as data.

A style is a YAML file: an ordered list of roles, the speaker (last in order), links between roles, and every prompt.
A link whose target stands before its source, or is its source, is feedback: its message arrives in the next round.

    name: my_style
    system: You are a helpful assistant.       # for every role that has no `system` of its own
    roles:                                     # in the order of a round
      planner:
        model: ./planner                       # base model: hub id, folder, "./" = beside this file
        repo: ./planner                        # model and inner link, or the inner link alone
        targets: [plan]                        # training: columns with this role's text, the first that exists
        first: {math: "...{question}..."}      # prompt of round 1, by task family
        later: {math: "...<<FEEDBACK>>..."}    # prompt of rounds 2, 3, ... (default: as the first)
    speaker: solver
    links:
      outer_12: {source: planner, target: critic, slot: PLAN}     # fills <<PLAN>> in the critic's prompts
    outer_repo: ./outer
    single: {math: "{question}"}               # the speaker alone, without a system

Families without a prompt of their own fall back to `math`. `{name}` stands for a field of the question (see
`prompts.fields`) and for the entries of `pieces`; `<<NAME>>` for a slot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inference.mas.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
STYLES_DIR = Path(__file__).resolve().parent / "styles"
FAMILIES = ("math", "code", "choice", "reasoning")
# How a graph can be run, and what receivers can get instead of true messages. They stand here, where nothing imports
# torch, so that a command line can name them at once.
METHODS = ("latent", "text", "single")
CONTROLS = ("none", "zero", "noise", "shuffle")
# A field is {name}; a brace after a letter or backslash belongs to the text, as in \boxed{answer}.
TOKEN = re.compile(r"(?<![A-Za-z}])\{([a-z_]+)\}|<<([A-Z][A-Z0-9_]*)>>")
QUESTION_FIELDS = frozenset({"question", "fn_name"})

Prompts = Mapping[str, str]  # family -> template


@dataclass(frozen=True)
class Role:
    """One agent's part. `label` names it in manifests, `mas_role` and `flag` in the trainers' flags."""

    name: str
    label: str
    model: str
    repo: str
    mas_role: str
    flag: str
    system: str
    first: Prompts
    later: Prompts
    targets: tuple[str, ...]

    def template(self, family: str, round_index: int) -> str:
        """The user prompt of a round (1-based) for a task family; `InputError` if the style has none."""
        prompts = self.first if round_index == 1 else self.later
        return pick_family(prompts, family, f"role {self.name}")


@dataclass(frozen=True)
class Link:
    """An outer link: what `source` thought goes into `slot` of `target`'s prompt."""

    key: str
    source: str
    target: str
    slot: str


@dataclass(frozen=True)
class Style:
    """A validated style; see the module's docstring for the file it comes from."""

    name: str
    path: Path
    paradigm: str
    variant: str | None
    mas_shape: str
    design: str
    roles: tuple[Role, ...]
    speaker: str
    links: tuple[Link, ...]
    outer_repo: str
    task_scoped: bool
    link_sets: Mapping[str, str]
    single: Prompts
    pieces: Mapping[str, Prompts]

    def role(self, name: str) -> Role:
        """The role called `name` (role name, label or training name, any letter case)."""
        for role in self.roles:
            if name.lower() in {role.name.lower(), role.label.lower(), role.mas_role.lower()}:
                return role
        raise InputError(f"style {self.name}: no role {name!r}; it has {', '.join(r.name for r in self.roles)}")

    def incoming(self, role: str) -> tuple[Link, ...]:
        """Links that end at `role`."""
        return tuple(link for link in self.links if link.target == role)

    def outgoing(self, role: str) -> tuple[Link, ...]:
        """Links that start at `role`."""
        return tuple(link for link in self.links if link.source == role)

    def is_feedback(self, link: Link) -> bool:
        """True if the link's message arrives in the next round only."""
        order = [role.name for role in self.roles]
        return order.index(link.target) <= order.index(link.source)

    def link_set(self, task: str) -> str:
        """The set of released links ("math" or "code") for a dataset or task family."""
        return self.link_sets.get(task, "code" if task == "code" else "math")


def pick_family(prompts: Prompts, family: str, where: str) -> str:
    """The template of `family`, else the maths one; `InputError` if there is neither."""
    if family in prompts:
        return prompts[family]
    if "math" in prompts:
        return prompts["math"]
    raise InputError(f"{where}: no prompt for task family {family!r} and none for math to fall back to")


def list_styles() -> list[str]:
    """Names of the styles that come with the project."""
    return sorted(path.stem for path in STYLES_DIR.glob("*.yaml"))


def load_style(name_or_path: str | Path, prompts: str | Path | None = None) -> Style:
    """Read and validate a style: a name of `list_styles()` or the path of a YAML file.

    `prompts` is a YAML file with the same keys as a style, of which `system`, `single`, `pieces` and the roles' `system`,
    `first` and `later` replace the style's own. Raises `InputError` with the file and the YAML path.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        path = STYLES_DIR / f"{name_or_path}.yaml"
        if not path.is_file():
            raise InputError(
                f"--style {name_or_path}: unknown style; expected one of {', '.join(list_styles())}, or a .yaml file"
            )
    raw = _read_yaml(path)
    if prompts is not None:
        raw = _with_prompts(raw, _read_yaml(Path(prompts)), str(prompts))
    return _Reader(path).style(raw)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a YAML file")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise InputError(f"{path}: not valid YAML: {str(err)[:200]}") from err
    if not isinstance(raw, dict):
        raise InputError(f"{path}: expected a mapping at the top, found {type(raw).__name__}")
    return raw


def _with_prompts(raw: dict[str, Any], new: dict[str, Any], where: str) -> dict[str, Any]:
    """The style `raw` with the prompts of `new` in their places."""
    merged = dict(raw)
    for key, value in new.items():
        if key == "system":
            merged[key] = value
        elif key in {"single", "pieces"}:
            merged[key] = _merge(raw.get(key) or {}, value, f"{where}: {key}")
        elif key == "roles":
            roles = {name: dict(spec) for name, spec in (raw.get("roles") or {}).items() if isinstance(spec, dict)}
            if not isinstance(value, dict):
                raise InputError(f"{where}: roles: expected a mapping of role to prompts, found {type(value).__name__}")
            for role, spec in value.items():
                if role not in roles:
                    raise InputError(f"{where}: roles.{role}: the style has no such role; it has {', '.join(roles)}")
                for part, prompt in (spec or {}).items():
                    if part not in {"system", "first", "later"}:
                        raise InputError(f"{where}: roles.{role}.{part}: only system, first and later can be replaced")
                    old = roles[role].get(part) or {}
                    roles[role][part] = (
                        prompt if part == "system" else _merge(old, prompt, f"{where}: roles.{role}.{part}")
                    )
            merged["roles"] = roles
        else:
            raise InputError(f"{where}: {key}: not a prompt; expected system, single, pieces or roles")
    return merged


def _merge(old: dict[str, Any], new: Any, where: str) -> dict[str, Any]:
    if not isinstance(new, dict):
        raise InputError(f"{where}: expected a mapping, found {type(new).__name__}")
    return {**old, **new}


class _Reader:
    """Turns the YAML of one file into a `Style`, telling every mistake with its YAML path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, where: str, what: str) -> InputError:
        return InputError(f"{self.path}: {where}: {what}")

    def take(
        self, raw: Mapping[str, Any], where: str, known: Mapping[str, type], required: tuple[str, ...]
    ) -> dict[str, Any]:
        """`raw` checked against known keys and their types."""
        if not isinstance(raw, Mapping):
            raise self.fail(where or "top", f"expected a mapping, found {type(raw).__name__}")
        at = f"{where}." if where else ""
        for key, value in raw.items():
            if key not in known:
                raise self.fail(f"{at}{key}", f"unknown key; expected one of {', '.join(known)}")
            if not isinstance(value, known[key]):
                raise self.fail(f"{at}{key}", f"expected {known[key].__name__}, found {type(value).__name__}")
        for key in required:
            if key not in raw:
                raise self.fail(f"{at}{key}", "missing; the style needs it")
        return dict(raw)

    def place(self, value: str) -> str:
        """A path of the file made absolute; hub ids stay as they are."""
        if value.startswith("./") or value.startswith("../"):
            return str((self.path.resolve().parent / value).resolve())
        if value.startswith("assets/"):
            return str(ROOT / value)
        return value

    def style(self, raw: Mapping[str, Any]) -> Style:
        known = {
            "name": str, "paradigm": str, "variant": str, "mas_shape": str, "design": str, "system": str, "roles": dict, "speaker": str,
            "links": dict, "outer_repo": str, "task_scoped": bool, "link_sets": dict, "single": dict, "pieces": dict,
        }  # fmt: skip
        top = self.take(raw, "", known, ("roles", "speaker", "links", "single"))
        name = top.get("name", self.path.stem)
        pieces = {key: self.prompts(value, f"pieces.{key}") for key, value in top.get("pieces", {}).items()}
        roles = tuple(
            self.role(key, value, index, top.get("system", ""))
            for index, (key, value) in enumerate(top["roles"].items(), 1)
        )
        if not roles:
            raise self.fail("roles", "empty; a style needs at least one role")
        names = [role.name for role in roles]
        if top["speaker"] not in names:
            raise self.fail("speaker", f"{top['speaker']!r} is not a role; the roles are {', '.join(names)}")
        if top["speaker"] != names[-1]:
            raise self.fail("speaker", f"{top['speaker']!r} must stand last in roles, but {names[-1]!r} does")
        links = tuple(self.link(key, value, names) for key, value in top["links"].items())
        style = Style(
            name=name,
            path=self.path,
            paradigm=top.get("paradigm", name),
            variant=top.get("variant"),
            mas_shape=top.get("mas_shape", top.get("paradigm", name)),
            design=top.get("design", top.get("paradigm", name)),
            roles=roles,
            speaker=top["speaker"],
            links=links,
            outer_repo=self.place(top.get("outer_repo", "")),
            task_scoped=top.get("task_scoped", False),
            link_sets=top.get("link_sets", {}),
            single=self.prompts(top["single"], "single"),
            pieces=pieces,
        )
        self.check_slots(style)
        return style

    def role(self, name: str, raw: Any, index: int, system: str) -> Role:
        where = f"roles.{name}"
        known = {
            "label": str, "model": str, "repo": str, "mas_role": str, "flag": str, "system": str,
            "first": dict, "later": dict, "targets": list,
        }  # fmt: skip
        spec = self.take(raw, where, known, ("model", "first"))
        first = self.prompts(spec["first"], f"{where}.first")
        return Role(
            name=name,
            label=spec.get("label", name.capitalize()),
            model=self.place(spec["model"]),
            repo=self.place(spec.get("repo", spec["model"])),
            mas_role=spec.get("mas_role", name),
            flag=spec.get("flag", f"agent{index}"),
            system=spec.get("system", system),
            first=first,
            later={**first, **self.prompts(spec.get("later", {}), f"{where}.later")},
            targets=tuple(str(column) for column in spec.get("targets", [])),
        )

    def link(self, key: str, raw: Any, names: list[str]) -> Link:
        where = f"links.{key}"
        if not re.fullmatch(r"[A-Za-z0-9_]+", str(key)):
            raise self.fail(where, "a link's key names its file; expected letters, digits and underscores")
        spec = self.take(raw, where, {"source": str, "target": str, "slot": str}, ("source", "target", "slot"))
        for end in ("source", "target"):
            if spec[end] not in names:
                raise self.fail(f"{where}.{end}", f"{spec[end]!r} is not a role; the roles are {', '.join(names)}")
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", spec["slot"]):
            raise self.fail(f"{where}.slot", f"{spec['slot']!r}: expected capitals, digits and underscores")
        return Link(key=str(key), **spec)

    def prompts(self, raw: Any, where: str) -> dict[str, str]:
        if not isinstance(raw, Mapping):
            raise self.fail(where, f"expected a mapping of task family to text, found {type(raw).__name__}")
        for family, text in raw.items():
            if family not in FAMILIES:
                raise self.fail(f"{where}.{family}", f"unknown task family; expected one of {', '.join(FAMILIES)}")
            if not isinstance(text, str):
                raise self.fail(f"{where}.{family}", f"expected text, found {type(text).__name__}")
        return {family: text.strip() for family, text in raw.items()}

    def check_slots(self, style: Style) -> None:
        """Every slot that a template shows is filled by a link of its round, and every link finds its slot."""
        fields = QUESTION_FIELDS | set(style.pieces)
        for key, prompts in style.pieces.items():
            for family, text in prompts.items():
                self.check_template(text, QUESTION_FIELDS, (), f"pieces.{key}.{family}")
        for family, text in style.single.items():
            self.check_template(text, fields, (), f"single.{family}")
        for role in style.roles:
            incoming = style.incoming(role.name)
            now = [link.slot for link in incoming if not style.is_feedback(link)]
            every = [link.slot for link in incoming]
            if len(set(every)) != len(every):
                raise self.fail(f"roles.{role.name}", "two links fill the same slot")
            for part, prompts, slots in (("first", role.first, now), ("later", role.later, every)):
                for family, text in prompts.items():
                    self.check_template(text, fields, slots, f"roles.{role.name}.{part}.{family}")

    def check_template(
        self, text: str, fields: set[str] | frozenset[str], slots: list[str] | tuple[str, ...], where: str
    ) -> None:
        seen = []
        for match in TOKEN.finditer(text):
            field, slot = match.groups()
            if field is not None and field not in fields:
                raise self.fail(where, f"unknown field {{{field}}}; expected one of {', '.join(sorted(fields))}")
            if slot is not None:
                if slot not in slots:
                    raise self.fail(
                        where,
                        f"slot <<{slot}>> is filled by no link in this round; filled are {', '.join(slots) or 'none'}",
                    )
                seen.append(slot)
        for slot in slots:
            if seen.count(slot) != 1:
                raise self.fail(where, f"slot <<{slot}>> must stand exactly once, found {seen.count(slot)} times")
