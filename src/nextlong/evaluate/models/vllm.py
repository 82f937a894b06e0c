"""vLLM, offline: the model is loaded into this process by vLLM's engine, on one GPU or split over several.

The prompts are the ids that the transformers route reads too. Prompts that share a haystack share its key-value cache (prefix
caching); samples of a batch are answered together (continuous batching). vLLM brings its own torch: install it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.extra import required
from nextlong.evaluate.models.huggingface import LoadOptions, read_config, weights_of
from nextlong.evaluate.models.prompts import Prompts
from nextlong.evaluate.task import JSON, Sample
from nextlong.model_names import first_sentence

_AT_A_TIME: Final = 64  # samples between two writes to the disk


class VllmModel:
    """A causal language model that vLLM runs; `longest` is the most tokens of a prompt with its answer."""

    def __init__(self, name: str, options: LoadOptions, *, longest: int, context: int | None = None) -> None:
        """Load it. Raises EvaluateError if vLLM cannot."""
        vllm = required("vllm")
        self._name, self._options, self._vllm = name, options, vllm
        self.config = read_config(name, revision=options.revision)
        self.context: int | None = context or getattr(self.config, "max_position_embeddings", None)
        self.prompts = Prompts.read(
            name, prompt_format=options.prompt_format, thinking=options.thinking, revision=options.revision
        )
        self.engine = f"vllm {vllm.__version__}"
        needed = longest + options.thinking + len(self.prompts.tokenizer.prefix)
        try:
            self._llm = vllm.LLM(
                model=str(Path(name).expanduser()),
                revision=options.revision,
                dtype=options.dtype,
                tensor_parallel_size=options.gpus,
                max_model_len=min(needed, self.context or needed),
                enable_prefix_caching=True,
                seed=0,
            )
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            raise EvaluateError(
                f"{name} cannot be loaded by vLLM with --gpus {options.gpus} --dtype {options.dtype}: {first_sentence(error)}"
            ) from None

    def identity(self) -> dict[str, JSON]:
        """Return name, weights and tokenizer, and how it is asked."""
        return {
            "kind": "vllm",
            **weights_of(self._name, self._options.revision, self.config),
            "context": self.context,
            "dtype": self._options.dtype,
            **self.prompts.identity(),
        }

    def batch(self, length: int) -> int:  # noqa: ARG002
        """Return how many samples are answered at a time: vLLM itself decides how many of them are under way."""
        return _AT_A_TIME

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Yield the answers in order, greedy, cut at the sample's limits."""
        asked: list[Any] = [{"prompt_token_ids": self.prompts.ids(sample)} for sample in samples]
        limits = [
            self._vllm.SamplingParams(temperature=0.0, max_tokens=self.prompts.budget(one), stop=self.prompts.stop(one))
            for one in samples
        ]
        for sample, output in zip(samples, self._llm.generate(asked, limits, use_tqdm=False), strict=True):
            yield self.prompts.answer(output.outputs[0].text, sample)
