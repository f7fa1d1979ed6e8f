"""The pocket models in one table: family, tokenizer, the prompts and lessons that each is trained on, and for how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference.mas.styles import load_style
from train.pocket import lessons, lessons_mixture, lessons_pair
from train.pocket.lessons import Lesson, all_texts
from train.pocket.tokens import Spelling, build_tokenizer
from train.pocket.world import WORDS_A, WORDS_B, WORDS_C, World, make_world

MakeLesson = Callable[[World, str, random.Random], Lesson]
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}
MAX_POSITIONS = 1024
NAMES = lessons_pair.syllable_words()
POOL = 12000  # lessons are rendered once and drawn from a pool
LARGE_POOL = 60000  # where a lesson that comes back could be learned by heart in the place of the skill


@dataclass(frozen=True)
class PocketModel:
    """A model: it is taught as `role` of `style` by `lesson`, for `steps` steps; `sizes` are entries of its config.

    `texts` are words of its lessons that do not stand in its style's prompts or in the sequential system's texts.
    """

    name: str
    style: str
    role: str
    spelling: Spelling
    lesson: MakeLesson
    steps: int
    sizes: dict[str, int]
    texts: tuple[str, ...] = ()
    pool: int = POOL

    def tokenizer(self) -> Any:
        """Its tokenizer, built anew."""
        return build_tokenizer(self.spelling, [*all_texts(load_style(self.style)), *self.texts])

    def build(self, tokenizer: Any) -> Any:
        """The model with fresh weights."""
        config, model = FAMILIES[self.spelling.family]
        return model(
            config(
                vocab_size=len(tokenizer),
                max_position_embeddings=MAX_POSITIONS,
                tie_word_embeddings=True,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                initializer_range=self.sizes["hidden_size"] ** -0.5,
                **self.sizes,
            )
        )

    def lessons(self, world: World, split: str, seed: int) -> Iterator[Lesson]:
        """An endless stream of its lessons."""
        rng = random.Random(f"{seed}/lessons/{self.name}/{split}")
        while True:
            yield self.lesson(world, split, rng)


def _sizes(layers: int, width: int, inner: int, heads: int, kv_heads: int, **more: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **more,
    }


_BOTH = WORDS_A + WORDS_B
_ALL = _BOTH + WORDS_C
_PAIR_TEXTS = tuple(lessons_pair.pair_texts(make_world()))
_MIXTURE_TEXTS = tuple(lessons_mixture.mixture_texts())


def _expert(name: str, family: str, whole: tuple[str, ...], lesson: MakeLesson, digits: bool = False) -> PocketModel:
    """One of the mixture's experts, which are smaller than the other models."""
    cut = tuple(word for word in _ALL if word not in whole)
    spelling = Spelling(name, family, whole, cut, digits=digits)
    return PocketModel(name, "pocket_mixture", name, spelling, lesson, 500, _sizes(3, 96, 192, 4, 2), _MIXTURE_TEXTS)


MODELS = {
    model.name: model
    for model in (
        PocketModel(
            "planner", "pocket_sequential", "planner", Spelling("qwen3", "qwen3", WORDS_A, WORDS_B),
            lessons.planner_lesson, 900, _sizes(4, 128, 384, 4, 2, head_dim=32),
        ),
        PocketModel(
            "critic", "pocket_sequential", "critic", Spelling("llama", "llama", WORDS_B, WORDS_A, digits=True),
            lessons.critic_lesson, 600, _sizes(4, 144, 384, 6, 3),
        ),
        PocketModel(
            "solver", "pocket_sequential", "solver", Spelling("qwen2", "qwen2", (), _BOTH),
            lessons.solver_lesson, 1300, _sizes(4, 160, 384, 5, 5),
        ),
        PocketModel(
            "expert", "pocket_distillation", "expert", Spelling("expert", "qwen3", _BOTH, NAMES, tools=True),
            lessons_pair.expert_lesson, 1200, _sizes(4, 128, 384, 4, 2, head_dim=32), _PAIR_TEXTS, LARGE_POOL,
        ),
        PocketModel(
            "toolcaller", "pocket_deliberation", "toolcaller",
            Spelling("toolcaller", "llama", (), _BOTH + NAMES, tools=True),
            lessons_pair.toolcaller_lesson, 3000, _sizes(3, 128, 256, 4, 4), _PAIR_TEXTS, LARGE_POOL,
        ),
        _expert("alpha", "qwen2", WORDS_A, lessons_mixture.alpha_lesson),
        _expert("beta", "llama", WORDS_B, lessons_mixture.beta_lesson, digits=True),
        _expert("gamma", "mistral", WORDS_C, lessons_mixture.gamma_lesson),
        PocketModel(
            "summarizer", "pocket_mixture", "summarizer", Spelling("summarizer", "qwen3", (), _ALL),
            lessons_mixture.summarizer_lesson, 1200, _sizes(4, 128, 384, 4, 2, head_dim=32), _MIXTURE_TEXTS, LARGE_POOL,
        ),
    )
}  # fmt: skip
