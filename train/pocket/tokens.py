"""The tokenizers of the pocket models: as different as the models' families, small enough to read.

All are WordPiece vocabularies over words, signs and line breaks. Each knows its own family of rule words whole and cuts the
others into syllables; some write numbers in digits, the others have a token for each; ids come in different orders.
Spaces are dropped by the tokenizer and put back by the decoder, so a text gives the same ids alone and inside a prompt.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from train.pocket.world import NUMBERS

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
"""
TEMPLATES = {
    # As Qwen3: thinking is switched off by an empty think block in the generation prompt.
    "qwen3": CHATML
    + """{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}""",
    # As Llama 3: headers, and a begin-of-text token of the template's own.
    "llama": """{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
    # As Qwen2: a default system message.
    "qwen2": """{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nyou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
"""
    + CHATML
    + "{%- endif %}",
    # As Mistral: no system role.
    "mistral": """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- raise_exception('there is no system role') }}
{%- elif message.role == 'user' %}
{{- '[INST] ' + message.content + ' [/INST]' }}
{%- else %}
{{- ' ' + message.content + eos_token }}
{%- endif %}
{%- endfor %}""",
}
SPECIAL = {
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
    "llama": [
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
        "<|finetune_right_pad_id|>",
    ],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "mistral": ["<s>", "</s>", "<pad>", "[INST]", "[/INST]"],
}  # fmt: skip
NAMES = {
    "qwen3": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llama": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"},
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
}
UNKNOWN = "<unk>"
_PIECE = r"\\boxed\{|\n\n?|[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]"
_TAG = r"</?(?:python|search|result)>"
# No space before the rest of a word, a closing sign or a line break, nor after an opening.
_TIGHT = r" ##| (?=[.,:?}\n])|(?<=[{\n]) |^ "
_TIGHT_CALLS = r"| (?=[()])|(?<=[(>]) | (?=</)"


@dataclass(frozen=True)
class Spelling:
    """How a model's tokenizer differs from the others'.

    `seed` names the order of its ids, `family` its chat template and special tokens; words of `whole` are one token each,
    those of `cut` two. `digits`: numbers are written in digits. `tools`: the tags of tool calls are tokens.
    """

    seed: str
    family: str
    whole: tuple[str, ...]
    cut: tuple[str, ...]
    digits: bool = False
    tools: bool = False

    @property
    def pieces(self) -> str:
        """The pattern of what is never cut further than into words."""
        return f"{_TAG}|{_PIECE}" if self.tools else _PIECE


def vocabulary(spelling: Spelling, texts: list[str]) -> dict[str, int]:
    """Token strings to ids: the words of `texts`, numbers, and rule words or their syllables, in an order of its own."""
    rules = {*spelling.whole, *spelling.cut}
    found = {piece for text in texts for piece in re.findall(spelling.pieces, text)}
    words = {piece for piece in found if not piece.isdigit()} - rules
    digits = {str(digit) for digit in range(10)}
    numbers = digits | {f"##{digit}" for digit in digits} if spelling.digits else {str(number) for number in NUMBERS}
    whole = set(spelling.whole)
    syllables = {piece for word in rules - whole for piece in (word[:2], "##" + word[2:])}
    entries = sorted(words | numbers | whole | syllables)
    random.Random(f"vocabulary/{spelling.seed}").shuffle(entries)
    return {token: index for index, token in enumerate([*SPECIAL[spelling.family], UNKNOWN, *entries])}


def build_tokenizer(spelling: Spelling, texts: list[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of a model for the words that occur in `texts`."""
    entries = vocabulary(spelling, texts)
    tokenizer = Tokenizer(models.WordPiece(entries, unk_token=UNKNOWN, max_input_chars_per_word=40))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(" +"), "removed"), pre_tokenizers.Split(Regex(spelling.pieces), "isolated")]
    )
    tight = _TIGHT + _TIGHT_CALLS if spelling.tools else _TIGHT
    # A space before every token, then some taken away again.
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex("^"), " "), decoders.Fuse(), decoders.Replace(Regex(tight), "")]
    )
    special = SPECIAL[spelling.family]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    out = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **NAMES[spelling.family],
    )
    out.chat_template = TEMPLATES[spelling.family]
    return out
