"""Corpus size: check before a run that the corpus has enough tokens for a sequence, and documents that fit into one.

In:  a recipe and its files. Out: nothing, or an error. Where the files hold plenty of text, only their heads are read; the text
of a corpus that is small beside one sequence is read whole, which takes well under a second, and a sample of it tokenized. Where
that does not hold clearly more than one sequence, all of it is, which takes some seconds for a million tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, Literal

from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import Look, kept_shares, look_at
from nextlong.errors import CorpusError
from nextlong.plugins import METHODS
from nextlong.reading.files import InputFile
from nextlong.reading.formats import head_columns
from nextlong.reading.sampling import estimate_text_bytes
from nextlong.recipe import Compose, Recipe
from nextlong.recipe.amounts import TYPICAL_CHARS_PER_TOKEN
from nextlong.recipe.keys import NEGATIVES
from nextlong.schemas import Layout
from nextlong.sequences.tokenizer import load_tokenizer, train_bpe

MOST_DROPPED: Final = 0.5  # of the documents that may be extended
LONGER: Final = "raise compose.target_tokens, or cut the documents into shorter ones first"  # the cure
_PLENTY_BYTES_PER_TOKEN: Final = 16  # no language takes as many, so a look would find nothing
_MOST_BYTES_PER_CHAR: Final = 4  # of UTF-8
_SAMPLE_TEXTS, _SAMPLE_CHARS = 512, 2048  # how many documents are tokenized, and how much of each
_TRAINED_ENTRIES: Final = 4096  # of a tokenizer that is yet to be trained; the real one makes fewer tokens
_MARGIN: Final = 1.25  # from which on the estimate of a sample is believed that there is enough
_EXACT_MARGIN: Final = 1.01  # for caps and weights, which choose documents that are a bit longer or shorter
_TRAINED_MARGIN: Final = 1.1  # by which it may be short where the tokenizer is yet to be trained


def check_enough(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> None:
    """Raise CorpusError if all documents together are shorter than one sequence."""
    asked = recipe.sequence_tokens
    sources = recipe.ingest.sources
    text_bytes = sum(
        min(estimate_text_bytes(source_files, source), _MOST_BYTES_PER_CHAR * (source.max_chars or math.inf))
        for source_files, source in zip(files, sources, strict=True)
    )
    if text_bytes > _PLENTY_BYTES_PER_TOKEN * asked or not uses_a_chunk_once(recipe.compose):
        return
    looks = [look for look in look_at(recipe.ingest, files) if look.documents]
    if not looks or not all(look.is_whole for look in looks):
        return
    if count_tokens(recipe, looks) >= _MARGIN * asked:
        return
    tokens = count_tokens(recipe, looks, of="all")
    if tokens * (_EXACT_MARGIN if recipe.tokenizer.train is None else _TRAINED_MARGIN) < asked:
        raise CorpusError(too_short(recipe, tokens))


def mostly_too_long(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> str:
    """Return the message that most of the first documents are too long for the method to extend, else "".

    "" where `filter` decides which of them are used.
    """
    if any(source.filter for source in recipe.ingest.sources):
        return ""
    texts = [
        text
        for source_files, source in zip(files, recipe.ingest.sources, strict=True)
        for text in head_columns(source_files[0], source).get(source.text, ())
        if isinstance(text, str)
    ]
    longer = sum(len(text) > recipe.sequence_tokens * TYPICAL_CHARS_PER_TOKEN for text in texts)
    return too_long(recipe, longer, len(texts), of="documents that come first in the sources")


def too_long(recipe: Recipe, longer: float, documents: float, *, of: str) -> str:
    """Return the message that this many documents do not fit a sequence, "" if most do or the method accepts them."""
    if not is_extended(recipe.compose) or longer <= MOST_DROPPED * documents:
        return ""
    return (
        f"about {longer:,.0f} of the {documents:,.0f} {of} ({longer / documents:.0%}) are too long for "
        f"compose.target_tokens={recipe.compose.target_tokens:,} with negatives between their chunks, so they are dropped, and the "
        "rest is a biased sample; "
        f"{LONGER}"
    )


def is_extended(compose: Compose) -> bool:
    """Say whether the method extends meta-documents by negatives."""
    return getattr(METHODS.load(compose.method, object), "layout", None) == Layout.EXTENDED


def uses_a_chunk_once(compose: Compose) -> bool:
    """Say whether a chunk is used at most once in a sequence."""
    return not (is_extended(compose) and NEGATIVES[compose.negatives].repeat_meta_chunk)


def too_short(recipe: Recipe, tokens: float) -> str:
    """Return the message that the corpus has too few tokens for one sequence."""
    return (
        f"no sequence can be made: compose.target_tokens={recipe.compose.target_tokens:,}, but all documents together are "
        f"about {tokens:,.0f} tokens; add documents or lower it"
    )


def count_tokens(recipe: Recipe, looks: Sequence[Look], *, of: Literal["a sample", "all"] = "a sample") -> float:
    """Estimate the tokens of all documents that stay, with the separator that composing may put behind each chunk.

    Of all texts, it is no estimate but for caps and weights, and for a tokenizer that is yet to be trained.
    """
    chars = [look.scale * look.distinct_chars for look in looks]
    shares = kept_shares(looks, [look.scale * look.distinct_documents for look in looks], chars)
    every = max(1, sum(len(look.texts) for look in looks) // _SAMPLE_TEXTS)
    heads = [[text[:_SAMPLE_CHARS] for text in look.texts[::every]] for look in looks]
    if recipe.tokenizer.train is None:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        sample = list(itertools.chain.from_iterable(heads))
        tokenizer = train_bpe(sample, vocab_size=min(recipe.tokenizer.train, _TRAINED_ENTRIES))
    separator = len(tokenizer.encode(recipe.compose.separator, add_special_tokens=False).ids)
    options = recipe.chunk.model_dump()
    total = 0.0
    for share, source_chars, texts in zip(
        shares, chars, heads if of == "a sample" else [look.texts for look in looks], strict=True
    ):
        chunks = [text[start:end] for text in texts for start, end in chunk_text(text, **options)]
        ids = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(chunks, add_special_tokens=False))
        tokens_per_char = (ids + separator * len(chunks)) / max(1, sum(map(len, chunks)))
        total += share * source_chars * tokens_per_char
    return total
