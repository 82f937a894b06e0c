"""Special tokens: which token of a tokenizer ends a document, and which begins one.

In:  a tokenizer, and the files beside its tokenizer.json. Out: `Ends`, with the file that says so.
Models that were tuned to chat name the end of a turn as their EOS (<|eot_id|>, <|im_end|>); in text for continued
pretraining the token that ended documents in pretraining has to stand, which these vocabularies hold, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from nextlong import recipe

# As pretraining used them, the more telling first: Llama 3, GPT-2 and most byte-level ones, OLMo and MPT, Llama 2, Gemma, …
_DOCUMENT_ENDS: Final = (
    "<|end_of_text|>", "<|endoftext|>", "<|end▁of▁sentence|>", "<｜end▁of▁sentence｜>", "<|eos|>", "</s>", "<eos>", "<EOS>",
    "<|eod|>", "<EOD_TOKEN>", "<|END_OF_TEXT|>",
)  # fmt: skip
_TURN_ENDS: Final = frozenset(
    [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|im_end|>",
        "<end_of_turn>",
        "<|end|>",
        "<|return|>",
        "<|turn_end|>",
        "<|END_OF_TURN_TOKEN|>",
    ]
)


@dataclass(frozen=True)
class Ends:
    """The tokens that begin and end a document, None for none, and where each is said: a file, or how it is known."""

    bos: str | None = None
    eos: str | None = None
    bos_said_by: str = ""
    eos_said_by: str = ""


def find_ends(tokenizer: Tokenizer, beside: Path | None = None) -> Ends:
    """Return what ends and begins a document of `tokenizer`, whose other files lie in the folder `beside`.

    The end is what tokenizer_config.json, special_tokens_map.json, generation_config.json or config.json call EOS, or what the
    tokenizer itself puts behind a text, or a token that is called as documents' ends are. The beginning is only a token that the
    tokenizer puts before every text: models without one were never shown any.
    """
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = [
        *_named(beside, "eos", tokenizer),
        *((token, "its post-processor") for token in _placed(tokenizer)[1]),
    ]
    known = [(token, "its name") for token in _DOCUMENT_ENDS if token in added]
    found = [(token, said_by) for token, said_by in named if tokenizer.token_to_id(token) is not None]
    chosen = next(((token, said_by) for token, said_by in found if token not in _TURN_ENDS), None)
    eos = chosen or next(iter([*known, *found]), (None, ""))
    before = [(token, "its post-processor") for token in _placed(tokenizer)[0]]
    if not before and _config(beside, "tokenizer_config.json").get("add_bos_token") is True:
        before = list(_named(beside, "bos", tokenizer))
    bos = next(iter(before), (None, ""))
    return Ends(bos=bos[0], eos=eos[0], bos_said_by=bos[1], eos_said_by=eos[1])


def find_ends_of(config: recipe.Tokenizer) -> Ends | None:
    """Return the ends of a recipe's tokenizer as far as its files are on this machine, None if they are not."""
    from huggingface_hub import try_to_load_from_cache

    from nextlong.sequences.tokenizer import END_OF_TEXT, local_path

    if config.source is None:
        return Ends(eos=END_OF_TEXT, eos_said_by="the tokenizer that is trained")
    path = local_path(config.source)
    if not path.is_file():  # downloaded before? Nothing is asked of the hub
        cached = try_to_load_from_cache(config.source, "tokenizer.json", revision=config.revision)
        path = Path(cached) if isinstance(cached, str) else path
    try:
        return find_ends(Tokenizer.from_file(str(path)), path.parent)
    except Exception:  # the library raises a bare one; what is wrong with the file, `run` says
        return None


def _named(beside: Path | None, which: str, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yield the tokens that files beside a tokenizer.json call EOS or BOS, with the file."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _config(beside, name).get(f"{which}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            yield text, name
    for name in ("generation_config.json", "config.json"):
        ids = _config(beside, name).get(f"{which}_token_id")
        for token_id in ids if isinstance(ids, list) else [ids]:
            if isinstance(token_id, int) and (text := tokenizer.id_to_token(token_id)) is not None:
                yield text, name


def _config(beside: Path | None, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads((beside / name).read_text(encoding="utf-8")) if beside is not None else {}
    except (OSError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _placed(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the special tokens that the tokenizer puts before and behind a text."""
    tokens = tokenizer.encode("a", add_special_tokens=True)
    marks = tokens.special_tokens_mask
    text = [place for place, is_special in enumerate(marks) if not is_special]
    first, last = (text[0], text[-1]) if text else (len(marks), len(marks))
    return tokens.tokens[:first], tokens.tokens[last + 1 :]
