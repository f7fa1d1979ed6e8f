"""Tiny random language models and tokenizers, one per family, saved as ordinary Hugging Face folders.

    tokenizer = make_tokenizer("qwen3")                       # a fast tokenizer with the family's special tokens and template
    folder = make_lm("llama", tmp_path / "critic", width=32)  # config, weights, generation config, tokenizer files

Everything is made here (no download), takes well under a second, and is a function of the arguments only. The families keep
the habits that trip loaders: Gemma's template refuses a system role, Qwen3's has a thinking switch, Llama has no pad token,
Qwen3.5's generation config names another end of text than its tokenizer, DeepSeek's distilled Qwen2 has a template of its
own that opens a think block, the Gemma3 wrapper keeps its decoder under `text_config`, and each family has a vocabulary
of its own.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.models.gemma3 import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig
from transformers.models.siglip import SiglipVisionConfig

TEXT_FAMILIES = ("qwen2", "qwen3", "qwen3_5", "llama", "mistral", "gemma3")
WRAPPERS = {"gemma3_wrapper": "gemma3", "qwen3_5_wrapper": "qwen3_5"}
FAMILIES = (*TEXT_FAMILIES, *WRAPPERS)
# A tokenizer and template of their own on the architecture of another family.
ARCHITECTURES = {"deepseek": "qwen2"}

_LINES = [
    "Question: Tom has 3 apples and buys 4 more. How many apples does he have now?",
    "Plan. Step 1: read the numbers. Step 2: add them. Step 3: put the final answer in \\boxed{7}.",
    "The refined plan is to multiply 12 by 5, subtract 8 and check that the result is positive: 52.",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(add(i, 1))",
]

_QWEN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_QWEN_THINKING = _QWEN.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
_LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
    "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

# Shows the system text without a role, opens a think block for the answer, and drops what an answer thought.
_DEEPSEEK = (
    "{{ bos_token }}{% for m in messages if m['role'] == 'system' %}{{ m['content'] }}{% endfor %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)

# family: (special tokens, {role of a special token: token}, chat template, number of merges, adds a start token by itself)
_TOKENIZERS = {
    "qwen2": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        _QWEN,
        30,
        False,
    ),
    "qwen3": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        _QWEN_THINKING,
        50,
        False,
    ),
    "qwen3_5": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        _QWEN_THINKING,
        70,
        False,
    ),
    "llama": (
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        _LLAMA,
        40,
        True,
    ),
    "mistral": (
        ["<unk>", "<s>", "</s>"],
        {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
        _MISTRAL,
        20,
        True,
    ),
    "deepseek": (
        ["<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
        {"eos_token": "<｜end▁of▁sentence｜>", "bos_token": "<｜begin▁of▁sentence｜>"},
        _DEEPSEEK,
        35,
        True,
    ),
    "gemma3": (
        ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
        {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"},
        _GEMMA,
        60,
        True,
    ),
}

# Tokens that end a turn, as the family's generation_config.json names them (the tokenizer's own eos may be another one).
_GENERATION_EOS = {
    "qwen2": ["<|im_end|>", "<|endoftext|>"],
    "qwen3": ["<|im_end|>", "<|endoftext|>"],
    "qwen3_5": ["<|endoftext|>"],
    "llama": ["<|end_of_text|>", "<|eot_id|>"],
    "mistral": ["</s>"],
    "deepseek": ["<｜end▁of▁sentence｜>"],
    "gemma3": ["<eos>", "<end_of_turn>"],
}


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of about 300 tokens with the special tokens and the chat template of `family`."""
    specials, named, template, merges, adds_bos = _TOKENIZERS[WRAPPERS.get(family, family)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(specials) + 256 + merges,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_LINES, trainer)
    if adds_bos:
        bos = named["bos_token"]
        bpe.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bpe.token_to_id(bos))]
                ),
            ]
        )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, model_max_length=4096, **named)


def make_config(family: str, *, width: int = 32, layers: int = 2, vocab_size: int = 320, ids: dict | None = None):
    """A small configuration of `family`: heads of 8 channels, an MLP of 2 x width. `ids`: eos/bos/pad token ids."""
    family, heads = ARCHITECTURES.get(family, family), width // 8
    common = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
        "head_dim": 8,
        "max_position_embeddings": 4096,
        # Large enough that a random model of two layers has something to say: its states differ between positions.
        "initializer_range": 0.2,
        **(ids or {}),
    }
    # The local and global kinds of layer alternate, and the last one attends to everything.
    kinds = ["full_attention" if i % 2 == 1 or i == layers - 1 else "local" for i in range(layers)]
    if family == "qwen2":
        common.pop("head_dim")
        return Qwen2Config(**common, tie_word_embeddings=True)
    if family == "qwen3":
        return Qwen3Config(**common, tie_word_embeddings=True)
    if family == "llama":
        return LlamaConfig(**common, tie_word_embeddings=True)
    if family == "mistral":
        return MistralConfig(**common, sliding_window=None)
    if family == "qwen3_5":
        return Qwen3_5TextConfig(
            **common,
            layer_types=["linear_attention" if kind == "local" else kind for kind in kinds],
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 0],
                "mrope_interleaved": True,
            },
        )
    if family == "gemma3":
        return Gemma3TextConfig(
            **common,
            query_pre_attn_scalar=8,
            sliding_window=16,
            layer_types=["sliding_attention" if kind == "local" else kind for kind in kinds],
        )
    text = make_config(WRAPPERS[family], width=width, layers=layers, vocab_size=vocab_size, ids=ids)
    if family == "gemma3_wrapper":
        vision = SiglipVisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=16,
            patch_size=4,
            vision_use_head=False,
        )
        return Gemma3Config(
            text_config=text,
            vision_config=vision.to_dict(),
            mm_tokens_per_image=4,
            image_token_index=vocab_size - 1,
            boi_token_index=vocab_size - 2,
            eoi_token_index=vocab_size - 3,
        )
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": width}
    vision |= {"patch_size": 4, "num_position_embeddings": 16}
    return Qwen3_5Config(text_config=text.to_dict(), vision_config=vision)


def make_model(family: str, *, width: int = 32, layers: int = 2, seed: int = 0, tokenizer=None):
    """A random model of `family` in float32, eval mode; `tokenizer` gives the vocabulary and the special ids."""
    tokenizer = tokenizer if tokenizer is not None else make_tokenizer(family)
    base = WRAPPERS.get(family, family)
    ids = {
        "eos_token_id": tokenizer.convert_tokens_to_ids(_GENERATION_EOS[base][0]),
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    # A little larger than the tokenizer, as published tables are (they are padded to a round number).
    vocab_size = -(-len(tokenizer) // 16) * 16
    config = make_config(family, width=width, layers=layers, vocab_size=vocab_size, ids=ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "gemma3_wrapper":
            model = Gemma3ForConditionalGeneration(config)
        elif family == "qwen3_5_wrapper":
            model = Qwen3_5ForConditionalGeneration(config)
        else:
            model = AutoModelForCausalLM.from_config(config)
    model = model.eval()
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.convert_tokens_to_ids(token) for token in _GENERATION_EOS[base]],
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def make_lm(
    family: str,
    folder: str | Path,
    *,
    width: int = 32,
    layers: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: bool = False,
) -> Path:
    """Save a random model of `family` and its tokenizer in `folder`; `shards` splits the weights into several files."""
    folder = Path(folder)
    tokenizer = make_tokenizer(family)
    model = make_model(family, width=width, layers=layers, seed=seed, tokenizer=tokenizer).to(dtype)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=max(1, size // 3) if shards else "1GB")
    tokenizer.save_pretrained(folder)
    return folder
