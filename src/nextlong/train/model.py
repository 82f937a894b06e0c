"""Model: load a model with our attention and our loss, and its optimizer.

In:  the recipe, the config with its RoPE base set.
Out: a causal model of transformers in float32 (autocast does the rest), AdamW.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from nextlong.errors import RecipeError, RunError
from nextlong.text import first_sentence
from nextlong.train.attention import (
    compile_layers,
    install_positions,
    register_attention,
)
from nextlong.train.loss import install_loss
from nextlong.train.recipe import TrainRecipe

COMPILER: Final = "inductor"


def make_model(
    recipe: TrainRecipe, config: PretrainedConfig, *, is_packed: bool = True
) -> PreTrainedModel:
    """Return the model that a config describes, ready to train in main memory.

    `is_packed`: rows may hold several documents. Raises RecipeError.
    """
    _check_kernel(recipe)
    model = load_weights(recipe, config, is_packed=is_packed)
    if recipe.compile == "on":
        compile_layers(model, backend=COMPILER, is_packed=is_packed)
    # Without a GPU everything is in main memory already, and torch cannot pin it.
    has_gpu = accelerator().type != "cpu"
    offload = has_gpu and recipe.memory.checkpointing == "offload"
    return ready_to_train(model, recipe, offload=offload)


def _check_kernel(recipe: TrainRecipe) -> None:
    """Raise RecipeError for `varlen` where it cannot run."""
    if recipe.attention_kernel != "varlen":
        return
    device = accelerator().type
    precision = recipe.training.precision
    if device != "cuda" or precision != "bf16":
        raise RecipeError(
            where="attention_kernel",
            value="varlen",
            problem="needs an NVIDIA or AMD GPU and training.precision=bf16 (the "
            f"device is {device}, precision {precision})",
            fix="use attention_kernel=auto",
        )


def ready_to_train(
    model: PreTrainedModel, recipe: TrainRecipe, *, offload: bool = False
) -> PreTrainedModel:
    """Return the model with our loss, and the recipe's checkpointing and adapters.

    `offload`: the inputs of layers, which activation checkpointing keeps for the
    backward pass, are kept in main memory. Raises RecipeError where PEFT is missing.
    """
    install_loss(model, block_tokens=recipe.memory.loss_block_tokens)
    is_checkpointed = recipe.memory.checkpointing != "none"
    if is_checkpointed:
        _checkpoint_activations(model, offload=offload)
    rank = recipe.model.lora_rank
    if rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RecipeError(
            where="model.lora_rank",
            value=rank,
            problem="needs peft",
            fix="pip install peft, or leave lora_rank at null",
        ) from None
    torch.manual_seed(recipe.seed)
    if is_checkpointed:
        model.enable_input_require_grads()
    lora = LoraConfig(
        r=rank,
        lora_alpha=recipe.model.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)


def _checkpoint_activations(model: PreTrainedModel, *, offload: bool) -> None:
    """Let each layer keep only its input for the backward pass.

    `offload`: in main memory.
    """
    options = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs=options, offload=offload
        )
    else:
        # Its name in older versions of transformers.
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs=options, offload=offload
        )


def load_weights(
    recipe: TrainRecipe, config: PretrainedConfig, *, is_packed: bool = True
) -> PreTrainedModel:
    """Return the model with the weights of `model.path`, or random ones.

    Raises RecipeError.
    """
    attention = register_attention(recipe.attention_kernel, is_packed=is_packed)
    path = recipe.model.path
    if path is None:
        torch.manual_seed(recipe.seed)
        return transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=attention, dtype=torch.float32
        )
    # Trained weights are float32, since AdamW's small updates vanish in bfloat16;
    # frozen ones have the type that they compute with.
    is_frozen = recipe.model.lora_rank is not None
    is_bf16 = recipe.training.precision == "bf16"
    dtype = torch.bfloat16 if is_frozen and is_bf16 else torch.float32
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            attn_implementation=attention,
            dtype=dtype,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=f"cannot be loaded: {first_sentence(error)}",
            fix="name another folder",
        ) from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=f"lacks {len(missing):,} weights of {type(model).__name__}, which "
            f"would stay random: {', '.join(missing[:3])}",
            fix="name a folder with all weights of the model that config.json "
            "describes",
        )
    broken = not_finite(model)
    if broken:
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=f"has a weight {broken} that holds NaN or infinity",
            fix="name another folder",
        )
    install_positions(model)
    return model


def not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of a weight that holds a NaN or an infinity, if there is one."""
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return str(name)
    return None


def accelerator() -> torch.device:
    """Return the accelerator of this process, or the CPU if it has none."""
    device = None
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    return device or torch.device("cpu")


def autocast(recipe: TrainRecipe, device: torch.device) -> torch.autocast:
    """Return the context in which the model computes.

    It is bfloat16 with float32 weights, or float32.
    """
    is_bf16 = recipe.training.precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=is_bf16)


def optimizer_for(model: torch.nn.Module, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; norms and biases do not decay."""
    training = recipe.training
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = [weight for weight in trained if weight.ndim >= 2]
    vectors = [weight for weight in trained if weight.ndim < 2]
    groups = []
    for parameters, decay in ((matrices, training.weight_decay), (vectors, 0.0)):
        if parameters:
            groups.append({"params": parameters, "weight_decay": decay})
    return torch.optim.AdamW(
        groups,
        lr=training.lr,
        betas=(training.beta1, training.beta2),
        eps=training.eps,
        fused=True,
    )


@contextmanager
def explained_memory_errors(recipe: TrainRecipe) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the next settings."""
    try:
        yield
    except RuntimeError as error:
        # OutOfMemoryError is one; the CPU's allocator raises a plain one.
        is_on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_on_gpu and "can't allocate memory" not in str(error):
            raise
        raise RunError(
            where="out of GPU memory" if is_on_gpu else "out of memory",
            problem=str(error).split(". ")[0][:120],
            fix=memory_advice(recipe),
        ) from None


def memory_advice(recipe: TrainRecipe) -> str:
    """Return the next settings that reduce the memory of a training."""
    stronger = {"none": "layers", "layers": "offload"}.get(recipe.memory.checkpointing)
    is_unused = {
        "training.micro_batch_rows=1": recipe.training.micro_batch_rows > 1,
        f"memory.checkpointing={stronger}": stronger is not None,
        "model.lora_rank=16": recipe.model.lora_rank is None,
    }
    advice = [f"set {setting}" for setting, unused in is_unused.items() if unused]
    return "; or ".join([*advice[:2], "use several GPUs: --engine torchtitan"])
