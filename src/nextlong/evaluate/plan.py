"""Plan: the settings of an evaluation, what would fail, and a dry run: tasks, files and memory, before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from nextlong.engine.memory import memory_bytes
from nextlong.errors import EvaluateError
from nextlong.evaluate import required, results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.huggingface import SHARDED, HuggingFaceModel, LoadOptions, is_local, read_config
from nextlong.evaluate.prompts import Model
from nextlong.evaluate.server import ServerOptions
from nextlong.evaluate.task import ALL_SAMPLES, Probe, Request, Task, short
from nextlong.report import tables
from nextlong.text import Json, first_sentence

_UNKNOWN: Final = (
    "{0} is no local folder and not in the cache of the Hugging Face hub, which a dry run does not contact: whether it exists, its "
    "context and its memory are unknown; `hf download {0}`, or name its folder, and try again"
)
_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Settings:
    """The settings of an evaluation.

    `samples` is the most per task, None for what its benchmark defines; `names_lengths` says whether the user named the lengths.
    `label` and `negatives_cosine` (of the run that the model was trained on) are for reports alone.
    """

    tasks: Sequence[Task | Probe]
    lengths: Sequence[int]
    out: Path
    data: DataFiles
    samples: int | None = None
    seed: int = 42
    label: str | None = None
    run: Path | None = None
    negatives_cosine: float | None = None
    names_lengths: bool = True
    model: str = ""
    load: LoadOptions = field(default_factory=LoadOptions)
    context: int | None = None
    tokenizer: str | None = None
    server: ServerOptions | None = None

    def place(self, task: Task | Probe, length: int | None) -> Path:
        """Return the result file of a task at a length."""
        return results.place_of(self.out, task.name, length)

    def request(self, task: Task | Probe, length: int | None, model: Model) -> Request:
        """Return the request to a task or probe."""
        samples, prompts = self.samples or task.samples, model.prompts
        return Request(length or 0, prompts.tokenizer, self.data, samples, self.seed, prompts.overhead, self.run)


def pairs(settings: Settings) -> list[tuple[Task | Probe, int | None]]:
    """Return the tasks with their lengths, short lengths first. Raises EvaluateError for a task defined at none of the lengths."""
    for task in settings.tasks:
        if task.lengths and not set(task.lengths) & set(settings.lengths):
            known = ", ".join(map(str, task.lengths))
            raise EvaluateError(
                f"--lengths: {task.name} is defined at {known} only; add one of them or leave the task out"
            )

    def is_defined(task: Task | Probe, length: int) -> bool:
        if task.usual_length is not None and not settings.names_lengths:
            return length == task.usual_length
        return task.lengths == () or length in (task.lengths or ())

    each: list[tuple[Task | Probe, int | None]] = [
        (task, length) for length in sorted(settings.lengths) for task in settings.tasks if is_defined(task, length)
    ]
    return [*each, *((task, None) for task in settings.tasks if task.lengths is None)]


def check(settings: Settings, *, context: int | None) -> None:
    """Raise EvaluateError for what would fail later: no run to read, a length beyond the model, a missing file."""
    missing: dict[str, None] = {}
    for task in settings.tasks:
        if task.reads == "run" and settings.run is None:
            raise EvaluateError(f"{task.name}: add --run RUN, the run whose sequences are read")
        if isinstance(task, Probe) and settings.server is not None:
            raise _behind_a_server(task)
    for task, length in pairs(settings):
        if context is not None and length is not None and length > context:
            raise EvaluateError(
                f"--lengths {length:,}: the model's context is {context:,} tokens; leave the length out, or give a model with a "
                "longer one (--context overrides it, at your own risk)"
            )
        missing |= dict.fromkeys(name for name in task.needs(length) if not settings.data.can_read(name))
    if missing:
        raise settings.data.missing(list(missing))


def check_probes(settings: Settings, model: Model) -> None:
    """Raise EvaluateError for a probe that cannot be measured on this model or at its length, before the first task begins."""
    for task, length in pairs(settings):
        if isinstance(task, Probe) and not settings.place(task, length).exists():
            task.check_model(local(model, task), settings.run)
            if length is not None:
                task.check(settings.request(task, length, model))


def local(model: Model, probe: Probe) -> HuggingFaceModel:
    """Return the model that a probe looks into. Raises EvaluateError for one behind a server."""
    if isinstance(model, HuggingFaceModel):
        return model
    raise _behind_a_server(probe)


def _behind_a_server(probe: Probe) -> EvaluateError:
    return EvaluateError(
        f"{probe.name}: a server gives no access to the inside of its model; name the model's folder or hub name, without --url, "
        "or leave the probe out"
    )


@dataclass(frozen=True)
class Planned:
    """One task at one length: its samples (None: all), the tokens that remain to be read at most, and its state."""

    task: str
    length: int | None
    samples: int | None
    state: str
    tokens: int


def planned(settings: Settings) -> tuple[list[Planned], str]:
    """Return the tasks, and the memory at the greatest length in words; "" for a server."""
    config = _config(settings)
    tasks = list(_tasks(settings, _context(settings, config)))
    if settings.server is not None:
        return tasks, ""
    if config is None:
        _device_memory(settings.load.device)  # refuses a device that does not exist
        return tasks, _UNKNOWN.format(settings.model)
    # Short prompts are answered together, so the longest need not take the most memory.
    greatest = max(settings.lengths, key=lambda length: (max(settings.load.batch_tokens // length, 1) * length, length))
    return tasks, _memory(config, settings, greatest)


def _config(settings: Settings) -> Any:
    """Return the model's configuration; None for one that is not on this machine, since a plan does not use the network."""
    name, revision = settings.model, settings.load.revision
    if settings.server is not None or not is_local(name, revision=revision):
        return None
    return read_config(name, revision=revision, local_files_only=True)


def _context(settings: Settings, config: Any) -> int | None:
    return settings.context or getattr(config, "max_position_embeddings", None)


def _tasks(settings: Settings, context: int | None) -> Iterator[Planned]:
    for task, length in pairs(settings):
        gone = [name for name in task.needs(length) if not settings.data.can_read(name)]
        if settings.place(task, length).is_file():
            state = "done"
        elif task.reads == "run" and settings.run is None:
            state = "missing: --run RUN"
        elif context is not None and (length or 0) > context:
            state = f"too long: the model's context is {context:,}"
        else:
            state = f"missing: {', '.join(gone)}" if gone else "to do"
        samples = settings.samples or task.samples
        tokens = 0 if samples == ALL_SAMPLES else samples * (length or 0)
        yield Planned(task.name, length, None if samples == ALL_SAMPLES else samples, state, tokens)


def as_json(settings: Settings) -> Json:
    """Return the plan as plain dictionaries and lists."""
    tasks, memory = planned(settings)
    rows = [asdict(one) | {"tokens": 0 if one.state == "done" else one.tokens} for one in tasks]
    tokens = sum(row["tokens"] for row in rows)
    return {"model": settings.model, "tasks": rows, "tokens": tokens, "memory": memory or None}


def show(settings: Settings, console: Console) -> None:
    """Print the tasks with their samples and tokens, what is missing, and the memory at the greatest length."""
    tasks, memory = planned(settings)
    table = tables.table()
    for heading in ("task", "length", "samples", "tokens read", "state"):
        table.add_column(heading, justify="left" if heading in ("task", "state") else "right", overflow="fold")
    for one in tasks:
        tokens = f"{one.tokens:,}" if one.length else "–"
        samples = "all" if one.samples is None else f"{one.samples:,}"
        table.add_row(one.task, short(one.length), samples, tokens, tables.cell(one.state))
    tables.show(table, console)
    read = sum(one.tokens for one in tasks if one.state != "done")
    tables.say(f"to read: {read:,} tokens at most; shared prefixes are read once", console)
    if memory:
        tables.say(memory, console)


def check_plan(settings: Settings) -> None:
    """Raise EvaluateError for what would fail later, after the plan was shown."""
    check(settings, context=_context(settings, _config(settings)))


def _memory(config: Any, settings: Settings, length: int) -> str:
    """Return in words the memory of weights, cache and activations at a length."""
    saved = str(getattr(config, "dtype", None) or "float32").split(".")[-1]
    dtype = settings.load.dtype if settings.load.dtype in _BYTES else saved
    size, saved_size = _BYTES.get(dtype, 4), _BYTES.get(saved, 4)
    on_disk = weight_bytes(settings.model)
    weights = None if on_disk is None else on_disk * size // saved_size
    together = max(1, settings.load.batch_tokens // length)
    cache = cache_bytes(config, length, bytes_per_value=size) * together
    activations = f"the activations of {settings.load.chunk_tokens:,} tokens"
    total = "" if weights is None else f", together {_gib(weights + cache)} and {activations}"
    place, capacity = _device_memory(settings.load.device)
    beside = f"; {place} has {_gib(capacity)}"
    if (weights or 0) + cache > capacity:
        beside += ", which is too little: lower --batch-tokens, give --dtype bfloat16, or leave the length out"
    shown = "weights: not on this machine" if weights is None else f"weights {_gib(weights)}"
    return f"memory at {short(length)} in {dtype}: {shown}, key-value cache {_gib(cache)}{total}{beside}"


def _device_memory(device: str) -> tuple[str, int]:
    """Return the device that a model would be loaded onto, and its bytes. Raises EvaluateError for one that does not exist."""
    torch = required("torch")
    cuda = torch.cuda
    place = device if device != "auto" else "cuda" if cuda.is_available() else "cpu"
    if place == SHARDED and cuda.is_available():
        capacities = [cuda.get_device_properties(number).total_memory for number in range(cuda.device_count())]
        return f"{len(capacities)} GPUs", int(sum(capacities))
    try:
        if place != SHARDED and torch.device(place).type == "cuda":
            return place, int(cuda.get_device_properties(place).total_memory)
    except (RuntimeError, AssertionError) as error:  # torch asserts for CUDA
        known = ", ".join(["auto", "cpu", *(f"cuda:{number}" for number in range(cuda.device_count()))])
        raise EvaluateError(f"--device {device}: {first_sentence(error)}; choose from {known}") from None
    return "this machine", memory_bytes()


def cache_bytes(config: Any, length: int, *, bytes_per_value: int) -> int:
    """Return the bytes of the key-value cache of one prompt: 2 × layers × key-value heads × head size × length."""
    heads = config.num_attention_heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * key_value_heads * head_size * length * bytes_per_value)


def weight_bytes(name: str) -> int | None:
    """Return the bytes of a local model's weight files; None for one that is not on this machine."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    files = list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    if not files:
        raise EvaluateError(f"{name} has no weights (*.safetensors); save the model with `save_pretrained`")
    return sum(file.stat().st_size for file in files)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
