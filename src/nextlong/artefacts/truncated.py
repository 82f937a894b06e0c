"""Cut: how many characters the first tokens of a chunk cover.

In:  the token ids of chunks that were cut, how many of them are kept, each chunk's length in characters; TOKEN_CHARS.
Out: characters kept; a character of which the cut leaves only some bytes is not.

Ids of a byte-level tokenizer stand for bytes of the text, and whole characters are those that begin in the bytes kept, but
for the last one if the next token goes on with it. Bytes can be lost on the way (a token that takes the blanks around it)
but none is added, so if as many characters begin in all ids as the chunk has, the first byte of each is there. Any other
chunk is tokenized anew for its offsets, which stay right where a normalizer changed the text; only then the tokenizer is
loaded: at 128K tokens, loading it in each worker took a third of the time to export Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def kept_chars(
    ids: NDArray[np.int32],
    *,
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int64],
    chars: NDArray[np.int64],
    token_chars: NDArray[Any],
    texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
    tokenizer: Callable[[], Tokenizer],
) -> NDArray[np.int64]:
    """Return how many whole characters the first `tokens[i]` ids of chunk i cover, shape (n,).

    All ids of chunk i, more than `tokens[i]`, are ids[offsets[i]:offsets[i + 1]]; `chars[i]` is its length. `texts_of` gives
    the texts of the chunks at those places that `token_chars` (TOKEN_CHARS) does not tell of.
    """
    per_token = token_chars[ids]
    first, stop, last = offsets[:-1], offsets[:-1] + tokens, offsets[1:]
    begun, unreadable = (
        np.concatenate([[0], np.cumsum(column)]) for column in (per_token["begun"], ~per_token["readable"])
    )
    kept: NDArray[np.int64] = begun[stop] - begun[first] - per_token["goes_on"][stop]
    is_exact = (begun[last] - begun[first] == chars) & (unreadable[last] == unreadable[first])
    places = np.flatnonzero(~is_exact)
    if len(places):
        texts = zip(texts_of(places), tokens[places].tolist(), strict=True)
        kept[places] = [_chars_by_offsets(text, count, tokenizer()) for text, count in texts]
    return kept


def _chars_by_offsets(text: str, tokens: int, tokenizer: Tokenizer) -> int:
    offsets: Sequence[tuple[int, int]] = tokenizer.encode(text, add_special_tokens=False).offsets
    # A character of several tokens has the same offsets in each: if it goes on behind the cut, it is not covered.
    return min(offsets[tokens - 1][1], offsets[tokens][0])
