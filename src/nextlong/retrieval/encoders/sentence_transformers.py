"""The sentence-transformers encoder: any model of that library, by name or path.

In:  texts. Out: float32 (n, dimensions), unit rows, in the order of the texts.

On a CPU the library's own `encode` sorts the texts of one call by length, so that
batches hold little padding, and restores the order. On a GPU a slice of a shard is one
call, whose texts are tokenized ahead of the model (`retrieval/batches.py`). bfloat16 is
used on GPUs that support it, or if a trial finds it faster: the vectors of
all-MiniLM-L6-v2 then have a cosine over 0.9999 to its float32 vectors. Norms are
computed in float32.

A trial on some chunks chooses precision, threads and task size, timed in CPU seconds,
because the capabilities that a CPU reports do not predict its speed. All tasks use this
ExecutionResult, also if the run is resumed on another machine, because another choice
changes the last digits of the vectors.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, JsonValue

from nextlong import recipe
from nextlong.arrays import Floats
from nextlong.artifacts.corpus_files import CorpusFiles, count_chunks, iter_chunk_texts
from nextlong.artifacts.results import ExecutionResult
from nextlong.engine.executor import Resources, granted_gpus, usable_cpus
from nextlong.engine.step import Task
from nextlong.errors import EncoderError
from nextlong.recipe.keys import Operational, Positive, PositiveLength, Section
from nextlong.retrieval import batches
from nextlong.retrieval.encoders.base import (
    SLICE_CHUNKS,
    SLICE_S,
    EncoderKind,
    Prepared,
    Shape,
    Speed,
    unit_rows,
)
from nextlong.text import first_sentence

_TRIAL_S: Final = 0.7  # duration of a trial in float32 on one thread
# Chunks timed at least and at most.
_MIN_TIMED: Final = 2
_MAX_TIMED: Final = 32
_CLEARLY: Final = 1.2  # minimum speed-up, so that noise does not decide
_MIN_COSINE: Final = 0.999  # to the float32 vectors
_TRIED_CHUNKS: Final = 32  # by a run, and by a plan
_CALL_CHUNKS: Final = 128  # of a call on a CPU
_GPU_CALL_CHUNKS: Final = 4096  # of which a slice on a GPU is a multiple
_GPU_REPEATS: Final = 16  # of the tried chunks, so that a GPU is timed on whole batches
# Of models such as the paper's; an assumption for plans.
_USUAL_DIMENSIONS: Final = 1024
# Of models that need not be here to be planned for (their own config.json).
_SHAPES: Final = {
    "jinaai/jina-embeddings-v3": Shape(24, 1024, 4096),
    "sentence-transformers/all-MiniLM-L6-v2": Shape(6, 384, 1536),
    "BAAI/bge-m3": Shape(24, 1024, 4096),
    "intfloat/multilingual-e5-large": Shape(24, 1024, 4096),
}


class SentenceTransformersOptions(Section):
    """Options of `encoder.model: sentence-transformers:<name or path>`."""

    batch_size: Annotated[Positive, Operational()] = Field(
        64, description="chunks per batch"
    )
    max_tokens: PositiveLength | None = Field(
        None, description="truncate chunks to this; default: the model's limit"
    )
    prompt: str | None = Field(
        None, description="text before every chunk, for models trained with a prompt"
    )
    task: str | None = Field(
        None,
        description="for models that accept one, e.g. jina-embeddings-v3: "
        "text-matching",
    )
    trust_remote_code: bool = Field(
        False,
        description="run Python code of the model repository; only if you trust it",
    )
    revision: str | None = Field(
        None,
        description="branch, tag or commit of a Hub model; default: its main branch",
    )
    device: str | None = Field(
        None,
        description=(
            "cuda, cuda:1, cpu, mps; default: the best available; with dtype: auto it "
            "determines the precision"
        ),
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "auto: bfloat16 on GPUs that support it, and on CPUs where a trial finds "
            "it faster"
        ),
    )

    def identity(self) -> dict[str, JsonValue]:
        """Return what sets the numbers.

        Of the device its kind, and that only where it chooses the precision.
        """
        options = super().identity()
        device = options.pop("device")
        if isinstance(device, str) and self.dtype == "auto":
            options["device"] = device.partition(":")[0]
        return options


class _SentenceTransformersEncoder:
    """A model, on a device and in a precision."""

    def __init__(
        self,
        name: str,
        options: SentenceTransformersOptions,
        *,
        dtype: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Load the model.

        Raises EncoderError if package, model or device is missing, or if the options do
        not fit the model.
        """
        self._name = name
        self._options = options
        self.model, self.dtype = _load(name, options, dtype=dtype)
        self.device = str(self.model.device.type)  # as torch names it
        self.busy_s = 0.0  # in which the GPU computed, so far
        if self.device == "cuda":
            tokenizer_threads = batches.tokenizer_threads(count_gpus())
            batches.let_tokenizers_use(tokenizer_threads)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        self._check_task()
        if options.max_tokens is not None:
            self._limit_tokens(options.max_tokens)
        self.dimensions = self.encode([name]).shape[1]

    def _check_task(self) -> None:
        """Raise EncoderError for a task of a model without any.

        The library ignores an unknown task silently; older versions do not name the
        options.
        """
        if self._options.task is None or not hasattr(self.model, "get_model_kwargs"):
            return
        if "task" not in self.model.get_model_kwargs():
            raise EncoderError(
                where="encoder.sentence_transformers.task",
                value=repr(self._options.task),
                problem=f"is set, but {self._name} accepts no task",
                fix="remove it, or use prompt",
            )

    def _limit_tokens(self, max_tokens: int) -> None:
        """Let the model truncate texts; raises EncoderError beyond its positions."""
        transformer = getattr(self.model[0], "auto_model", None)
        config = getattr(transformer, "config", None)
        positions = getattr(config, "max_position_embeddings", None)
        if positions and max_tokens > positions:
            raise EncoderError(
                where="encoder.sentence_transformers.max_tokens",
                value=max_tokens,
                problem=f"is more than the {positions} positions of {self._name}",
                fix="lower it",
            )
        self.model.max_seq_length = max_tokens

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the vectors, shape (n, dimensions), at unit length.

        Raises EncoderError if the model rejects the options.
        """
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        # Older versions of the library have no `preprocess`.
        is_fed = self.device == "cuda" and hasattr(self.model, "preprocess")
        encode = self.encode_ahead if is_fed else self._encode_in_turn
        try:
            vectors = encode(texts)
        except (ValueError, TypeError) as error:
            options = self._options
            raise EncoderError(
                where="encoder.model",
                value=_value_of(self._name),
                problem=(
                    f"rejects prompt={options.prompt!r}, task={options.task!r}: {error}"
                ),
                fix="use the values of its model card, or remove these options",
            ) from None
        return unit_rows(np.asarray(vectors, dtype=np.float32))

    @property
    def _task(self) -> dict[str, str]:
        task = self._options.task
        return {} if task is None else {"task": task}

    def _encode_in_turn(self, texts: Sequence[str]) -> Floats:
        """Return the vectors as the library's own `encode` computes them."""
        vectors: Floats = self.model.encode(
            list(texts),
            batch_size=self._options.batch_size,
            prompt=self._options.prompt,
            show_progress_bar=False,
            **self._task,
        )
        return vectors

    def encode_ahead(self, texts: Sequence[str]) -> Floats:
        """Return the vectors; batches are tokenized while the model computes others."""
        model = self.model
        prompt = self._options.prompt
        if prompt is None and model.default_prompt_name is not None:
            prompt = model.prompts.get(model.default_prompt_name)
        # Padding beyond the longest text that the model takes could have no position.
        padding: dict[str, Any] = {}
        max_length = model.max_seq_length
        if max_length is None or max_length % batches.PAD_TO == 0:
            padding = {"text": {"pad_to_multiple_of": batches.PAD_TO}}
        device = _TorchDevice(model, self._task)

        def tokenize(batch: list[str]) -> batches.Features:
            features = model.preprocess(
                batch, prompt=prompt, processing_kwargs=padding, **self._task
            )
            return device.pinned(features)

        coming = batches.tokenized_ahead(
            texts, batch_size=self._options.batch_size, tokenize=tokenize
        )
        order: list[int] = []
        for numbers, features in coming:
            device.encode(features)
            order += numbers
        self.busy_s += device.busy_s
        sorted_vectors = device.vectors()
        vectors = np.empty_like(sorted_vectors)
        vectors[order] = sorted_vectors
        return vectors


class _TorchDevice:
    """The device of a model: a GPU is given batches without waiting for vectors."""

    def __init__(self, model: Any, options: dict[str, str]) -> None:
        self._model = model.eval()
        self._options = options
        self._is_gpu = model.device.type == "cuda"
        self._vectors: list[Any] = []  # (batch, dimensions) each, on the device
        self._times: list[tuple[Any, Any]] = []  # where each batch begins and ends

    @property
    def busy_s(self) -> float:
        """The seconds in which the device computed; waits until it has."""
        if not self._is_gpu:
            return float(sum(end - begin for begin, end in self._times))
        import torch

        torch.cuda.synchronize(self._model.device)
        milliseconds = sum(begin.elapsed_time(end) for begin, end in self._times)
        return float(milliseconds) / 1e3

    def pinned(self, features: batches.Features) -> batches.Features:
        """Return a batch in memory from which a GPU copies without being waited for."""
        if not self._is_gpu:
            return features
        pinned = dict(features)
        for name, value in features.items():
            if hasattr(value, "pin_memory"):
                pinned[name] = value.pin_memory()
        return pinned

    def encode(self, features: batches.Features) -> None:
        """Compute the vectors of a batch; a GPU does so later, batch after batch."""
        import torch

        device = self._model.device
        begin = self._now()
        with torch.inference_mode():
            for name, value in features.items():
                if isinstance(value, torch.Tensor):
                    features[name] = value.to(device, non_blocking=True)
            vectors = self._model(features, **self._options)["sentence_embedding"]
            width = self._model.truncate_dim
            if width is not None:
                vectors = vectors[..., :width]
            self._vectors.append(vectors.float())
        self._times.append((begin, self._now()))

    def vectors(self) -> Floats:
        """Return the vectors of all batches, in their order."""
        import torch

        vectors: Floats = torch.cat(self._vectors).cpu().numpy()
        return vectors

    def _now(self) -> Any:
        """Return a point in time; of a GPU, in the order of what it is given."""
        if not self._is_gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._model.device))
        return event


def count_gpus() -> int:
    """Return the number of CUDA devices that torch finds.

    0 if torch is not installed.
    """
    try:
        import torch
    except ImportError:  # loading the model reports this, with the fix
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _value_of(name: str) -> str:
    """Return the value of `encoder.model` that names a model."""
    return f"sentence-transformers:{name}"


def _load(
    name: str, options: SentenceTransformersOptions, *, dtype: str | None
) -> tuple[Any, str]:
    """Return the model and the precision that it computes in."""
    try:
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as error:
        raise EncoderError(
            where="encoder.model",
            value=_value_of(name),
            problem=f"cannot be loaded: {error}",
            fix="pip install 'nextlong[sentence-transformers]'",
        ) from None
    # The bars of the workers would disturb that of the run.
    logging.disable_progress_bar()
    device = _device(options)
    dtype = dtype or options.dtype
    try:
        if dtype == "auto":
            dtype = _precision(device)
        model = SentenceTransformer(
            name,
            device=device,
            model_kwargs={"torch_dtype": getattr(torch, dtype)},
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
    except ImportError as error:
        raise EncoderError(
            where="encoder.model",
            value=_value_of(name),
            problem=f"requires a package that is not installed: {error}",
            fix="install it",
        ) from None
    except (OSError, ValueError) as error:
        raise EncoderError(
            where="encoder.model",
            value=_value_of(name),
            problem=f"cannot be loaded: {first_sentence(error)}",
            fix=(
                "give the path of its folder, or its name on the Hugging Face Hub "
                "(which requires a network); a gated model requires `hf auth login`, "
                "and one with its own code requires trust_remote_code: true"
            ),
        ) from None
    except (RuntimeError, AssertionError) as error:
        raise EncoderError(
            where="encoder.model",
            value=_value_of(name),
            problem=(
                f"does not run on device={device!r} with dtype={dtype}: "
                f"{first_sentence(error)}"
            ),
            fix="set encoder.sentence_transformers.device or dtype",
        ) from None
    return model, dtype


def _device(options: SentenceTransformersOptions) -> str:
    """Return the device to load a model on.

    A device that the recipe names is never replaced by another.
    """
    import torch

    if options.device not in (None, "cuda"):
        return str(options.device)
    if options.device == "cuda" or torch.cuda.is_available():
        return f"cuda:{next(iter(granted_gpus()), 0)}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _precision(device: str) -> str:
    """Return the precision that `dtype: auto` chooses without a trial."""
    import torch

    # GPUs support bfloat16 in hardware from Ampere (8.0) on; earlier ones emulate it.
    # For CPUs a trial decides.
    if device.startswith("cuda") and torch.cuda.get_device_capability(device) >= (8, 0):
        return "bfloat16"
    return "float32"


def try_model(
    _out: Path, *, corpus: CorpusFiles, encoder: recipe.Encoder
) -> ExecutionResult:
    """Return how the model runs best on this machine; writes no file.

    It is tried on chunks of all shards.
    """
    texts: list[str] = []
    for documents, chunks in zip(corpus.documents, corpus.chunks, strict=True):
        count = count_chunks(chunks)
        step = max(1, count * len(corpus.documents) // _TRIED_CHUNKS)
        for batch in iter_chunk_texts(documents, chunks, np.arange(count)[::step]):
            texts += batch.texts
    return _choose_execution(
        encoder.name,
        encoder.options_as(SentenceTransformersOptions),
        texts[:_TRIED_CHUNKS],
    )


def _choose_execution(
    name: str, options: SentenceTransformersOptions, texts: Sequence[str]
) -> ExecutionResult:
    """Return how to run the model. Raises EncoderError if it cannot be loaded."""
    encoder = _SentenceTransformersEncoder(name, options, threads=1)
    encoder.encode(texts[:1])  # warm up
    if texts and encoder.device == "cpu":
        dtype, threads, rate = _try_on_cpu(encoder, options, texts)
        call_chunks = _CALL_CHUNKS
    else:
        dtype = encoder.dtype
        threads = 1
        rate, _ = _timed(encoder, list(texts) * _GPU_REPEATS, time.perf_counter)
        call_chunks = _GPU_CALL_CHUNKS
    call_chunks, task_chunks = _task_sizes(rate, call_chunks)
    return ExecutionResult(
        device=encoder.device,
        dtype=dtype,
        threads=threads,
        dimensions=encoder.dimensions,
        call_chunks=call_chunks,
        task_chunks=task_chunks,
        chunks_per_second=round(rate, 2),
    )


def _try_on_cpu(
    encoder: _SentenceTransformersEncoder,
    options: SentenceTransformersOptions,
    texts: Sequence[str],
) -> tuple[str, int, float]:
    """Return the precision and threads of a task, and the chunks per second."""
    import torch  # installed if the encoder is loaded

    dtype = encoder.dtype
    first_rate, _ = _timed(encoder, texts[:_MIN_TIMED])
    timed_count = np.clip(first_rate * _TRIAL_S, _MIN_TIMED, _MAX_TIMED)
    sample = texts[: int(timed_count)]
    rate, vectors = _timed(encoder, sample)
    if options.dtype == "auto":
        encoder.model.to(torch.bfloat16)
        encoder.encode(sample[:1])
        half_rate, half_vectors = _timed(encoder, sample)
        cosines = np.einsum("nd,nd->n", vectors, half_vectors)
        if half_rate > _CLEARLY * rate and cosines.min() >= _MIN_COSINE:
            dtype = "bfloat16"
            rate = half_rate
        # Without the digits that bfloat16 has rounded.
        encoder.model.to(getattr(torch, dtype))
    threads = 1
    if usable_cpus() > 1:
        torch.set_num_threads(usable_cpus())
        encoder.encode(sample[:1])
        all_rate, _ = _timed(encoder, sample)
        if all_rate > _CLEARLY * rate or not _has_room_for_copies(encoder.model):
            threads = usable_cpus()
            rate = all_rate
        torch.set_num_threads(1)
    return dtype, threads, rate * threads


def _has_room_for_copies(model: Any) -> bool:
    """Return whether each core may hold a copy of the model.

    Each single-threaded task has one; together they may take half of the free memory,
    if it is known.
    """
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return True
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    model_bytes = sum(weight.nbytes for weight in model.parameters())
    return not free_bytes or usable_cpus() * model_bytes <= free_bytes / 2


def _task_sizes(rate: float, call_chunks: int) -> tuple[int, int]:
    """Return the chunks of a call and of a task.

    A task takes half a minute at `rate` chunks per second.
    """
    chunks_in_time = int(rate * SLICE_S)
    task_chunks = max(1, min(SLICE_CHUNKS, chunks_in_time))
    if task_chunks >= call_chunks:
        task_chunks -= task_chunks % call_chunks
        return call_chunks, task_chunks
    power_of_two = 1 << (task_chunks.bit_length() - 1)
    return power_of_two, power_of_two


def _timed(
    encoder: _SentenceTransformersEncoder,
    texts: Sequence[str],
    clock: Callable[[], float] = time.process_time,
) -> tuple[float, Floats]:
    """Return the chunks encoded per second, and the vectors.

    The seconds are CPU time unless `clock` measures another time.
    """
    began = clock()
    vectors = encoder.encode(texts)
    seconds = max(1e-9, clock() - began)
    return len(texts) / seconds, vectors


class _SentenceTransformersKind(EncoderKind):
    """Models of the library.

    A trial before the first chunk chooses precision and threads.
    """

    Options = SentenceTransformersOptions
    usage = "sentence-transformers:<name or path>"
    embeds = "slices"
    asks_for_gpus = True
    is_model = True
    package = ("sentence_transformers", "sentence-transformers")
    preload = ("sentence_transformers",)
    fix = "try encoder.sentence_transformers.dtype: float32, or another model"
    result = ExecutionResult
    version = 3

    def load(
        self, config: recipe.Encoder, prepared: Prepared = None, /
    ) -> _SentenceTransformersEncoder:
        options = config.options_as(SentenceTransformersOptions)
        if not isinstance(prepared, ExecutionResult):
            return _SentenceTransformersEncoder(config.name, options)
        return _SentenceTransformersEncoder(
            config.name, options, dtype=prepared.dtype, threads=prepared.threads
        )

    def prepare(
        self, config: recipe.Encoder, corpus: CorpusFiles, **_: object
    ) -> list[Task]:
        return [partial(try_model, corpus=corpus, encoder=config)]

    def resources(self, config: recipe.Encoder) -> Resources:
        device = config.options_as(SentenceTransformersOptions).device
        if device is None:
            return Resources(gpu="optional")
        if device == "cuda":
            return Resources(gpu="needed")
        if device.startswith("cuda"):  # the one that is named
            return Resources(at_once=1)
        return Resources()

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        """Try the model on sampled chunks, which takes about a second.

        Without the package the speed is unknown.
        """
        module, _ = self.package
        # Importing it takes seconds.
        if importlib.util.find_spec(module) is None:
            return Speed(unknown="needs its package", dimensions=_USUAL_DIMENSIONS)
        step = max(1, len(chunks) // _TRIED_CHUNKS)
        sample = list(chunks[::step])[:_TRIED_CHUNKS]
        options = config.options_as(SentenceTransformersOptions)
        try:
            tried = _choose_execution(config.name, options, sample)
        except EncoderError:
            shape = self.shape(config)
            if shape is None:
                raise
            return Speed(unknown="no model here", dimensions=shape.width)
        return Speed(
            chunk_s=tried.threads / tried.chunks_per_second,
            dimensions=tried.dimensions,
        )

    def shape(self, config: recipe.Encoder) -> Shape | None:
        """Return the shape of a model in a folder by its config.json.

        Else of one that is known.
        """
        path = Path(config.name).expanduser() / "config.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return Shape(
                layers=int(content["num_hidden_layers"]),
                width=int(content["hidden_size"]),
                inner=int(content["intermediate_size"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return _SHAPES.get(config.name)


ENCODER = _SentenceTransformersKind()
