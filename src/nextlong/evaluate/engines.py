"""Engines: models that answer samples greedily.

In:  samples. Out: their answers in order, by transformers, by vLLM, or on a server with
an OpenAI-compatible API.

transformers: prompts are prefilled in chunks, so that no length needs more activations
than another; what a prompt shares with the one before it stays in the key-value cache;
short prompts are answered in batches of like length, padded on the left.

A server (vLLM, SGLang, llama.cpp, or OpenAI's own) gets requests to /completions, also
for a chat model, whose template is applied here (`prompts.py`), so that it reads what
the same model on this machine would. The format `messages` uses /chat/completions,
which leaves the template to the server and refuses begun answers. Requests are sent
concurrently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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

# Only files that change the answers: a README in the folder does not make it another
# model.
_MODEL_FILES: Final = (
    "*.safetensors",
    "pytorch_model*.bin",
    "*.index.json",
    "*config.json",
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
)
# The device of a model whose layers are spread over all GPUs.
SHARDED: Final = "sharded"
# From this share of a common prefix on, a batch is answered one by one with a shared
# cache.
_SHARED_SHARE: Final = 0.5
# Samples between two writes to the disk; vLLM schedules them itself.
_VLLM_BATCH: Final = 64
# Up to this length, several rounds of concurrent requests are sent between two writes.
_SHORT_PROMPT_TOKENS: Final = 16_384
_SHORT_PROMPT_ROUNDS: Final = 4


class HuggingFaceModel:
    """A causal language model and its tokenizer, from a folder or the hub.

    Each model here has
    context: the most tokens with an answer (None: unknown)
    engine: what runs it, with its version
    identity(): what names it in results
    batch(length): how many samples are answered at a time
    answers(samples): yields greedy answers in order, cut at each sample's limits
    """

    def __init__(self, options: ModelOptions) -> None:
        """Load it.

        Raises EvaluateError if it cannot be loaded, or if its tokenizer lacks what
        `options` requires.
        """
        transformers = required("transformers")
        self._options = options
        self.config = _read_config(options)
        self.context = context_of(self.config, options)
        self.hub_tokenizer = load_tokenizer(options.name, options)
        self.tokenizer = TextTokenizer(self.hub_tokenizer.backend_tokenizer)
        self.prompts = Prompts(
            tokenizer=self.tokenizer,
            format=options.prompt_format,
            thinking=options.thinking,
            template=self.hub_tokenizer,
        )
        self.engine = f"transformers {transformers.__version__}"
        self.model = _loaded(options)
        self.device = self.model.device
        self.chunk_tokens = options.chunk_tokens
        self._cache: Any = transformers.DynamicCache(config=self.config)
        self._cached_ids: list[int] = []
        self._window_tokens = _window_tokens(self.config)
        self._end_ids = _end_ids(self.model, self.hub_tokenizer)
        # The rest of the model's generation config (temperature, penalties) is
        # replaced: answers are greedy. Padding with an end cuts a row at its stop.
        ends = sorted(self._end_ids)
        self.model.generation_config = transformers.GenerationConfig(
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )

    def identity(self) -> Json:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        return {
            "kind": "huggingface",
            **_weights_of(self.config, self._options),
            "parameters": int(parameters),
            "context": self.context,
            "dtype": str(self.model.dtype),
            **self.prompts.identity(),
        }

    def batch(self, length: int) -> int:
        return max(1, self._options.batch_tokens // length)

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        prompts = [self.prompts.ids(sample) for sample in samples]
        min_tokens = min(map(len, prompts))
        shares_prefix = _common_prefix(prompts) >= _SHARED_SHARE * min_tokens
        size = 1 if shares_prefix else len(prompts)
        for first in range(0, len(prompts), size):
            part = samples[first : first + size]
            answers = self._generated(prompts[first : first + size], part)
            for ids, sample in zip(answers, part, strict=True):
                text = self.hub_tokenizer.decode(ids, skip_special_tokens=True)
                yield self.prompts.answer(text, sample)

    def _generated(
        self, prompts: Sequence[list[int]], samples: Sequence[Sample]
    ) -> list[list[int]]:
        """Return the ids of the answers to some prompts, cut off at their ends."""
        torch = required("torch")
        longest = max(map(len, prompts))
        max_answers = [self.prompts.budget(sample) for sample in samples]
        stops = [sample.stop for sample in samples]

        def finished_rows(tokens: Tensor, *_: object, **__: object) -> Tensor:
            finished = []
            answers = tokens[:, longest:]
            for ids, max_tokens, stop in zip(answers, max_answers, stops, strict=True):
                is_finished = len(ids) >= max_tokens
                if stop is not None and not is_finished:
                    # A stop string may span several tokens; four hold every one that
                    # the tasks have.
                    is_finished = stop in self.hub_tokenizer.decode(ids[-4:])
                finished.append(is_finished)
            return torch.tensor(finished, device=tokens.device)

        input_ids, mask = self._padded(prompts)
        is_single = len(prompts) == 1
        if is_single:
            read: Json = {"past_key_values": self.prefilled(prompts[0][:-1])}
        else:
            # A batch needs no more memory for activations than one prompt.
            empty = required("transformers").DynamicCache(config=self.config)
            chunk_tokens = max(1, self.chunk_tokens // len(prompts))
            read = {"prefill_chunk_size": chunk_tokens, "past_key_values": empty}
        with torch.inference_mode():
            output = self.model.generate(
                input_ids,
                attention_mask=mask,
                max_new_tokens=max(max_answers),
                stopping_criteria=[finished_rows],
                **read,
            )
        if is_single:
            self.forget(longest - 1)

        answers = []
        rows = output[:, longest:].tolist()
        for ids, max_tokens in zip(rows, max_answers, strict=True):
            # A finished row stays in the batch, which keeps its shape; its further
            # tokens are cut off.
            kept = takewhile(lambda token: token not in self._end_ids, ids[:max_tokens])
            answers.append(list(kept))
        return answers

    def _padded(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return prompts padded on the left, and a mask that is 1 on their tokens.

        Shape (prompts, longest) each. On the left, so that every answer begins in the
        next column.
        """
        torch = required("torch")
        ids = [torch.tensor(prompt[::-1]) for prompt in prompts]
        ones = [torch.ones(len(prompt), dtype=torch.int64) for prompt in prompts]

        def padded(rows: list[Tensor]) -> Tensor:
            # `pad_sequence` pads on the right, so the rows are reversed before and
            # after.
            columns = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            tensor: Tensor = columns.flip(1).to(self.device)
            return tensor

        return padded(ids), padded(ones)

    def prefilled(self, ids: list[int]) -> DynamicCache:
        """Return a cache of exactly `ids`.

        What it has in common with the one before is not computed again.
        """
        torch = required("torch")
        self.forget(_common_prefix([self._cached_ids, ids]))
        try:
            for first in range(len(self._cached_ids), len(ids), self.chunk_tokens):
                chunk = [ids[first : first + self.chunk_tokens]]
                self.forward(torch.tensor(chunk, device=self.device), self._cache)
        except BaseException:
            # Some layers may hold a chunk more than others.
            self.forget(0)
            raise
        self._cached_ids = list(ids)
        return self._cache

    def forget(self, kept: int) -> None:
        """Keep only the first `kept` tokens of the cache.

        Nothing is kept where some layers have dropped the oldest tokens.
        """
        cached = self._cache.get_seq_length()
        if 0 < kept < cached < self._window_tokens:
            self._cache.crop(kept - cached)
            self._cached_ids = self._cached_ids[:kept]
        elif kept < cached or not self._window_tokens:
            self._cache = required("transformers").DynamicCache(config=self.config)
            self._cached_ids = []

    def forward(self, ids: Tensor, cache: DynamicCache) -> None:
        """Read ids, shape (1, n), after a cache, to which they are added.

        No logits are computed.
        """
        with required("torch").inference_mode():
            self.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)


def _loaded(options: ModelOptions) -> PreTrainedModel:
    """Return a model on its device. Raises EvaluateError if it cannot be loaded."""
    transformers = required("transformers")
    required("transformers.utils.logging").disable_progress_bar()
    device = options.device
    if device == "auto":
        device = "cuda" if required("torch").cuda.is_available() else "cpu"
    is_sharded = device == SHARDED
    more = {}
    if is_sharded:
        required("accelerate")
        more["device_map"] = "auto"
    source = Path(options.name).expanduser()
    try:
        model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
            str(source),
            revision=options.revision,
            dtype=options.dtype,
            attn_implementation=options.attention,
            **more,
        )
        if not is_sharded:
            model = model.to(device)
        return model.eval()
    except (
        OSError,
        ValueError,
        ImportError,
        RuntimeError,
        TypeError,
        # torch asserts for CUDA.
        AssertionError,
    ) as error:
        raise EvaluateError(
            where=options.name,
            problem=f"it cannot be loaded with --device {device} --dtype "
            f"{options.dtype}: {first_sentence(error)}",
            fix="give another device or type, or another model",
        ) from None


def _end_ids(model: PreTrainedModel, tokenizer: Any) -> set[int]:
    """Return the ids that end an answer.

    The generation config may name several, like that of Llama 3; the tokenizer names
    one.
    """
    ids = model.generation_config.eos_token_id
    named = ids if isinstance(ids, list) else [ids]
    return {*named, tokenizer.eos_token_id} - {None}


def _window_tokens(config: PreTrainedConfig) -> float:
    """Return the tokens below which a cache can be cut back; 0 if it never can.

    A cache with as many tokens as a sliding window has dropped the oldest ones. Layers
    of another kind (linear, chunked) never can.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        return 0
    return getattr(config, "sliding_window", None) or math.inf


def local_config(options: ModelOptions) -> PreTrainedConfig | None:
    """Return a model's configuration from its folder or the hub's cache.

    None for a model that is not on this machine.
    """
    if not Path(options.name).expanduser().is_dir():
        cached = required("huggingface_hub").try_to_load_from_cache(
            options.name, "config.json", revision=options.revision
        )
        if not isinstance(cached, str):
            return None
    return _read_config(options, local_files_only=True)


def context_of(config: PreTrainedConfig | None, options: ModelOptions) -> int | None:
    """Return the most tokens of a prompt with its answer.

    None where neither the user nor the configuration says.
    """
    return options.context or getattr(config, "max_position_embeddings", None)


def _read_config(
    options: ModelOptions, *, local_files_only: bool = False
) -> PreTrainedConfig:
    """Return a model's configuration, without its weights.

    Raises EvaluateError if it is no causal language model.
    """
    transformers = required("transformers")
    source = Path(options.name).expanduser()
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(source),
            revision=options.revision,
            local_files_only=local_files_only,
        )
    except (OSError, ValueError, KeyError) as error:
        raise EvaluateError(
            where=options.name,
            problem="it is not a model that transformers can read "
            f"({first_sentence(error)})",
            fix="name a folder with config.json and weights, or one of the Hugging "
            "Face hub, or the --url of a server",
        ) from None
    # transformers has no public list of the classes that AutoModelForCausalLM accepts.
    if type(config) not in transformers.AutoModelForCausalLM._model_mapping:
        raise EvaluateError(
            where=options.name,
            problem=f"it is a {config.model_type}, not a causal language model",
            fix="name a model that continues a text",
        )
    return config


def _weights_of(config: PreTrainedConfig, options: ModelOptions) -> Json:
    """Return what names a model's weights.

    That is its folder and the hash of its files, or its name on the hub and the commit.
    """
    name = options.name
    weights: str | None = getattr(config, "_commit_hash", None)
    folder = Path(name).expanduser()
    if folder.is_dir():
        name = str(folder.resolve())
        weights = _hash_of_files(folder)
    return {
        "name": name,
        "revision": options.revision,
        "weights": weights,
        "model_type": str(config.model_type),
    }


def _hash_of_files(folder: Path) -> str:
    """Return a hash of the names, sizes and contents of a model's files."""
    paths = set[Path]()
    for pattern in _MODEL_FILES:
        paths.update(folder.glob(pattern))
    identities = []
    for path in sorted(paths):
        if path.is_file():
            size = path.stat().st_size
            identities.append((path.name, size, store.hash_file(path)))
    content = repr(identities).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _common_prefix(lists: Sequence[list[int]]) -> int:
    """Return the number of ids that all lists begin with."""
    shortest = min(map(len, lists))
    for index, ids in enumerate(zip(*lists, strict=False)):
        if len(set(ids)) > 1:
            return index
    return shortest


class VllmModel:
    """A causal language model that vLLM runs.

    longest: the most tokens of a prompt with its answer
    """

    def __init__(self, options: ModelOptions, *, longest: int) -> None:
        """Load it. Raises EvaluateError if vLLM cannot."""
        self._vllm = required("vllm")
        self._options = options
        self.config = _read_config(options)
        self.context = context_of(self.config, options)
        self.prompts = Prompts.read(options)
        self.engine = f"vllm {self._vllm.__version__}"
        # vLLM refuses a context that its cache has no room for, so it gets no longer
        # one than the tasks need.
        needed = longest + options.thinking + len(self.prompts.tokenizer.prefix)
        source = Path(options.name).expanduser()
        try:
            self._llm = self._vllm.LLM(
                model=str(source),
                revision=options.revision,
                dtype=options.dtype,
                tensor_parallel_size=options.gpus,
                max_model_len=min(needed, self.context or needed),
                enable_prefix_caching=True,
                seed=0,
            )
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            raise EvaluateError(
                where=options.name,
                problem=f"it cannot be loaded by vLLM with --gpus {options.gpus} "
                f"--dtype {options.dtype}: {first_sentence(error)}",
                fix="give another number of GPUs or type, or another model",
            ) from None

    def identity(self) -> Json:
        return {
            "kind": "vllm",
            **_weights_of(self.config, self._options),
            "context": self.context,
            "dtype": self._options.dtype,
            **self.prompts.identity(),
        }

    def batch(self, length: int) -> int:  # noqa: ARG002
        return _VLLM_BATCH

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        inputs = []
        limits = []
        for sample in samples:
            inputs.append({"prompt_token_ids": self.prompts.ids(sample)})
            sampling = self._vllm.SamplingParams(
                temperature=0.0,
                max_tokens=self.prompts.budget(sample),
                stop=sample.stop,
            )
            limits.append(sampling)
        outputs = self._llm.generate(inputs, limits, use_tqdm=False)
        for sample, output in zip(samples, outputs, strict=True):
            yield self.prompts.answer(output.outputs[0].text, sample)


class ServerModel:
    """A model on an OpenAI-compatible server.

    The user names the tokenizer and its template.
    """

    def __init__(self, options: ModelOptions, prompts: Prompts) -> None:
        self.options = options
        self.prompts = prompts
        self.context = options.context
        self.engine = f"server {options.url}"
        self._client = Client(
            options.api_key_env, options.max_attempts, options.timeout_s
        )

    def identity(self) -> Json:
        # Only the server knows which weights it holds.
        return {
            "kind": "server",
            "name": self.options.name,
            "url": self.options.url,
            "context": self.context,
            **self.prompts.identity(),
        }

    def batch(self, length: int) -> int:
        is_short = length <= _SHORT_PROMPT_TOKENS
        rounds = _SHORT_PROMPT_ROUNDS if is_short else 1
        return self.options.concurrency * rounds

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            # After an error, requests that have not been sent are not worth sending;
            # `map` cancels them.
            yield from pool.map(self._answer, samples)

    def _answer(self, sample: Sample) -> str:
        endpoint, body = self._request(sample)
        url = str(self.options.url).rstrip("/") + endpoint
        try:
            received = self._client.post(url, body)
        except UnansweredError as error:
            if error.status:
                fix = "check the model's name and the API key (--api-key-env)"
            else:
                fix = (
                    "finished answers are kept: fix the server and run the same "
                    "command again, or lower --concurrency"
                )
            raise self._error(str(error), fix) from None
        return self.prompts.answer(self._text_in(received), sample)

    def _request(self, sample: Sample) -> tuple[str, Json]:
        """Return the endpoint and the body of a sample's request."""
        prompts = self.prompts
        body: Json = {
            "model": self.options.name,
            "max_tokens": prompts.budget(sample),
            "temperature": 0,
        }
        if sample.stop is not None:
            body["stop"] = [sample.stop]
        sent = prompts.sent(sample)
        if prompts.format != "messages":
            return "/completions", {**body, "prompt": sent}
        if sample.answer_prefix:
            raise EvaluateError(
                where="--prompt-format messages",
                problem="the task begins the model's answer "
                f"({sample.answer_prefix.strip()!r:.60}), and a server's own template "
                "cannot",
                fix="give --prompt-format chat with --tokenizer FOLDER, or leave the "
                "task out",
            )
        if prompts.thinking:
            body["chat_template_kwargs"] = {"enable_thinking": True}
        return "/chat/completions", {**body, "messages": sent}

    def _text_in(self, received: bytes) -> str:
        """Return the completion in what a server answered."""
        try:
            choice = json.loads(received)["choices"][0]
            if "message" in choice:
                text = choice["message"]["content"]
            else:
                text = choice["text"]
        except (ValueError, KeyError, TypeError, IndexError):
            head = received[:200].decode("utf-8", "replace")
            raise self._error(
                f"answered with no completion: {head!r}",
                fix="give the URL of an OpenAI-compatible server, which ends in /v1",
            ) from None
        if not isinstance(text, str):
            problem = "answered without content"
            if choice.get("finish_reason"):
                problem += f" (finish_reason {choice['finish_reason']})"
            raise self._error(
                problem,
                fix="a model that reasons needs --thinking with more tokens than it "
                "takes",
            )
        return text

    def _error(self, problem: str, fix: str) -> EvaluateError:
        return EvaluateError(
            where=f"--url {self.options.url}, model {self.options.name}",
            problem=f"the server {problem}",
            fix=fix,
        )
