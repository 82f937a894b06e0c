"""Memory: what a local model takes at a length, and what its device has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nextlong.engine.executor import memory_bytes
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.engines import SHARDED
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.task import short
from nextlong.text import first_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_BYTES_PER_VALUE: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_GIB: Final = 2**30


class Needed(NamedTuple):
    """The type that a model is loaded in, and the bytes that it takes."""

    dtype: str
    weights: int | None  # None where the weights are not on this machine
    cache: int


def describe(
    config: PreTrainedConfig | None, options: ModelOptions, lengths: Sequence[int]
) -> str:
    """Describe the memory of weights, cache and activations at the greediest length.

    Raises EvaluateError for a device that does not exist.
    """
    device, capacity = device_memory(options.device)
    if config is None:
        return (
            f"The memory of {options.name} is unknown, because it is neither a folder "
            "nor in the local cache of the Hugging Face Hub, and a dry run does not "
            f"download it; run `hf download {options.name}` first"
        )

    # Short prompts are answered together, so the longest need not take the most memory.
    def batch_tokens(length: int) -> int:
        return max(options.batch_tokens // length, 1) * length

    length = max(lengths, key=lambda length: (batch_tokens(length), length))
    needed = needed_bytes(config, options, batch_tokens(length))
    sizes = f"key-value cache {needed.cache / _GIB:.2f} GiB"
    total = needed.cache + (needed.weights or 0)
    if needed.weights is None:
        sizes = f"weights: not on this machine, {sizes}"
    else:
        sizes = (
            f"weights {needed.weights / _GIB:.2f} GiB, {sizes}, together "
            f"{total / _GIB:.2f} GiB and the activations of {options.chunk_tokens:,} "
            "tokens"
        )
    sizes += f"; {device} has {capacity / _GIB:.2f} GiB"
    if total > capacity:
        sizes += (
            ", which is too little: lower --batch-tokens, give --dtype bfloat16, or "
            "leave the length out"
        )
    return f"memory at {short(length)} in {needed.dtype}: {sizes}"


def needed_bytes(
    config: PreTrainedConfig, options: ModelOptions, tokens: int
) -> Needed:
    """Return what a model needs with a cache of some tokens."""
    # The files hold one type and the model may be loaded in another.
    saved_dtype = str(getattr(config, "dtype", None) or "float32")
    saved_dtype = saved_dtype.removeprefix("torch.")
    dtype = saved_dtype
    if options.dtype in _BYTES_PER_VALUE:
        dtype = options.dtype
    bytes_per_value = _BYTES_PER_VALUE.get(dtype, 4)

    weights = None
    folder = Path(options.name).expanduser()
    if folder.is_dir():
        saved_bytes_per_value = _BYTES_PER_VALUE.get(saved_dtype, 4)
        weights = _saved_bytes(folder) * bytes_per_value // saved_bytes_per_value

    # A model without attention (Mamba) has no cache that grows.
    all_heads = getattr(config, "num_attention_heads", 0)
    heads = getattr(config, "num_key_value_heads", None) or all_heads
    head_size = getattr(config, "head_dim", None)
    if not head_size:
        head_size = config.hidden_size // max(all_heads, 1)
    # A key and a value for each layer, head and token.
    values = 2 * config.num_hidden_layers * heads * head_size * tokens
    return Needed(dtype, weights, int(values * bytes_per_value))


def _saved_bytes(folder: Path) -> int:
    """Return the bytes of the weights in a model's folder."""
    # Folders may hold both formats of the same weights; transformers reads the first.
    files = list(folder.glob("*.safetensors"))
    if not files:
        files = list(folder.glob("pytorch_model*.bin"))
    if not files:
        raise EvaluateError(
            where=folder,
            problem="it has no weights (*.safetensors)",
            fix="save the model with `save_pretrained`",
        )
    return sum(file.stat().st_size for file in files)


def device_memory(device: str) -> tuple[str, int]:
    """Return the device that a model would be loaded onto, and its bytes.

    Raises EvaluateError for a device that does not exist.
    """
    torch = required("torch")
    cuda = required("torch.cuda")
    if device == "auto":
        device = "cuda" if cuda.is_available() else "cpu"
    if device == SHARDED and cuda.is_available():
        # Layers are spread over all GPUs, so their memory adds up.
        count = cuda.device_count()
        capacities = [
            cuda.get_device_properties(gpu).total_memory for gpu in range(count)
        ]
        return f"{count} GPUs", int(sum(capacities))
    try:
        if device != SHARDED and torch.device(device).type == "cuda":
            return device, int(cuda.get_device_properties(device).total_memory)
    # torch asserts for CUDA.
    except (RuntimeError, AssertionError) as error:
        gpus = [f"cuda:{gpu}" for gpu in range(cuda.device_count())]
        known = ", ".join(["auto", "cpu", *gpus])
        raise EvaluateError(
            where=f"--device {device}",
            problem=first_sentence(error),
            fix=f"choose from {known}",
        ) from None
    return "this machine", memory_bytes()
