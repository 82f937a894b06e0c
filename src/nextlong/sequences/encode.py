"""Encode text as exactly the ids of Hugging Face `tokenizers`, by fastokens where its ids are the same.

In:  a `tokenizers.Tokenizer` (the reference) and texts.
Out: flat ids (uint32) and the length of each text, equal to `encode(text, add_special_tokens=False)` of the reference with
     `encode_special_tokens`: the name of a special token in a text is text, so that no document can end a sequence.

fastokens is about forty times as fast, but takes long to load a large vocabulary, so a process loads it when it expects
enough text, or when the reference has encoded as much. Wrong ids damage training data silently. Therefore:

1.  fastokens must load the tokenizer (it supports little but byte-level BPE) and give the reference's ids on `_trial_texts`.
2.  Texts with one of the three characters that the two libraries classify differently are encoded by the reference; a test
    tries all other characters.
3.  The first texts and then every 256th are encoded by both, and a step fails if a process has seen a difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import fastokens  # type: ignore[import-untyped]
import numpy as np
import xxhash
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import BPE

from nextlong.artifacts.finished import read_tokenizer

# One thread, like everything in a worker; fastokens reads this when it first encodes.
os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")

# The long s and the Kelvin sign match s and k when case is ignored; U+180E was white space until Unicode 6.3.
_DOUBTFUL: Final = "\u017f\u212a\u180e"
_ALWAYS_CHECKED: Final = 16
_CHECK_EVERY: Final = 256
# The reference needs gigabytes for texts of many million characters, and panics on 10 million spaces in a row.
_MAX_CHECKED_CHARS: Final = 2**17
# fastokens is loaded and tried in about 15 ms per 1,000 entries; the reference encodes 40 characters an entry in that time.
_CHARS_WORTH_AN_ENTRY: Final = 40
SPEED_UP: Final = 40.0  # of fastokens over the reference

Engine = Literal["auto", "reference"]
_Encoded = tuple[NDArray[np.uint32], NDArray[np.int64]]  # flat ids, and the length of each text

_TRIED_ADDED_TOKENS: Final = 200
# By hash of the tokenizer.json, so that a process tries a tokenizer only once.
_verdicts: dict[int, bool] = {}
# Contractions, spaces and control characters, numbers, normalized characters, scripts, emoji, unassigned characters.
_AWKWARD: Final = (
    "'s", "'S", "'ſ", "'t", "'rE", "'ve", "'LL", "'d", "’s", "ſ", "\u212a", " ", "  ", "    ", "\n", "\r\n", "\n\n", "\r", "\t",
    "\x0b", "\x1c", "\x00", "\x7f", "\u0085", "\u00a0", "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u1680",
    "1", "12", "1234567", "½", "²", "Ⅷ", "١٢", "१२३४", "１２３", "\U0001d7d8", "e\u0301", "\u0301", "a\u0323\u0302", "Å", "\u212b",
    "\u1100\u1161", "각", "ﬁ", "ẞ", "İ", "ǆ", "क्ष", "שָׁלוֹם", "العربية", "東京", "ไทย", "\ue000", "\U000e0041", "\u0378",
    "🤗", "👩\u200d👩\u200d👧", "\U0001f1e9\U0001f1ea", "❤️", "\U0001fae8", "the", " The", "don", "x", "<", "|>", "</s>", "▁", "Ġ",
    "!", "...", "#", "_", "==", "https://a.b/c?d=1",
)  # fmt: skip


def chars_before_loading(tokenizer: Tokenizer) -> int:
    """Return the number of characters below which loading fastokens takes longer than encoding with the reference."""
    return _CHARS_WORTH_AN_ENTRY * int(tokenizer.get_vocab_size())


def is_known_to_be_fast(tokenizer: Tokenizer) -> bool:
    """Return whether fastokens probably supports the tokenizer, without loading it: whether it is a byte-level BPE."""
    return isinstance(tokenizer.model, BPE) and "ByteLevel" in str(tokenizer.decoder)


class TextEncoder:
    """Encode texts as the reference does, by fastokens if its ids are the same and it is worth loading. Single-threaded."""

    def __init__(self, tokenizer: Tokenizer, *, engine: Engine = "auto") -> None:
        tokenizer.encode_special_tokens = True
        self._reference, self._is_settled = tokenizer, engine == "reference"
        self._fast: fastokens.Tokenizer | None = None
        self._chars_before_loading = chars_before_loading(tokenizer)
        self.mismatches = 0  # checked texts on which fastokens differed
        self.checkable_texts = 0  # texts encoded since the checks began

    def expect(self, chars: int) -> None:
        """Load fastokens if this is worth the time for `chars` more characters."""
        if chars >= self._chars_before_loading:
            self.settle()

    def settle(self) -> Literal["fastokens", "reference"]:
        """Load fastokens if its ids are the reference's, however few texts follow; return the library that encodes."""
        if not self._is_settled:
            self._is_settled = True
            key = xxhash.xxh3_128_intdigest((written := self._reference.to_str()).encode())
            try:
                fast = fastokens.Tokenizer.from_json_str(written)
                if key not in _verdicts:
                    texts = list(_trial_texts(self._reference))
                    true = _joined(_reference_ids(self._reference, text) for text in texts)
                    encoded = _encode_fast(fast, self._reference, texts)
                    _verdicts[key] = np.array_equal(encoded[0], true[0]) and np.array_equal(encoded[1], true[1])
                self._fast = fast if _verdicts[key] else None
            except ValueError:  # fastokens does not support the tokenizer, so the reference encodes
                pass
        return "reference" if self._fast is None else "fastokens"

    def encode_batch(self, texts: Sequence[str]) -> _Encoded:
        """Return the flat ids of all texts, and the number of ids of each text, shape (len(texts),)."""
        self.expect(0)
        if self._fast is None:
            self._chars_before_loading -= sum(map(len, texts))
            return _joined(_reference_ids(self._reference, text) for text in texts)
        try:
            ids, lengths = _encode_fast(self._fast, self._reference, texts)
        except ValueError:  # e.g. a limit of its regular expressions
            return _joined(_reference_ids(self._reference, text) for text in texts)
        stops = np.cumsum(lengths)  # where the ids of each text end in `ids`
        for place, text in enumerate(texts):
            number = self.checkable_texts + place
            is_due = number < _ALWAYS_CHECKED or number % _CHECK_EVERY == 0
            if is_due and len(text) <= _MAX_CHECKED_CHARS:
                text_ids = ids[stops[place] - lengths[place] : stops[place]]
                self.mismatches += not np.array_equal(text_ids, _reference_ids(self._reference, text))
        self.checkable_texts += len(texts)
        return ids, lengths


@lru_cache(maxsize=1)
def kept_encoder(path: Path, engine: Engine) -> TextEncoder:
    """Return the encoder of a tokenizer.json; a worker keeps it from task to task, because fastokens takes a second to load."""
    return TextEncoder(read_tokenizer(path), engine=engine)


def _trial_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield about 70,000 characters on which another tokenizer is likely to differ from the reference."""
    for piece in ("", *_AWKWARD):
        yield piece
        yield f"a{piece}1 {piece}'{piece} \n{piece}{piece}"
        yield "".join(piece + other for other in _AWKWARD)
    for char in " a1\n\té!東\u0301\x00🤗":
        yield char * 1_000
    yield "a " * 500
    for first in (
        *range(0x20, 0xD800, 0x400),
        *range(0xE000, 0x20000, 0x400),
    ):  # every 16th character, in a word and alone
        codes = (code for code in range(first, first + 0x400, 16) if not 0xD800 <= code < 0xE000)
        yield "".join(f"a{chr(code)} {chr(code)}" for code in codes)
    added = sorted({token.content for token in tokenizer.get_added_tokens_decoder().values()})
    for content in added[:: max(1, len(added) // _TRIED_ADDED_TOKENS)]:
        yield f"x{content}y {content}  {content}\n{content}{content}\u0301{content[:-1]} {content.upper()}{content[1:]}"


def _encode_fast(fast: fastokens.Tokenizer, reference: Tokenizer, texts: Sequence[str]) -> _Encoded:
    doubtful = [place for place, text in enumerate(texts) if any(char in text for char in _DOUBTFUL)]
    certain = list(texts)
    for place in doubtful:
        certain[place] = ""
    ids_bytes, offsets_bytes = fast.encode_batch_flat(certain, add_special_tokens=False, split_special_tokens=True)
    ids, offsets = np.frombuffer(ids_bytes, np.uint32), np.frombuffer(offsets_bytes, np.uint64).astype(np.int64)
    if not doubtful:
        return ids, np.diff(offsets)
    # fastokens encoded "" for doubtful texts, so each has an empty part to replace.
    parts = np.split(ids, offsets[1:-1])
    for place in doubtful:
        parts[place] = _reference_ids(reference, texts[place])
    return _joined(parts)


def _reference_ids(tokenizer: Tokenizer, text: str) -> NDArray[np.uint32]:
    # A batch of one avoids computing offsets, and never starts a thread pool.
    return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.uint32)


def _joined(all_ids: Iterable[NDArray[np.uint32]]) -> _Encoded:
    parts = [np.empty(0, np.uint32), *all_ids]
    return np.concatenate(parts), np.array([len(part) for part in parts[1:]], np.int64)
