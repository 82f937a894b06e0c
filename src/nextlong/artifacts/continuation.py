"""Continuation: encode a chunk as the part of its document that it is.

In:  the texts of chunks, and whether each begins its document. Out: the ids, offsets or
decoded text that the chunk has within its document.

The tokenizers of Llama 2, Mistral and other SentencePiece models put a space before a
text (`Prepend`, `Metaspace`, `add_prefix_space`). In Hugging Face `tokenizers` that
space stands at the start of a document, and a chunk that continues its document must
not get one. Switching it off in a copy of the tokenizer is not exact: added tokens
inside the chunk are followed by a space too, and `Prepend` is part of how added tokens
are matched. Therefore a continuation is encoded after a short context, whose ids are
then removed. This is exact if the ids begin with those of the context alone: BPE and
Unigram then treat the rest as a text of its own. A chunk that merges with one context
is encoded after the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from nextlong.arrays import Ints, UInt32s
from nextlong.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Ids = UInt32s
Encode = Callable[[list[str]], list[_Ids]]

# Chunks end after a newline or a space, and no tokenizer merges the two parts of such
# a pair into one word.
_NEIGHBOURS: Final = (("word.\n", "Word"), ("a b ", "c"))
# A space, and its stand-ins in Metaspace and ByteLevel.
_BLANKS: Final = str.maketrans("", "", " \u2581\u0120")
# Of several scripts and kinds, so that some character does not merge with a chunk.
# Hardly a vocabulary merges newlines with text. No vocabulary has the last one, an
# unassigned character, so byte fallback encodes it.
_CONTEXTS: Final = ("\n", ".", ")", "?", "0", "。", "a", "\u0378")


class Context(NamedTuple):
    """A text that may stand before a continuation, and its ids."""

    text: str
    ids: _Ids


def contexts_of(tokenizer: Tokenizer) -> tuple[Context, ...]:
    """Return the contexts for continuations.

    There are none if the tokenizer puts no space before a text. Raises TokenizerError
    for a tokenizer that puts a space before a text, but restores none of the contexts.
    """
    if not _adds_space(tokenizer):
        return ()
    contexts = []
    for text in _CONTEXTS:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        restored = _joined(tokenizer, encoding.tokens)
        if restored.translate(_BLANKS) == text:
            contexts.append(Context(text, np.array(encoding.ids, np.uint32)))
    if not contexts:
        raise TokenizerError(
            where="tokenizer",
            problem=(
                "it puts a space before every text and its decoder does not remove "
                "it, so the token ids of a part of a document cannot be determined"
            ),
            fix=(
                "use a copy of tokenizer.json without that space: "
                "'prepend_scheme': 'never' in the pre_tokenizer, "
                "or no normalizer of type 'Prepend'"
            ),
        )
    return tuple(contexts)


def encode_within(
    texts: Sequence[str],
    begins: Iterable[bool],
    *,
    contexts: Sequence[Context],
    encode: Encode,
) -> list[_Ids]:
    """Return the ids of each chunk within its document.

    `begins` tells which chunks begin their document.
    """
    is_continuation = [bool(contexts) and not begin for begin in begins]
    alone = [
        "" if continues else text
        for text, continues in zip(texts, is_continuation, strict=True)
    ]
    ids = encode(alone)
    waiting = np.flatnonzero(is_continuation).tolist()
    for context in contexts:
        if not waiting:
            break
        encoded = encode([context.text + texts[row] for row in waiting])
        merged = []
        for row, whole in zip(waiting, encoded, strict=True):
            length = len(context.ids)
            if np.array_equal(whole[:length], context.ids):
                ids[row] = whole[length:]
            else:
                merged.append(row)
        waiting = merged
    if waiting:
        raise _inseparable(texts[waiting[0]])
    return ids


def ids_within(
    tokenizer: Tokenizer, texts: Sequence[str], begins: Iterable[bool]
) -> list[_Ids]:
    """Return the ids of each chunk within its document, by the tokenizer itself."""

    def encode(some: list[str]) -> list[_Ids]:
        encodings = tokenizer.encode_batch(some, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    contexts = contexts_of(tokenizer)
    return encode_within(texts, begins, contexts=contexts, encode=encode)


def continuation_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the ids of a text that continues a document."""
    (ids,) = ids_within(tokenizer, [text], [False])
    return tuple(map(int, ids))


def offsets_within(tokenizer: Tokenizer, text: str, *, begins: bool) -> Ints:
    """Return the first character of each token of a chunk and the one after its last.

    The shape is (tokens, 2).
    """
    contexts = () if begins else contexts_of(tokenizer)
    for context in contexts or (_NO_CONTEXT,):
        whole = tokenizer.encode(context.text + text, add_special_tokens=False)
        length = len(context.ids)
        if whole.ids[:length] == context.ids.tolist():
            offsets = np.array(whole.offsets[length:], np.int64).reshape(-1, 2)
            return np.maximum(offsets - len(context.text), 0)
    raise _inseparable(text)


def decode_within(tokenizer: Tokenizer, ids: Sequence[int], *, begins: bool) -> str:
    """Return the text of a chunk's ids within its document.

    A decoder strips the space before a text.
    """
    for context in () if begins else contexts_of(tokenizer):
        before_ids = context.ids.tolist()
        before = tokenizer.decode(before_ids, skip_special_tokens=False)
        whole = tokenizer.decode([*before_ids, *ids], skip_special_tokens=False)
        # A context of byte tokens, such as a newline, may become part of an invalid
        # character.
        if whole.startswith(before):
            return str(whole[len(before) :])
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _joined(tokenizer: Tokenizer, tokens: Sequence[str]) -> str:
    if tokenizer.decoder is None:
        return "".join(tokens)
    return str(tokenizer.decoder.decode(list(tokens)))


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Return whether parts of a text get a space that the whole does not have.

    The parts are encoded one by one.
    """
    for left, right in _NEIGHBOURS:
        encodings = [
            tokenizer.encode(text, add_special_tokens=False)
            for text in (left, right, left + right)
        ]
        left_tokens, right_tokens, whole_tokens = (
            encoding.tokens for encoding in encodings
        )
        apart = _joined(tokenizer, left_tokens + right_tokens)
        whole = _joined(tokenizer, whole_tokens)
        is_blank_apart = apart.translate(_BLANKS) == whole.translate(_BLANKS)
        if apart != whole and is_blank_apart:
            return True
    return False


_NO_CONTEXT: Final = Context("", np.empty(0, np.uint32))


def _inseparable(text: str) -> TokenizerError:
    return TokenizerError(
        where="tokenizer",
        problem=(
            f"it merges the text {text[:40]!r} with every text before it, "
            "so its token ids within a document cannot be determined"
        ),
        fix="use another tokenizer, and please report the name of this one",
    )
