"""Reference: what Hugging Face `tokenizers` gives a chunk within its document.

In:  the texts or ids of chunks, and whether each begins its document.
Out: ids, the characters of each token, and decoded text.

A tokenizer of SentencePiece's kind puts a space before a text. That space belongs to
the start of a document: a chunk that continues one is encoded and decoded behind
another text, which is then taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Texts before a continuation; one that the continuation merges with is not used.
_BEFORE = ("\n", ".", ")", "?", "0", "。", "a", "\u0378")
# A space in plain text, in SentencePiece's tokens and in byte-level tokens.
_SPACES = " ▁Ġ"


class Reference:
    """A run's tokenizer; special tokens spelled out in a document are text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """Return the ids of each chunk; `begins`: which chunks begin their document."""
        if not self.adds_space:
            encodings = self._tokenizer.encode_batch_fast(
                list(texts), add_special_tokens=False
            )
            return [encoding.ids for encoding in encodings]
        all_ids = []
        for text, begins_document in zip(texts, begins, strict=True):
            ids, _ = self._encode(text, begins=begins_document)
            all_ids.append(ids)
        return all_ids

    def offsets(self, text: str, *, begins: bool) -> list[tuple[int, int]]:
        """Return the range of characters [first, stop) of each token of a chunk."""
        _, offsets = self._encode(text, begins=begins)
        return offsets

    def texts(
        self, all_ids: Sequence[Sequence[int]], begins: Sequence[bool]
    ) -> list[str]:
        """Return the text of the ids of each chunk."""
        texts: list[str] = self._tokenizer.decode_batch(
            [list(ids) for ids in all_ids], skip_special_tokens=False
        )
        if self.adds_space:
            for index, ids in enumerate(all_ids):
                if not begins[index]:
                    texts[index] = self._text_behind(list(ids), texts[index])
        return texts

    @cached_property
    def adds_space(self) -> bool:
        """Whether each text that is encoded gets a space that it does not have.

        Then two texts encoded one by one have a space more than both joined.
        """
        for left, right in (("word.\n", "Word"), ("a b ", "c")):
            apart = self._joined(self._tokens(left) + self._tokens(right))
            joined = self._joined(self._tokens(left + right))
            has_same_letters = _without_spaces(apart) == _without_spaces(joined)
            if apart != joined and has_same_letters:
                return True
        return False

    @cached_property
    def _befores(self) -> list[tuple[str, list[int]]]:
        """Texts before a continuation that the tokenizer restores, with their ids."""
        restored = []
        for before in _BEFORE:
            encoding = self._tokenizer.encode(before, add_special_tokens=False)
            # Apart from the space that the tokenizer puts before it.
            if self._joined(encoding.tokens).strip(_SPACES) == before:
                restored.append((before, encoding.ids))
        return restored

    def _encode(
        self, text: str, *, begins: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a chunk, and the range of characters of each."""
        if begins or not self.adds_space:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        for before, before_ids in self._befores:
            encoding = self._tokenizer.encode(before + text, add_special_tokens=False)
            tokens = len(before_ids)
            chars = len(before)
            # Otherwise, a token has characters of both texts.
            if encoding.ids[:tokens] == before_ids:
                offsets = [
                    (max(0, start - chars), max(0, stop - chars))
                    for start, stop in encoding.offsets[tokens:]
                ]
                return encoding.ids[tokens:], offsets
        raise ValueError(f"the tokenizer merges {text[:40]!r} with any text before it")

    def _text_behind(self, ids: list[int], alone: str) -> str:
        """Return the text of ids that follow another text.

        `alone` is their text at the start of a document.
        """
        for _, before_ids in self._befores:
            before = self._decoded(before_ids)
            whole = self._decoded(before_ids + ids)
            if whole.startswith(before):
                return whole[len(before) :]
        return alone

    def _decoded(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _tokens(self, text: str) -> list[str]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).tokens)

    def _joined(self, tokens: list[str]) -> str:
        decoder = self._tokenizer.decoder
        if decoder is None:
            return "".join(tokens)
        return str(decoder.decode(tokens))


def _without_spaces(text: str) -> str:
    return "".join(char for char in text if char not in _SPACES)
