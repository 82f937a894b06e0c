"""Surprisal: the loss and the entropy of each token, by any causal language model.

In:  texts, tokenized by the model's own tokenizer, or rows of its token ids; the model
     is a folder, a name on the Hugging Face Hub or a GGUF file, read by transformers.
Out: for each token the loss given all tokens before it, and the entropy of the
     prediction that it follows, in nats.

Rows of like length form a batch, padded on the right: in a causal model no token
attends to what follows it, so a batch needs no mask, and the fastest attention kernels
take it. A long row is read in chunks with a key-value cache, so that its logits fit
into memory: 131,072 tokens of a vocabulary of 128,000 would take 34 GB in bfloat16.

The last digits of a loss depend on batch, device and precision. bfloat16 changes the
loss of a token by 0.04 nats on average and the mean of 300 tokens by 0.002
(SmolLM2-135M), in half the time of float32 on a CPU with AVX-512 BF16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from nextlong.arrays import Floats, Ints
from nextlong.engine import store
from nextlong.engine.executor import Resources, granted_gpus
from nextlong.errors import RecipeError
from nextlong.recipe.keys import Scorer
from nextlong.text import Json, first_sentence

_GGUF: Final = ".gguf"
_ANOTHER_MODEL: Final = (
    "give a folder with config.json and weights, a name on the Hugging Face Hub (which "
    "requires a network) or a .gguf file"
)
_INSTALL: Final = "pip install 'nextlong[scorer]'"
# Elements of the logits of a chunk: 1 GB in bfloat16.
_MAX_LOGITS: Final = 1 << 29
# Tokens whose float32 probabilities are computed at a time.
_BLOCK_TOKENS: Final = 256


class Encoded(NamedTuple):
    """The tokens of a text: ids, (n,), and the characters [start, stop), (n, 2)."""

    ids: Ints
    offsets: Ints


class Surprisal(NamedTuple):
    """Loss and entropy of each token of a row in nats, (n,); NaN where not scored."""

    loss: Floats
    entropy: Floats


class SurprisalModel:
    """A causal language model and its tokenizer.

    context: the most tokens of a row; None if the model does not say
    """

    def __init__(self, scorer: Scorer) -> None:
        """Load it. Raises RecipeError if it cannot be loaded."""
        self._torch, transformers = _libraries()
        self._new_cache = transformers.DynamicCache
        self.name = _model_name(scorer)
        self.device = _device(scorer)
        self.tokenizer, self.model = _loaded(scorer, self.device)
        self.context: int | None = getattr(
            self.model.config, "max_position_embeddings", None
        )
        self._batch_tokens = scorer.batch_tokens
        self._vocabulary = int(self.model.config.get_text_config().vocab_size)
        # Most tokenizers that begin texts with a token (Llama 3) come with models that
        # predict badly without it.
        with_special = self.tokenizer("a").input_ids
        without = self.tokenizer("a", add_special_tokens=False).input_ids
        self._prefix = with_special[: with_special.index(without[0])]

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the tokens of each text, without special tokens."""
        if not texts:
            return []
        encodings = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        encoded = []
        for ids, offsets in zip(
            encodings["input_ids"], encodings["offset_mapping"], strict=True
        ):
            characters = np.array(offsets, np.int64).reshape(-1, 2)
            encoded.append(Encoded(np.array(ids, np.int64), characters))
        return encoded

    def score(
        self,
        rows: Sequence[Ints],
        *,
        first: Sequence[int] | None = None,
    ) -> list[Surprisal]:
        """Return loss and entropy of the tokens of each row, (n,) each.

        Only those from the index `first` of the row on are scored, which saves the
        logits of the others. The first token of a row is scored only if the tokenizer
        puts one before each text, because nothing else predicts it.

        Raises:
            RecipeError: a row is longer than the model's context.
        """
        firsts = [0] * len(rows) if first is None else list(first)
        self.check_length(max(map(len, rows), default=0))
        scored = []
        for row in rows:
            nothing = np.full(len(row), np.nan, np.float32)
            scored.append(Surprisal(nothing, nothing.copy()))
        for batch in self._batches(rows):
            batch_rows = [rows[index] for index in batch]
            first_of_batch = min(firsts[index] for index in batch)
            losses, entropies = self._score_batch(batch_rows, first=first_of_batch)
            for index, loss, entropy in zip(batch, losses, entropies, strict=True):
                own = slice(firsts[index], len(rows[index]))
                scored[index].loss[own] = loss[own]
                scored[index].entropy[own] = entropy[own]
        return scored

    def check_length(self, tokens: int) -> None:
        """Raise RecipeError for a row of more tokens than the model's context."""
        _check_context(self.name, self.context, tokens + len(self._prefix))

    def _batches(self, rows: Sequence[Ints]) -> Iterator[list[int]]:
        """Yield the indices of rows of like length, the longest first.

        The longest come first: if memory is too small, that shows at once.
        """
        lengths = np.array([len(row) for row in rows], np.int64)
        order = np.argsort(-lengths, kind="stable").tolist()
        batch: list[int] = []
        for index in order:
            if lengths[index] == 0:
                continue
            # The first row of a batch is its longest.
            longest = int(lengths[batch[0]]) if batch else 0
            if batch and (len(batch) + 1) * longest > self._batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _score_batch(
        self, rows: Sequence[Ints], *, first: int
    ) -> tuple[Floats, Floats]:
        """Return loss and entropy of some rows, the first of which is the longest.

        Shape (rows, tokens of the longest) each; NaN where nothing is scored. What is
        behind a shorter row means nothing.
        """
        torch = self._torch
        prefix = len(self._prefix)
        width = prefix + len(rows[0])
        # (rows, width): the prefix, the row, and zeros, which no token attends to.
        ids = np.zeros((len(rows), width), np.int64)
        ids[:, :prefix] = self._prefix
        for ids_of_row, row in zip(ids, rows, strict=True):
            ids_of_row[prefix : prefix + len(row)] = row
        ids_BT = torch.from_numpy(ids).to(self.device)
        loss = np.full(ids.shape, np.nan, np.float32)
        entropy = np.full(ids.shape, np.nan, np.float32)
        # The first token that is scored is predicted by the one before it.
        first_predictor = max(prefix + first - 1, 0)
        with torch.inference_mode():
            for start, logits in self._logits(ids_BT, first_predictor):
                predicted = slice(start + 1, start + 1 + logits.shape[1])
                loss[:, predicted], entropy[:, predicted] = self._loss_and_entropy(
                    logits, ids_BT[:, predicted]
                )
        return loss[:, prefix:], entropy[:, prefix:]

    def _logits(self, ids_BT: Any, first: int) -> Iterator[tuple[int, Any]]:
        """Yield the logits of a batch from position `first` on, chunk by chunk.

        With each, the position of its first token. The last position of a row predicts
        nothing that is known, so it is read only where others are.
        """
        rows, width = ids_BT.shape
        chunk_tokens = max(1, _MAX_LOGITS // (rows * self._vocabulary))
        is_whole = width - 1 <= chunk_tokens
        cache = None if is_whole else self._new_cache(config=self.model.config)
        for start in range(0, width - 1, chunk_tokens):
            stop = min(width - 1, start + chunk_tokens)
            # At least one, because models do not take none.
            kept = max(1, stop - max(start, first))
            output = self.model(
                input_ids=ids_BT[:, start:stop],
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=kept,
            )
            if stop > first:
                yield stop - kept, output.logits

    def _loss_and_entropy(
        self, logits_BNV: Any, targets_BN: Any
    ) -> tuple[Floats, Floats]:
        """Return loss and entropy, (rows, n) each, of predicted tokens."""
        torch = self._torch
        losses = []
        entropies = []
        for start in range(0, targets_BN.shape[1], _BLOCK_TOKENS):
            block = slice(start, start + _BLOCK_TOKENS)
            logits = logits_BNV[:, block].float()
            targets = targets_BN[:, block, None]
            log_sums = torch.logsumexp(logits, dim=-1)
            # H = log Z - Σ p·logit
            means = (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)
            losses.append(log_sums - logits.gather(-1, targets)[..., 0])
            entropies.append(log_sums - means)
        loss: Floats = torch.cat(losses, dim=1).cpu().numpy()
        entropy: Floats = torch.cat(entropies, dim=1).cpu().numpy()
        return loss, entropy


class KnownScorer(NamedTuple):
    """The model of a recipe, and its identity when the step that uses it was made."""

    scorer: Scorer
    identity: str  # JSON


def known_scorer(scorer: Scorer) -> KnownScorer:
    """Return what `load_scorer` needs to tell a changed model from the one before."""
    return KnownScorer(scorer, json.dumps(scorer_identity(scorer)))


# A worker keeps the model from task to task. A checkpoint may be replaced by another
# one at the same path while the process lives, so the path alone is no key.
@lru_cache(maxsize=1)
def load_scorer(known: KnownScorer) -> SurprisalModel:
    """Return the model of a recipe. Raises RecipeError if it cannot be loaded."""
    return SurprisalModel(known.scorer)


def check_scorer(scorer: Scorer, *, tokens: int) -> None:
    """Check that a model can be read and has a context of so many tokens.

    Its weights are not loaded. Raises RecipeError.
    """
    _, transformers = _libraries()
    name = _model_name(scorer)
    source, options = _source(scorer)
    try:
        config = transformers.AutoConfig.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError) as error:
        problem = f"cannot be read: {first_sentence(error)}"
        raise _refused(name, problem, _ANOTHER_MODEL) from None
    _check_context(name, getattr(config, "max_position_embeddings", None), tokens)


def _check_context(name: str, context: int | None, tokens: int) -> None:
    if context is not None and tokens > context:
        raise _refused(
            name,
            f"has a context of {context:,} tokens, and a text to score has {tokens:,}",
            "name a model with a longer context, or score shorter sequences",
        )


def _refused(name: str, problem: str, fix: str) -> RecipeError:
    return RecipeError(where="scorer.model", value=name, problem=problem, fix=fix)


def scorer_identity(scorer: Scorer) -> Json:
    """Return what the scores of a step depend on, for its config.

    Of a local model these are the hashes of its files, so that its path does not
    matter, and a changed model is scored again.
    """
    identity: Json = dict(scorer.identity())
    path = Path(_model_name(scorer)).expanduser()
    if path.is_dir():
        identity["model"] = store.hash_folder(path)
    elif path.is_file():
        identity["model"] = store.hash_file(path)
    return identity


def scorer_resources() -> Resources:
    """Return the resources of a task that scores: a GPU if the executor has one."""
    return Resources(gpu="optional")


def _model_name(scorer: Scorer) -> str:
    """Return `scorer.model`. Raises RecipeError if the recipe names none."""
    if scorer.model is None:
        raise _refused(
            "null",
            "names no model, and the recipe needs one to score tokens",
            _ANOTHER_MODEL,
        )
    return scorer.model


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        raise RecipeError(
            where="scorer.model",
            problem=f"the model cannot be loaded: {error}",
            fix=_INSTALL,
        ) from None
    # The bars of the workers would disturb that of the run.
    logging.disable_progress_bar()
    return torch, transformers


def _device(scorer: Scorer) -> str:
    if scorer.device not in ("auto", "cuda"):
        return scorer.device
    import torch

    if scorer.device == "cuda" or torch.cuda.is_available():
        return f"cuda:{next(iter(granted_gpus()), 0)}"
    return "cpu"


def _source(scorer: Scorer) -> tuple[str, Json]:
    """Return what transformers loads a model from, and with which options."""
    name = _model_name(scorer)
    path = Path(name).expanduser()
    if path.suffix == _GGUF:
        return str(path.parent), {"gguf_file": path.name}
    source = str(path) if path.exists() else name
    return source, {"revision": scorer.revision or "main"}


def _loaded(scorer: Scorer, device: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model on its device, ready to score."""
    import torch
    import transformers

    name = _model_name(scorer)
    source, options = _source(scorer)
    dtype = scorer.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), **options
        )
        # A GGUF file is read as float32 whatever type is asked for.
        model = model.to(device=device, dtype=getattr(torch, dtype)).eval()
    except ImportError as error:
        problem = f"requires a package that is not installed: {error}"
        raise _refused(name, problem, _INSTALL) from None
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError) as error:
        problem = f"cannot be loaded on {device} as {dtype}: {first_sentence(error)}"
        raise _refused(name, problem, _ANOTHER_MODEL) from None
    if not tokenizer.is_fast:
        raise RecipeError(
            where="scorer.model",
            value=name,
            problem="has a tokenizer that does not report the characters of each token",
            fix="name a model with a tokenizer.json",
        )
    return tokenizer, model
