"""Loading frozen language models and their tokenizers from a directory.

    model, tokenizer = load_language_model("models/Qwen3-1.7B", device="cuda")

What trips an ordinary loader is handled here: a directory whose `adapter_config.json` is a link's and not PEFT's,
multimodal wrappers of which only the text decoder is wanted, weights that do not arrive, and the dtype a device can do.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from inference.mas.errors import InputError

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}
# Trained in bfloat16 with activations beyond float16's range.
OVERFLOWS_FLOAT16 = ("gemma",)
# Where multimodal wrappers keep their text decoder: current and older names.
WRAPPER_KEYS = {
    r"^model\.language_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
# What a wrapper holds besides; not part of the text decoder.
WRAPPER_EXTRAS = (
    "vision_tower.",
    "multi_modal_projector.",
    "visual.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "mtp.",
)


def pick_device(device: str | torch.device | None = None, flag: str = "--device") -> torch.device:
    """The device asked for, or cuda if there is one, else the CPU; `InputError` (naming `flag`) if it is not here."""
    if device is None or device == "" or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as err:
        raise InputError(f"{flag} {device}: unknown device; expected cpu, cuda or cuda:N") from err
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise InputError(f"{flag} {device}: this machine has no usable CUDA device; use {flag} cpu")
        if (found.index or 0) >= count:
            raise InputError(f"{flag} {device}: this machine has {count} CUDA device(s), numbered from 0")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"{flag} {device}: this machine has no usable MPS device; use {flag} cpu")
    return found


def parse_device_map(text: str) -> dict[str, str]:
    """`--device_map ROLE=DEVICE,...` as {role: device}."""
    found: dict[str, str] = {}
    for item in text.split(","):
        role, _, device = (part.strip() for part in item.partition("="))
        if not role or not device:
            raise InputError(f"--device_map {text}: {item!r} is not ROLE=DEVICE, such as solver=cuda:1")
        if role in found:
            raise InputError(f"--device_map {text}: {role} is given twice")
        found[role] = device
    return found


def pick_dtype(
    dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu", model_type: str = ""
) -> torch.dtype:
    """The dtype asked for; "auto" is float32 off CUDA, bfloat16 where the GPU computes in it, else float16.

    On a GPU without bfloat16, models whose activations overflow float16 get float32. That fallback warns once.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype != "auto":
        if dtype not in DTYPES:
            raise InputError(f"--dtype {dtype}: unknown dtype; expected auto, {', '.join(DTYPES)}")
        return DTYPES[dtype]
    if torch.device(device).type != "cuda":
        return torch.float32
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    warnings.warn("this GPU has no bfloat16: models load in float16 (Gemma in float32)", stacklevel=2)
    return torch.float32 if model_type.startswith(OVERFLOWS_FLOAT16) else torch.float16


def read_config(folder: str | Path, trust_remote_code: bool = False) -> Any:
    """The config of a directory's text decoder, taken out of its multimodal wrapper if it has one."""
    return _read_config(folder, trust_remote_code)[0]


def _read_config(folder: str | Path, trust_remote_code: bool) -> tuple[Any, bool]:
    """The text decoder's config, and whether a multimodal wrapper was around it."""
    if not (Path(folder) / "config.json").is_file():
        raise InputError(f"{folder}: no config.json; expected the directory of a Hugging Face model")
    with _sentences(folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    text = config.get_text_config(decoder=True)
    if text is config:
        return config, False
    # The wrapper's own flag decides whether the embedding table doubles as the output layer.
    text.tie_word_embeddings = config.tie_word_embeddings
    return text, True


def load_language_model(
    folder: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = "cpu",
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """`load_model` and `load_tokenizer` of one directory."""
    return load_model(folder, dtype, device, trust_remote_code), load_tokenizer(folder, trust_remote_code)


def load_model(
    folder: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = "cpu",
    trust_remote_code: bool = False,
    resident: bool = True,
) -> Any:
    """The causal language model in a directory: frozen, in eval mode, text decoder only.

    With `resident` False it stays in CPU memory, in the dtype for `device`.

    Every weight of the model must be in the files, with its shape, and every weight of the files in the model (besides
    the other towers of a multimodal wrapper); `InputError` names the first that is not.
    """
    device = pick_device(device)
    config, wrapped = _read_config(folder, trust_remote_code)
    with _plain_view(Path(folder)) as view, _sentences(folder), _quiet():
        model, info = AutoModelForCausalLM.from_pretrained(
            view,
            config=config,
            dtype=pick_dtype(dtype, device, config.model_type),
            key_mapping=WRAPPER_KEYS if wrapped else None,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            # Reported as an error below, in one sentence.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    _check_arrived(info, WRAPPER_EXTRAS if wrapped else (), folder)
    # The view is gone by now; the model remembers where it really came from.
    model.config.name_or_path = model.name_or_path = str(folder)
    return model.to(device if resident else "cpu").eval().requires_grad_(False)


def load_tokenizer(folder: str | Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer in a directory; padding falls back to the end-of-text token."""
    with _sentences(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_arrived(info: dict[str, Any], extras: tuple[str, ...], folder: str | Path) -> None:
    unexpected = [key for key in info["unexpected_keys"] if not key.removeprefix("model.").startswith(extras)]
    for what, keys in (
        ("are missing from its files", info["missing_keys"]),
        ("are in its files but not in the model", unexpected),
        ("have another shape in its files", [key[0] for key in info["mismatched_keys"]]),
    ):
        if keys:
            first = ", ".join(sorted(keys)[:3])
            raise InputError(
                f"{folder}: {len(keys)} weights {what} ({first}{', ...' if len(keys) > 3 else ''}); "
                "the config.json belongs to other weights, or the download is broken"
            )
    if info.get("error_msgs"):
        raise InputError(f"{folder}: {info['error_msgs'][0]}")


@contextmanager
def _plain_view(folder: Path) -> Iterator[Path]:
    """The directory as transformers should see it: without a link's `adapter_config.json`.

    With `peft` installed, transformers takes any directory with that file for a PEFT adapter. The view is a private
    temporary folder of symbolic links, removed after loading, so that nothing is written beside the model.
    """
    if not (folder / "adapter_config.json").is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="recursive-mas-") as name:
        for entry in folder.iterdir():
            if entry.name != "adapter_config.json":
                os.symlink(entry.resolve(), Path(name) / entry.name)
        yield Path(name)


@contextmanager
def _sentences(folder: str | Path) -> Iterator[None]:
    """Tell what transformers says about a bad directory as one sentence about that directory."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as err:
        if isinstance(err, InputError):
            raise
        said = " ".join(str(err).split())
        if "trust_remote_code" in said:
            raise InputError(
                f"{folder}: the model brings its own program code; pass --trust_remote_code 1 if you trust its author"
            ) from err
        raise InputError(f"{folder}: cannot be loaded ({said[:300]})") from err


@contextmanager
def _quiet() -> Iterator[None]:
    """No report of skipped vision towers; `_check_arrived` tells what matters."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
