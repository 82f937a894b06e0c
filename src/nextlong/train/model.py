"""Model: load or make what is trained, stretched to the rows, with our attention and loss.

In:  the recipe, the longest row, the tokenizer of the runs.
Out: a causal model of transformers in float32 (autocast does the rest), and what was done to it, in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from nextlong.errors import RecipeError, TokenizerError
from nextlong.model_names import first_sentence, why_no_model
from nextlong.train import attention, fused_loss, loss, rope
from nextlong.train.check import not_finite
from nextlong.train.recipe import TrainRecipe

COMPILER: Final = "inductor"


@dataclass(frozen=True)
class Made:
    """The model, and what was done to it."""

    model: Any
    said: list[str]


def config_of(recipe: TrainRecipe, *, vocabulary: int | None) -> Any:
    """Return the config of the model before anything is loaded. Raises RecipeError for a folder that holds none."""
    from transformers import AutoConfig, LlamaConfig

    scratch, path = recipe.model.scratch, recipe.model.path
    if scratch is None:
        assert path is not None, "the recipe names one of them"
        if why := why_no_model(path):
            raise RecipeError(f"model.path={path!r} {why}")
        try:
            config = AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise RecipeError(
                f"model.path={path!r} is not a model that transformers can load ({first_sentence(error)}); name a folder "
                f"with config.json and weights"
            ) from None
        if config.get_text_config() is not config:
            raise RecipeError(
                f"model.path={path!r} is a multimodal model ({config.model_type}); this loop trains models of text alone: save its "
                "language model in a folder of its own"
            )
        return config
    if scratch.vocabulary is None and vocabulary is None:
        raise RecipeError(
            "model.scratch.vocabulary=null takes that of the run's tokenizer, and there is no run; say how many ids the data have"
        )
    return LlamaConfig(
        vocab_size=scratch.vocabulary or vocabulary,
        hidden_size=scratch.hidden_size,
        intermediate_size=scratch.intermediate_size,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.key_value_heads,
        tie_word_embeddings=True,
    )


def make(recipe: TrainRecipe, *, longest: int, vocabulary: int | None, device: torch.device) -> Made:
    """Load the weights of `model.path`, or draw those of `model.scratch` from the seed, for documents of up to `longest` tokens.

    They stay in main memory; `device` is where they will train. Raises RecipeError.
    """
    config = config_of(recipe, vocabulary=vocabulary)
    said = rope.set_base(config, base=recipe.model.rope_base, max_tokens=longest, scaling=recipe.model.rope_scaling)
    model = weights(recipe, config)
    rope.check_base(model)
    said.append(install_loss(recipe, model, device=device))
    if recipe.memory.checkpointing != "none":
        with_checkpointing(model, offload=recipe.memory.checkpointing == "offload")
    if recipe.compile == "on":
        for layer in loss.layers_of(model):
            layer.compile(backend=COMPILER)
    if recipe.model.lora_rank is not None:
        model = with_adapters(model, recipe)
    return Made(model, said)


def install_loss(recipe: TrainRecipe, model: Any, *, device: torch.device) -> str:
    """Give the model the loss that the recipe asks for; say which it is, and why. Raises RecipeError."""
    dtype = torch.bfloat16 if recipe.training.precision == "bf16" else torch.float32
    chosen = fused_loss.choose(recipe.loss_kernel, model, device=device, dtype=dtype)
    loss.install(model, block_tokens=recipe.memory.loss_block_tokens, summed_by=chosen.sum_of_losses)
    return chosen.why


def weights(recipe: TrainRecipe, config: Any) -> Any:
    """Return the model with the weights of `model.path`, or with random ones for `model.scratch`. Raises RecipeError."""
    from transformers import AutoModelForCausalLM

    name = attention.register(recipe.attention_kernel)
    if recipe.model.scratch is not None:
        torch.manual_seed(recipe.seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation=name, dtype=torch.float32)
    dtype = (
        torch.bfloat16 if recipe.model.lora_rank is not None and recipe.training.precision == "bf16" else torch.float32
    )
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            recipe.model.path, config=config, attn_implementation=name, dtype=dtype, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"model.path={recipe.model.path!r} cannot be loaded: {first_sentence(error)}; name a folder with weights"
        ) from None
    missing = sorted(found["missing_keys"])
    if missing:
        raise RecipeError(
            f"model.path={recipe.model.path!r} lacks {len(missing):,} weights of {type(model).__name__}, which would stay random: "
            f"{', '.join(missing[:3])}; name a folder with all weights of the model that config.json describes"
        )
    if broken := not_finite(model):
        raise RecipeError(
            f"model.path={recipe.model.path!r}: the weight {broken} holds NaN or infinity; name another folder"
        )
    return model


def with_checkpointing(model: Any, *, offload: bool) -> None:
    """Let the model keep only the inputs of its layers for the backward pass, in the main memory where `offload`."""
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False}, offload=offload)


def with_adapters(model: Any, recipe: TrainRecipe) -> Any:
    """Return the model with LoRA adapters, which alone are trained. Raises RecipeError where PEFT is missing."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RecipeError("model.lora_rank needs peft; pip install peft, or leave lora_rank at null") from None
    torch.manual_seed(recipe.seed)
    adapters = LoraConfig(
        r=recipe.model.lora_rank or 0,
        lora_alpha=recipe.model.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    if recipe.memory.checkpointing != "none":
        model.enable_input_require_grads()
    return get_peft_model(model, adapters)


def tokenizer_of(recipe: TrainRecipe, *, run_tokenizer: Path | None) -> Any:
    """Return the tokenizer to save beside the weights: the model's own, or the run's for a model from scratch."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if recipe.model.path is None:
        return PreTrainedTokenizerFast(tokenizer_file=str(run_tokenizer)) if run_tokenizer else None
    try:
        return AutoTokenizer.from_pretrained(recipe.model.path)
    except (OSError, ValueError, KeyError):
        return None


def check_tokenizer(tokenizer: Any, *, run_tokenizer: Path, model: str, vocabulary: int) -> None:
    """Raise TokenizerError unless the runs' ids mean to the model what they meant to the run."""
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(run_tokenizer)).get_vocab()
    cure = f"run the recipe again with tokenizer.source={model}, which keeps its vectors and candidates"
    highest = max(ids.values())
    if highest >= vocabulary:
        raise TokenizerError(f"the runs' tokenizer has ids up to {highest:,}, and {model} knows {vocabulary:,}; {cure}")
    if tokenizer is None:
        return
    known = tokenizer.get_vocab()
    differing = sorted(word for word, number in ids.items() if known.get(word) != number)
    if differing:
        first = differing[0]
        raise TokenizerError(
            f"the runs' tokenizer is not that of {model}: {len(differing):,} of {len(ids):,} words have another id ({first!r} is "
            f"{ids[first]}, there {known.get(first, 'unknown')}); {cure}"
        )
