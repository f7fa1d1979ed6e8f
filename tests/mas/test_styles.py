"""Every style file of the project is valid, and every mistake in one is told with its YAML path."""

from __future__ import annotations

import copy

import pytest
import yaml

from inference.mas.errors import InputError
from inference.mas.prompts import Question, Slot, system_text, user_parts
from inference.mas.styles import FAMILIES, list_styles, load_style

RAW = {
    "system": "Help.",
    "roles": {
        "thinker": {
            "model": "./m",
            "first": {"math": "{question} think"},
            "later": {"math": "<<BACK>> {question} again"},
        },
        "writer": {"model": "org/m", "first": {"math": "{question} <<IDEA>> {final}"}, "targets": ["answer"]},
    },
    "speaker": "writer",
    "links": {
        "outer_tw": {"source": "thinker", "target": "writer", "slot": "IDEA"},
        "outer_wt": {"source": "writer", "target": "thinker", "slot": "BACK"},
    },
    "outer_repo": "./outer",
    "single": {"math": "{question} {final}"},
    "pieces": {"final": {"math": "Put it in \\boxed{answer}."}},
}


def save(folder, raw):
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


@pytest.mark.parametrize("name", list_styles())
def test_styles_of_the_project_are_valid_and_fill_every_prompt(name):
    style = load_style(name)
    assert style.name == name
    for family in FAMILIES:
        for kind, fn_name in ((None, None), ("function", "f"), ("function", None), ("program", None)):
            question = Question("QUESTION TEXT", family=family, kind=kind, fn_name=fn_name)
            for role in style.roles:
                system = system_text(style, role.name, question, role.tools)
                assert system and "{" not in system.replace("\\boxed{", "")
                for round_index in (1, 2):
                    parts = user_parts(style, role.name, question, round_index, tools=role.tools)
                    text = "".join(part for part in parts if isinstance(part, str))
                    assert text.count("QUESTION TEXT") == 1
                    assert "{" not in text.replace("\\boxed{", "") and "[[" not in text
                    slots = {part.name for part in parts if isinstance(part, Slot)}
                    links = [
                        link for link in style.incoming(role.name) if round_index > 1 or not style.is_feedback(link)
                    ]
                    assert slots == {link.slot for link in links}


def test_released_facts_of_the_sequential_styles():
    light, scaled = load_style("sequential_light"), load_style("sequential_scaled")
    assert [role.repo for role in light.roles] == [
        "RecursiveMAS/Sequential-Light-Planner-Qwen3-1.7B",
        "RecursiveMAS/Sequential-Light-Critic-Llama3.2-1B",
        "RecursiveMAS/Sequential-Light-Solver-Qwen2.5-Math-1.5B",
    ]
    assert [role.model for role in scaled.roles] == [
        "google/gemma-3-4b-it",
        "meta-llama/Llama-3.2-3B-Instruct",
        "Qwen/Qwen3.5-4B",
    ]
    assert scaled.outer_repo == "RecursiveMAS/Sequential-Scaled-Outerlinks"
    for style in (light, scaled):
        assert [(link.key, link.source, link.target) for link in style.links] == [
            ("outer_12", "planner", "critic"), ("outer_23", "critic", "solver"), ("outer_31", "solver", "planner"),
        ]  # fmt: skip
        assert [
            style.link_set(task) for task in ("mbppplus", "livecodebench", "code", "math500", "gpqa", "choice")
        ] == ["code"] * 3 + ["math"] * 3
        assert style.role("critic").mas_role == "refiner" and style.speaker == "solver" and style.mas_shape == "chain"


HIE = ("hie_math_expert", "hie_code_expert", "hie_science_expert")
RELEASED = {
    "mixture": {
        "names": ("mixture", "hie", "hie"),
        "roles": {
            "math": ("Mixture-Math-DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "agent1", HIE[0]),
            "code": ("Mixture-Code-Qwen2.5-Coder-3B", "Qwen/Qwen2.5-Coder-3B-Instruct", "agent2", HIE[1]),
            "science": ("Mixture-Science-BioMistral-7B", "BioMistral/BioMistral-7B", "agent3", HIE[2]),
            "summarizer": ("Mixture-Summarizer-Qwen3.5-2B", "Qwen/Qwen3.5-2B", "agent4", "hie_summarizer"),
        },
        "links": "outer_1s outer_2s outer_3s outer_s1 outer_s2 outer_s3",
        "feedback": "outer_s1 outer_s2 outer_s3",
        "slots": {
            ("math", 2): "HIE_FEEDBACK_SLOT",
            ("summarizer", 1): "HIE_MATH_EXPERT_SLOT HIE_CODE_EXPERT_SLOT HIE_SCIENCE_EXPERT_SLOT",
        },
    },
    "distillation": {
        "names": ("distillation", "distill", "distill"),
        "roles": {
            "expert": ("Distillation-Expert-Qwen3.5-9B", "Qwen/Qwen3.5-9B", "expert", "distill_expert"),
            "learner": ("Distillation-Learner-Qwen3.5-4B", "Qwen/Qwen3.5-4B", "learner", "distill_learner"),
        },
        "links": "outer_el outer_le",
        "feedback": "outer_le",
        "slots": {("expert", 2): "DISTILL_FEEDBACK_SLOT", ("learner", 1): "DISTILL_EXPERT_SLOT"},
    },
    "deliberation": {
        "names": ("deliberation", "deliberation", "deliberation"),
        "roles": {
            "reflector": ("Deliberation-Reflector-Qwen3.5-4B", "Qwen/Qwen3.5-4B", "reflector", "deliberation_reflector"),
            "toolcaller": ("Deliberation-Toolcaller-Qwen3.5-4B", "Qwen/Qwen3.5-4B", "toolcaller", "deliberation_toolcaller"),
        },
        "links": "outer_rt outer_tr",
        "feedback": "outer_tr",
        "slots": {("reflector", 2): "DELIBERATION_FEEDBACK_SLOT", ("toolcaller", 2): "DELIBERATION_REFLECTOR_SLOT"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_facts(name):
    facts, style = RELEASED[name], load_style(name)
    assert (style.paradigm, style.mas_shape, style.design) == facts["names"] and style.variant is None
    assert style.outer_repo == f"RecursiveMAS/{name.capitalize()}-Outerlinks"
    found = {r.name: (r.repo.removeprefix("RecursiveMAS/"), r.model, r.flag, r.mas_role) for r in style.roles}
    assert found == facts["roles"] and style.speaker == list(found)[-1]
    # The column named after the training role comes first; other names of it follow.
    assert all(role.targets[0] == role.mas_role and len(role.targets) > 1 for role in style.roles)
    assert " ".join(link.key for link in style.links) == facts["links"]
    assert " ".join(link.key for link in style.links if style.is_feedback(link)) == facts["feedback"]
    for (role, round_index), slots in facts["slots"].items():
        parts = user_parts(style, role, Question("Q"), round_index)
        assert " ".join(part.name for part in parts if isinstance(part, Slot)) == slots
        # Names of published model cards, in any letter case.
        assert style.role(role.upper()) is style.role(role)


def test_tools_are_offered_where_they_can_run():
    style = load_style("deliberation")
    assert [role.tools for role in style.roles] == [(), ("python", "search")]

    def shown(role, tools):
        question = Question("Q")
        user = "".join(map(str, user_parts(style, role, question, 2, tools=tools)))
        return system_text(style, role, question, tools), user

    for role in ("reflector", "toolcaller"):
        system, user = shown(role, ())
        assert "<" not in system and "\n\n\n" not in system and "your tools" not in user
    system, user = shown("toolcaller", ("python",))
    assert "<python>" in system and "<result>" in system and "<search>" not in system and "your tools" in user
    assert "<search>" in shown("toolcaller", ("python", "search"))[0]
    for family, end in (
        ("math", "answer in \\boxed{}"),
        ("code", "```python"),
        ("choice", "letter"),
        ("reasoning", "plain words"),
    ):
        assert end in system_text(style, "reflector", Question("Q", family=family))


def test_a_users_style_with_defaults_and_relative_paths(tmp_path):
    style = load_style(save(tmp_path, RAW))
    thinker, writer = style.roles
    assert style.name == "my" and style.design == "my"
    assert thinker.model == thinker.repo == str(tmp_path / "m") and style.outer_repo == str(tmp_path / "outer")
    assert (
        writer.model == "org/m"
        and writer.system == "Help."
        and writer.flag == "agent2"
        and writer.later == writer.first
    )
    assert style.is_feedback(style.links[1]) and not style.is_feedback(style.links[0])


def spoiled(*path, value=None, drop=False):
    raw = copy.deepcopy(RAW)
    spot = raw
    for key in path[:-1]:
        spot = spot[key]
    if drop:
        del spot[path[-1]]
    else:
        spot[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (spoiled("colour", value="red"), "colour: unknown key"),
        (spoiled("roles", "thinker", "modle", value="x"), r"roles\.thinker\.modle: unknown key"),
        (spoiled("roles", "thinker", "model", drop=True), r"roles\.thinker\.model: missing"),
        (spoiled("roles", "thinker", "model", value=3), r"roles\.thinker\.model: expected str, found int"),
        (spoiled("roles", value={}), "roles: empty"),
        (spoiled("roles", "thinker", value="x"), r"roles\.thinker: expected a mapping"),
        (spoiled("speaker", value="reader"), "speaker: 'reader' is not a role"),
        (spoiled("speaker", value="thinker"), "must stand last"),
        (spoiled("speaker", drop=True), "speaker: missing"),
        (spoiled("links", "outer_tw", "target", value="nobody"), r"links\.outer_tw\.target: 'nobody' is not a role"),
        (spoiled("links", "outer_tw", "slot", value="idea"), r"links\.outer_tw\.slot"),
        (spoiled("links", "../x", value=RAW["links"]["outer_tw"]), "names its file"),
        (
            spoiled("roles", "writer", "first", "math", value="{question}"),
            r"roles\.writer\.first\.math: slot <<IDEA>> must stand exactly once, found 0",
        ),
        (spoiled("roles", "writer", "first", "math", value="<<IDEA>> <<IDEA>>"), "found 2 times"),
        (
            spoiled("roles", "thinker", "first", "math", value="<<BACK>>"),
            r"roles\.thinker\.first\.math: slot <<BACK>> is filled by no link",
        ),
        (spoiled("roles", "thinker", "later", drop=True), r"roles\.thinker\.later\.math: slot <<BACK>> must stand"),
        (spoiled("single", "math", value="{qestion}"), r"single\.math: unknown field \{qestion\}"),
        (spoiled("single", "maths", value="x"), r"single\.maths: unknown task family"),
        (spoiled("pieces", "final", "math", value=["x"]), r"pieces\.final\.math: expected text"),
        (spoiled("pieces", "final", "math", value="{other}"), r"pieces\.final\.math: unknown field \{other\}"),
        (spoiled("pieces", "Final", value={"math": "x"}), r"pieces\.Final: a piece's name is small letters"),
        (spoiled("pieces", "question", value={"math": "x"}), r"pieces\.question: a piece's name .* none of question"),
        (spoiled("pieces", "final", "when", value={"question": "("}), r"pieces\.final\.when\.question: not a regular"),
        (spoiled("pieces", "final", "when", value={"kind": "class"}), r"pieces\.final\.when\.kind: 'class'"),
        (
            spoiled("pieces", "final", "when", value={"tool": "python"}),
            r"'python' is no tool of the speaker; it has none",
        ),
        (spoiled("pieces", "final", "when", value={"mood": "x"}), r"pieces\.final\.when\.mood: unknown key"),
        (spoiled("roles", "writer", "tools", value=["No Name"]), r"roles\.writer\.tools\[0\]: 'No Name'"),
        (spoiled("roles", "writer", "tools", value=["python"] * 2), r"roles\.writer\.tools: a name stands twice"),
        (spoiled("roles", "thinker", "tools", value=["python"]), r"roles\.thinker\.tools: only the speaker \(writer\)"),
        (
            spoiled("roles", "writer", "label", value="THINKER"),
            r"roles\.writer\.label: 'THINKER' names thinker already",
        ),
        (
            spoiled("roles", "writer", "mas_role", value="outer"),
            r"roles\.writer\.mas_role: 'outer' names 'outer', which",
        ),
        (spoiled("roles", "writer", "flag", value="agent1"), r"roles\.writer\.flag: 'agent1' names thinker already"),
        (spoiled("roles", "writer", "flag", value="my agent"), r"roles\.writer\.flag: 'my agent'"),
        (
            spoiled("roles", "writer", "system", value="<<IDEA>>"),
            r"roles\.writer\.system: slot <<IDEA>> is filled by no",
        ),
        (spoiled("roles", 7, value=RAW["roles"]["thinker"]), r"roles\.7: expected a role's name"),
        (spoiled("roles", "idle", value={"model": "m", "first": {}}), r"speaker: 'writer' must stand last"),
        (spoiled("links", "outer_tw", drop=True), r"roles\.thinker: no link starts here, so its work reaches nobody"),
        (spoiled("link_sets", value={"math500": 1}), r"link_sets\.math500: expected a dataset"),
    ],
)
def test_every_mistake_is_told_with_its_yaml_path(tmp_path, raw, message):
    path = save(tmp_path, raw)
    with pytest.raises(InputError, match=message) as caught:
        load_style(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_unknown_style_missing_file_and_broken_yaml(tmp_path):
    with pytest.raises(InputError, match=r"unknown style; expected one of .*sequential_light"):
        load_style("sequential_lite")
    with pytest.raises(InputError, match="no such file"):
        load_style(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("roles: [")
    with pytest.raises(InputError, match="not valid YAML"):
        load_style(tmp_path / "bad.yaml")


def test_a_style_that_starts_from_another(tmp_path):
    changes = {"base": "mixture", "roles": {"math": {"model": "./mine", "first": {"math": "{question} count"}}}}
    style, mixture = load_style(save(tmp_path, changes)), load_style("mixture")
    assert style.name == "my" and style.roles[0].model == str(tmp_path / "mine")
    assert style.role("math").first["math"] == "{question} count" and style.role("code") == mixture.role("code")
    assert style.links == mixture.links and style.design == "hie"
    # Paths in a base are beside the base.
    folder = tmp_path / "deeper"
    folder.mkdir()
    again = load_style(save(folder, {"base": "../my.yaml", "name": "third", "outer_repo": "./out"}))
    assert again.name == "third" and again.roles[0].model == str(tmp_path / "mine")
    assert again.outer_repo == str(folder / "out")
    # Two large styles share prompts with their small twins by name, not by copy.
    light, scaled = load_style("sequential_light"), load_style("sequential_scaled")
    assert [role.first for role in scaled.roles] == [role.first for role in light.roles]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("mixtur", r"base: 'mixtur': unknown style"),
        ("./none.yaml", "base: no file"),
        ("./my.yaml", "is based on this file in turn"),
        (3, "base: expected a style's name"),
    ],
)
def test_bad_bases_are_told(tmp_path, base, message):
    path = save(tmp_path, {"base": base})
    with pytest.raises(InputError, match=message) as caught:
        load_style(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_key_that_stands_twice_is_told(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("roles:\n  a: {model: x}\n  a: {model: y}\n")
    with pytest.raises(InputError, match="'a' stands twice in one mapping at line 3"):
        load_style(path)


def test_prompts_of_a_style_can_be_replaced(tmp_path):
    new = tmp_path / "prompts.yaml"
    new.write_text(
        yaml.safe_dump(
            {"system": "Other.", "roles": {"critic": {"first": {"math": "{question}|<<LATENT_PLANNER_SLOT>>"}}}}
        )
    )
    style = load_style("sequential_light", prompts=new)
    assert style.role("critic").first["math"] == "{question}|<<LATENT_PLANNER_SLOT>>"
    assert (
        style.role("planner").system == "Other."
        and style.role("planner").first == load_style("sequential_light").role("planner").first
    )
    new.write_text(yaml.safe_dump({"links": {}}))
    with pytest.raises(InputError, match="links: not a prompt"):
        load_style("sequential_light", prompts=new)
    new.write_text(yaml.safe_dump({"roles": {"critic": "short"}}))
    with pytest.raises(InputError, match=r"roles\.critic: expected a mapping, found str"):
        load_style("sequential_light", prompts=new)
    new.write_text(yaml.safe_dump({"roles": {"judge": {}}}))
    with pytest.raises(InputError, match=r"roles\.judge: the style has no such role"):
        load_style("sequential_light", prompts=new)
