"""Plan: the settings of an evaluation, their validation, and the dry run: tasks, missing files and memory, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from nextlong.engine.process import memory_bytes
from nextlong.errors import EvaluateError
from nextlong.evaluate import required, results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.engines import SHARDED, HuggingFaceModel, context_of, is_local, read_config
from nextlong.evaluate.prompts import AnsweringModel, ModelOptions
from nextlong.evaluate.task import ALL_SAMPLES, Probe, Task, TaskRequest, short
from nextlong.report import tables
from nextlong.text import Json, first_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_UNKNOWN: Final = (
    "{0} is no local folder and not in the cache of the Hugging Face hub, which a dry run does not contact: whether it exists, its "
    "context and its memory are unknown; `hf download {0}`, or name its folder, and try again"
)
_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class EvaluationSettings:
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
    model: ModelOptions | None = None

    def place(self, task: Task | Probe, length: int | None) -> Path:
        """Return the result file of a task at a length."""
        return results.place_of(self.out, task.name, length)

    def request(self, task: Task | Probe, length: int | None, model: AnsweringModel) -> TaskRequest:
        """Return the request to a task or probe."""
        samples, prompts = self.samples or task.samples, model.prompts
        return TaskRequest(length or 0, prompts.tokenizer, self.data, samples, self.seed, prompts.overhead, self.run)


def pairs(settings: EvaluationSettings) -> list[tuple[Task | Probe, int | None]]:
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

    # Short lengths first: mistakes in the setup show after minutes rather than hours.
    each: list[tuple[Task | Probe, int | None]] = [
        (task, length) for length in sorted(settings.lengths) for task in settings.tasks if is_defined(task, length)
    ]
    return [*each, *((task, None) for task in settings.tasks if task.lengths is None)]


def check(settings: EvaluationSettings, *, context: int | None) -> None:
    """Raise EvaluateError for a missing run, a probe of a server, a length beyond the model's context, or missing files."""
    missing: dict[str, None] = {}
    for task in settings.tasks:
        if task.reads == "run" and settings.run is None:
            raise EvaluateError(f"{task.name}: add --run RUN, the run whose sequences are read")
        if isinstance(task, Probe) and settings.model is not None and settings.model.url:
            local(None, task)
    for task, length in pairs(settings):
        if context is not None and length is not None and length > context:
            raise EvaluateError(
                f"--lengths {length:,}: the model's context is {context:,} tokens; leave the length out, or give a model with a "
                "longer one (--context overrides it, at your own risk)"
            )
        missing |= dict.fromkeys(name for name in task.needs(length) if not settings.data.can_read(name))
    if missing:
        raise settings.data.missing(list(missing))


def local(model: AnsweringModel | None, probe: Probe) -> HuggingFaceModel:
    """Return the model that a probe looks into. Raises EvaluateError for one behind a server."""
    if isinstance(model, HuggingFaceModel):
        return model
    raise EvaluateError(
        f"{probe.name}: a server gives no access to the inside of its model; name the model's folder or hub name, without --url, "
        "or leave the probe out"
    )


def planned(settings: EvaluationSettings) -> tuple[Json, int | None]:
    """Return the plan of an evaluation, and the context of its model where it is known; nothing is downloaded.

    For each task and length: its samples (None: all), its state, and the tokens that remain to be read at most; and in words the
    memory that the greatest length takes, None for a server.
    """
    options = settings.model
    assert options is not None, "the command names one"
    config = read_config(options, local_files_only=True) if options.url is None and is_local(options) else None
    context = context_of(config, options)
    tasks: list[Json] = []
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
        tokens = 0 if state == "done" or samples == ALL_SAMPLES else samples * (length or 0)
        about = {"task": task.name, "length": length, "samples": None if samples == ALL_SAMPLES else samples}
        tasks.append({**about, "state": state, "tokens": tokens})
    memory = None
    if options.url is None and config is None:
        _device_memory(options.device)  # refuses a device that does not exist
        memory = _UNKNOWN.format(options.name)
    elif options.url is None:
        memory = _memory(config, options, settings.lengths)
    total = sum(one["tokens"] for one in tasks)
    return {"model": options.name, "tasks": tasks, "tokens": total, "memory": memory}, context


def show(plan: Json, console: Console) -> None:
    """Print the tasks with their samples and tokens, what is missing, and the memory at the greatest length."""
    table = tables.table()
    for heading in ("task", "length", "samples", "tokens to read", "state"):
        table.add_column(heading, justify="left" if heading in ("task", "state") else "right", overflow="fold")
    for one in plan["tasks"]:
        tokens = f"{one['tokens']:,}" if one["length"] else "–"
        samples = "all" if one["samples"] is None else f"{one['samples']:,}"
        table.add_row(one["task"], short(one["length"]), samples, tokens, tables.cell(one["state"]))
    tables.show(table, console)
    tables.say(f"to read: {plan['tokens']:,} tokens at most; shared prefixes are read once", console)
    if plan["memory"]:
        tables.say(plan["memory"], console)


def _memory(config: PreTrainedConfig, options: ModelOptions, lengths: Sequence[int]) -> str:
    """Return in words the memory of weights, cache and activations at the length that takes most."""
    # Short prompts are answered together, so the longest need not take the most memory.
    length = max(lengths, key=lambda length: (max(options.batch_tokens // length, 1) * length, length))
    # The files hold one type and the model may be loaded in another; bytes are scaled by the ratio of the two.
    saved = str(getattr(config, "dtype", None) or "float32").split(".")[-1]
    dtype = options.dtype if options.dtype in _BYTES else saved
    size, saved_size = _BYTES.get(dtype, 4), _BYTES.get(saved, 4)
    on_disk = _weight_bytes(options.name)
    weights = None if on_disk is None else on_disk * size // saved_size
    cache = _cache_bytes(config, max(1, options.batch_tokens // length) * length, bytes_per_value=size)
    activations = f"the activations of {options.chunk_tokens:,} tokens"
    total = "" if weights is None else f", together {_gib(weights + cache)} and {activations}"
    place, capacity = _device_memory(options.device)
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
        # Layers are spread over all GPUs, so their memory adds up.
        capacities = [cuda.get_device_properties(number).total_memory for number in range(cuda.device_count())]
        return f"{len(capacities)} GPUs", int(sum(capacities))
    try:
        if place != SHARDED and torch.device(place).type == "cuda":
            return place, int(cuda.get_device_properties(place).total_memory)
    except (RuntimeError, AssertionError) as error:  # torch asserts for CUDA
        known = ", ".join(["auto", "cpu", *(f"cuda:{number}" for number in range(cuda.device_count()))])
        raise EvaluateError(f"--device {device}: {first_sentence(error)}; choose from {known}") from None
    return "this machine", memory_bytes()


def _cache_bytes(config: PreTrainedConfig, tokens: int, *, bytes_per_value: int) -> int:
    """Return the bytes of the key-value cache of some tokens: 2 × layers × key-value heads × head size × tokens."""
    heads = config.num_attention_heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * key_value_heads * head_size * tokens * bytes_per_value)


def _weight_bytes(name: str) -> int | None:
    """Return the bytes of a local model's weight files; None for one that is not on this machine."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    # Folders may hold both formats of the same weights; transformers reads the first.
    files = list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    if not files:
        raise EvaluateError(f"{name} has no weights (*.safetensors); save the model with `save_pretrained`")
    return sum(file.stat().st_size for file in files)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
