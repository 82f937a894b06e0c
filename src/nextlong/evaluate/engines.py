"""Engine: a model of transformers on this machine, which answers samples greedily.

In:  samples. Out: their answers, as soon as each is known.

Prompts are prefilled in chunks, so that no length needs more activations than another.
What a prompt shares with the one before it stays in the key-value cache; the other
short prompts are answered in batches of like length, padded on the left.

Some models are read whole, one prompt at a time, as `generate` does by itself: those
whose RoPE frequencies depend on the number of tokens read (LongRoPE, dynamic NTK), as
the keys of an early chunk would have other frequencies than those of a late one
(transformers issue 33129), and those without a key-value cache (Mamba).
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.prompts import ModelOptions, Prompts, load_tokenizer
from nextlong.evaluate.task import Sample
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
# Two prompts with this share in common are answered one by one with a shared cache.
_SHARED_SHARE: Final = 0.5
# The samples of so many batches are read ahead and sorted by length.
_BATCHES_AHEAD: Final = 4
# The RoPE types whose frequencies depend on the number of tokens read.
_LENGTH_DEPENDENT_ROPE: Final = ("dynamic", "longrope")
_Ids = list[int]
_Numbered = tuple[int, Sample, _Ids]


class HuggingFaceModel:
    """A causal language model and its tokenizer, from a folder or the hub.

    Each model has
    context: the most tokens with an answer (None: unknown)
    engine: what runs it, with its version
    identity(): what names it in results
    answers(samples): yields each sample with its number and its greedy answer, cut at
        the sample's limits, as soon as it is known; the numbers in `done` are answered
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
        self.prompts = Prompts.of(self.hub_tokenizer, options)
        self.tokenizer = self.prompts.tokenizer
        self.engine = f"transformers {transformers.__version__}"
        self.model = _loaded(options)
        self.device = self.model.device
        self.chunk_tokens = options.chunk_tokens
        inputs = inspect.signature(self.model.base_model.forward).parameters
        has_cache = "past_key_values" in inputs
        self.reads_whole = _has_length_dependent_rope(self.config) or not has_cache
        self._cache = self.empty_cache()
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

    def answers(
        self,
        samples: Iterable[tuple[int, Sample]],
        *,
        done: Container[int] = (),
    ) -> Iterator[tuple[int, Sample, str]]:
        for batch in self._batches(samples):
            if all(number in done for number, _, _ in batch):
                continue
            asked = [sample for _, sample, _ in batch]
            answers = self._texts([prompt for _, _, prompt in batch], asked)
            for (number, sample, _), answer in zip(batch, answers, strict=True):
                yield number, sample, answer

    def _batches(
        self, samples: Iterable[tuple[int, Sample]]
    ) -> Iterator[list[_Numbered]]:
        """Yield samples, with their numbers and ids, in batches of like length.

        Batches depend on the samples alone, not on which of them are answered, so that
        a resumed task has those of an uninterrupted one.
        """
        ahead: list[_Numbered] = []
        tokens = 0
        for number, sample in samples:
            ids = self.prompts.ids(sample)
            ahead.append((number, sample, ids))
            tokens += len(ids)
            if tokens >= _BATCHES_AHEAD * self._options.batch_tokens:
                yield from self._sorted_batches(ahead)
                ahead = []
                tokens = 0
        yield from self._sorted_batches(ahead)

    def _sorted_batches(self, samples: list[_Numbered]) -> Iterator[list[_Numbered]]:
        """Yield prompts that share a beginning one by one, then batches of the others.

        A batch has at most `batch_tokens`, padding included.
        """
        alone = set(range(len(samples))) if self.reads_whole else set[int]()
        for index in range(1, len(samples)):
            pair = [ids for _, _, ids in samples[index - 1 : index + 1]]
            if _common_prefix(pair) >= _SHARED_SHARE * min(map(len, pair)):
                alone.update((index - 1, index))
        for index in sorted(alone):
            yield [samples[index]]

        others = [sample for index, sample in enumerate(samples) if index not in alone]
        others.sort(key=lambda sample: len(sample[2]))
        yield from _batches_of(others, self._options.batch_tokens)

    def _texts(self, prompts: Sequence[_Ids], samples: Sequence[Sample]) -> list[str]:
        """Return the answers to some prompts."""
        texts = []
        for ids, sample in zip(self._generated(prompts, samples), samples, strict=True):
            text = self.hub_tokenizer.decode(ids, skip_special_tokens=True)
            texts.append(self.prompts.answer(text, sample))
        return texts

    def _generated(
        self, prompts: Sequence[_Ids], samples: Sequence[Sample]
    ) -> list[_Ids]:
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
        read: Json = {}
        if self.reads_whole:
            self._forget_lengths()
        elif is_single:
            read = {"past_key_values": self.prefilled(prompts[0][:-1])}
        else:
            # A batch needs no more memory for activations than one prompt.
            chunk_tokens = max(1, self.chunk_tokens // len(prompts))
            read = {
                "prefill_chunk_size": chunk_tokens,
                "past_key_values": self.empty_cache(),
            }
        with torch.inference_mode():
            output = self.model.generate(
                input_ids,
                attention_mask=mask,
                max_new_tokens=max(max_answers),
                stopping_criteria=[finished_rows],
                logits_processor=[self._finite],
                **read,
            )
        if is_single and not self.reads_whole:
            self.forget(longest - 1)

        answers = []
        rows = output[:, longest:].tolist()
        for ids, max_tokens in zip(rows, max_answers, strict=True):
            # A finished row stays in the batch, which keeps its shape; its further
            # tokens are cut off.
            kept = takewhile(lambda token: token not in self._end_ids, ids[:max_tokens])
            answers.append(list(kept))
        return answers

    def _finite(self, _: Tensor, logits: Tensor) -> Tensor:
        """Return the logits of the next tokens, shape (prompts, vocabulary).

        Raises EvaluateError for NaN or infinity, of which the greatest would be taken.
        """
        if not bool(logits.amax(-1).isfinite().all()):
            dtype = str(self.model.dtype).removeprefix("torch.")
            raise EvaluateError(
                where=f"--dtype {self._options.dtype}",
                problem=f"the model computes NaN or infinity in {dtype}",
                fix="give --dtype bfloat16 or --dtype float32",
            )
        return logits

    def _forget_lengths(self) -> None:
        """Reset what dynamic NTK keeps: the frequencies of the longest prompt so far.

        The answer to a prompt would depend on the prompts before it.
        """
        for module in self.model.modules():
            if hasattr(module, "max_seq_len_cached"):
                # A copy, since LongRoPE overwrites its frequencies in place.
                original = module.original_inv_freq.clone()
                module.inv_freq = original.to(module.inv_freq.device)
                module.max_seq_len_cached = module.original_max_seq_len

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

    def empty_cache(self) -> DynamicCache:
        cache: DynamicCache = required("transformers").DynamicCache(config=self.config)
        return cache

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
            self._cache = self.empty_cache()
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
    attention = f" --attention {options.attention}" if options.attention else ""
    model: PreTrainedModel
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            str(source),
            revision=options.revision,
            dtype=options.dtype,
            attn_implementation=options.attention,
            output_loading_info=True,
            **more,
        )
        if not is_sharded:
            model = model.to(device)
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
            f"{options.dtype}{attention}: {first_sentence(error)}",
            fix="give another device, type or attention, or another model",
        ) from None
    _check_weights(model, sorted(loading["missing_keys"]), options)
    return model.eval()


def _check_weights(
    model: PreTrainedModel, missing: Sequence[str], options: ModelOptions
) -> None:
    """Raise EvaluateError for weights that are missing, NaN or infinite."""
    if missing:
        raise EvaluateError(
            where=options.name,
            problem=f"it lacks {len(missing):,} weights of {type(model).__name__}, "
            f"which would be random: {', '.join(missing[:3])}",
            fix="name a folder with all weights of the model that config.json "
            "describes",
        )
    for name, weight in model.named_parameters():
        if not weight.is_meta and not bool(weight.isfinite().all()):
            dtype = str(weight.dtype).removeprefix("torch.")
            raise EvaluateError(
                where=options.name,
                problem=f"the weight {name} holds NaN or infinity in {dtype}",
                fix="name other weights, or give --dtype float32 if the saved ones "
                "are finite",
            )


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
    if options.context is not None:
        return options.context
    context: int | None = getattr(config, "max_position_embeddings", None)
    for rope in _rope_parameters(config):
        # Most configurations name the context before YaRN, some the one after it.
        if rope.get("rope_type") == "yarn" and context is not None:
            original = rope.get("original_max_position_embeddings") or context
            context = max(context, int(original * rope["factor"]))
    return context


def _rope_parameters(config: PreTrainedConfig | None) -> list[Json]:
    """Return the RoPE parameters of a model, one or one for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _has_length_dependent_rope(config: PreTrainedConfig) -> bool:
    kinds = [rope.get("rope_type") for rope in _rope_parameters(config)]
    return any(kind in _LENGTH_DEPENDENT_ROPE for kind in kinds)


def check_model(options: ModelOptions) -> None:
    """Raise EvaluateError for a local model that does not exist, or cannot be read.

    Only its configuration is read.
    """
    if options.url is None:
        _read_config(options)


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


def _batches_of(
    samples: Sequence[_Numbered], batch_tokens: int
) -> Iterator[list[_Numbered]]:
    """Yield samples, shorter prompts first, in batches of at most `batch_tokens`."""
    batch: list[_Numbered] = []
    for sample in samples:
        # The newest is the longest, to which the others are padded.
        tokens = (len(batch) + 1) * len(sample[2])
        if batch and tokens > batch_tokens:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch


def _common_prefix(lists: Sequence[list[int]]) -> int:
    """Return the number of ids that all lists begin with."""
    shortest = min(map(len, lists))
    for index, ids in enumerate(zip(*lists, strict=False)):
        if len(set(ids)) > 1:
            return index
    return shortest
