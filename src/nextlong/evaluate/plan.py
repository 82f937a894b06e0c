"""Plan: what an evaluation would do, said before a model is loaded: tasks, files, memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from nextlong.errors import EvaluateError
from nextlong.evaluate.lengths import short
from nextlong.evaluate.models.huggingface import read_config
from nextlong.evaluate.results import place_of
from nextlong.evaluate.run import Asked, check, files_of, is_there, pairs

if TYPE_CHECKING:
    from nextlong.evaluate.command import Settings

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def show(settings: Settings, asked: Asked, console: Console) -> None:
    """Print the tasks with their samples and tokens, what is missing, and the memory at the greatest length."""
    table = Table("task", "length", "samples", "tokens read", "state", box=None)
    tokens = 0
    for task, length in pairs(asked):
        samples = asked.samples or task.samples
        is_done = place_of(asked.out, task.name, length).is_file()
        tokens += 0 if is_done else samples * (length or 0)
        state = "done" if is_done else _missing(asked, files_of(task, length)) or "to do"
        table.add_row(task.name, short(length), str(samples), f"{samples * length:,}" if length else "–", state)
    console.print(table)
    console.print(f"to read: {tokens:,} tokens at most; what prompts share is read once", highlight=False)
    if settings.server is None:
        config = read_config(settings.model, revision=settings.load.revision)
        # Short prompts are answered together, so that the longest need not take the most.
        greatest = max(
            asked.lengths, key=lambda length: (max(settings.load.batch_tokens // length, 1) * length, length)
        )
        console.print(memory(config, settings, greatest), highlight=False, soft_wrap=True)
        check(asked, context=settings.context or getattr(config, "max_position_embeddings", None))
    else:
        check(asked, context=settings.context)


def _missing(asked: Asked, files: tuple[str, ...]) -> str:
    gone = [name for name in files if not is_there(name, asked.data)]
    return f"missing: {', '.join(gone)}" if gone else ""


def memory(config: Any, settings: Settings, length: int) -> str:
    """Say what weights, cache and activations take at a length."""
    saved = str(getattr(config, "dtype", None) or "float32").split(".")[-1]
    dtype = settings.load.dtype if settings.load.dtype in _BYTES else saved
    size, saved_size = _BYTES.get(dtype, 4), _BYTES.get(saved, 4)
    on_disk = weight_bytes(settings.model)
    weights = None if on_disk is None else on_disk * size // saved_size
    together = max(1, settings.load.batch_tokens // length)
    cache = cache_bytes(config, length, bytes_per_value=size) * together
    said = "weights: not on this machine" if weights is None else f"weights {_gib(weights)}"
    total = (
        ""
        if weights is None
        else f", together {_gib(weights + cache)} and the activations of {settings.load.chunk_tokens:,} tokens"
    )
    return f"memory at {short(length)} in {dtype}: {said}, key-value cache {_gib(cache)}{total}"


def cache_bytes(config: Any, length: int, *, bytes_per_value: int) -> int:
    """Return the bytes of the key-value cache of one prompt: 2 × layers × key-value heads × head size × length."""
    heads = config.num_attention_heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * key_value_heads * head_size * length * bytes_per_value)


def weight_bytes(name: str) -> int | None:
    """Return the bytes of a local model's weight files; None of one that is not on this machine."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    files = list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    if not files:
        raise EvaluateError(f"{name} has no weights (*.safetensors); save the model with `save_pretrained`")
    return sum(file.stat().st_size for file in files)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
