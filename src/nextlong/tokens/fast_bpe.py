"""Fast BPE: text → ids, exactly as Hugging Face `tokenizers` gives them, several times faster.

In:  a `tokenizers.Tokenizer` (the reference) and texts.
Out: flat ids (uint32) and one length per text; equal to `encode(text, add_special_tokens=False)` of the reference with
`encode_special_tokens` on: a special token's name in a text is text like any other, so no document can end a sequence.

Natural text is made of few distinct pieces (words, numbers, punctuation). So texts are cut into pieces by Python's `re`
and each distinct piece is encoded once; after that it is one dictionary look-up. Why the ids cannot differ:

1.  *A piece's ids are the reference's.* They come from the reference's own model, which encodes each piece by itself,
    so they depend on the piece alone (BPE-dropout is refused). The byte alphabet is read off the reference's ByteLevel.
2.  *The pieces are the reference's.* Only splitting patterns that stand in `_PATTERNS` are taken, each beside its
    Python form. Such a pattern sees a character only through membership in letters, numbers and white space and through
    a few ASCII literals; the three classes are disjoint. The Python form writes its classes out, character by
    character. The class of a character is not looked up in Python's Unicode tables but asked of the reference: it
    belongs to class X if the reference cuts `_PROBE` with it exactly as it cuts it with X's ASCII representative. So
    versions of Unicode cannot differ, and a character that also matches a literal (the long s in a case-insensitive 's)
    agrees with no representative: it gets no class, and texts with it go to the reference. ASCII itself is compared
    likewise. Possessive quantifiers stand only where what follows is disjoint from what they took, so that there is
    nothing to backtrack into.
3.  *Normalizing changes nothing.* None, or NFC. ASCII is NFC. Characters assigned in Unicode 3.2 have the same NFC in
    each version since 4.1 (stability policy), so Python's quick check decides for them; texts with later characters
    are given to the reference's normalizer and compared. A text that is not in NFC goes to the reference.
4.  *No added token is in the text.* A text that holds the content of one, raw or normalized, goes to the reference,
    whatever its flags: they can only narrow where it matches. Special tokens are none here: the reference passes them by.
5.  *Everything else is the reference's*: a tokenizer with any other part is never cut here.

Against our own bugs stands a tripwire: the first texts and then every 256th are encoded both ways, and the differences
are counted. Whoever encodes refuses to go on if there is one.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from nextlong.tokens.byte_level import byte_characters

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = CL100K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

_CL100K_PYTHON: Final = (
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n<L><N>]?+[<L>]++|[<N>]{1,3}+"
    r"| ?+[^<S><L><N>]++[\r\n]*+|[<S>]*[\r\n]+|[<S>]+(?![^<S>])|[<S>]+"
)
# The reference's splitting pattern → the same for Python's re; <L>, <N>, <S> stand for the characters of each class.
_PATTERNS: Final = {
    _GPT2: r"'(?:[stmd]|re|ve|ll)| ?+[<L>]++| ?+[<N>]++| ?+[^<S><L><N>]++|[<S>]+(?![^<S>])|[<S>]+",
    CL100K_PATTERN: _CL100K_PYTHON,
    _QWEN2: _CL100K_PYTHON.replace("[<N>]{1,3}+", "[<N>]"),
}

# Letters, numbers, white space, others: an ASCII representative that occurs in no pattern as a literal.
_REPRESENTATIVES: Final = {"L": "x", "N": "7", "S": "\t", "O": "!"}
_ASCII_CLASSES: Final = {"L": "a-zA-Z", "N": "0-9", "S": r"\t-\r "}
# `?` is the character in question. The first row tells the classes apart; the second finds letters that match as the s,
# t, m or d of a contraction, or as the second or first letter of re, ve and ll.
_PROBE: Final = (
    "a?a1?1!?!a??a1??1!??! ?\n? \n"
    "x'?a x'?ea x'?la x'r?a x'v?a x'l?a x'?"
)  # fmt: skip
_SELF_TEST: Final = (
    "It's THE user'S 1st, 22nd and 12345th test... we'LL see\tif they'd (or \"I've\") 99.5% match!?\r\n\r\n",
    "  if x == 1:\n\t\treturn 'no'\n\n\x00\x01\x1c\x1f\x7f trailing blanks  \n \n  end   ",
    "Zoë's naïve café — “quoted” … 東京で１２３個 Привет, мир! עברית ١٢٣ हिन्दी ½ Ⅷ 🤗 \U0001f469\u200d\U0001f467",
    "a\u00a0b\u2028c\u3000\u3000d\u0085e 's 't're've'm'll'd 'S'T'RE'VE'M'LL'D 'x'1'\n'",
)

_MAX_CACHED_PIECES: Final = 2**18
_MAX_CACHED_CHARS: Final = 64
_BLOCK: Final = 32
_ALWAYS_CHECKED: Final = 16
_CHECK_EVERY: Final = 256
# The reference needs gigabytes for texts of many millions of characters, and panics on 10 million blanks in a row.
_MAX_CHECKED_CHARS: Final = 2**17


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a run's tokenizer.json as corpus text is encoded: nothing cut or padded, special tokens' names are text."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


class TextEncoder:
    """Encodes texts as the reference does; `engine` says whether by pieces (`fast`) or by the reference itself.

    `engine="auto"` takes the fast one where its ids are provably the same. `fallback_texts` counts the texts that it left
    to the reference, `mismatches` the checked texts on which it differed. Sets `encode_special_tokens` of the tokenizer
    that it is given. Single-threaded.
    """

    def __init__(self, tokenizer: Tokenizer, *, engine: Literal["auto", "reference"] = "auto") -> None:
        tokenizer.encode_special_tokens = True
        self._reference = tokenizer
        self._cutter = None if engine == "reference" else _cutter_for(tokenizer)
        self.count_anew()

    @classmethod
    def from_file(cls, path: Path, *, engine: Literal["auto", "reference"] = "auto") -> TextEncoder:
        """Read a tokenizer.json as `read_tokenizer` does."""
        return cls(read_tokenizer(path), engine=engine)

    def count_anew(self) -> None:
        """Set the counts to zero: which texts are checked no longer depends on what was encoded before."""
        self.fallback_texts = 0
        self.mismatches = 0
        self._encoded_texts = 0

    @property
    def engine(self) -> Literal["fast", "reference"]:
        """`fast`, or `reference` for tokenizers that are not cut here."""
        return "reference" if self._cutter is None else "fast"

    def encode_batch(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return all ids, flat, and the number of ids of each text, shape (len(texts),)."""
        encoded = (
            [self._reference_ids(text) for text in texts]
            if self._cutter is None
            else self._encode_fast(self._cutter, texts)
        )
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) // 4
        return np.frombuffer(b"".join(encoded), np.uint32), lengths

    def _encode_fast(self, cutter: _Cutter, texts: Sequence[str]) -> list[bytes]:
        encoded = []
        for text in texts:
            ids = cutter.encode(text)
            if ids is None:
                ids = self._reference_ids(text)
                self.fallback_texts += 1
            elif self._is_checked(text):
                self.mismatches += ids != self._reference_ids(text)
            self._encoded_texts += 1
            encoded.append(ids)
        return encoded

    def _is_checked(self, text: str) -> bool:
        due = self._encoded_texts < _ALWAYS_CHECKED or self._encoded_texts % _CHECK_EVERY == 0
        return due and len(text) <= _MAX_CHECKED_CHARS

    def _reference_ids(self, text: str) -> bytes:
        return _reference_ids(self._reference, text)


def _reference_ids(tokenizer: Tokenizer, text: str) -> bytes:
    # A batch of one: the path without offsets, and never a thread pool's worth of threads.
    return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.uint32).tobytes()


class _Cutter:
    """Texts → ids through pieces; None for a text that must go to the reference."""

    def __init__(self, tokenizer: Tokenizer, *, pattern: str, added: Sequence[str]) -> None:
        self._classes = _CharacterClasses(tokenizer.pre_tokenizer.pre_tokenize_str, pattern)
        self._normalizer = tokenizer.normalizer
        self._holds_added_token = _finder(added)
        self._ids_of = _PieceIds(tokenizer).__getitem__

    def encode(self, text: str) -> bytes | None:
        """Return the ids of a text as uint32 bytes, or None where this module's argument does not hold."""
        if not text.isascii() and not (self._classes.cover(text) and self._is_normalized(text)):
            return None
        if self._holds_added_token(text):
            return None
        return b"".join(map(self._ids_of, self._classes.cut(text)))

    def cuts_ascii_alike(self) -> bool:
        """Whether each ASCII character, in the probe, is cut as the reference cuts it."""
        probes = [_PROBE.replace("?", chr(code)) for code in range(128)]
        return all(self._classes.cut(text) == self._classes.reference_pieces(text) for text in probes)

    def _is_normalized(self, text: str) -> bool:
        if self._normalizer is None:
            return True
        if self._classes.holds_recent(text):
            return bool(self._normalizer.normalize_str(text) == text)
        return unicodedata.is_normalized("NFC", text)


class _CharacterClasses:
    """What the splitting pattern needs to know of characters: learnt from the reference as they turn up."""

    def __init__(self, split: Callable[[str], list[tuple[str, tuple[int, int]]]], pattern: str) -> None:
        self._split = split
        self._pattern = pattern
        self._members: dict[str, list[int]] = {name: [] for name in _REPRESENTATIVES}
        self._recent: list[int] = []  # those of them that Unicode 3.2 did not have yet
        self._learnt_blocks: set[int] = set()
        self._outcomes = {name: self._outcome(char) for name, char in _REPRESENTATIVES.items()}
        self._compile()

    def cover(self, text: str) -> bool:
        """Whether all characters of a text have a class; new ones are learnt first, with their neighbours."""
        if self._find_unknown(text) is None:
            return True
        new_blocks = {ord(char) // _BLOCK for char in set(text) if not char.isascii()} - self._learnt_blocks
        if new_blocks:
            for block in new_blocks:
                self._learn(block)
            self._compile()
        return self._find_unknown(text) is None

    def reference_pieces(self, text: str) -> list[str]:
        """Return the pieces that the reference cuts a text into."""
        return [text[start:end] for _, (start, end) in self._split(text)]

    def _learn(self, block: int) -> None:
        for code in range(block * _BLOCK, (block + 1) * _BLOCK):
            outcome = self._outcome(chr(code))
            alike = [name for name, known in self._outcomes.items() if outcome == known]
            if len(alike) == 1:
                self._members[alike[0]].append(code)
                if unicodedata.ucd_3_2_0.category(chr(code)) == "Cn":
                    self._recent.append(code)
        self._learnt_blocks.add(block)

    def _outcome(self, char: str) -> list[tuple[int, int]]:
        return [span for _, span in self._split(_PROBE.replace("?", char))]

    def _compile(self) -> None:
        members = {name: _ranges(codes) for name, codes in self._members.items()}
        pattern = self._pattern
        for name, ascii_members in _ASCII_CLASSES.items():
            pattern = pattern.replace(f"<{name}>", ascii_members + members[name])
        recent = _ranges(self._recent)
        self.cut = re.compile(pattern).findall
        self.holds_recent = re.compile(f"[{recent}]" if recent else "(?!)").search
        self._find_unknown = re.compile(rf"[^\x00-\x7f{''.join(members.values())}]").search


def _ranges(codes: Iterable[int]) -> str:
    """Return non-ASCII code points as the inside of a character class, neighbours as ranges."""
    runs: list[list[int]] = []
    for code in sorted(codes):
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)


class _PieceIds(dict[str, bytes]):
    """Piece → ids as uint32 bytes; a piece not met yet is encoded by the reference's model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenize = tokenizer.model.tokenize
        self._byte_characters = byte_characters()

    def __missing__(self, piece: str) -> bytes:
        tokens = self._tokenize(piece.encode().decode("latin-1").translate(self._byte_characters))
        ids = array("I", [token.id for token in tokens]).tobytes()
        if len(piece) <= _MAX_CACHED_CHARS:
            if len(self) >= _MAX_CACHED_PIECES:
                self.clear()
            self[piece] = ids
        return ids


def _cutter_for(tokenizer: Tokenizer) -> _Cutter | None:
    """Return the fast engine for a tokenizer, or None where one of its parts is not known here."""
    pattern = _split_pattern(_part(tokenizer.pre_tokenizer))
    added = _added_contents(tokenizer)
    known = (
        pattern in _PATTERNS
        and type(tokenizer.model).__name__ == "BPE"
        and not tokenizer.model.dropout
        and _part(tokenizer.normalizer) in ({}, {"type": "NFC"})
        and _keeps_ids(_part(tokenizer.post_processor))
        and all(added)
    )
    if not known:
        return None
    cutter = _Cutter(tokenizer, pattern=_PATTERNS[pattern], added=added)
    agrees = cutter.cuts_ascii_alike() and all(
        cutter.encode(text) in (None, _reference_ids(tokenizer, text)) for text in _SELF_TEST
    )
    return cutter if agrees else None


def _part(part: Any) -> dict[str, Any]:
    """Return a tokenizer's part as its JSON form; empty where there is none, unknown where it has no such form."""
    if part is None:
        return {}
    try:
        state: dict[str, Any] = json.loads(part.__getstate__())
    except Exception:  # parts written in Python cannot be serialised, and say so with a bare Exception
        return {"type": "unknown"}
    return state


def _split_pattern(pre_tokenizer: dict[str, Any]) -> str:
    """Return the pattern that a byte-level pre-tokenizer splits by, or "" where it is of another kind."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, **rest} if rest.get("use_regex", True):
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return regex
    return ""


def _keeps_ids(post_processor: dict[str, Any]) -> bool:
    """Whether a post-processor adds nothing but special tokens, which are not asked for."""
    match post_processor:
        case {"type": "ByteLevel"}:
            return True
        case {"type": "TemplateProcessing", "single": list(single)}:
            return [part["Sequence"]["id"] for part in single if "Sequence" in part] == ["A"]
        case {"type": "Sequence", "processors": list(parts)}:
            return all(map(_keeps_ids, parts))
    return not post_processor


def _added_contents(tokenizer: Tokenizer) -> list[str]:
    """Return the contents of all added tokens that texts may hold, raw and normalized; special ones are text there."""
    contents = {token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special}
    if tokenizer.normalizer is not None:
        contents |= {tokenizer.normalizer.normalize_str(content) for content in contents}
    return sorted(contents)


def _finder(contents: Sequence[str]) -> Callable[[str], object]:
    """Return a search for any of the contents; those that hold another one need not be looked for."""
    needles = [content for content in contents if not any(other in content for other in contents if other != content)]
    if len(needles) > 8:
        return re.compile("|".join(map(re.escape, needles))).search
    return lambda text: any(needle in text for needle in needles)
