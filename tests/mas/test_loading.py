"""Language models and whole systems from directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.mas.checkpoints import write_inner_dir, write_outer_dir
from inference.mas.decoding import Sampling
from inference.mas.errors import InputError
from inference.mas.links import InnerLink, OuterLink
from inference.mas.lm_loading import (
    load_language_model,
    load_model,
    parse_device_map,
    pick_device,
    pick_dtype,
    read_config,
)
from inference.mas.styles import load_style
from system_loader import load_mas_system, place_roles
from tests.mini_hub import add_released
from tests.tiny_models import FAMILIES, make_lm, make_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """`ckpt_override` of a whole `sequential_light` in the released layout."""
    folder = tmp_path_factory.mktemp("released")
    style = add_released(folder, "sequential_light")
    places = {role.name: folder / "models" / role.repo for role in style.roles}
    return places | {"outer": folder / "models" / style.outer_repo}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_arrives(family, tmp_path):
    make_lm(family, tmp_path, width=32, seed=3, shards=True)
    (tmp_path / "adapter_config.json").write_text('{"adapter_type": "ln_res_adapter"}')
    before = sorted(path.name for path in tmp_path.iterdir())
    model, tokenizer = load_language_model(tmp_path)
    source = make_model(family, width=32, seed=3)
    ids = torch.tensor([tokenizer("Tom has 3 apples.").input_ids])
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, source(input_ids=ids).logits)
    assert model.dtype == torch.float32 and not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any("vision" in name or "visual" in name for name, _ in model.named_parameters())
    assert model.get_decoder().config.hidden_size == read_config(tmp_path).hidden_size == 32
    assert tokenizer.pad_token_id is not None
    assert model.generation_config.eos_token_id == source.generation_config.eos_token_id
    assert model.name_or_path == str(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not list(Path(tempfile.gettempdir()).glob("recursive-mas-*"))


def _edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "1 weights are missing from its files (model.layers.1"),
        (
            lambda w: w.update({"model.layers.7.x": torch.ones(2)}),
            "in its files but not in the model (model.layers.7.x",
        ),
        (lambda w: w.update({"model.norm.weight": torch.ones(5)}), "another shape in its files (model.norm.weight"),
    ],
)
def test_weights_that_do_not_fit_are_an_error(tmp_path, change, said):
    make_lm("llama", tmp_path)
    _edit_weights(tmp_path, change)
    with pytest.raises(InputError) as caught:
        load_model(tmp_path)
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)


def test_wrapper_without_its_decoder_is_an_error(tmp_path):
    make_lm("gemma3_wrapper", tmp_path)
    _edit_weights(tmp_path, lambda weights: [weights.pop(key) for key in list(weights) if "layers.0.mlp" in key])
    with pytest.raises(InputError, match=r"3 weights are missing"):
        load_model(tmp_path)


def test_model_with_program_code_needs_trust(tmp_path):
    make_lm("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(InputError, match="--trust_remote_code 1"):
        load_model(tmp_path)


def test_not_a_model(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(tmp_path)


def test_dtype_and_device():
    assert pick_dtype("auto", "cpu") == torch.float32
    assert pick_dtype("bf16", "cpu") == pick_dtype(torch.bfloat16) == torch.bfloat16
    with pytest.raises(InputError, match="--dtype int8"):
        pick_dtype("int8")
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="--device toaster"):
        pick_device("toaster")


def test_device_that_is_not_here():
    """Run where no GPU can be seen, so that it says the same on every machine."""
    done = subprocess.run(
        [sys.executable, "-c", "from inference.mas.lm_loading import pick_device; pick_device('cuda')"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert "InputError: --device cuda: this machine has no usable CUDA device; use --device cpu" in done.stderr


PEFT = """
import importlib.util, sys
hidden = sys.argv[1] == "hidden"
if hidden:
    sys.modules["peft"] = None  # Python's own mark of a module that cannot be imported
from transformers import AutoModelForCausalLM
from transformers.utils import is_peft_available
from inference.mas.lm_loading import load_language_model
assert is_peft_available() is not hidden
if not hidden:
    try:
        AutoModelForCausalLM.from_pretrained(sys.argv[2])
    except KeyError:
        pass  # transformers takes the folder for a PEFT adapter: what the loader is there to avoid
    else:
        raise AssertionError("transformers no longer reads adapter_config.json; the view can go")
model, _ = load_language_model(sys.argv[2])
print(sum(parameter.double().sum().item() for parameter in model.parameters()))
"""


def test_with_and_without_peft(tmp_path):
    make_lm("qwen3", tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"adapter_type": "ln_res_adapter"}')
    sums = []
    for mode in ("visible", "hidden"):
        command = [sys.executable, "-c", PEFT, mode, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        sums.append(done.stdout)
    assert sums[0] == sums[1]


def test_system(light):
    mas = load_mas_system("sequential_light", "cpu", ckpt_override=light, dataset="math500")
    assert mas.agents["planner"].width == 32 and mas.agents["solver"].width == 48
    assert mas.agents["critic"].inner_link.dtype == torch.bfloat16
    assert mas.agents["refiner"] is mas.agents["critic"]
    assert set(mas.outer_links) == {"outer_12", "outer_23", "outer_31"} and mas.task == "math"
    answers = mas.answer(["What is 3 + 4?"], rounds=2, latent_steps=3, sampling=Sampling(max_new_tokens=4))
    assert len(answers[0].rollouts[0].tokens) > 0
    code = load_mas_system("sequential_light", "cpu", ckpt_override=light, dataset="mbppplus", link_dtype="float32")
    assert code.task == "code" and code.outer_links["outer_12"].dtype == torch.float32
    with pytest.raises(InputError, match="unknown task family"):
        load_mas_system("sequential_light", "cpu", ckpt_override=light, task="maths")


def test_offload_gives_the_same_answer(light):
    run = {"rounds": 2, "latent_steps": 3, "sampling": Sampling(max_new_tokens=4)}
    plain, off = (
        load_mas_system("sequential_light", "cpu", ckpt_override=light, offload=offload).answer(["3 + 4?"], **run)
        for offload in (False, True)
    )
    assert plain[0].rollouts == off[0].rollouts


def test_roles_on_devices_of_their_own(light):
    """All of them are the CPU here; what is checked is who goes where, and that names are validated."""
    style = load_style("sequential_light")
    cpu, meta = torch.device("cpu"), torch.device("meta")
    places = place_roles(style, cpu, {"refiner": "meta", "Solver": cpu})
    assert places == {"planner": cpu, "critic": meta, "solver": cpu}
    mas = load_mas_system("sequential_light", "cpu", ckpt_override=light, device_map={"critic": "cpu:0"})
    assert mas.agents["critic"].device == torch.device("cpu:0")
    assert mas.answer(["3 + 4?"], rounds=2, latent_steps=2, sampling=Sampling(max_new_tokens=2))
    for device_map, said in (
        (
            {"judge": "cpu"},
            "--device_map judge=cpu: style sequential_light has no such role; it has planner, critic, solver",
        ),
        ({"critic": "cpu", "refiner": "cpu"}, "--device_map refiner=cpu: critic is given twice"),
        ({"critic": "toaster"}, "--device_map critic: toaster: unknown device"),
    ):
        with pytest.raises(InputError) as caught:
            place_roles(style, cpu, device_map)
        assert said in str(caught.value)
    assert parse_device_map("a=cuda:1, b=cpu") == {"a": "cuda:1", "b": "cpu"}
    for bad in ("a", "a=", "=cpu", "a=cpu,", "a=cpu,a=cpu"):
        with pytest.raises(InputError, match=f"^--device_map {bad}: "):
            parse_device_map(bad)


def test_links_are_checked_before_any_weights(light, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(light["solver"], bad)
    torch.save(InnerLink(40).state_dict(), bad / "adapter(math).pt")
    (bad / "model.safetensors").unlink()
    with pytest.raises(InputError, match="width is 40"):
        load_mas_system("sequential_light", "cpu", ckpt_override=light | {"solver": bad})


def test_one_base_model_is_loaded_once(tmp_path):
    """A user's style of two roles on one model, their links in folders of their own."""
    make_lm("qwen3", tmp_path / "base")
    (tmp_path / "twins.yaml").write_text(
        """
roles:
  first: {model: ./base, repo: ./first, first: {math: "{question} Think."}, later: {math: "{question} <<BACK>>"}}
  second: {model: ./base, repo: ./second, first: {math: "{question} <<FORTH>>"}}
speaker: second
links:
  forth: {source: first, target: second, slot: FORTH}
  back: {source: second, target: first, slot: BACK}
outer_repo: ./outer
single: {math: "{question}"}
"""
    )
    style = load_style(tmp_path / "twins.yaml")
    for role in ("first", "second"):
        write_inner_dir(tmp_path / role, InnerLink(32), "./base", {})
    links = {key: OuterLink(32, 32) for key in ("forth", "back")}
    write_outer_dir(tmp_path / "outer", links, style, "math", {})
    apart = load_mas_system(tmp_path / "twins.yaml", "cpu", device_map={"second": "cpu:0"})
    assert apart.agents["first"].model is not apart.agents["second"].model, "each device has its copy"
    mas = load_mas_system(tmp_path / "twins.yaml", "cpu")
    assert mas.agents["first"].model is mas.agents["second"].model
    assert mas.agents["first"].inner_link is not mas.agents["second"].inner_link
    assert mas.answer(["3 + 4?"], rounds=2, latent_steps=2, sampling=Sampling(max_new_tokens=2))
