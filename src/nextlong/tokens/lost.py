"""Lost: how much of a text its tokens do not say.

In:  a `tokenizers.Tokenizer` and texts. Out: a share of their characters.
A WordPiece knows no newlines, often no capitals and no accents, and puts one token for whatever it does not know: a model
cannot learn what its tokens do not say. Characters are compared as bags, for a decoder may put blanks where there were none.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer, decoders, models

from nextlong.tokens.token_chars import token_chars


def lost_share(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Return the share of the texts' characters, in NFC, that what their tokens decode to does not have, 0 to 1."""
    decoder = tokenizer.decoder
    if decoder is None and token_chars(tokenizer)["readable"].any():
        decoder = decoders.ByteLevel()
    total = lost = 0
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        characters = Counter(unicodedata.normalize("NFC", text))
        characters.subtract(Counter(unicodedata.normalize("NFC", _decoded(tokenizer, encoding, decoder))))
        total += len(text)
        lost += sum(count for count in characters.values() if count > 0)
    return lost / max(1, total)


def warning(share: float) -> str:
    """Say what a share of lost text means and what helps; "" where nothing is lost."""
    if not share:
        return ""
    return (
        f"loses {share:.1%} of the text's characters (capitals, accents, newlines, or what it does not know): no model can learn "
        "what its tokens do not say; a byte-level tokenizer loses nothing"
    )


def _decoded(tokenizer: Tokenizer, encoding: Encoding, decoder: decoders.Decoder | None) -> str:
    unknown = (
        tokenizer.model.unk_token
        if isinstance(tokenizer.model, models.BPE | models.WordPiece | models.WordLevel)
        else None
    )
    tokens = [token for token in encoding.tokens if token != unknown]
    return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))
