"""Convert: a tokenizer from the vocabulary file of a model without tokenizer.json.

In:  tokenizer.model of SentencePiece or tiktoken, tekken.json, *.tiktoken, or
     vocab.json and merges.txt, beside the model's tokenizer_config.json or config.json.
Out: a tokenizer of Hugging Face `tokenizers`, made by transformers (extra `convert`).

A vocabulary file does not say where words end or whether a space stands before a text,
so transformers needs to know the model's class. Without it, and for some models with
it, transformers 5 returns other ids than the model's own tokenizer, or none, without an
error. Therefore the result is compared with the vocabulary file, and with
SentencePiece's own ids.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, models

from nextlong.errors import TokenizerError
from nextlong.text import first_sentence

# In the order in which they are looked for.
_VOCABULARIES: Final = (
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "*.tiktoken",
    "vocab.json",
    "vocab.txt",
)
CONFIGS: Final = ("tokenizer_config.json", "config.json")
# Repeated spaces, an added line and rare characters: here conversions have differed.
_PROBE: Final = "It's a  test,\n\n   of (1234) words\twith é and 東京.\n"


def vocabulary_in(folder: Path) -> Path | None:
    """Return the vocabulary file of a folder, None if it has none."""
    for pattern in _VOCABULARIES:
        for path in sorted(folder.glob(pattern)):
            if is_vocabulary(path):
                return path
    return None


def is_vocabulary(path: Path) -> bool:
    """Return whether a file is a vocabulary that has to be converted, by its name."""
    has_name = any(path.match(pattern) for pattern in _VOCABULARIES)
    is_incomplete = (
        path.name == "vocab.json" and not path.with_name("merges.txt").is_file()
    )
    return has_name and not is_incomplete


def convert(vocabulary: Path) -> Tokenizer:
    """Return the tokenizer of a vocabulary file.

    Raises TokenizerError if it cannot be converted exactly.
    """
    special = _check_convertible(vocabulary)
    # Nothing is requested from the Hub: the folder has all files of the tokenizer.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import transformers

    auto: Any = transformers.AutoTokenizer
    try:
        loaded = auto.from_pretrained(vocabulary.parent, local_files_only=True)
        converted = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    # Each kind of file raises exceptions of another library.
    except Exception as error:
        raise _refusal(vocabulary, first_sentence(error)) from None
    difference = _difference(converted, vocabulary)
    if difference and _is_sentencepiece_bpe(converted, vocabulary):
        converted = _merged_by_score(converted, vocabulary)
        difference = _difference(converted, vocabulary)
    if difference:
        raise _refusal(vocabulary, difference)
    for expected_id, token in special.items():
        content = token["content"]
        found_id = converted.token_to_id(content)
        if str(found_id) != expected_id:
            raise _refusal(
                vocabulary,
                f"transformers converts it to a tokenizer that gives {content} the id "
                f"{found_id} instead of {expected_id}",
            )
    return converted


def _check_convertible(vocabulary: Path) -> dict[str, Any]:
    """Return the special tokens of the model by id, as a string.

    Raises TokenizerError if a file or a package that the conversion needs is missing.
    """
    config = _config(vocabulary.parent)
    names_class = bool(config.keys() & {"tokenizer_class", "model_type"})
    is_tekken = vocabulary.name == "tekken.json"
    if not names_class and not is_tekken:
        raise _refusal(
            vocabulary,
            "tokenizer_config.json of its model is missing, so its class is unknown",
        )
    special: dict[str, Any] = config.get("added_tokens_decoder") or {}
    if _is_tiktoken(vocabulary) and not special:
        raise _refusal(
            vocabulary,
            "tokenizer_config.json does not list its special tokens, which a file of "
            "tiktoken does not have",
        )
    if is_tekken and find_spec("mistral_common") is None:
        raise _refusal(vocabulary, "mistral-common, which converts it, is missing")
    missing = [name for name in _packages(vocabulary) if find_spec(name) is None]
    if missing:
        packages = ", ".join(missing)
        raise TokenizerError(
            where="tokenizer.source",
            problem=(
                f"{vocabulary} is a vocabulary file and must be converted, "
                f"but {packages} is not installed"
            ),
            fix="run `pip install 'nextlong[convert]'`",
        )
    return special


def _config(folder: Path) -> dict[str, Any]:
    """Return the keys of the configurations in a folder together."""
    keys: dict[str, Any] = {}
    for name in reversed(CONFIGS):
        with suppress(OSError, ValueError):
            config = json.loads((folder / name).read_text(encoding="utf-8"))
            if isinstance(config, dict):
                keys |= config
    return keys


def _packages(vocabulary: Path) -> Iterable[str]:
    """Return the packages that convert a vocabulary file."""
    yield "transformers"
    if _is_tiktoken(vocabulary):
        yield "tiktoken"
    elif vocabulary.suffix == ".model":
        yield "sentencepiece"


def _is_tiktoken(vocabulary: Path) -> bool:
    """Return whether a file has lines of a base64 word and a rank, as tiktoken's."""
    with vocabulary.open("rb") as file:
        words = file.readline(1000).split()
    return len(words) == 2 and words[1].isdigit()


def _is_sentencepiece_bpe(converted: Tokenizer, vocabulary: Path) -> bool:
    is_sentencepiece = vocabulary.suffix == ".model" and not _is_tiktoken(vocabulary)
    return is_sentencepiece and isinstance(converted.model, models.BPE)


def _merged_by_score(converted: Tokenizer, vocabulary: Path) -> Tokenizer:
    """Return a tokenizer whose merges have the order of the scores in the file.

    transformers 5 orders them by id. In Mistral's file, the pieces of several spaces
    have low ids but the lowest score.
    """
    from sentencepiece import SentencePieceProcessor
    from transformers.convert_slow_tokenizer import generate_merges

    reference = SentencePieceProcessor(model_file=str(vocabulary))
    id_of: dict[str, int] = {}
    score_of: dict[str, float] = {}
    for token_id in range(reference.get_piece_size()):
        piece = reference.id_to_piece(token_id)
        id_of[piece] = token_id
        score_of[piece] = reference.get_score(token_id)
    description = json.loads(converted.to_str())
    merges = generate_merges(id_of, score_of)
    description["model"]["merges"] = [list(pair) for pair in merges]
    return Tokenizer.from_str(json.dumps(description))


def _difference(converted: Tokenizer, vocabulary: Path) -> str:
    """Return how a converted tokenizer differs from its vocabulary file, "" if not."""
    ids = converted.encode(_PROBE, add_special_tokens=False).ids
    size = converted.get_vocab_size()
    expected = 0
    if vocabulary.suffix == ".json" and vocabulary.name != "tekken.json":
        expected = len(json.loads(vocabulary.read_text(encoding="utf-8")))
    elif vocabulary.suffix == ".txt" or _is_tiktoken(vocabulary):
        with vocabulary.open("rb") as file:
            expected = sum(1 for _ in file)
    elif vocabulary.suffix == ".model":
        from sentencepiece import SentencePieceProcessor

        reference = SentencePieceProcessor(model_file=str(vocabulary))
        expected = reference.get_piece_size()
        if ids != reference.encode(_PROBE):
            return (
                "transformers converts it to a tokenizer that gives other ids than "
                "SentencePiece"
            )
    if size < expected or not ids:
        return (
            f"transformers converts it to a tokenizer of {size:,} tokens, the file has "
            f"{expected:,}"
        )
    return ""


def _refusal(vocabulary: Path, problem: str) -> TokenizerError:
    return TokenizerError(
        where="tokenizer.source",
        problem=f"{vocabulary} is a vocabulary file, and {problem}",
        fix=(
            "get the tokenizer.json of the same model, with MODEL as its name: "
            "`hf download MODEL tokenizer.json tokenizer_config.json "
            f"--local-dir {vocabulary.parent}`"
        ),
    )
