"""Enough: whether the corpus has the tokens of one sequence, from a look at its files before anything runs.

In:  a recipe and its files. Out: nothing, or an error. Where the files hold plenty, nothing but their heads is read; the text
of a corpus that is small beside one sequence is read whole, which takes well under a second, and a sample of it tokenized.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

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
_MARGIN: Final = 1.1  # by which the estimate may be short


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
    looks = look_at(recipe, files)
    tokens = count_tokens(recipe, looks)
    if looks and all(look.is_whole for look in looks) and _MARGIN * tokens < asked:
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


def count_tokens(recipe: Recipe, looks: Sequence[Look]) -> float:
    """Estimate the tokens of all documents that stay, with one more for each newline that composing may put between chunks."""
    chars = [look.scale * look.distinct_chars for look in looks]
    shares = kept_shares(looks, [look.scale * look.distinct_documents for look in looks], chars)
    kept = sum(share * source_chars for share, source_chars in zip(shares, chars, strict=True))
    few = [text[:_SAMPLE_CHARS] for look in looks for text in look.texts][:_SAMPLE_TEXTS]
    if recipe.tokenizer.train is None:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        tokenizer = train_bpe(few, vocab_size=min(recipe.tokenizer.train, _TRAINED_ENTRIES))
    ids = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(few, add_special_tokens=False))
    return kept * ids / max(1, sum(map(len, few))) + kept / recipe.chunk.max_chars
