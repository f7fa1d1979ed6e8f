"""Every style file of the project is valid, and every mistake in one is told with its YAML path."""

from __future__ import annotations

import copy

import pytest
import yaml

from inference.mas.errors import InputError
from inference.mas.prompts import Question, Slot, user_parts
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
                for round_index in (1, 2):
                    parts = user_parts(style, role.name, question, round_index)
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
    new.write_text(yaml.safe_dump({"roles": {"judge": {}}}))
    with pytest.raises(InputError, match=r"roles\.judge: the style has no such role"):
        load_style("sequential_light", prompts=new)
