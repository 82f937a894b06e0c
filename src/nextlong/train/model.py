"""Model: load or make what is trained, with its RoPE base set for the rows, our attention and our loss; its optimizer.

In:  the recipe, the longest document, the tokenizer of the runs.
Out: a causal model of transformers in float32 (autocast does the rest).

transformers 5 keeps the RoPE base in `config.rope_parameters["rope_theta"]` and silently ignores `config.rope_theta = …` and
`from_pretrained(rope_theta=…)`. So the base is set there before the model is made: the base of the recipe is the one that the
model computes with, is saved with, and is loaded with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from nextlong.errors import RecipeError, RunError, TokenizerError
from nextlong.text import first_sentence, why_no_model
from nextlong.train import attention, loss
from nextlong.train.recipe import TrainRecipe

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

COMPILER: Final = "inductor"


def config_of(recipe: TrainRecipe, *, vocabulary: int | None) -> PretrainedConfig:
    """Return the config of the model before anything is loaded. Raises RecipeError for a folder without a text model."""
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
                f"model.path={path!r} is a multimodal model ({config.model_type}), and this loop trains text models; save its "
                "language model in a folder of its own"
            )
        return config
    if scratch.vocabulary is None and vocabulary is None:
        raise RecipeError(
            "model.scratch.vocabulary=null takes the vocabulary of the run's tokenizer, and there is no run; set the number of "
            "ids in the data"
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


def set_rope_base(config: PretrainedConfig, recipe: TrainRecipe, *, max_tokens: int) -> list[str]:
    """Set the recipe's RoPE base and the longest document in a config, before the model is made; return notes on it.

    Raises RecipeError for documents that the model cannot be extended to.
    """
    base, replaces = recipe.model.rope_base, recipe.model.rope_scaling == "replace"
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        if base is not None:
            raise RecipeError(f"model.rope_base={base:g} but {config.model_type} has no single RoPE base; leave it out")
        if longest is not None and max_tokens > longest:
            raise RecipeError(
                f"rows have {max_tokens:,} tokens, and {config.model_type} cannot be extended beyond {longest:,}; use shorter rows "
                "or a model with rotary positions"
            )
        return [f"positions: {config.model_type}'s own"]
    notes = []
    kind = parameters["rope_type"]
    if kind != "default" and replaces:
        for key in [key for key in parameters if key not in ("rope_theta", "partial_rotary_factor")]:
            del parameters[key]
        parameters["rope_type"] = "default"
        notes.append(f"RoPE scaling: {kind} of the source model replaced by the base alone")
    elif kind != "default":
        notes.append(f"RoPE scaling: {kind}, kept from the source model (model.rope_scaling=replace drops it)")
    before = parameters["rope_theta"]
    if base is None:
        notes.append(f"RoPE base: {before:,.0f}, the model's own")
    else:
        parameters["rope_theta"] = float(base)
        notes.append(f"RoPE base: {base:,.0f} (the model's was {before:,.0f})")
    longest = config.max_position_embeddings
    if max_tokens > longest:
        if base is None and parameters["rope_type"] == "default":
            raise RecipeError(
                f"rows have {max_tokens:,} tokens and the model was made for {longest:,}; set model.rope_base (the paper: "
                "200,000,000 for 131,072 tokens), or use shorter rows"
            )
        config.max_position_embeddings = max_tokens
        notes.append(f"longest row: {max_tokens:,} tokens (the model's was {longest:,})")
    return notes


def make_model(recipe: TrainRecipe, config: PretrainedConfig) -> PreTrainedModel:
    """Return the model that a config describes, its RoPE base set, ready to train in main memory.

    The weights are those of `model.path`, or random ones from the seed for `model.scratch`. Raises RecipeError.
    """
    model = load_weights(recipe, config)
    if recipe.compile == "on":
        for layer in loss.layers_of(model):
            layer.compile(backend=COMPILER)
    return ready_to_train(model, recipe, offload=recipe.memory.checkpointing == "offload")


def ready_to_train(model: PreTrainedModel, recipe: TrainRecipe, *, offload: bool = False) -> PreTrainedModel:
    """Return the model with our loss, and with the recipe's activation checkpointing and adapters.

    `offload`: the inputs of layers, which activation checkpointing keeps for the backward pass, are kept in main memory.
    Raises RecipeError where PEFT is missing.
    """
    loss.install(model, block_tokens=recipe.memory.loss_block_tokens)
    if recipe.memory.checkpointing != "none":
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False}, offload=offload)
    if recipe.model.lora_rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RecipeError("model.lora_rank needs peft; pip install peft, or leave lora_rank at null") from None
    torch.manual_seed(recipe.seed)
    rank, alpha = recipe.model.lora_rank, recipe.model.lora_alpha
    adapters = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    if recipe.memory.checkpointing != "none":
        model.enable_input_require_grads()
    return get_peft_model(model, adapters)


def load_weights(recipe: TrainRecipe, config: PretrainedConfig) -> PreTrainedModel:
    """Return the model with the weights of `model.path`, or with random ones for `model.scratch`. Raises RecipeError."""
    from transformers import AutoModelForCausalLM

    name = attention.register(recipe.attention_kernel)
    if recipe.model.scratch is not None:
        torch.manual_seed(recipe.seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation=name, dtype=torch.float32)
    # Trained weights are float32, for AdamW's small updates vanish in bfloat16; frozen ones need no more than they compute with.
    is_frozen = recipe.model.lora_rank is not None and recipe.training.precision == "bf16"
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            recipe.model.path,
            config=config,
            attn_implementation=name,
            dtype=torch.bfloat16 if is_frozen else torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"model.path={recipe.model.path!r} cannot be loaded: {first_sentence(error)}; name a folder with weights"
        ) from None
    missing = sorted(info["missing_keys"])
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


def not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of a weight that holds a NaN or an infinity, if there is one."""
    return next((name for name, one in model.named_parameters() if not bool(torch.isfinite(one).all())), None)


def accelerator() -> torch.device:
    """Return the accelerator of this process, or the CPU where there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device or torch.device("cpu")


def autocast(recipe: TrainRecipe, device: torch.device) -> torch.autocast:
    """Return the context in which the model computes: bfloat16 with float32 weights, or float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.training.precision == "bf16")


def optimizer_for(model: torch.nn.Module, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; norms and biases do not decay."""
    training = recipe.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (training.beta1, training.beta2)
    return torch.optim.AdamW(groups, lr=training.lr, betas=betas, eps=training.eps, fused=True)


@contextmanager
def explained_memory_errors(recipe: TrainRecipe) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the next settings to change."""
    try:
        yield
    except RuntimeError as error:  # OutOfMemoryError is one; the CPU's allocator raises a plain one
        is_of_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_of_gpu and "can't allocate memory" not in str(error):
            raise
        memory, message = "GPU memory" if is_of_gpu else "memory", str(error).split(". ")[0][:120]
        raise RunError(f"out of {memory} ({message}); {memory_advice(recipe)}") from None


def memory_advice(recipe: TrainRecipe) -> str:
    """Return the next settings that reduce the memory of a training."""
    memory = recipe.memory
    settings = [
        (recipe.training.micro_batch_rows > 1, "set training.micro_batch_rows=1"),
        (memory.checkpointing == "none", "set memory.checkpointing=layers"),
        (memory.checkpointing == "layers", "set memory.checkpointing=offload"),
        (recipe.model.lora_rank is None, "set model.lora_rank=16"),
    ]
    unused = [setting for is_unused, setting in settings if is_unused]
    return "; or ".join([*unused[:2], "use several GPUs: --engine torchtitan"])


def tokenizer_of(recipe: TrainRecipe, *, run_tokenizer: Path | None) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer to save beside the weights: the model's own, or the run's for a model from scratch."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if recipe.model.path is None:
        return PreTrainedTokenizerFast(tokenizer_file=str(run_tokenizer)) if run_tokenizer else None
    try:
        return AutoTokenizer.from_pretrained(recipe.model.path)
    except (OSError, ValueError, KeyError):
        return None


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase | None, *, run_tokenizer: Path, model: str, vocabulary: int
) -> None:
    """Raise TokenizerError unless the runs' ids mean to the model what they meant to the run."""
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(run_tokenizer)).get_vocab()
    advice = f"run the recipe again with tokenizer.source={model}, which reuses its vectors and candidates"
    highest = max(ids.values())
    if highest >= vocabulary:
        raise TokenizerError(
            f"the runs' tokenizer has ids up to {highest:,}, and {model} knows {vocabulary:,}; {advice}"
        )
    if tokenizer is None:
        return
    known = tokenizer.get_vocab()
    differing = sorted(word for word, number in ids.items() if known.get(word) != number)
    if differing:
        first = differing[0]
        raise TokenizerError(
            f"the runs' tokenizer is not that of {model}: {len(differing):,} of {len(ids):,} words have another id ({first!r} is "
            f"{ids[first]}, in the model {known.get(first, 'unknown')}); {advice}"
        )
