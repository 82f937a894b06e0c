"""Load or train the tokenizer, find its begin and end tokens, and measure E.

In:  the recipe's `tokenizer` section, and the files beside a tokenizer.json; DOCUMENTS
     and CHUNKS of the corpus.
Out: one tokenizer.json that all later steps read; TOKEN_CHARS; E, the paper's
     characters per token (§3.1.2), measured on chunks sampled by a keyed hash of
     document content and chunk start, so that sharding and file order do not matter.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from nextlong import recipe
from nextlong.arrays import AnyArray, Hashes
from nextlong.artifacts.continuation import (
    continuation_ids,
    decode_within,
    ids_within,
)
from nextlong.artifacts.corpus_files import (
    iter_chunk_texts,
    read_chunks,
    read_content_hashes,
)
from nextlong.artifacts.results import (
    IngestFiles,
    TokenizerFiles,
    TokenizerResult,
    chunk_files,
)
from nextlong.artifacts.sequence_files import read_tokenizer, without_options
from nextlong.engine import store
from nextlong.engine.step import Artifact, Artifacts, Step, Task
from nextlong.errors import CorpusError, TokenizerError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.sequences.convert import CONFIGS, convert, is_vocabulary, vocabulary_in
from nextlong.sequences.tokenize import TextEncoder, share_encoder
from nextlong.text import Json, first_sentence

END_OF_TEXT: Final = "<|endoftext|>"
_LLAMA3_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HUB_NAME: Final = r"(?!.*\.json$)[\w-][\w.-]*(/[\w-][\w.-]*)?"
MEASURED_CHUNKS: Final = 2048
_DECODED_CHUNKS: Final = 256
TRAINING_CHARS: Final = 20_000_000
_STAND_IN_ENTRIES: Final = 4096  # within a tenth of the characters per token of 32,000
# What makes a tokenizer put a space before a text, in its tokenizer.json.
_LEADING_SPACE: Final = rb'"Prepend"|"prepend_scheme"\s*:\s*"(always|first)"'
# Beginnings of chunks that continue a document.
_CONTINUATIONS: Final = ("Word", " word", "\nWord", "1", "(x)", "é", "東京")

_TOKEN_CHARS: Final = np.dtype(
    [
        # The number of characters that begin in a token's bytes.
        ("begun", "i4"),
        # Whether its first byte continues an earlier character.
        ("goes_on", "?"),
        # Whether its bytes are those of the text wherever its id encodes a part of it.
        ("readable", "?"),
    ]
)

_BYTE_LEVEL: Final = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Of UTF-8; every other byte begins a character.
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0xC0))
_PROBE_ASCII: Final = "It's\r\n\ta test,  of (1234) blanks \n "
_PROBE: Final = f"{_PROBE_ASCII} é 日本 👍🏽 \u200b עברית\n"


def tokenizer_step(
    settings: recipe.Tokenizer,
    ingest: Step,
    chunk: Step,
    *,
    separator: str,
    seed: int,
    megatron_eod: str | None,
) -> Step:
    """Return the step that loads or trains the tokenizer and measures E.

    The tokenizer must have the token `megatron_eod`.
    """
    config = settings.identity() | {"separator": separator, "seed": seed}
    path = None if settings.source is None else local_path(settings.source)
    if path is not None and path.is_file():
        config |= {"source": store.hash_file(path), "revision": None}
        if is_vocabulary(path):
            config |= {"configs": _hashes_beside(path)}
        elif megatron_eod is not None:
            # Check before the run starts; for a tokenizer that is downloaded, converted
            # or trained, `check` does after this step.
            special_id(path, megatron_eod, key="export.megatron_eod")

    def tasks(done: Artifacts) -> list[Task]:
        documents = IngestFiles.of(done).documents
        chunks = chunk_files(done).chunks
        task = partial(
            _prepare_tokenizer,
            tokenizer=settings,
            corpus=list(zip(documents, chunks, strict=True)),
            seed=seed,
            separator=separator,
        )
        return [task]

    def check(done: Artifact) -> None:
        if megatron_eod is not None:
            tokenizer = TokenizerFiles(done).tokenizer
            special_id(tokenizer, megatron_eod, key="export.megatron_eod")

    return Step(
        name="tokenizer",
        phase="read",
        version=5,
        config=config,
        inputs=(ingest, chunk),
        tasks=tasks,
        result=TokenizerResult,
        check=check,
    )


def _hashes_beside(vocabulary: Path) -> Json:
    """Return the hashes of the configurations that decide how a file is converted."""
    paths = [vocabulary.with_name(name) for name in CONFIGS]
    return {path.name: store.hash_file(path) for path in paths if path.is_file()}


def load_tokenizer(config: recipe.Tokenizer) -> Tokenizer:
    """Return the tokenizer of `config.source`.

    A tokenizer.json, a folder with one, or a Hugging Face Hub name. A vocabulary file,
    or a folder that only has one, is converted. Truncation, padding and BPE dropout of
    the file are disabled. Raises TokenizerError.
    """
    source = config.source or ""
    path = local_path(source)
    if not path.is_file() and not _may_be_hub_name(source, path):
        raise TokenizerError(
            where="tokenizer.source",
            value=repr(source),
            problem=f"points to {path}, which does not exist",
            fix=(
                "give a tokenizer.json, a folder with one, or a hub name such as 'gpt2'"
            ),
        )
    try:
        loaded = _read(path, source=source, revision=config.revision)
    except TokenizerError:
        raise
    # The library raises a bare Exception for invalid files; being offline, unknown
    # names, gated and malformed files raise exceptions of different libraries.
    except Exception as error:
        raise _unreadable(config, path, error) from None
    loaded = without_options(loaded)
    _require_continuations(loaded, source=source)
    return loaded


def is_worth_sharing(config: recipe.Tokenizer, *, chars: float) -> bool:
    """Return whether one process should load fastokens for all that tokenize.

    That takes as long as the reference needs for about as many characters as the file
    of the tokenizer has bytes. One that is trained or downloaded is loaded later.
    """
    if config.source is None or config.engine == "reference":
        return False
    path = local_path(config.source)
    return path.is_file() and path.stat().st_size <= chars


def share_tokenizer(config: recipe.Tokenizer) -> None:
    """Load a tokenizer for all processes that are forked from this one.

    What is wrong with it, the step that prepares it reports.
    """
    with suppress(TokenizerError):
        share_encoder(load_tokenizer(config), config.engine)


def _may_be_hub_name(source: str, path: Path) -> bool:
    """Return whether a source that is no file may be a name of the Hugging Face Hub."""
    is_name = re.fullmatch(_HUB_NAME, source) is not None
    return is_name and path == Path(source)


def _unreadable(
    config: recipe.Tokenizer,
    path: Path,
    error: Exception,
) -> TokenizerError:
    """Return the error for a file, or a name on the Hub, that cannot be loaded."""
    if path.is_file():
        kind = "a tokenizer.json of Hugging Face tokenizers"
        return TokenizerError(
            where="tokenizer.source",
            problem=f"{path} is not {kind}: {error}",
            fix=(
                "`AutoTokenizer.from_pretrained(…).save_pretrained(…)` "
                "of transformers writes one"
            ),
        )
    return TokenizerError(
        where="tokenizer.source",
        value=repr(config.source),
        problem=(
            "is not a local path, and could not be downloaded "
            "from the Hugging Face Hub "
            f"at revision {config.revision!r}: {first_sentence(error)}"
        ),
        fix=(
            "check the name, log in with `hf auth login` if it is gated, "
            "or give a local tokenizer.json"
        ),
    )


def _read(path: Path, *, source: str, revision: str) -> Tokenizer:
    if not path.is_file():
        return Tokenizer.from_pretrained(source, revision=revision)
    if is_vocabulary(path):
        return convert(path)
    return Tokenizer.from_file(str(path))


def _require_continuations(tokenizer: Tokenizer, *, source: str) -> None:
    """Raise TokenizerError if the ids of chunks that continue documents are unknown."""
    try:
        for text in _CONTINUATIONS:
            continuation_ids(tokenizer, text)
    except TokenizerError as error:
        raise TokenizerError(
            where="tokenizer.source",
            value=repr(source),
            problem=f"cannot be used: {error.problem}",
            fix=error.fix,
        ) from None


def load_or_stand_in(config: recipe.Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of `config.source`.

    For one that is yet to be trained, a smaller one trained on `texts`.
    """
    if config.train is None:
        return load_tokenizer(config)
    return train_bpe(texts, vocab_size=min(config.train, _STAND_IN_ENTRIES))


def check_source(config: recipe.Tokenizer) -> None:
    """Raise TokenizerError if `config.source` can be no tokenizer.

    That is: no tokenizer.json, no folder with one, and no possible Hub name.
    """
    if config.source is None:
        return
    path = local_path(config.source)
    if is_vocabulary(path):
        converted = load_tokenizer(config)
        for key, name in _named_ends(config):
            special_id(converted, name, key=key)
    elif path.is_file():
        _check_file(config, path)
    elif not _may_be_hub_name(config.source, path):
        load_tokenizer(config)  # raises


def _check_file(config: recipe.Tokenizer, path: Path) -> None:
    """Raise TokenizerError if a file is no tokenizer.json, or lacks `bos` or `eos`.

    Loading takes a second, so only a file that does not look like a tokenizer.json is
    loaded, to report what is wrong.
    """
    content = path.read_bytes().rstrip()
    parts = (rb'"model"\s*:\s*\{', rb'"vocab"\s*:')
    has_parts = all(re.search(part, content) for part in parts)
    if not has_parts or not content.endswith(b"}"):
        load_tokenizer(config)
        return
    for key, name in _named_ends(config):
        as_ascii = json.dumps(name).encode()
        as_utf8 = json.dumps(name, ensure_ascii=False).encode()
        if as_ascii not in content and as_utf8 not in content:
            special_id(load_tokenizer(config), name, key=key)
    if re.search(_LEADING_SPACE, content) is not None:
        load_tokenizer(config)


def _named_ends(config: recipe.Tokenizer) -> Iterator[tuple[str, str]]:
    """Yield the keys of the recipe that name a token, each with the token."""
    if config.bos is not None:
        yield "tokenizer.bos", config.bos
    if config.eos is not None:
        yield "tokenizer.eos", config.eos


def local_path(source: str) -> Path:
    """Return the file of a local source, whether it exists or not.

    `~` is expanded. A folder means its tokenizer.json, or else its vocabulary file.
    """
    # Path.expanduser raises if there is no such home.
    path = Path(os.path.expanduser(source))  # noqa: PTH111
    if not path.is_dir():
        return path
    ready = path / "tokenizer.json"
    if ready.is_file():
        return ready
    return vocabulary_in(path) or ready


def special_id(tokenizer: Tokenizer | Path, name: str, *, key: str) -> int:
    """Return the id of a token, which the recipe's `key` names.

    Raises TokenizerError if there is none.
    """
    if isinstance(tokenizer, Path):
        tokenizer = read_tokenizer(tokenizer)
    known_id: int | None = tokenizer.token_to_id(name)
    if known_id is not None:
        return known_id
    added_tokens = tokenizer.get_added_tokens_decoder().values()
    added = [token.content for token in added_tokens]
    near = difflib.get_close_matches(name, added, n=3, cutoff=0.3) or added[:3]
    advice = "it has no special tokens"
    if near:
        advice = f"its closest special tokens: {', '.join(near)}"
    raise TokenizerError(
        where=key,
        value=repr(name),
        problem="is not in the tokenizer",
        fix=f"use one of its tokens, such as EOS; {advice}",
    )


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE with Llama 3's pre-tokenization; deterministic.

    It has the special token <|endoftext|>. The vocabulary is smaller than `vocab_size`
    if the texts contain no more pairs to merge.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_LLAMA3_PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, _BYTE_LEVEL])
    tokenizer.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": [END_OF_TEXT],
        "initial_alphabet": sorted(_BYTE_LEVEL.alphabet()),
        "show_progress": False,
    }
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**options))
    return tokenizer


def _prepare_tokenizer(
    out: Path,
    *,
    tokenizer: recipe.Tokenizer,
    corpus: Sequence[tuple[Path, Path]],
    seed: int,
    separator: str,
) -> TokenizerResult:
    """Load or train the tokenizer, write it and TOKEN_CHARS, and measure E.

    Writes `{out}.tokenizer.json` and `{out}.tokenchars.npy`. `corpus` has the DOCUMENTS
    and CHUNKS of each shard. Raises TokenizerError, or CorpusError if it has no text to
    measure.
    """
    if tokenizer.train is None:
        loaded = load_tokenizer(tokenizer)
    else:
        training_texts = _training_texts(corpus, seed=seed)
        loaded = train_bpe(training_texts, vocab_size=tokenizer.train)
    ends = dict(_named_ends(tokenizer))
    ids_of_ends = {key: special_id(loaded, name, key=key) for key, name in ends.items()}
    bos_id = ids_of_ends.get("tokenizer.bos")
    eos_id = ids_of_ends.get("tokenizer.eos")
    separator_ids = continuation_ids(loaded, separator)
    # TextEncoder makes the names of special tokens text, so `separator`, which may be
    # one, was encoded before. `Tokenizer.save` is not used, because it reports a full
    # disk as a bare Exception.
    written = loaded.to_str()
    Path(f"{out}.tokenizer.json").write_text(written, encoding="utf-8")
    characters = token_chars(loaded)
    np.save(f"{out}.tokenchars.npy", characters)
    reference = TextEncoder(loaded, engine="reference")

    texts, begins = _measured_texts(corpus, seed=seed)
    chars_per_token = tokenizer.chars_per_token
    measured_chunks = 0
    if chars_per_token == "auto":
        # Never by fastokens, which only some processes have at hand: E decides how many
        # chunks a draft gets, and must be the same on any executor.
        ids, _ = reference.encode_chunks(texts, begins)
        if not len(ids):
            raise CorpusError(
                where="tokenizer.chars_per_token",
                problem="the corpus has no text to measure it on",
                fix="check ingest.sources",
            )
        chars_per_token = sum(map(len, texts)) / len(ids)
        measured_chunks = len(texts)

    bos_ids = [] if bos_id is None else [bos_id]
    eos_ids = [] if eos_id is None else [eos_id]
    separator_text, bos_text, eos_text = (
        decode_within(loaded, ids, begins=False)
        for ids in (separator_ids, bos_ids, eos_ids)
    )
    every = max(1, len(texts) // _DECODED_CHUNKS)
    added_ids = {None, *loaded.get_added_tokens_decoder()}
    special = (("bos", bos_id), ("eos", eos_id))
    return TokenizerResult(
        chars_per_token=chars_per_token,
        measured_chunks=measured_chunks,
        vocab_size=len(characters),
        bos_id=bos_id,
        eos_id=eos_id,
        separator_ids=separator_ids,
        special_texts=(separator_text, bos_text, eos_text),
        lost_share=lost_share(loaded, texts[::every], begins[::every]),
        ordinary=tuple(key for key, token in special if token not in added_ids),
    )


def _measured_texts(
    corpus: Sequence[tuple[Path, Path]], *, seed: int
) -> tuple[list[str], list[bool]]:
    """Return the texts on which E is measured, and whether each begins its document.

    They are the `MEASURED_CHUNKS` chunks with the smallest keys, collected shard by
    shard.
    """
    # Rows: key, shard, row of the chunk; columns ascending by key.
    sampled = np.empty((3, 0), np.uint64)
    for shard, (documents, chunks) in enumerate(corpus):
        keys = _chunk_keys(documents, chunks, seed=seed, stage="tokenizer-measure")
        rows = np.argsort(keys, kind="stable")[:MEASURED_CHUNKS]
        shards = np.full(len(rows), shard, np.uint64)
        sample = np.stack([keys[rows], shards, rows.astype(np.uint64)])
        sampled = np.concatenate([sampled, sample], axis=1)
        smallest = np.argsort(sampled[0], kind="stable")[:MEASURED_CHUNKS]
        sampled = sampled[:, smallest]
    texts: list[str] = []
    begins: list[bool] = []
    for shard, (documents, chunks) in enumerate(corpus):
        rows = np.sort(sampled[2, sampled[1] == shard]).astype(np.int64)
        for batch in iter_chunk_texts(documents, chunks, rows):
            texts += batch.texts
            begins += batch.begins
    return texts, begins


def _training_texts(corpus: Sequence[tuple[Path, Path]], *, seed: int) -> Iterator[str]:
    """Yield the texts of randomly sampled chunks.

    They have about `TRAINING_CHARS` characters in total.
    """
    total_chars = 0
    for _, chunks in corpus:
        table = read_chunks(chunks, ("start", "end"))
        total_chars += int((table["end"] - table["start"]).sum())
    threshold = threshold_for(TRAINING_CHARS / max(total_chars, 1))
    for documents, chunks in corpus:
        keys = _chunk_keys(documents, chunks, seed=seed, stage="tokenizer-train")
        rows = np.flatnonzero(keys <= threshold)
        for batch in iter_chunk_texts(documents, chunks, rows):
            yield from batch.texts


def _chunk_keys(
    documents: Path,
    chunks: Path,
    *,
    seed: int,
    stage: str,
) -> Hashes:
    """Return a random key for each chunk, shape (rows,).

    It depends on the document's content and the chunk's start alone.
    """
    table = read_chunks(chunks)
    content_hashes = read_content_hashes(documents)
    document_keys = keyed_hash(content_hashes, seed=seed, stage=stage)
    chunk_hashes = document_keys[table["doc_row"]] + table["start"].astype(np.uint64)
    return keyed_hash(chunk_hashes, seed=seed, stage=f"{stage}-chunk")


# The characters that the tokens of a byte-level BPE encode.


def token_chars(tokenizer: Tokenizer) -> AnyArray:
    """Return _TOKEN_CHARS, shape (highest id + 1,), to compute the text of a cut chunk.

    NumPy computes it, so processes that export need not load the tokenizer, which takes
    half a second for a vocabulary of 128,000. No token is readable if the tokenizer is
    no byte-level BPE, or has a normalizer other than NFC.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added_tokens = tokenizer.get_added_tokens_decoder()
    highest_id = max([*vocabulary.values(), *added_tokens], default=-1)
    table = np.zeros(highest_id + 1, _TOKEN_CHARS)
    normalizer = tokenizer.normalizer
    is_bpe = isinstance(tokenizer.model, models.BPE)
    if not is_bpe or not isinstance(normalizer, normalizers.NFC | None):
        return table
    contents = _token_contents(vocabulary, added_tokens, tokenizer.model.unk_token)
    # Ids whose bytes are not those of the text show in the text that they encode.
    probe = _PROBE if normalizer is None else _PROBE_ASCII
    ids = tokenizer.encode(probe, add_special_tokens=False).ids
    restored = b"".join(contents.get(token, b"") for token in ids)
    if restored != probe.encode():
        return table
    is_readable = bool if normalizer is None else _is_readable_under_nfc
    tokens = list(contents)
    texts = contents.values()
    table["begun"][tokens] = [
        len(text.translate(None, _CONTINUATION_BYTES)) for text in texts
    ]
    table["goes_on"][tokens] = [b"\x80" <= text[:1] < b"\xc0" for text in texts]
    table["readable"][tokens] = [is_readable(text) for text in texts]
    return table


def _token_contents(
    vocabulary: dict[str, int],
    added_tokens: dict[int, AddedToken],
    unknown: str | None,
) -> dict[int, bytes]:
    """Return the bytes of each token of a byte-level BPE, by id.

    The unknown token and ambiguous ids are left out.
    """
    byte_of = _bytes_of_stand_ins()
    alphabet = set(map(chr, byte_of))
    contents: dict[int, bytes] = {}
    for name, token in vocabulary.items():
        if name != unknown and alphabet.issuperset(name):
            contents[token] = name.translate(byte_of).encode("latin-1")
    for token, added in added_tokens.items():
        content = added.content.encode()
        is_ambiguous = contents.setdefault(token, content) != content
        if added.content == unknown or is_ambiguous:
            contents.pop(token, None)
    return contents


def _bytes_of_stand_ins() -> dict[int, int]:
    """Return the byte that each character of a byte-level token stands for.

    Taken from the reference's ByteLevel: these code points contain every UTF-8 byte.
    """
    codes = [
        *range(0x800),
        *range(0x800, 0xD800, 0x800),
        *range(0xE000, 0x110000, 0x1000),
    ]
    byte_of: dict[int, int] = {}
    for char in map(chr, codes):
        ((stand_ins, _),) = _BYTE_LEVEL.pre_tokenize_str(char)
        for stand_in, byte in zip(stand_ins, char.encode(), strict=True):
            byte_of[ord(stand_in)] = byte
    return byte_of


def _is_readable_under_nfc(content: bytes) -> bool:
    """Return whether NFC keeps a token's characters.

    They are complete, not composed, and no marks, which NFC may reorder.
    """
    # For such characters, NFC's output is the text's characters, decomposed one by one.
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    # A character that Python's Unicode version does not know may be composed in the
    # tokenizer's version.
    categories = {unicodedata.category(char) for char in text}
    is_unsure = not categories.isdisjoint(("Mn", "Mc", "Me", "Cn"))
    return not is_unsure and unicodedata.is_normalized("NFD", text)


def lost_share(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    begins: Sequence[bool],
) -> float:
    """Return the share of the chunks' characters that decoding their tokens loses.

    0 to 1, compared in NFC. `begins` tells which chunks begin their document.
    """
    unknown_id = _unknown_id(tokenizer)
    # A byte-level BPE without a decoder.
    stand_in_decoder = None
    if tokenizer.decoder is None and token_chars(tokenizer)["readable"].any():
        stand_in_decoder = decoders.ByteLevel()
    total = 0
    lost = 0
    all_ids = ids_within(tokenizer, texts, begins)
    for text, begins_document, text_ids in zip(texts, begins, all_ids, strict=True):
        ids = [token for token in text_ids.tolist() if token != unknown_id]
        if stand_in_decoder is not None:
            tokens = [tokenizer.id_to_token(token) or "" for token in ids]
            decoded = str(stand_in_decoder.decode(tokens))
        else:
            decoded = decode_within(tokenizer, ids, begins=begins_document)
        contained = Counter(unicodedata.normalize("NFC", text))
        kept = Counter(unicodedata.normalize("NFC", decoded))
        total += len(text)
        lost += (contained - kept).total()
    return lost / max(1, total)


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token for unknown characters, None if there is none."""
    model = tokenizer.model
    if not isinstance(model, models.BPE | models.WordPiece | models.WordLevel):
        return None
    unknown = model.unk_token
    return None if unknown is None else tokenizer.token_to_id(unknown)


def lossy_tokenizer(share: float) -> str:
    """Return the message about a share of lost text, with the fix.

    "" if nothing is lost.
    """
    if not share:
        return ""
    characters = "(capitals, accents, newlines or unknown characters)"
    return (
        f"loses {share:.1%} of the text's characters {characters}, which a model then "
        "cannot learn; use a byte-level tokenizer, which is lossless"
    )


# The tokens that begin and end a document.

# Chat models set EOS to the end of a turn (<|eot_id|>, <|im_end|>). Text for continued
# pretraining needs the token that ended documents in pretraining, which these
# vocabularies also contain; here the most specific names come first: Llama 3, GPT-2 and
# most byte-level models, OLMo and MPT, Llama 2, Gemma, …
_DOCUMENT_ENDS: Final = (
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
    "<|eos|>",
    "</s>",
    "<eos>",
    "<EOS>",
    "<|eod|>",
    "<EOD_TOKEN>",
    "<|END_OF_TEXT|>",
)
_TURN_ENDS: Final = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|turn_end|>",
    "<|END_OF_TURN_TOKEN|>",
)
_CONFIG_FILES: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)
# A token, and where it was found.
_Found = tuple[str, str]


class Ends(NamedTuple):
    """The tokens that begin and end a document (None: no token).

    The source of each is a file, or another reason.
    """

    bos: str | None = None
    eos: str | None = None
    bos_source: str = ""
    eos_source: str = ""


def find_ends(
    tokenizer: Tokenizer,
    beside: Path | None = None,
    *,
    tokenizer_config: dict[str, Any] | None = None,
) -> Ends:
    """Return the tokens that begin and end a document of `tokenizer`.

    Its other files are in the folder `beside`; `tokenizer_config` replaces the content
    of tokenizer_config.json.

    The end is the EOS of tokenizer_config.json, special_tokens_map.json,
    generation_config.json or config.json, or a token that the tokenizer itself appends
    to a text, or one with the name of a document end. The beginning is only a token
    that the tokenizer prepends to every text: other models have never seen one.
    """
    configs = _configs(beside)
    if tokenizer_config is not None:
        configs["tokenizer_config.json"] = tokenizer_config
    before, after = _tokens_around(tokenizer)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    by_name = [(token, "its name") for token in _DOCUMENT_ENDS if token in added]
    candidates = [
        (token, source)
        for token, source in (*_named_in(configs, "eos", tokenizer), *after)
        if tokenizer.token_to_id(token) is not None
    ]
    chosen = [
        (token, source) for token, source in candidates if token not in _TURN_ENDS
    ]
    eos, eos_source = next(iter([*chosen, *by_name, *candidates]), (None, ""))
    if not before and _adds_bos(configs):
        before = list(_named_in(configs, "bos", tokenizer))
    bos, bos_source = before[0] if before else (None, "")
    return Ends(bos=bos, eos=eos, bos_source=bos_source, eos_source=eos_source)


def _configs(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return the content of the configurations in a folder, by file, in order."""
    configs: dict[str, dict[str, Any]] = {}
    for file in _CONFIG_FILES:
        if folder is None:
            configs[file] = {}
            continue
        with suppress(OSError, ValueError):
            parsed = json.loads((folder / file).read_text(encoding="utf-8"))
            configs[file] = parsed if isinstance(parsed, dict) else {}
    return configs


def _adds_bos(configs: dict[str, dict[str, Any]]) -> bool:
    config = configs.get("tokenizer_config.json", {})
    return config.get("add_bos_token") is True


def _named_in(
    configs: dict[str, dict[str, Any]],
    which: str,
    tokenizer: Tokenizer,
) -> Iterator[_Found]:
    """Yield the "eos" or "bos" tokens of the files, each with its file."""
    for file, config in configs.items():
        token = config.get(f"{which}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield content, file
        ids = config.get(f"{which}_token_id")
        for token_id in ids if isinstance(ids, list) else [ids]:
            if isinstance(token_id, int):
                content = tokenizer.id_to_token(token_id)
                if content is not None:
                    yield content, file


def _tokens_around(tokenizer: Tokenizer) -> tuple[list[_Found], list[_Found]]:
    """Return the special tokens that a tokenizer adds before and after a text."""
    encoded = tokenizer.encode("a", add_special_tokens=True)
    is_text = [not is_special for is_special in encoded.special_tokens_mask]
    indices = [index for index, is_part in enumerate(is_text) if is_part]
    # If all are special, all are before the text.
    first = indices[0] if indices else len(encoded)
    last = indices[-1] if indices else len(encoded)
    source = "its post-processor"
    before = [(token, source) for token in encoded.tokens[:first]]
    after = [(token, source) for token in encoded.tokens[last + 1 :]]
    return before, after


def find_ends_of(config: recipe.Tokenizer) -> Ends | None:
    """Return the ends of a recipe's tokenizer.

    None if its files are not on this machine.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if config.source is None:
        return Ends(eos=END_OF_TEXT, eos_source="the tokenizer that is trained")
    path = local_path(config.source)
    if not path.is_file():
        # Look in the download cache only; nothing is requested from the Hub.
        try:
            cached = try_to_load_from_cache(
                config.source, "tokenizer.json", revision=config.revision
            )
        except HFValidationError:  # no name of the Hub; `run` says so
            return None
        if not isinstance(cached, str):
            return None
        path = Path(cached)
    if not path.is_file():
        return None
    try:
        tokenizer = _read(path, source=config.source, revision=config.revision)
        return find_ends(tokenizer, path.parent)
    # The library raises a bare one; `run` reports what is wrong with the file.
    except Exception:
        return None
