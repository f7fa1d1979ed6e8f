"""Resolving, reading and writing links: both layouts, overrides, and every bad folder told in one sentence."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference.mas.checkpoints import (
    fingerprint,
    parse_overrides,
    read_links,
    resolve,
    write_inner_dir,
    write_outer_dir,
)
from inference.mas.errors import InputError
from inference.mas.links import InnerLink, OuterLink
from inference.mas.lm_loading import load_language_model
from inference.mas.styles import load_style
from tests.mini_hub import add_released


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Folders in the released layouts: links in a math and a code set, and links for every task."""
    folder = tmp_path_factory.mktemp("released")
    for style in ("sequential_light", "mixture"):
        add_released(folder, style)
    return folder / "models"


@pytest.fixture
def world(released, tmp_path):
    """A style over a private copy of the released folders: (style, {key: folder})."""
    return private_copy(released, tmp_path, "sequential_light")


@pytest.fixture
def untasked(released, tmp_path):
    """The same of a style whose links are for every task."""
    return private_copy(released, tmp_path, "mixture")


def private_copy(released: Path, folder: Path, name: str):
    style = load_style(name)
    names = {role.name: role.repo for role in style.roles} | {"outer": style.outer_repo}
    for repo in names.values():
        shutil.copytree(released / repo, folder / repo)
    repos = {role.name: {"repo": f"./{role.repo}"} for role in style.roles}
    mine = {"base": name, "name": name, "roles": repos, "outer_repo": f"./{style.outer_repo}"}
    (folder / "mine.yaml").write_text(json.dumps(mine))
    return load_style(folder / "mine.yaml"), {key: folder / repo for key, repo in names.items()}


def edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def load(world, task: str = "math", **overrides):
    resolved = resolve(world[0], task=task, overrides=overrides)
    return resolved, *read_links(resolved)


def same(link, other) -> bool:
    return all(torch.equal(value, other.state_dict()[key]) for key, value in link.state_dict().items())


def test_released_layout_takes_the_set_of_the_task(world):
    math, math_inner, math_outer = load(world)
    code, code_inner, _ = load(world, "mbppplus")
    assert math.link_set == "math" and code.link_set == "code"
    assert math.roles["planner"].inner.path.name == "adapter(math).pt"
    assert code.outer["outer_31"].path.name == "Solver-Planner-Outerlink(code).pt"
    assert not same(math_inner["critic"], code_inner["critic"])
    assert (math_outer["outer_23"].source_width, math_outer["outer_23"].target_width) == (32, 48)
    assert math_inner["solver"].dtype == torch.bfloat16


def test_a_set_that_the_agent_manifest_lacks_falls_back_to_plain_names(world):
    _, places = world
    edit(places["planner"] / "innerlink_config.json", lambda value: value["tasks"].pop("math"))
    assert load(world)[0].roles["planner"].inner.path.name == "adapter(math).pt"
    (places["planner"] / "adapter(math).pt").rename(places["planner"] / "adapter.pt")
    assert load(world)[0].roles["planner"].inner.path.name == "adapter.pt"
    (places["planner"] / "innerlink_config.json").unlink()
    assert load(world)[0].roles["planner"].inner.path.name == "adapter.pt"


def test_outer_manifest_by_legacy_filename_labels_and_without_one(world):
    style, places = world
    path = places["outer"] / "outerlink_config.json"
    first = load(world)[2]["outer_12"]

    def rename(value):
        entry = value["tasks"]["math"]["adapters"][0]
        entry |= {"filename": "gone.pt", "legacy_filename": entry["filename"]}
        del value["tasks"]["math"]["adapters"][1]["legacy_key"]

    edit(path, rename)
    assert same(load(world)[2]["outer_12"], first)
    path.unlink()
    for link in style.links:
        labels = [style.role(end).label for end in (link.source, link.target)]
        shutil.copy(places["outer"] / f"{labels[0]}-{labels[1]}-Outerlink(math).pt", places["outer"] / f"{link.key}.pt")
    resolved, _, outer = load(world)
    assert same(outer["outer_12"], first)
    assert resolved.outer["outer_12"].type == "outer_ln_res_adapter"  # from outer_adapter_config(math).json


def test_links_for_every_task(untasked):
    """No `innerlink_config.json`, a flat outer manifest, and two names for one paradigm."""
    style, places = untasked
    math, inner, outer = load(untasked)
    assert {files.inner.path.name for files in math.roles.values()} == {"adapter.pt"}
    assert math.outer["outer_s2"].path.name == "Summarizer-Code-Outerlink.pt"
    assert (outer["outer_1s"].source_width, outer["outer_1s"].target_width) == (24, 32)
    code = load(untasked, "livecodebench")
    assert all(same(code[1][name], link) for name, link in inner.items())
    assert all(same(code[2][key], link) for key, link in outer.items())
    for change in (lambda v: v.update(paradigm="hie"), lambda v: v.pop("paradigm")):
        edit(places["outer"] / "outerlink_config.json", change)
        assert same(load(untasked)[2]["outer_s3"], outer["outer_s3"])
    # The type comes from the file's own keys where nobody tells it.
    for place in places.values():
        for name in ("adapter_config.json", "outer_adapter_config.json"):
            (place / name).unlink(missing_ok=True)
    edit(places["outer"] / "outerlink_config.json", lambda v: [entry.pop("adapter_type") for entry in v["adapters"]])
    _, found, found_outer = load(untasked)
    assert {link.link_type for link in found.values()} == {"ln_res_adapter"}
    assert {link.link_type for link in found_outer.values()} == {"outer_ln_res_adapter"}
    assert set(style.link_sets) == set()


@pytest.mark.parametrize("save_format", ["pt", "safetensors"])
def test_written_folders_come_back(world, tmp_path, save_format):
    style, places = world
    inner = InnerLink(32, "res_adapter")
    outer = {"outer_12": OuterLink(32, 32), "outer_23": OuterLink(32, 48), "outer_31": OuterLink(48, 32)}
    write_inner_dir(tmp_path / "in", inner, style.role("planner").model, {"seed": 1}, save_format)
    write_outer_dir(tmp_path / "out", outer, style, "math", {"seed": 1}, save_format, {"num_recursive_rounds": 3})
    resolved, found, found_outer = load(world, planner=tmp_path / "in", outer=tmp_path / "out")
    # The link alone: the style's own model stays.
    assert resolved.roles["planner"].model_dir == places["planner"].resolve()
    assert found["planner"].link_type == "res_adapter"
    assert same(found["planner"], inner) and all(same(found_outer[key], outer[key]) for key in outer)
    legacy = json.loads((tmp_path / "out" / "outer_adapter_config.json").read_text())
    assert legacy["outer_23_type"] == "outer_ln_res_adapter" and legacy["outer_23_out_dim"] == 48
    assert legacy["mas_shape"] == "chain" and legacy["mas_task"] == "math" and legacy["num_recursive_rounds"] == 3
    assert json.loads((tmp_path / "in" / "adapter_config.json").read_text())["adapter_type"] == "res_adapter"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RecursiveMAS", "in", "mine.yaml", "out"]


def test_writing_again_replaces_the_other_format_and_keeps_checkpoints(tmp_path):
    write_inner_dir(tmp_path / "in", InnerLink(8), "base", {})
    (tmp_path / "in" / "checkpoint-10").mkdir()
    write_inner_dir(tmp_path / "in", InnerLink(8), "base", {}, "safetensors")
    names = ["adapter.safetensors", "adapter_config.json", "checkpoint-10", "train_args.json"]
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == names
    with pytest.raises(InputError, match="--save_format"):
        write_inner_dir(tmp_path / "new", InnerLink(8), "base", {}, "bin")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_override_with_a_model_replaces_it(world, tmp_path):
    _, places = world
    model, tokenizer = load_language_model(places["planner"])
    write_inner_dir(tmp_path / "full", InnerLink(32), "my/base", {}, model=model, tokenizer=tokenizer)
    resolved = load(world, planner=tmp_path / "full")[0]
    assert resolved.roles["planner"].model_dir == (tmp_path / "full").resolve()
    assert resolved.roles["planner"].base_id == "my/base"


def test_a_lone_link_stays_with_the_model_it_was_trained_on(world, tmp_path):
    for base in ("Qwen/Qwen3-1.7B", "/data/models--Qwen--Qwen3-1.7B/snapshots/0a", str(world[1]["planner"])):
        write_inner_dir(tmp_path / "link", InnerLink(32), base, {})
        resolved = load(world, planner=tmp_path / "link")[0]
        assert resolved.roles["planner"].model_dir == world[1]["planner"].resolve()
        assert resolved.roles["planner"].base_id == "Qwen/Qwen3-1.7B"
    write_inner_dir(tmp_path / "link", InnerLink(32), "Qwen/Qwen3-4B", {})
    with pytest.raises(InputError, match=r"was trained on Qwen/Qwen3-4B, but role planner runs Qwen/Qwen3-1\.7B"):
        load(world, planner=tmp_path / "link")


def test_training_name_and_label_are_override_keys_too(world):
    style, places = world
    moved = {"refiner" if key == "critic" else key: place for key, place in places.items()}
    assert resolve(style, overrides=moved).roles["critic"].model_dir == places["critic"].resolve()
    with pytest.raises(InputError, match="critic is given twice"):
        resolve(style, overrides=moved | {"Critic": places["critic"]})
    with pytest.raises(
        InputError, match=r"--ckpt_override reviewer=\.\.\.: unknown key; .* planner, critic, solver, outer"
    ):
        resolve(style, overrides=places | {"reviewer": places["critic"]})


def test_parse_overrides():
    assert parse_overrides(["planner=a/b=c", "outer=d"]) == {"planner": "a/b=c", "outer": "d"}
    for bad in (["planner"], ["=x"], ["planner="], ["planner=a", "planner=b"]):
        with pytest.raises(InputError, match=r"^--ckpt_override (planner|=x)"):
            parse_overrides(bad)


def test_fingerprint_follows_content_not_place(world, tmp_path):
    style, places = world
    first = fingerprint(load(world)[0])
    shutil.copytree(places["solver"], tmp_path / "elsewhere")
    assert fingerprint(load(world, solver=tmp_path / "elsewhere")[0]) == first
    state = torch.load(places["outer"] / "Planner-Critic-Outerlink(math).pt", weights_only=True)
    state["proj1.bias"][0] += 1
    torch.save(state, places["outer"] / "Planner-Critic-Outerlink(math).pt")
    second = fingerprint(load(world)[0])
    assert {key for key in first if first[key] != second[key]} == {"outer_12"}
    assert set(first) == {f"{role.name}.{part}" for role in style.roles for part in ("model", "inner")} | {
        link.key for link in style.links
    }


def _without_link(places):
    for path in places["planner"].glob("adapter(*"):
        path.unlink()
    (places["planner"] / "innerlink_config.json").unlink()


def _wide(places):
    torch.save(InnerLink(40).state_dict(), places["planner"] / "adapter(math).pt")


def _nan(places):
    state = InnerLink(32).state_dict()
    state["proj2.bias"][3] = float("nan")
    torch.save(state, places["planner"] / "adapter(math).pt")


def _short(places):
    path = places["planner"] / "adapter(math).pt"
    path.write_bytes(path.read_bytes()[:2000])


def _short_safetensors(places):
    path = places["planner"] / "adapter(math).safetensors"
    save_file(InnerLink(32).state_dict(), path)
    path.write_bytes(path.read_bytes()[:-8])
    edit(places["planner"] / "innerlink_config.json", lambda value: value.pop("tasks"))


class _Trap:
    """Unpickled by a careless loader, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _pickled(places):
    torch.save({"proj1.weight": _Trap(places["planner"] / "trapped")}, places["planner"] / "adapter(math).pt")


def _plain_pickle(places):
    with (places["planner"] / "adapter(math).pt").open("wb") as file:
        pickle.dump(_Trap(places["planner"] / "trapped"), file)


def _not_tensors(places):
    torch.save([1, 2], places["planner"] / "adapter(math).pt")


def _inner_escapes(places):
    shutil.copy(places["planner"] / "adapter(math).pt", places["planner"].parent / "x.pt")
    edit(places["planner"] / "innerlink_config.json", lambda v: v["tasks"].update(math={"adapter.pt": "../x.pt"}))


def _outer_escapes(places):
    def change(value):
        value["tasks"]["math"]["adapters"][0]["filename"] = "../x.pt"

    edit(places["outer"] / "outerlink_config.json", change)


def _outer_absolute(places):
    def change(value):
        value["tasks"]["math"]["adapters"][0]["filename"] = str(places["outer"] / "x.pt")

    edit(places["outer"] / "outerlink_config.json", change)


def _task_missing(places):
    edit(places["outer"] / "outerlink_config.json", lambda value: value["tasks"].pop("math"))


def _key_missing(places):
    edit(places["outer"] / "outerlink_config.json", lambda value: value["tasks"]["math"]["adapters"].pop(2))


def _key_twice(places):
    def again(value):
        adapters = value["tasks"]["math"]["adapters"]
        adapters.append(dict(adapters[0]))

    edit(places["outer"] / "outerlink_config.json", again)


def _file_missing(places):
    (places["outer"] / "Critic-Solver-Outerlink(math).pt").unlink()


def _wrong_type(places):
    edit(places["planner"] / "adapter_config.json", lambda value: value.update(adapter_type="adapter"))


def _wrong_dim(places):
    def change(value):
        value["tasks"]["math"]["adapters"][1]["out_dim"] = 1536

    edit(places["outer"] / "outerlink_config.json", change)


def _other_paradigm(places):
    edit(places["outer"] / "outerlink_config.json", lambda value: value.update(paradigm="hie"))


def _swapped(places):
    torch.save(OuterLink(48, 32).state_dict(), places["outer"] / "Critic-Solver-Outerlink(math).pt")


def _broken_json(places):
    (places["outer"] / "outerlink_config.json").write_text('{"tasks": ')


def _peft(places):
    (places["planner"] / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def _no_weights(places):
    (places["critic"] / "model.safetensors").unlink()


def _cut_weights(places):
    path = places["critic"] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _no_tokenizer(places):
    (places["critic"] / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "file", "said"),
    [
        (_without_link, "Planner", "no inner link for role planner"),
        (_wide, "adapter(math).pt", "width is 40, but the model's is 32"),
        (_nan, "adapter(math).pt", "NaN"),
        (_short, "adapter(math).pt", "cut short"),
        (_short_safetensors, "adapter(math).safetensors", "cut short"),
        (_pickled, "adapter(math).pt", "objects other than tensors"),
        (_plain_pickle, "adapter(math).pt", "objects other than tensors"),
        (_not_tensors, "adapter(math).pt", "expected a state dict"),
        (_inner_escapes, "innerlink_config.json", "'../x.pt' leaves its folder"),
        (_outer_escapes, "outerlink_config.json", "'../x.pt' leaves its folder"),
        (_outer_absolute, "outerlink_config.json", "leaves its folder"),
        (_task_missing, "outerlink_config.json", "no links for task 'math'; tasks has code"),
        (_key_missing, "outerlink_config.json", "no entry for outer link outer_31"),
        (_key_twice, "outerlink_config.json", "2 entries for outer link outer_12"),
        (_file_missing, "Outerlinks", "Critic-Solver-Outerlink(math).pt"),
        (_wrong_type, "adapter(math).pt", "the manifest says adapter"),
        (_wrong_dim, "Critic-Solver-Outerlink(math).pt", "out_dim 1536, but the weights have 48"),
        (
            _other_paradigm,
            "outerlink_config.json",
            "links of paradigm mixture, but style sequential_light is sequential",
        ),
        (_swapped, "Critic-Solver-Outerlink(math).pt", "source width is 48, but the model's is 32"),
        (_broken_json, "outerlink_config.json", "not valid JSON"),
        (_peft, "Planner", "PEFT adapter"),
        (_no_weights, "Critic", "no weights"),
        (_cut_weights, "model.safetensors", "its header says"),
        (_no_tokenizer, "Critic", "no tokenizer"),
    ],
)
def test_bad_folder_is_one_sentence(world, spoil, file, said):
    spoil(world[1])
    with pytest.raises(InputError) as caught:
        load(world)
    told = str(caught.value)
    assert file in told and said in told and "\n" not in told
    assert not (world[1]["planner"] / "trapped").exists()


def test_a_file_or_nothing_is_no_folder(world, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--ckpt_override planner: .*file is a file"):
        load(world, planner=tmp_path / "file")
    with pytest.raises(InputError, match="--ckpt_override planner: no directory"):
        load(world, planner=tmp_path / "nowhere")
