"""A collaboration style as data.

A style is a YAML file: an ordered list of roles, the speaker (last in order), links between roles, and every prompt.
A link whose target stands before its source, or is its source, is feedback: its message arrives in the next round.

    name: my_style
    base: sequential_light                     # optional: start from a style, or a file ("./x.yaml"); what stands here
                                               # replaces its entries, mapping by mapping
    system: You are a helpful assistant.       # for every role that has no `system` of its own
    roles:                                     # in the order of a round
      planner:
        model: ./planner                       # base model: hub id, folder, "./" = beside this file
        repo: ./planner                        # model and inner link, or the inner link alone
        targets: [plan]                        # training: columns with this role's text, the first that exists
        tools: [python]                        # what it may call when it writes the answer (the speaker only)
        first: {math: "...{question}..."}      # prompt of round 1, by task family
        later: {math: "...<<FEEDBACK>>..."}    # prompt of rounds 2, 3, ... (default: as the first)
    speaker: solver
    links:
      outer_12: {source: planner, target: critic, slot: PLAN}     # fills <<PLAN>> in the critic's prompts
    outer_repo: ./outer
    single: {math: "{question}"}               # the speaker alone, without a system
    pieces:                                    # texts that prompts share, by task family; may use those above them
      hint: {when: {question: "prime"}, math: "Mind the number 1."}

Families without a text of their own fall back to `math`. In prompts, systems and pieces, `{name}` stands for `question`,
`fn_name` (of a code task), `label` (of the role) or a piece; in prompts, `<<NAME>>` for a slot. A piece whose `when` does
not hold is empty, and a line that is one empty piece is left out. `when` may ask for

    question: REGEX         found in the question           kind: program | function    of a code task
    not_question: REGEX     not found in it                 named: true | false         `fn_name` is known
    tool: NAME | any        the stage can run this tool     (all of them must hold)

Tools are offered to the speaker while it writes the answer, and in no other stage, because no tool runs there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
QUESTION_FIELDS = ("question", "fn_name", "label")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
FIELD_NAME = re.compile(r"[a-z_]+")
TOOL_NAME = re.compile(r"[a-z][a-z0-9_]*")  # it is also the tag that a call stands in
# Overrides and manifests name the outer links so.
RESERVED_ROLES = ("outer",)

Prompts = Mapping[str, str]  # family -> template


@dataclass(frozen=True)
class When:
    """What must hold for a piece to be shown; None = no condition."""

    question: str | None = None
    not_question: str | None = None
    kind: str | None = None
    named: bool | None = None
    tool: str | None = None

    def holds(self, question: str, kind: str, named: bool, tools: Sequence[str]) -> bool:
        """True if the piece is shown for this question in a stage that can run `tools`."""
        return (
            (self.question is None or re.search(self.question, question) is not None)
            and (self.not_question is None or re.search(self.not_question, question) is None)
            and self.kind in (None, kind)
            and self.named in (None, named)
            and (self.tool is None or (bool(tools) if self.tool == "any" else self.tool in tools))
        )


@dataclass(frozen=True)
class Piece:
    """A text that prompts share, by task family, and when it is shown."""

    texts: Prompts
    when: When = When()


@dataclass(frozen=True)
class Role:
    """One agent's part. `label` names it in manifests, `mas_role` and `flag` in the trainers' flags.

    `tools` are what it may call while it writes the answer; only the speaker has any.
    """

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
    tools: tuple[str, ...] = ()

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
    link_sets: Mapping[str, str]
    single: Prompts
    pieces: Mapping[str, Piece]

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
    path = _style_path(name_or_path, f"--style {name_or_path}")
    raw = _with_base(path)
    if prompts is not None:
        raw = _with_prompts(raw, _read_yaml(Path(prompts)), str(prompts))
    return _Reader(path).style(raw)


def _style_path(name_or_path: str | Path, where: str) -> Path:
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        path = STYLES_DIR / f"{name_or_path}.yaml"
        if not path.is_file():
            raise InputError(f"{where}: unknown style; expected one of {', '.join(list_styles())}, or a .yaml file")
    return path


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML readers silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands twice in one mapping", key_node.start_mark
                )
            seen.add(key_node.value if isinstance(key_node.value, str) else id(key_node))
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a YAML file")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        said = " ".join(str(err).replace('in "<unicode string>", ', "at ").split())
        raise InputError(f"{path}: not valid YAML: {said[:300]}") from err
    if not isinstance(raw, dict):
        raise InputError(f"{path}: expected a mapping at the top, found {type(raw).__name__}")
    return raw


def _with_base(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's entries, with those of its `base` where it has none of its own; paths are made absolute."""
    raw = _placed(_read_yaml(path), path)
    base = raw.pop("base", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise InputError(f"{path}: base: expected a style's name or a .yaml file, found {type(base).__name__}")
    chain = (*above, path.resolve())
    own = path.resolve().parent / base
    found = own if own.suffix in {".yaml", ".yml"} else _style_path(base, f"{path}: base: {base!r}")
    if not found.is_file():
        raise InputError(f"{path}: base: no file {found}; expected a style's name or a .yaml file")
    if found.resolve() in chain:
        raise InputError(f"{path}: base: {base!r} is based on this file in turn; expected a chain with an end")
    under = _with_base(found, chain)
    # A file of its own is a style of its own, whatever it starts from.
    under.pop("name", None)
    return _merged(under, raw)


def _merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(dict(result[key]), value) if both else value
    return result


def _placed(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Relative places in a file made absolute; hub ids stay as they are."""

    def place(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.startswith(("./", "../")):
            return str((path.resolve().parent / value).resolve())
        return str(ROOT / value) if value.startswith("assets/") else value

    def put(spec: Any, keys: Iterable[str]) -> Any:
        return {k: place(v) if k in keys else v for k, v in spec.items()} if isinstance(spec, Mapping) else spec

    raw = put(raw, ("outer_repo",))
    if isinstance(raw.get("roles"), Mapping):
        raw["roles"] = {name: put(spec, ("model", "repo")) for name, spec in raw["roles"].items()}
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
                if not isinstance(spec, dict):
                    raise InputError(f"{where}: roles.{role}: expected a mapping, found {type(spec).__name__}")
                for part, prompt in spec.items():
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

    def names(self, raw: Any, where: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """A list of names, each once."""
        for index, item in enumerate(raw):
            if not isinstance(item, str) or not pattern.fullmatch(item):
                raise self.fail(f"{where}[{index}]", f"{item!r}: expected a name ({pattern.pattern})")
        if len(set(raw)) != len(raw):
            raise self.fail(where, "a name stands twice; name each once")
        return tuple(raw)

    def style(self, raw: Mapping[str, Any]) -> Style:
        known = {
            "name": str, "paradigm": str, "variant": str, "mas_shape": str, "design": str, "system": str, "roles": dict, "speaker": str,
            "links": dict, "outer_repo": str, "link_sets": dict, "single": dict, "pieces": dict,
        }  # fmt: skip
        top = self.take(raw, "", known, ("roles", "speaker", "links", "single"))
        name = top.get("name", self.path.stem)
        pieces = {key: self.piece(key, value) for key, value in top.get("pieces", {}).items()}
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
            outer_repo=top.get("outer_repo", ""),
            link_sets=self.link_sets(top.get("link_sets", {})),
            single=self.prompts(top["single"], "single"),
            pieces=pieces,
        )
        self.check_names(style)
        self.check_slots(style)
        return style

    def role(self, name: Any, raw: Any, index: int, system: str) -> Role:
        where = f"roles.{name}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self.fail(where, "expected a role's name of letters, digits and underscores, a letter first")
        known = {
            "label": str, "model": str, "repo": str, "mas_role": str, "flag": str, "system": str,
            "first": dict, "later": dict, "targets": list, "tools": list,
        }  # fmt: skip
        spec = self.take(raw, where, known, ("model", "first"))
        first = self.prompts(spec["first"], f"{where}.first")
        flag = spec.get("flag", f"agent{index}")
        if not NAME.fullmatch(flag):
            raise self.fail(f"{where}.flag", f"{flag!r}: expected letters, digits and underscores")
        targets = spec.get("targets", [])
        for place, column in enumerate(targets):
            if not isinstance(column, str) or not column:
                raise self.fail(f"{where}.targets[{place}]", f"{column!r}: expected a column's name")
        return Role(
            name=name,
            label=spec.get("label", name.capitalize()),
            model=spec["model"],
            repo=spec.get("repo", spec["model"]),
            mas_role=spec.get("mas_role", name),
            flag=flag,
            system=spec.get("system", system).strip(),
            first=first,
            later={**first, **self.prompts(spec.get("later", {}), f"{where}.later")},
            targets=tuple(targets),
            tools=self.names(spec.get("tools", []), f"{where}.tools", TOOL_NAME),
        )

    def link(self, key: Any, raw: Any, names: list[str]) -> Link:
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

    def link_sets(self, raw: Mapping[Any, Any]) -> dict[str, str]:
        for task, value in raw.items():
            if not isinstance(task, str) or not isinstance(value, str):
                raise self.fail(f"link_sets.{task}", "expected a dataset or task family and the name of a set of links")
        return dict(raw)

    def piece(self, key: Any, raw: Any) -> Piece:
        where = f"pieces.{key}"
        if not isinstance(key, str) or not FIELD_NAME.fullmatch(key) or key in QUESTION_FIELDS:
            raise self.fail(
                where, f"a piece's name is small letters and underscores, and none of {', '.join(QUESTION_FIELDS)}"
            )
        if not isinstance(raw, Mapping):
            raise self.fail(where, f"expected a mapping of task family to text, found {type(raw).__name__}")
        known = {"question": str, "not_question": str, "kind": str, "named": bool, "tool": str}
        when = self.take(raw.get("when", {}), f"{where}.when", known, ())
        for name in ("question", "not_question"):
            try:
                re.compile(when.get(name, ""))
            except re.error as err:
                raise self.fail(f"{where}.when.{name}", f"not a regular expression ({err})") from err
        if when.get("kind", "program") not in {"program", "function"}:
            raise self.fail(f"{where}.when.kind", f"{when['kind']!r}: expected program or function")
        texts = {family: text for family, text in raw.items() if family != "when"}
        return Piece(self.prompts(texts, where), When(**when))

    def prompts(self, raw: Any, where: str) -> dict[str, str]:
        if not isinstance(raw, Mapping):
            raise self.fail(where, f"expected a mapping of task family to text, found {type(raw).__name__}")
        for family, text in raw.items():
            if family not in FAMILIES:
                raise self.fail(f"{where}.{family}", f"unknown task family; expected one of {', '.join(FAMILIES)}")
            if not isinstance(text, str):
                raise self.fail(f"{where}.{family}", f"expected text, found {type(text).__name__}")
        return {family: text.strip() for family, text in raw.items()}

    def check_names(self, style: Style) -> None:
        """No name stands for two roles, and no role works for nobody."""
        taken: dict[str, str] = {name: f"{name!r}, which is the outer links' name" for name in RESERVED_ROLES}
        flags: dict[str, str] = {}
        for role in style.roles:
            for part, value in (("", role.name), (".label", role.label), (".mas_role", role.mas_role)):
                owner = taken.setdefault(value.lower(), role.name)
                if owner != role.name:
                    raise self.fail(f"roles.{role.name}{part}", f"{value!r} names {owner} already")
            if flags.setdefault(role.flag, role.name) != role.name:
                raise self.fail(f"roles.{role.name}.flag", f"{role.flag!r} names {flags[role.flag]} already")
            if role.tools and role.name != style.speaker:
                raise self.fail(
                    f"roles.{role.name}.tools",
                    f"only the speaker ({style.speaker}) writes text, so only it can call tools",
                )
            if role.name != style.speaker and not style.outgoing(role.name):
                raise self.fail(
                    f"roles.{role.name}", "no link starts here, so its work reaches nobody; add one to links"
                )
        for key, piece in style.pieces.items():
            known = style.role(style.speaker).tools
            if piece.when.tool not in (None, "any", *known):
                raise self.fail(
                    f"pieces.{key}.when.tool",
                    f"{piece.when.tool!r} is no tool of the speaker; it has {', '.join(known) or 'none'}",
                )

    def check_slots(self, style: Style) -> None:
        """Every slot that a template shows is filled by a link of its round, and every link finds its slot."""
        fields = list(QUESTION_FIELDS)
        for key, piece in style.pieces.items():
            for family, text in piece.texts.items():
                self.check_template(text, fields, (), f"pieces.{key}.{family}")
            fields.append(key)
        for family, text in style.single.items():
            self.check_template(text, fields, (), f"single.{family}")
        for role in style.roles:
            self.check_template(role.system, fields, (), f"roles.{role.name}.system")
            incoming = style.incoming(role.name)
            now = [link.slot for link in incoming if not style.is_feedback(link)]
            every = [link.slot for link in incoming]
            if len(set(every)) != len(every):
                raise self.fail(f"roles.{role.name}", "two links fill the same slot")
            for part, prompts, slots in (("first", role.first, now), ("later", role.later, every)):
                for family, text in prompts.items():
                    self.check_template(text, fields, slots, f"roles.{role.name}.{part}.{family}")

    def check_template(self, text: str, fields: Sequence[str], slots: Sequence[str], where: str) -> None:
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
