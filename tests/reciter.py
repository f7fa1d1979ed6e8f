"""A real language model that recites: the answer to a prompt is a text that was laid down for a phrase in the prompt.

    make_reciter(folder, {"Tom buys 3": "so \\boxed{12}", "Which gas": ["\\boxed{A}", "\\boxed{B}"]})

It is an ordinary folder of a Llama model with one layer, whose weights are set, not trained. Every phrase and every text is one
token. The layer attends to all positions alike, so its output holds the phrases that the prompt has; the head writes the text of
that phrase, and after a text the end of the turn. Of several texts for a phrase each draw takes one. A text in `endless` is
written again and again. Messages of other agents are vectors without a phrase, if links are those of `quiet`.

    dimension   0: no phrase     1: a text has been written     2, 3, ...: one a phrase
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from inference.mas.checkpoints import write_inner_dir, write_outer_dir
from inference.mas.links import InnerLink, OuterLink
from inference.mas.styles import load_style

NO_PHRASE, WRITTEN, FIRST = 0, 1, 2
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def make_reciter(
    folder: Path, texts: Mapping[str, str | Sequence[str]], endless: Collection[str] = ()
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Save the model and its tokenizer in `folder`. A prompt without a phrase is answered by nothing."""
    spoken = {phrase: [given] if isinstance(given, str) else list(given) for phrase, given in texts.items()}
    tokenizer = _tokenizer([*spoken, *(text for given in spoken.values() for text in given)])
    width = FIRST + len(spoken) + len(spoken) % 2
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=width, max_position_embeddings=65536, tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        layer, embedding, head = model.model.layers[0], model.model.embed_tokens.weight, model.lm_head.weight
        for norm in (layer.input_layernorm, layer.post_attention_layernorm, model.model.norm):
            norm.weight.fill_(1)
        layer.self_attn.o_proj.weight.copy_(torch.eye(width))
        for place in range(FIRST, width):
            layer.self_attn.v_proj.weight[place, place] = 1e3  # a phrase outweighs the rest of a long prompt
        embedding[:, NO_PHRASE] = 1
        head[tokenizer.eos_token_id, NO_PHRASE] = 1
        head[tokenizer.eos_token_id, WRITTEN] = 1e3
        for place, (phrase, given) in enumerate(spoken.items(), FIRST):
            embedding[tokenizer.convert_tokens_to_ids(phrase)] = torch.eye(width)[place]
            for text in given:
                token = tokenizer.convert_tokens_to_ids(text)
                head[token, place] = 1e3
                if text not in endless:
                    embedding[token] = 1e6 * torch.eye(width)[WRITTEN]
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _tokenizer(whole: Sequence[str]) -> PreTrainedTokenizerFast:
    """Words are unknown, `whole` texts are one token each."""
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<eos>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE)  # fmt: skip
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in dict.fromkeys(whole)])
    return tokenizer


def quiet(link: InnerLink | OuterLink) -> None:
    """Let a link send the vector that stands for no phrase."""
    norm = link.post_ln if isinstance(link, InnerLink) else link.ln_target
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.zero_()
        norm.bias[NO_PHRASE] = 1


def make_system(
    folder: Path, style_name: str, texts: Mapping[str, str | Sequence[str]], endless: Collection[str] = ()
) -> tuple[str, ...]:
    """Folders with which a style's every agent recites; returns the flags that put them in the released ones' place."""
    style = load_style(style_name)
    model, tokenizer = make_reciter(folder / "model", texts, endless)
    width = model.config.hidden_size
    inner = InnerLink(width)
    outer = {link.key: OuterLink(width, width) for link in style.links}
    for link in (inner, *outer.values()):
        quiet(link)
    write_inner_dir(folder / "agent", inner, "reciter", {}, model=model, tokenizer=tokenizer)
    write_outer_dir(folder / "outer", outer, style, "math", {})
    places = {role.name: folder / "agent" for role in style.roles} | {"outer": folder / "outer"}
    return tuple(part for key, path in places.items() for part in ("--ckpt_override", f"{key}={path}"))
