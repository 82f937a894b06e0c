"""Plan: what an evaluation would do, said before a model is loaded: tasks, files, memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nextlong.engine.memory import memory_bytes
from nextlong.errors import EvaluateError
from nextlong.evaluate.asked import Asked, behind_a_server, files_of, is_there, pairs
from nextlong.evaluate.asked import check as check_asked
from nextlong.evaluate.extra import required
from nextlong.evaluate.lengths import short
from nextlong.evaluate.models.huggingface import SHARDED, is_here, read_config
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.probes.short import EVERYTHING
from nextlong.evaluate.results import place_of
from nextlong.evaluate.task import Task
from nextlong.model_names import first_sentence
from nextlong.plain_data import Json
from nextlong.report import tables

if TYPE_CHECKING:
    from nextlong.evaluate.command import Settings

_UNKNOWN = (
    "{0} is no folder here, nor in the cache of the Hugging Face hub, which a dry run does not ask: whether it exists, its "
    "context and its memory are not known; `hf download {0}`, or name its folder, and ask again"
)
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Planned:
    """One task at one length: its samples (None: all), the tokens that they are at most, and "done", "to do" or what is missing."""

    task: str
    length: int | None
    samples: int | None
    state: str

    @property
    def tokens(self) -> int:
        """At most so many are read for it."""
        return 0 if self.state == "done" else self.all_tokens

    @property
    def all_tokens(self) -> int:
        """At most so many are read for it, done or not."""
        return (self.samples or 0) * (self.length or 0)


def planned(settings: Settings, asked: Asked) -> tuple[list[Planned], str]:
    """Return the tasks, and the memory at the greatest length in words; of a server ""."""
    config = _config(settings)
    context = _context(settings, config)
    tasks = [_planned(asked, task, length, context) for task, length in pairs(asked)]
    if settings.server is not None:
        return tasks, ""
    if config is None:
        device_memory(settings.load.device)  # refuses one that is not there
        return tasks, _UNKNOWN.format(settings.model)
    # Short prompts are answered together, so that the longest need not take the most.
    greatest = max(asked.lengths, key=lambda length: (max(settings.load.batch_tokens // length, 1) * length, length))
    return tasks, memory(config, settings, greatest)


def check(settings: Settings, asked: Asked) -> None:
    """Raise EvaluateError for what would fail later: a length beyond the model, a missing file. The plan is shown first."""
    for task in asked.tasks if settings.server is not None else ():
        if isinstance(task, Probe):
            raise behind_a_server(task)
    check_asked(asked, context=_context(settings, _config(settings)))


def _config(settings: Settings) -> Any:
    """Return the model's configuration; None of one that is not on this machine, for a plan waits for no network."""
    name, revision = settings.model, settings.load.revision
    if settings.server is not None or not is_here(name, revision=revision):
        return None
    return read_config(name, revision=revision, hub="leave")


def _context(settings: Settings, config: Any) -> int | None:
    return settings.context or getattr(config, "max_position_embeddings", None)


def _planned(asked: Asked, task: Task | Probe, length: int | None, context: int | None) -> Planned:
    is_done = place_of(asked.out, task.name, length).is_file()
    state = "done" if is_done else _trouble(asked, task, length, context) or "to do"
    samples = asked.samples or task.samples
    return Planned(task.name, length, None if samples == EVERYTHING else samples, state)


def _trouble(asked: Asked, task: Task | Probe, length: int | None, context: int | None) -> str:
    if task.reads == "run" and asked.run is None:
        return "missing: --run RUN"
    if context is not None and (length or 0) > context:
        return f"too long: the model's context is {context:,}"
    return _missing(asked, files_of(task, length))


def as_json(settings: Settings, asked: Asked) -> Json:
    """Return the plan as plain dictionaries and lists."""
    tasks, takes = planned(settings, asked)
    return {
        "model": settings.model,
        "tasks": [asdict(one) | {"tokens": one.tokens} for one in tasks],
        "tokens": sum(one.tokens for one in tasks),
        "memory": takes or None,
    }


def show(settings: Settings, asked: Asked, console: Console) -> None:
    """Print the tasks with their samples and tokens, what is missing, and the memory at the greatest length."""
    tasks, takes = planned(settings, asked)
    table = tables.table()
    for heading in ("task", "length", "samples", "tokens read", "state"):
        table.add_column(heading, justify="left" if heading in ("task", "state") else "right", overflow="fold")
    for one in tasks:
        tokens = f"{one.all_tokens:,}" if one.length else "–"
        samples = "all" if one.samples is None else f"{one.samples:,}"
        table.add_row(one.task, short(one.length), samples, tokens, tables.cell(one.state))
    tables.show(table, console)
    read = sum(one.tokens for one in tasks)
    tables.say(f"to read: {read:,} tokens at most; what prompts share is read once", console)
    if takes:
        tables.say(takes, console)


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
    place, held = device_memory(settings.load.device)
    beside = f"; {place} has {_gib(held)}"
    if (weights or 0) + cache > held:
        beside += ", which is too little: lower --batch-tokens, give --dtype bfloat16, or leave the length out"
    return f"memory at {short(length)} in {dtype}: {said}, key-value cache {_gib(cache)}{total}{beside}"


def device_memory(device: str) -> tuple[str, int]:
    """Return what a model would be loaded onto, and its bytes of memory. Raises EvaluateError for a device that is not there."""
    torch = required("torch")
    cuda = torch.cuda
    place = device if device != "auto" else "cuda" if cuda.is_available() else "cpu"
    if place == SHARDED and cuda.is_available():
        held = [cuda.get_device_properties(number).total_memory for number in range(cuda.device_count())]
        return f"{len(held)} GPUs", int(sum(held))
    try:
        if place != SHARDED and torch.device(place).type == "cuda":
            return place, int(cuda.get_device_properties(place).total_memory)
    except (RuntimeError, AssertionError) as error:  # torch asserts for CUDA
        named = ", ".join(["auto", "cpu", *(f"cuda:{number}" for number in range(cuda.device_count()))])
        raise EvaluateError(f"--device {device}: {first_sentence(error)}; choose from {named}") from None
    return "this machine", memory_bytes()


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
