"""The three tokenizers of the pocket models: as different as the three families, small enough to read.

All are WordPiece vocabularies over words, signs and line breaks. Each knows another family of rule words whole and cuts the
others into syllables; the critic writes numbers in digits, the others have a token for each; ids come in different orders.
Spaces are dropped by the tokenizer and put back by the decoder, so a text gives the same ids alone and inside a prompt.
"""

from __future__ import annotations

import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from train.pocket.world import NUMBERS, WORDS_A, WORDS_B

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
}
SPECIAL = {
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
    "llama": [
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
        "<|finetune_right_pad_id|>",
    ],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}  # fmt: skip
NAMES = {
    "qwen3": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llama": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"},
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
}
WHOLE = {"qwen3": WORDS_A, "llama": WORDS_B, "qwen2": ()}  # rule words with a token of their own
DIGITS = {"llama"}  # families that write numbers in digits
UNKNOWN = "<unk>"
_PIECE = r"\\boxed\{|\n\n?|[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]"


def vocabulary(family: str, texts: list[str]) -> dict[str, int]:
    """Token strings to ids: the words of `texts`, numbers, rule words or their syllables, in the family's own order."""
    rules = {*WORDS_A, *WORDS_B}
    words = {piece for text in texts for piece in re.findall(_PIECE, text) if not piece.isdigit()} - rules
    digits = {str(digit) for digit in range(10)}
    numbers = digits | {f"##{digit}" for digit in digits} if family in DIGITS else {str(number) for number in NUMBERS}
    whole = set(WHOLE[family])
    syllables = {piece for word in rules - whole for piece in (word[:2], "##" + word[2:])}
    entries = sorted(words | numbers | whole | syllables)
    random.Random(f"vocabulary/{family}").shuffle(entries)
    return {token: index for index, token in enumerate([*SPECIAL[family], UNKNOWN, *entries])}


def build_tokenizer(family: str, texts: list[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of a family ("qwen3", "llama" or "qwen2") for the words that occur in `texts`."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary(family, texts), unk_token=UNKNOWN, max_input_chars_per_word=40))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(" +"), "removed"), pre_tokenizers.Split(Regex(_PIECE), "isolated")]
    )
    # A space before every token, then none before the rest of a word, a closing sign or a line break, nor after an opening.
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("^"), " "),
            decoders.Fuse(),
            decoders.Replace(Regex(" ##| (?=[.,:?}\\n])|(?<=[{\\n]) |^ "), ""),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[family]])
    names = NAMES[family]
    out = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, padding_side="left", clean_up_tokenization_spaces=False, **names
    )
    out.chat_template = TEMPLATES[family]
    return out
