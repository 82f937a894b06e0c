"""Reference: the ids, offsets and decoded text that Hugging Face `tokenizers` give to a chunk within its document.

A tokenizer of SentencePiece's kind puts a space before a text. That space belongs to the start of a document: a chunk that
continues one is encoded and decoded behind another text, which is then taken off.
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
        """Return the ids of each chunk; `begins` tells which chunks begin their document."""
        if not self.adds_space:
            encodings = self._tokenizer.encode_batch_fast(
                list(texts), add_special_tokens=False
            )
            return [encoding.ids for encoding in encodings]
        return [
            self._encode(text, begins=begin)[0]
            for text, begin in zip(texts, begins, strict=True)
        ]

    def offsets(self, text: str, *, begins: bool) -> list[tuple[int, int]]:
        """Return the first character of each token of a chunk, and the one after its last."""
        return self._encode(text, begins=begins)[1]

    def texts(
        self, all_ids: Sequence[Sequence[int]], begins: Sequence[bool]
    ) -> list[str]:
        """Return the text of the ids of each chunk."""
        plain = self._tokenizer.decode_batch(
            [list(ids) for ids in all_ids], skip_special_tokens=False
        )
        if self.adds_space:
            for number, ids in enumerate(all_ids):
                if not begins[number]:
                    plain[number] = self._text_behind(list(ids), plain[number])
        return list(plain)

    @cached_property
    def adds_space(self) -> bool:
        """Whether texts that are encoded one by one get a space that they do not have when joined."""
        for left, right in (("word.\n", "Word"), ("a b ", "c")):
            one_by_one = [*self._tokens(left), *self._tokens(right)]
            apart, joined = map(self._joined, (one_by_one, self._tokens(left + right)))
            without_spaces = (
                "".join(char for char in text if char not in _SPACES)
                for text in (apart, joined)
            )
            if apart != joined and len(set(without_spaces)) == 1:
                return True
        return False

    @cached_property
    def _befores(self) -> list[tuple[str, list[int]]]:
        """The texts before a continuation that the tokenizer restores, and their ids."""
        restored = []
        for before in _BEFORE:
            encoding = self._tokenizer.encode(before, add_special_tokens=False)
            if self._joined(encoding.tokens).strip(_SPACES) == before:
                restored.append((before, encoding.ids))
        return restored

    def _encode(
        self, text: str, *, begins: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        if begins or not self.adds_space:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        for before, ids in self._befores:
            encoding = self._tokenizer.encode(before + text, add_special_tokens=False)
            count, size = len(ids), len(before)
            if encoding.ids[:count] == ids:
                offsets = [
                    (max(0, start - size), max(0, stop - size))
                    for start, stop in encoding.offsets[count:]
                ]
                return encoding.ids[count:], offsets
        raise ValueError(f"the tokenizer merges {text[:40]!r} with any text before it")

    def _text_behind(self, ids: list[int], alone: str) -> str:
        """Return the text of ids that follow another text; `alone` is their text at the start of a document."""
        for _, before_ids in self._befores:
            before, whole = (
                self._tokenizer.decode(some, skip_special_tokens=False)
                for some in (before_ids, before_ids + ids)
            )
            if whole.startswith(before):
                return str(whole[len(before) :])
        return alone

    def _tokens(self, text: str) -> list[str]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).tokens)

    def _joined(self, tokens: list[str]) -> str:
        decoder = self._tokenizer.decoder
        return "".join(tokens) if decoder is None else str(decoder.decode(tokens))
