"""Sentence-transformers: chunks → unit vectors, by any model of that library, by name or path.

In:  texts. Out: float32 (n, dimensions), unit rows, in the order of the texts.
The library sorts what one call gives it by length, so that a batch holds little padding, and puts the order back; hence
`encode` hands over all its texts at once. bfloat16 where the hardware is faster in it: all-MiniLM-L6-v2 then
gives vectors whose cosine with its float32 ones is over 0.9999. Norms are taken in float32.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.errors import EncoderError

_WHERE = "encoder.model=sentence-transformers:"


class SentenceTransformersEncoder:
    """A loaded model and the options to call it with."""

    def __init__(self, name: str, options: recipe.SentenceTransformers) -> None:
        """Load the model; raises EncoderError where the package, the model or the device is missing."""
        self._name = name
        self._options = options
        self._model = _load(name, options)
        self._check_task()
        self._cut(options.max_tokens)
        self.dimensions = 0
        self.dimensions = self.encode([name]).shape[1]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors, shape (n, dimensions), unit length; raises EncoderError where the model refuses."""
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        options = self._options
        task = {} if options.task is None else {"task": options.task}
        try:
            vectors = self._model.encode(
                list(texts), batch_size=options.batch_size, prompt=options.prompt, show_progress_bar=False, **task
            )
        except (ValueError, TypeError) as error:
            raise EncoderError(
                f"{_WHERE}{self._name} refuses prompt={options.prompt!r}, task={options.task!r}: {error}; "
                "take what its model card names, or leave them out"
            ) from None
        vectors = np.asarray(vectors, dtype=np.float32)
        # A zero vector stays zero: the stage reports it, with the chunk's id.
        unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    def _check_task(self) -> None:
        # The library itself passes over a task in silence.
        known = getattr(self._model, "get_model_kwargs", lambda: ["task"])()
        if self._options.task is not None and "task" not in known:
            raise EncoderError(
                f"encoder.sentence_transformers.task={self._options.task!r}, but {self._name} takes no task; "
                "leave it out, or use prompt"
            )

    def _cut(self, max_tokens: int | None) -> None:
        if max_tokens is None:
            return
        config = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        longest = getattr(config, "max_position_embeddings", None) or max_tokens
        if max_tokens > longest:
            raise EncoderError(
                f"encoder.sentence_transformers.max_tokens={max_tokens}, but {self._name} has positions for {longest}; "
                "lower it"
            )
        self._model.max_seq_length = max_tokens


def count_gpus(options: recipe.SentenceTransformers) -> int:
    """Return on how many CUDA devices models may run beside each other; 0 where none, or another device, is to be used."""
    try:
        import torch
    except ImportError:  # loading the model says so, with the cure
        return 0
    if options.device is not None:
        return int(options.device.startswith("cuda"))
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def check_installed(name: str) -> None:
    """Raise EncoderError if the library is not installed; it is not imported, which takes seconds."""
    if importlib.util.find_spec("sentence_transformers") is None:
        raise EncoderError(
            f"{_WHERE}{name} needs the package sentence-transformers; pip install 'nextlong[sentence-transformers]'"
        )


def _load(name: str, options: recipe.SentenceTransformers) -> Any:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise EncoderError(f"{_WHERE}{name}: {error}; pip install 'nextlong[sentence-transformers]'") from None
    device = options.device or _best_device(torch)
    dtype: str = options.dtype
    try:
        if dtype == "auto":
            dtype = _best_dtype(torch, device)
        return SentenceTransformer(
            name,
            device=device,
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
            model_kwargs={"torch_dtype": getattr(torch, dtype)},
        )
    except ImportError as error:
        raise EncoderError(f"{_WHERE}{name} needs a package that is not installed: {error}") from None
    except (OSError, ValueError) as error:
        raise EncoderError(
            f"{_WHERE}{name} cannot be loaded: {_first_line(error)}; give the path of its folder, or its name on the "
            "Hugging Face Hub (and a network); a gated model needs `hf auth login`, one with its own code "
            "trust_remote_code: true"
        ) from None
    except (RuntimeError, AssertionError) as error:
        raise EncoderError(
            f"{_WHERE}{name} does not run on device={device!r} with dtype={dtype}: {_first_line(error)}; "
            "set encoder.sentence_transformers.device or dtype"
        ) from None


def _best_device(torch: Any) -> str:
    if torch.cuda.is_available():
        # Workers of a step are numbered one after the other, so those beside each other take different devices.
        number = (multiprocessing.current_process()._identity or (0,))[-1]
        return f"cuda:{number % torch.cuda.device_count()}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _best_dtype(torch: Any, device: str) -> str:
    if device.startswith("cuda"):
        # From Ampere (8.0) on in hardware; earlier ones only emulate it.
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    return "bfloat16" if device == "cpu" and _cpu_has_amx() else "float32"


def _cpu_has_amx() -> bool:
    """Say whether the CPU has bfloat16 matrix units (AMX); known on Linux only.

    Those of AVX-512 (avx512_bf16) do not count: with them all-MiniLM-L6-v2 ran at 0.86 of its float32 speed.
    """
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
