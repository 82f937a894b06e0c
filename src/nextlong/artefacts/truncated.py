"""Cut: how many characters the first tokens of a chunk cover.

In:  the token ids of chunks that were cut, how many of them are kept, each chunk's length in characters; TOKEN_CHARS.
Out: characters kept; a character of which the cut leaves only some bytes is not, unless it is the only one.

Ids of a byte-level tokenizer stand for bytes of the text, and whole characters are those that begin in the bytes kept, but
for the last one if the next token goes on with it. Bytes can be lost on the way (a token that takes the blanks around it)
but none is added, so if as many characters begin in all ids as the chunk has, the first byte of each is there. Any other
chunk is tokenized anew for its offsets, which stay right where a normalizer changed the text; only then the tokenizer is
loaded: at 128K tokens, loading it in each worker took a third of the time to export Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Cuts(NamedTuple):
    """What the first 0, 1, … n tokens of a chunk of n tokens cover, shape (n + 1,) each."""

    chars: NDArray[np.int64]  # whole characters
    between: NDArray[np.bool_]  # the cut falls between two characters


def cuts_of(
    ids: NDArray[np.int32],
    *,
    chars: int,
    token_chars: NDArray[Any],
    text_of: Callable[[], str],
    tokenizer: Callable[[], Tokenizer],
) -> Cuts:
    """Return where a chunk of the given ids, `chars` characters long, may be cut.

    `text_of` and `tokenizer` are called only for chunks that `token_chars` (TOKEN_CHARS) does not tell of.
    """
    per_token = token_chars[ids]
    begun = np.concatenate([[0], np.cumsum(per_token["begun"], dtype=np.int64)])
    if begun[-1] == chars and per_token["readable"].all():
        goes_on = np.append(per_token["goes_on"], False)
        return Cuts(begun - goes_on, ~goes_on)
    offsets = np.array(tokenizer().encode(text_of(), add_special_tokens=False).offsets, np.int64).reshape(-1, 2)
    stops, starts = np.append(0, offsets[:, 1]), np.append(offsets[:, 0], chars)
    # A character of several tokens has the same offsets in each: if it goes on behind the cut, it is not covered.
    return Cuts(np.minimum(stops, starts), stops <= starts)


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
    """Return how many characters the first `tokens[i]` ids of chunk i cover, at least 1, shape (n,).

    All ids of chunk i, more than `tokens[i]`, are ids[offsets[i]:offsets[i + 1]]; `chars[i]` is its length. `texts_of` gives
    the texts of the chunks at some places.
    """
    kept = np.ones(len(tokens), np.int64)
    for place, (count, length) in enumerate(zip(tokens.tolist(), chars.tolist(), strict=True)):
        cuts = cuts_of(
            ids[offsets[place] : offsets[place + 1]],
            chars=length,
            token_chars=token_chars,
            text_of=lambda place=place: texts_of(np.array([place]))[0],  # type: ignore[misc]
            tokenizer=tokenizer,
        )
        # Tokens that hold a part of one character only are that character's: no span with tokens has an empty range.
        kept[place] = max(1, int(cuts.chars[count]))
    return kept
