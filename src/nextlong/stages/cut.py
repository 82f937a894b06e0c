"""Cut: how many characters the first tokens of a chunk cover.

In:  the token ids of chunks that were cut, how many of them are kept, each chunk's length in characters; the tokenizer.
Out: characters kept; a character of which the cut leaves only some bytes is not.

Ids of a byte-level tokenizer stand for bytes of the text, so decoding them answers, and no text is read: at 128K tokens,
with one cut a sequence, tokenizing the cut chunks anew was a sixth of an export's time. Any other tokenizer is asked for
its offsets, which stay right where a normalizer changed the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NO_CHARACTER = "\ufffd"  # what bytes decode to that are no whole character
_PROBE_ASCII = "  It's\r\n\ta test,  of (1234) blanks \n "
_PROBE = f"{_PROBE_ASCII} é 日本 👍🏽 \u200b עברית\n"


def kept_chars(
    ids: Sequence[list[int]],
    *,
    tokens: Sequence[int],
    chars: Sequence[int],
    texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
    tokenizer: Tokenizer,
) -> NDArray[np.int64]:
    """Return how many whole characters the first `tokens[i]` ids of chunk i cover, shape (n,).

    `ids[i]` are all ids of chunk i, `chars[i]` is its length; `texts_of` gives the texts of those places that need it.
    """
    kept = np.full(len(ids), -1, np.int64)
    readable = _reads_back(tokenizer)
    if readable != "nothing":
        wholes = tokenizer.decode_batch(list(ids), skip_special_tokens=False)
        parts = [own[:count] for own, count in zip(ids, tokens, strict=True)]
        decoded = tokenizer.decode_batch(parts, skip_special_tokens=False)
        for place, (whole, part, size) in enumerate(zip(wholes, decoded, chars, strict=True)):
            known = whole.isascii() if readable == "ascii" else _NO_CHARACTER not in whole
            if known and len(whole) == size:
                kept[place] = len(part.rstrip(_NO_CHARACTER))
    places = np.flatnonzero(kept < 0)
    for place, text in zip(places.tolist(), texts_of(places), strict=True):
        kept[place] = _chars_by_offsets(text, tokens[place], tokenizer)
    return kept


def _reads_back(tokenizer: Tokenizer) -> Literal["any text", "ascii", "nothing"]:
    """Return which texts a chunk's ids decode to exactly, if the decoded text is as long as the chunk."""
    from tokenizers import decoders, normalizers

    normalizer = tokenizer.normalizer
    if not isinstance(tokenizer.decoder, decoders.ByteLevel) or not isinstance(normalizer, normalizers.NFC | None):
        return "nothing"
    probe = _PROBE if normalizer is None else _PROBE_ASCII
    read = tokenizer.decode(tokenizer.encode(probe, add_special_tokens=False).ids, skip_special_tokens=False)
    if read != probe:
        return "nothing"
    return "any text" if normalizer is None else "ascii"  # what NFC makes ASCII it makes so character by character


def _chars_by_offsets(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    offsets: Sequence[tuple[int, int]] = tokenizer.encode(text, add_special_tokens=False).offsets
    # A character of several tokens has the same offsets in each: if it goes on behind the cut, it is not covered.
    return min(offsets[tokens - 1][1], offsets[tokens][0]) if tokens < len(offsets) else offsets[-1][1]
