"""Enough: whether the corpus has the tokens of one sequence, from a look at its files before anything runs.

In:  a recipe and its files. Out: nothing, or an error. Where the files hold plenty, nothing but their heads is read; the text
of a corpus that is small beside one sequence is read whole, which takes well under a second, and a sample of it tokenized. Where
that is close to one sequence, all of it is, which takes some seconds for a million tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import Look, kept_shares, look_at
from nextlong.errors import CorpusError
from nextlong.inputs.files import InputFile
from nextlong.inputs.sizes import estimate_text_bytes
from nextlong.recipe import METHODS, Recipe
from nextlong.recipe.negatives import NEGATIVES
from nextlong.schemas import Layout
from nextlong.tokens.tokenizer import load_tokenizer, train_bpe

_PLENTY_BYTES_PER_TOKEN: Final = 16  # no language takes as many, so a look would find nothing
_MOST_BYTES_PER_CHAR: Final = 4  # of UTF-8
_SAMPLE_TEXTS, _SAMPLE_CHARS = 512, 2048  # the heads of so many documents are tokenized
_TRAINED_ENTRIES: Final = 4096  # of a tokenizer that is yet to be trained; the real one makes fewer tokens
_MARGIN: Final = 1.25  # by which the estimate of a sample may be wrong
_EXACT_MARGIN: Final = 1.01  # for newlines of several tokens
_TRAINED_MARGIN: Final = 1.1  # by which it may be short where the tokenizer is yet to be trained


def check_enough(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> None:
    """Raise CorpusError if all documents together are shorter than one sequence."""
    asked = recipe.sequence_tokens
    sources = recipe.ingest.sources
    text_bytes = sum(
        min(estimate_text_bytes(source_files, source), _MOST_BYTES_PER_CHAR * (source.max_chars or math.inf))
        for source_files, source in zip(files, sources, strict=True)
    )
    if text_bytes > _PLENTY_BYTES_PER_TOKEN * asked or not uses_a_chunk_once(recipe):
        return
    looks = [look for look in look_at(recipe, files) if look.documents]
    if not looks or not all(look.is_whole for look in looks):
        return
    tokens = count_tokens(recipe, looks)
    if recipe.tokenizer.train is not None:
        is_short = _TRAINED_MARGIN * tokens < asked
    else:
        tokens = count_tokens(recipe, looks, of="all") if asked / _MARGIN < tokens < asked * _MARGIN else tokens
        is_short = _EXACT_MARGIN * tokens < asked
    if is_short:
        raise CorpusError(too_short(recipe, tokens))


def uses_a_chunk_once(recipe: Recipe) -> bool:
    """Say whether no chunk stands in a sequence twice, or is at least not meant to."""
    is_extended = getattr(METHODS.load(recipe.compose.method), "layout", None) == Layout.EXTENDED
    return not (is_extended and NEGATIVES[recipe.compose.negatives].repeat_meta_chunk)


def too_short(recipe: Recipe, tokens: float) -> str:
    """Say that no sequence can be made of so few tokens."""
    return (
        f"no sequence can be made: compose.target_tokens={recipe.compose.target_tokens:,}, but all documents together are "
        f"about {tokens:,.0f} tokens; add documents or lower it"
    )


def count_tokens(recipe: Recipe, looks: Sequence[Look], *, of: Literal["a sample", "all"] = "a sample") -> float:
    """Estimate the tokens of all documents that stay, with one more for each newline that composing may put between chunks.

    Of all texts, cut into chunks as they will be, it is no estimate but for caps and weights.
    """
    chars = [look.scale * look.distinct_chars for look in looks]
    shares = kept_shares(looks, [look.scale * look.distinct_documents for look in looks], chars)
    kept = sum(share * source_chars for share, source_chars in zip(shares, chars, strict=True))
    texts = [text for look in looks for text in look.texts]
    if of == "all":
        options = recipe.chunk.model_dump()
        few = [text[start:end] for text in texts for start, end in chunk_text(text, **options)]
    else:
        few = [text[:_SAMPLE_CHARS] for text in texts[:_SAMPLE_TEXTS]]
    if recipe.tokenizer.train is None:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        tokenizer = train_bpe(few, vocab_size=min(recipe.tokenizer.train, _TRAINED_ENTRIES))
    ids = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(few, add_special_tokens=False))
    newlines = len(few) if of == "all" else sum(map(len, few)) / recipe.chunk.max_chars
    return kept * (ids + newlines) / max(1, sum(map(len, few)))
