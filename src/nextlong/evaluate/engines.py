"""Engines: models that answer samples greedily, by transformers, by vLLM, or on a server with an OpenAI-compatible API.

transformers: prompts are prefilled in chunks, so that no length needs more activations than another; what a prompt shares with the
one before it stays in the key-value cache; short prompts are answered in batches of like length, padded on the left.

A server (vLLM, SGLang, llama.cpp, or OpenAI's own) gets requests to /completions, also for a chat model, whose
template is applied here (`prompts.py`), so that it reads what the same model on this machine would. The format `messages` uses
/chat/completions, which leaves the template to the server and refuses begun answers. Requests are sent concurrently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nextlong.client import Client, UnansweredError
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.prompts import ModelOptions, Prompts, load_tokenizer
from nextlong.evaluate.task import Sample, TextTokenizer
from nextlong.text import Json, first_sentence

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

# Only files that change the answers: a README in the folder does not make it another model.
_MODEL_FILES: Final = (
    *("*.safetensors", "pytorch_model*.bin", "*.index.json", "*config.json"),
    *(
        "tokenizer*",
        "chat_template*",
        "special_tokens_map.json",
        "vocab*",
        "merges.txt",
    ),
)
SHARDED: Final = (
    "sharded"  # the device of a model whose layers are spread over all GPUs
)
_SHARED_SHARE: Final = 0.5  # from this share of a common prefix on, a batch is answered one by one with a shared cache


class HuggingFaceModel:
    """A causal language model and its tokenizer, from a folder or the hub.

    Each model here has `context`, the most tokens with an answer (None: unknown); `engine`, what runs it, with its version;
    `identity()`, which names it in results; `batch(length)`, how many samples are answered at a time; and `answers(samples)`, which
    yields greedy answers in order, cut at each sample's limits.
    """

    def __init__(self, options: ModelOptions) -> None:
        """Load it. Raises EvaluateError if it cannot be loaded, or if its tokenizer lacks what `options` requires."""
        self._options, self.config = options, _read_config(options)
        self.context = context_of(self.config, options)
        self.hub_tokenizer = load_tokenizer(options.name, options)
        self.tokenizer = TextTokenizer(self.hub_tokenizer.backend_tokenizer)
        self.prompts = Prompts(
            self.tokenizer, options.prompt_format, options.thinking, self.hub_tokenizer
        )
        self.engine = f"transformers {required('transformers').__version__}"
        torch, device = required("torch"), options.device
        required("transformers.utils.logging").disable_progress_bar()
        device = (
            device
            if device != "auto"
            else "cuda"
            if torch.cuda.is_available()
            else "cpu"
        )
        how = {
            "revision": options.revision,
            "dtype": options.dtype,
            "attn_implementation": options.attention,
        }
        spread = (
            {"device_map": required("accelerate") and "auto"}
            if device == SHARDED
            else {}
        )
        source, auto = (
            str(Path(options.name).expanduser()),
            required("transformers").AutoModelForCausalLM,
        )
        try:
            model: PreTrainedModel = auto.from_pretrained(source, **how, **spread)
            self.model = (model if spread else model.to(device)).eval()
        # torch asserts for CUDA.
        except (
            OSError,
            ValueError,
            ImportError,
            RuntimeError,
            TypeError,
            AssertionError,
        ) as error:
            raise EvaluateError(
                f"{options.name} cannot be loaded with --device {device} --dtype {options.dtype}: {first_sentence(error)}"
            ) from None
        self.device, self.chunk_tokens = self.model.device, options.chunk_tokens
        self._cache: Any = required("transformers").DynamicCache(config=self.config)
        self._cached: list[int] = []
        # The generation config may name several ids that end an answer, like that of Llama 3; the tokenizer names one.
        named = [
            self.model.generation_config.eos_token_id,
            self.hub_tokenizer.eos_token_id,
        ]
        self._end_ids = {
            one
            for value in named
            for one in (value if isinstance(value, list) else [value])
        } - {None}
        # The rest of it (temperature, penalties) is replaced: answers are greedy. Padding with an end cuts a row at its stop.
        greedy = {
            "eos_token_id": sorted(self._end_ids) or None,
            "pad_token_id": min(self._end_ids, default=0),
        }
        self.model.generation_config = required("transformers").GenerationConfig(
            do_sample=False, **greedy
        )
        kinds = {*(getattr(self.config, "layer_types", None) or ["full_attention"])}
        # A cache of fewer tokens can be cut back; with as many, layers with a sliding window have dropped the oldest ones. Layers
        # of another kind (linear, chunked) never can.
        window = getattr(self.config, "sliding_window", None) or math.inf
        self._window_tokens = (
            window if kinds <= {"full_attention", "sliding_attention"} else 0
        )

    def identity(self) -> Json:
        parameters = int(sum(weight.numel() for weight in self.model.parameters()))
        sizes = {
            "parameters": parameters,
            "context": self.context,
            "dtype": str(self.model.dtype),
        }
        return {
            "kind": "huggingface",
            **_weights_of(self.config, self._options),
            **sizes,
            **self.prompts.identity(),
        }

    def batch(self, length: int) -> int:
        return max(1, self._options.batch_tokens // length)

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        ids = [self.prompts.ids(sample) for sample in samples]
        size = (
            1 if _common_prefix(ids) >= _SHARED_SHARE * min(map(len, ids)) else len(ids)
        )
        for first in range(0, len(ids), size):
            part = samples[first : first + size]
            for answer, sample in zip(
                self._generated(ids[first : first + size], part), part, strict=True
            ):
                yield self.prompts.answer(
                    self.hub_tokenizer.decode(answer, skip_special_tokens=True), sample
                )

    def _generated(
        self, ids: Sequence[list[int]], samples: Sequence[Sample]
    ) -> list[list[int]]:
        torch, longest = required("torch"), max(map(len, ids))
        # Padded on the left, so that every answer begins in the next column. Shape (batch, longest) each; the mask is 1 on tokens.
        rows = (
            [torch.tensor(one[::-1]) for one in ids],
            [torch.ones(len(one), dtype=torch.int64) for one in ids],
        )
        padded, mask = (
            torch.nn.utils.rnn.pad_sequence(one, batch_first=True)
            .flip(1)
            .to(self.device)
            for one in rows
        )
        limits = [
            (self.prompts.budget(sample), self.prompts.stop(sample))
            for sample in samples
        ]

        def is_finished(tokens: Tensor, *_: object, **__: object) -> Tensor:
            # A stop string may span several tokens; four hold every one that the tasks have.
            ends = [
                len(row) >= most
                or (stop is not None and stop in self.hub_tokenizer.decode(row[-4:]))
                for row, (most, stop) in zip(tokens[:, longest:], limits, strict=True)
            ]
            return torch.tensor(ends, device=tokens.device)

        if is_single := len(ids) == 1:
            read: Json = {"past_key_values": self.prefilled(ids[0][:-1])}
        else:
            # A batch needs no more memory for activations than one prompt.
            read = {"prefill_chunk_size": max(1, self.chunk_tokens // len(ids))}
            read["past_key_values"] = required("transformers").DynamicCache(
                config=self.config
            )
        ends = {
            "max_new_tokens": max(most for most, _ in limits),
            "stopping_criteria": [is_finished],
        }
        with torch.inference_mode():
            output = self.model.generate(padded, attention_mask=mask, **read, **ends)
        if is_single:
            self.forget(longest - 1)
        # A finished row stays in the batch, which keeps its shape; its further tokens are cut off.
        answers = (
            row[:most]
            for row, (most, _) in zip(output[:, longest:].tolist(), limits, strict=True)
        )
        return [
            list(takewhile(lambda token: token not in self._end_ids, answer))
            for answer in answers
        ]

    def prefilled(self, ids: list[int]) -> DynamicCache:
        """Return a cache of exactly `ids`; what it has in common with the one before is not computed again."""
        torch = required("torch")
        self.forget(_common_prefix([self._cached, ids]))
        try:
            for first in range(len(self._cached), len(ids), self.chunk_tokens):
                self.forward(
                    torch.tensor(
                        [ids[first : first + self.chunk_tokens]], device=self.device
                    ),
                    self._cache,
                )
        except BaseException:
            self.forget(0)  # some layers may hold a chunk more than others
            raise
        self._cached = list(ids)
        return self._cache

    def forget(self, kept: int) -> None:
        """Keep only the first `kept` tokens of the cache, or none where some layers have dropped the oldest ones."""
        held = self._cache.get_seq_length()
        if 0 < kept < held < self._window_tokens:
            self._cache.crop(kept - held)
            self._cached = self._cached[:kept]
        elif kept < held or not self._window_tokens:
            self._cache, self._cached = (
                required("transformers").DynamicCache(config=self.config),
                [],
            )

    def forward(self, ids: Tensor, cache: DynamicCache) -> None:
        """Read ids, shape (1, n), after a cache, to which they are added; no logits are computed."""
        with required("torch").inference_mode():
            self.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)


def local_config(options: ModelOptions) -> PreTrainedConfig | None:
    """Return a model's configuration from its folder or the hub's cache; None for one that is not on this machine."""
    if not Path(options.name).expanduser().is_dir():
        hub = required("huggingface_hub")
        if not isinstance(
            hub.try_to_load_from_cache(
                options.name, "config.json", revision=options.revision
            ),
            str,
        ):
            return None
    return _read_config(options, local_files_only=True)


def context_of(config: PreTrainedConfig | None, options: ModelOptions) -> int | None:
    """Return the most tokens of a prompt with its answer; None where neither the user nor the configuration says."""
    return options.context or getattr(config, "max_position_embeddings", None)


def _read_config(
    options: ModelOptions, *, local_files_only: bool = False
) -> PreTrainedConfig:
    """Return a model's configuration, without its weights. Raises EvaluateError if it is no causal language model."""
    transformers, name = required("transformers"), options.name
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(Path(name).expanduser()),
            revision=options.revision,
            local_files_only=local_files_only,
        )
    except (OSError, ValueError, KeyError) as error:
        raise EvaluateError(
            f"{name} is not a model that transformers can read ({first_sentence(error)}); name a folder with config.json and "
            "weights, or one of the Hugging Face hub, or the --url of a server"
        ) from None
    # transformers has no public list of the classes that AutoModelForCausalLM accepts.
    if type(config) not in transformers.AutoModelForCausalLM._model_mapping:
        cure = "name a model that continues a text"
        raise EvaluateError(
            f"{name} is a {config.model_type}, not a causal language model; {cure}"
        )
    return config


def _weights_of(config: PreTrainedConfig, options: ModelOptions) -> Json:
    """Return what names a model's weights: its folder and the hash of its files, or its name on the hub and the commit."""
    place, weights = (
        Path(options.name).expanduser(),
        getattr(config, "_commit_hash", None),
    )
    if place.is_dir():
        paths = sorted(
            {
                path
                for pattern in _MODEL_FILES
                for path in place.glob(pattern)
                if path.is_file()
            }
        )
        identities = [
            (path.name, path.stat().st_size, store.hash_file(path)) for path in paths
        ]
        weights = hashlib.blake2b(repr(identities).encode(), digest_size=16).hexdigest()
    about = {
        "name": str(place.resolve()) if place.is_dir() else options.name,
        "revision": options.revision,
    }
    return {**about, "weights": weights, "model_type": str(config.model_type)}


def _common_prefix(lists: Sequence[list[int]]) -> int:
    """Return the number of ids that all lists begin with."""
    columns = enumerate(zip(*lists, strict=False))
    return next(
        (place for place, ids in columns if len(set(ids)) > 1), min(map(len, lists))
    )


class VllmModel:
    """A causal language model that vLLM runs; `longest` is the most tokens of a prompt with its answer."""

    def __init__(self, options: ModelOptions, *, longest: int) -> None:
        """Load it. Raises EvaluateError if vLLM cannot."""
        vllm = required("vllm")
        self._options, self._vllm, self.config = options, vllm, _read_config(options)
        self.context, self.prompts = (
            context_of(self.config, options),
            Prompts.read(options),
        )
        self.engine = f"vllm {vllm.__version__}"
        # vLLM refuses a context that its cache has no room for, so it gets no longer one than the tasks need.
        needed = longest + options.thinking + len(self.prompts.tokenizer.prefix)
        loaded = {
            "model": str(Path(options.name).expanduser()),
            "revision": options.revision,
            "dtype": options.dtype,
        }
        sizes = {
            "tensor_parallel_size": options.gpus,
            "max_model_len": min(needed, self.context or needed),
        }
        try:
            self._llm = vllm.LLM(**loaded, **sizes, enable_prefix_caching=True, seed=0)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            raise EvaluateError(
                f"{options.name} cannot be loaded by vLLM with --gpus {options.gpus} --dtype {options.dtype}: "
                f"{first_sentence(error)}"
            ) from None

    def identity(self) -> Json:
        sizes = {"context": self.context, "dtype": self._options.dtype}
        return {
            "kind": "vllm",
            **_weights_of(self.config, self._options),
            **sizes,
            **self.prompts.identity(),
        }

    def batch(self, length: int) -> int:  # noqa: ARG002
        return 64  # samples between two writes to the disk; vLLM schedules them itself

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        prompts, limits = (
            self.prompts,
            partial(self._vllm.SamplingParams, temperature=0.0),
        )
        inputs = [{"prompt_token_ids": prompts.ids(sample)} for sample in samples]
        each = [
            limits(max_tokens=prompts.budget(one), stop=prompts.stop(one))
            for one in samples
        ]
        for sample, output in zip(
            samples, self._llm.generate(inputs, each, use_tqdm=False), strict=True
        ):
            yield prompts.answer(output.outputs[0].text, sample)


class ServerModel:
    """A model on an OpenAI-compatible server; the user names the tokenizer and its template."""

    def __init__(self, options: ModelOptions, prompts: Prompts) -> None:
        self.options, self.prompts, self.context = options, prompts, options.context
        self._client = Client(
            options.api_key_env, options.max_attempts, options.timeout_s
        )
        self.engine = f"server {options.url}"

    def identity(self) -> Json:
        # Only the server knows which weights it holds.
        named = {
            "name": self.options.name,
            "url": self.options.url,
            "context": self.context,
        }
        return {"kind": "server", **named, **self.prompts.identity()}

    def batch(self, length: int) -> int:
        return self.options.concurrency * (
            4 if length <= 16_384 else 1
        )  # rounds of concurrent requests

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            # After an error, requests that have not been sent are not worth sending; `map` cancels them.
            yield from pool.map(self._answer, samples)

    def _answer(self, sample: Sample) -> str:
        prompts = self.prompts
        body: Json = {
            "model": self.options.name,
            "max_tokens": prompts.budget(sample),
            "temperature": 0,
        }
        if (stop := prompts.stop(sample)) is not None:
            body["stop"] = [stop]
        endpoint, field = "/completions", "prompt"
        if prompts.format == "messages":
            endpoint, field = "/chat/completions", "messages"
            if sample.answer_prefix:
                raise EvaluateError(
                    f"--prompt-format messages: the task begins the model's answer ({sample.answer_prefix.strip()!r:.60}), and a "
                    "server's own template cannot; give --prompt-format chat with --tokenizer FOLDER, or leave the task out"
                )
            if prompts.thinking:
                body["chat_template_kwargs"] = {"enable_thinking": True}
        try:
            url = str(self.options.url).rstrip("/") + endpoint
            received = self._client.post(url, {**body, field: prompts.sent(sample)})
        except UnansweredError as error:
            kept = "; finished answers are kept: fix the server and run the same command again, or lower --concurrency"
            raise self._error(f"{error}{'' if error.status else kept}") from None
        try:
            choice = json.loads(received)["choices"][0]
            text = (
                choice["message"]["content"] if "message" in choice else choice["text"]
            )
        except (ValueError, KeyError, TypeError, IndexError):
            raise self._error(
                f"answered with no completion: {received[:200].decode('utf-8', 'replace')!r}"
            ) from None
        if not isinstance(text, str):
            reason = (
                f" (finish_reason {choice['finish_reason']})"
                if choice.get("finish_reason")
                else ""
            )
            raise self._error(
                f"answered without content{reason}: a model that reasons needs --thinking with more tokens than it takes"
            )
        return prompts.answer(text, sample)

    def _error(self, what: str) -> EvaluateError:
        return EvaluateError(
            f"--url {self.options.url}, model {self.options.name}: the server {what}"
        )
