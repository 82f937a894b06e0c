"""Load or train the tokenizer, find its begin and end tokens, and measure the characters per token.

In:  the recipe's `tokenizer` section, and the files beside a tokenizer.json; DOCUMENTS and CHUNKS of the corpus.
Out: one tokenizer.json that all later steps read; TOKEN_CHARS; E, the paper's characters per token (§3.1.2), measured on
     chunks sampled by a keyed hash of document content and chunk start, so that sharding and file order do not matter.
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
from numpy.typing import NDArray
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from nextlong import recipe
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
from nextlong.sequences.tokenize import TextEncoder
from nextlong.text import Json, first_sentence

END_OF_TEXT: Final = "<|endoftext|>"
_LLAMA3_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
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

# begun: the number of characters that begin in a token's bytes; goes_on: whether its first byte continues an earlier
# character; readable: whether its bytes are those of the text wherever its id encodes a part of it.
_TOKEN_CHARS: Final = np.dtype([("begun", "i4"), ("goes_on", "?"), ("readable", "?")])

_BYTE_LEVEL: Final = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_CONTINUATION_BYTES: Final = bytes(
    range(0x80, 0xC0)
)  # of UTF-8; every other byte begins a character
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
    """Return the step that loads or trains the tokenizer and measures E; it must have the token `megatron_eod`."""
    source = settings.source
    config = settings.identity() | {"separator": separator, "seed": seed}
    if source is not None and (path := local_path(source)).is_file():
        config |= {"source": store.hash_file(path), "revision": None}
        if is_vocabulary(path):
            config |= {"configs": _hashes_beside(path)}
        # Check before the run starts; for a tokenizer that is downloaded or trained, `check` does after this step.
        if megatron_eod is not None and not is_vocabulary(path):
            special_id(path, megatron_eod, key="export.megatron_eod")

    def tasks(done: Artifacts) -> list[Task]:
        task = partial(
            _prepare_tokenizer, tokenizer=settings, separator=separator, seed=seed
        )
        documents, chunks = (
            IngestFiles.of(done).documents,
            chunk_files(done).chunks,
        )
        return [partial(task, corpus=list(zip(documents, chunks, strict=True)))]

    def check(done: Artifact) -> None:
        if megatron_eod is not None:
            special_id(
                TokenizerFiles(done).tokenizer,
                megatron_eod,
                key="export.megatron_eod",
            )

    return Step(
        "tokenizer",
        5,
        config,
        (ingest, chunk),
        tasks,
        TokenizerResult,
        check=check,
    )


def _hashes_beside(vocabulary: Path) -> Json:
    """Return the hashes of the configurations that decide how a vocabulary file is converted."""
    paths = [vocabulary.with_name(name) for name in CONFIGS]
    return {path.name: store.hash_file(path) for path in paths if path.is_file()}


def load_tokenizer(config: recipe.Tokenizer) -> Tokenizer:
    """Return the tokenizer of `config.source`: a tokenizer.json, a folder with one, or a Hugging Face Hub name.

    A vocabulary file, or a folder that only has one, is converted. Truncation, padding
    and BPE dropout of the file are disabled. Raises TokenizerError.
    """
    source = config.source or ""
    path = local_path(source)
    if not path.is_file() and (
        path != Path(source) or re.fullmatch(_HUB_NAME, source) is None
    ):
        cure = "give a tokenizer.json, a folder with one, or a hub name such as 'gpt2'"
        raise TokenizerError(
            f"tokenizer.source={source!r}: {path} does not exist; {cure}"
        )
    try:
        loaded = _read(path, source=source, revision=config.revision)
    except TokenizerError:
        raise
    # The library raises a bare Exception for invalid files; being offline, unknown names, gated and malformed files raise
    # exceptions of different libraries.
    except Exception as error:
        if path.is_file():
            raise TokenizerError(
                f"tokenizer.source: {path} is not a tokenizer.json of Hugging Face tokenizers: {error}; "
                "`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes one"
            ) from None
        raise TokenizerError(
            f"tokenizer.source={source!r} is not a local path, and could not be downloaded from the Hugging Face Hub at revision "
            f"{config.revision!r}: {first_sentence(error)}; check the name, log in with `hf auth login` if it is gated, "
            "or give a local tokenizer.json"
        ) from None
    loaded = without_options(loaded)
    _require_continuations(loaded, source=source)
    return loaded


def _read(path: Path, *, source: str, revision: str) -> Tokenizer:
    if not path.is_file():
        return Tokenizer.from_pretrained(source, revision=revision)
    if is_vocabulary(path):
        return convert(path)
    return Tokenizer.from_file(str(path))


def _require_continuations(tokenizer: Tokenizer, *, source: str) -> None:
    """Raise TokenizerError if the ids of a chunk that continues its document cannot be determined."""
    try:
        for text in _CONTINUATIONS:
            continuation_ids(tokenizer, text)
    except TokenizerError as error:
        raise TokenizerError(f"tokenizer.source={source!r}: {error}") from None


def load_or_stand_in(config: recipe.Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of `config.source`; for one that is yet to be trained, a smaller one trained on `texts`."""
    if config.train is None:
        return load_tokenizer(config)
    return train_bpe(texts, vocab_size=min(config.train, _STAND_IN_ENTRIES))


def check_source(config: recipe.Tokenizer) -> None:
    """Raise TokenizerError if `config.source` is no tokenizer.json, no folder with one, and no possible Hub name."""
    if config.source is None:
        return
    path = local_path(config.source)
    if is_vocabulary(path):
        converted = load_tokenizer(config)
        for key in ("bos", "eos"):
            name = getattr(config, key)
            if name is not None:
                special_id(converted, name, key=f"tokenizer.{key}")
        return
    if path.is_file():
        # Loading takes a second, so only a file that does not look like a tokenizer.json is loaded, to report what is wrong.
        content = path.read_bytes().rstrip()
        parts = (rb'"model"\s*:\s*\{', rb'"vocab"\s*:')
        is_sound = content.endswith(b"}") and all(
            re.search(part, content) for part in parts
        )
        adds_space = re.search(_LEADING_SPACE, content) is not None
        for key in ("bos", "eos"):
            name = getattr(config, key)
            spellings = [
                json.dumps(name, ensure_ascii=is_ascii).encode()
                for is_ascii in (True, False)
            ]
            if (
                is_sound
                and name is not None
                and not any(spelling in content for spelling in spellings)
            ):
                special_id(load_tokenizer(config), name, key=f"tokenizer.{key}")
    else:
        is_sound = re.fullmatch(_HUB_NAME, config.source) is not None and path == Path(
            config.source
        )
        adds_space = False
    if adds_space or not is_sound:
        load_tokenizer(config)


def local_path(source: str) -> Path:
    """Return the file of a local source, whether it exists or not.

    `~` is expanded. A folder means its tokenizer.json, or else its vocabulary file.
    """
    path = Path(os.path.expanduser(source))  # noqa: PTH111 (Path.expanduser raises if there is no such home)
    if not path.is_dir():
        return path
    ready = path / "tokenizer.json"
    if ready.is_file():
        return ready
    return vocabulary_in(path) or ready


def special_id(tokenizer: Tokenizer | Path, name: str, *, key: str) -> int:
    """Return the id of a token, which the recipe's `key` names. Raises TokenizerError if there is none."""
    tokenizer = read_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    known_id: int | None = tokenizer.token_to_id(name)
    if known_id is None:
        added = [
            token.content for token in tokenizer.get_added_tokens_decoder().values()
        ]
        near = difflib.get_close_matches(name, added, n=3, cutoff=0.3) or added[:3]
        advice = (
            f"its closest special tokens: {', '.join(near)}"
            if near
            else "it has no special tokens"
        )
        raise TokenizerError(
            f"{key}={name!r} is not in the tokenizer; use one of its tokens, such as EOS; {advice}"
        )
    return known_id


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE with Llama 3's pre-tokenization and the special token <|endoftext|>; deterministic.

    The vocabulary is smaller than `vocab_size` if the texts contain no more pairs to merge.
    """
    tokenizer, split = (
        Tokenizer(models.BPE()),
        pre_tokenizers.Split(Regex(_LLAMA3_PATTERN), "isolated"),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, _BYTE_LEVEL])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet, specials = sorted(_BYTE_LEVEL.alphabet()), [END_OF_TEXT]
    options: dict[str, Any] = {
        "special_tokens": specials,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocab_size, **options)
    )
    return tokenizer


def _prepare_tokenizer(
    out: Path,
    *,
    tokenizer: recipe.Tokenizer,
    corpus: Sequence[tuple[Path, Path]],
    seed: int,
    separator: str,
) -> TokenizerResult:
    """Write `{out}.tokenizer.json`, loaded or trained, and `{out}.tokenchars.npy` (TOKEN_CHARS); measure E.

    `corpus` has the DOCUMENTS and CHUNKS of each shard. Raises TokenizerError, or CorpusError if it has no text to measure.
    """
    if tokenizer.train is None:
        loaded = load_tokenizer(tokenizer)
    else:
        loaded = train_bpe(
            _training_texts(corpus, seed=seed), vocab_size=tokenizer.train
        )
    bos_id, eos_id = (
        None if name is None else special_id(loaded, name, key=f"tokenizer.{key}")
        for key, name in (("bos", tokenizer.bos), ("eos", tokenizer.eos))
    )
    separator_ids = continuation_ids(loaded, separator)
    # TextEncoder makes the names of special tokens text, so `separator`, which may be one, was encoded before.
    # Do not use `Tokenizer.save`: it reports a full disk as a bare Exception.
    Path(f"{out}.tokenizer.json").write_text(loaded.to_str(), encoding="utf-8")
    characters = token_chars(loaded)
    np.save(f"{out}.tokenchars.npy", characters)
    encoder = TextEncoder(loaded, engine="reference")
    # E is measured on the `MEASURED_CHUNKS` chunks with the smallest keys, collected shard by shard.
    sampled = np.empty(
        (3, 0), np.uint64
    )  # rows: key, shard, row of the chunk; columns ascending by key
    for shard, paths in enumerate(corpus):
        keys = _chunk_keys(*paths, seed=seed, stage="tokenizer-measure")
        rows = np.argsort(keys, kind="stable")[:MEASURED_CHUNKS]
        sample = np.stack(
            [keys[rows], np.full(len(rows), shard, np.uint64), rows.astype(np.uint64)]
        )
        sampled = np.concatenate([sampled, sample], axis=1)
        sampled = sampled[:, np.argsort(sampled[0], kind="stable")[:MEASURED_CHUNKS]]
    texts: list[str] = []
    begins: list[bool] = []
    for shard, paths in enumerate(corpus):
        rows = np.sort(sampled[2, sampled[1] == shard]).astype(np.int64)
        for batch in iter_chunk_texts(*paths, rows):
            texts += batch.texts
            begins += batch.begins
    chars_per_token, measured_chunks = tokenizer.chars_per_token, 0
    if chars_per_token == "auto":
        tokens = len(encoder.encode_chunks(texts, begins)[0])
        if not tokens:
            raise CorpusError(
                "the corpus has no text to measure tokenizer.chars_per_token on; check ingest.sources"
            )
        chars_per_token, measured_chunks = sum(map(len, texts)) / tokens, len(texts)
    specials = (
        separator_ids,
        *([] if special is None else [special] for special in (bos_id, eos_id)),
    )
    separator_text, bos_text, eos_text = (
        decode_within(loaded, ids, begins=False) for ids in specials
    )
    every = max(1, len(texts) // _DECODED_CHUNKS)
    known = {None, *loaded.get_added_tokens_decoder()}
    return TokenizerResult(
        chars_per_token=chars_per_token,
        measured_chunks=measured_chunks,
        vocab_size=len(characters),
        bos_id=bos_id,
        eos_id=eos_id,
        separator_ids=separator_ids,
        special_texts=(separator_text, bos_text, eos_text),
        lost_share=lost_share(loaded, texts[::every], begins[::every]),
        ordinary=tuple(
            key
            for key, token in (("bos", bos_id), ("eos", eos_id))
            if token not in known
        ),
    )


def _training_texts(corpus: Sequence[tuple[Path, Path]], *, seed: int) -> Iterator[str]:
    """Yield the texts of randomly sampled chunks, about `TRAINING_CHARS` characters in total."""
    tables = (read_chunks(chunks, ("start", "end")) for _, chunks in corpus)
    total_chars = sum(int((table["end"] - table["start"]).sum()) for table in tables)
    bound = threshold_for(TRAINING_CHARS / max(total_chars, 1))
    for paths in corpus:
        rows = np.flatnonzero(
            _chunk_keys(*paths, seed=seed, stage="tokenizer-train") <= bound
        )
        for batch in iter_chunk_texts(*paths, rows):
            yield from batch.texts


def _chunk_keys(
    documents: Path, chunks: Path, *, seed: int, stage: str
) -> NDArray[np.uint64]:
    """Return a random key for each chunk, shape (rows,), from its document's content and its start alone."""
    table = read_chunks(chunks)
    of_document = keyed_hash(read_content_hashes(documents), seed=seed, stage=stage)[
        table["doc_row"]
    ]
    return keyed_hash(
        of_document + table["start"].astype(np.uint64),
        seed=seed,
        stage=f"{stage}-chunk",
    )


# The characters that the tokens of a byte-level BPE encode.


def token_chars(tokenizer: Tokenizer) -> NDArray[Any]:
    """Return _TOKEN_CHARS, shape (highest id + 1,), from which NumPy computes the text of a chunk that is cut.

    With it, processes that export need not load the tokenizer, which takes half a second for a vocabulary of 128,000. No token
    is readable if the tokenizer is no byte-level BPE, or has a normalizer other than NFC.
    """
    vocabulary, added_tokens = (
        tokenizer.get_vocab(with_added_tokens=False),
        tokenizer.get_added_tokens_decoder(),
    )
    table = np.zeros(
        max([*vocabulary.values(), *added_tokens], default=-1) + 1, _TOKEN_CHARS
    )
    normalizer = tokenizer.normalizer
    if not isinstance(tokenizer.model, models.BPE) or not isinstance(
        normalizer, normalizers.NFC | None
    ):
        return table
    # The byte of each stand-in character, taken from the reference's ByteLevel: these code points contain every UTF-8 byte.
    codes = [
        *range(0x800),
        *range(0x800, 0xD800, 0x800),
        *range(0xE000, 0x110000, 0x1000),
    ]
    bytes_of = {
        ord(stand_in): byte
        for char in map(chr, codes)
        for stand_in, byte in zip(
            _BYTE_LEVEL.pre_tokenize_str(char)[0][0], char.encode(), strict=True
        )
    }
    # `contents`: id → bytes, without the unknown token and ambiguous ids.
    alphabet = set(map(chr, bytes_of))
    unknown, contents = tokenizer.model.unk_token, dict[int, bytes]()
    for name, token in vocabulary.items():
        if name != unknown and alphabet.issuperset(name):
            contents[token] = name.translate(bytes_of).encode("latin-1")
    for token, added in added_tokens.items():
        content = added.content.encode()
        if added.content == unknown or contents.setdefault(token, content) != content:
            contents.pop(token, None)
    probe = _PROBE if normalizer is None else _PROBE_ASCII
    if (
        b"".join(
            contents.get(i, b"")
            for i in tokenizer.encode(probe, add_special_tokens=False).ids
        )
        != probe.encode()
    ):
        return table
    readable = bool if normalizer is None else _is_readable_under_nfc
    tokens, texts = list(contents), contents.values()
    table["begun"][tokens] = [
        len(text.translate(None, _CONTINUATION_BYTES)) for text in texts
    ]
    table["goes_on"][tokens] = [b"\x80" <= text[:1] < b"\xc0" for text in texts]
    table["readable"][tokens] = [readable(text) for text in texts]
    return table


def _is_readable_under_nfc(content: bytes) -> bool:
    """Return whether NFC keeps a token's characters: they are complete, not composed, and no marks, which NFC may reorder."""
    # For such characters, NFC's output is the text's characters, decomposed one by one.
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    # A character that Python's Unicode version does not know may be composed in the tokenizer's version.
    unsure = any(
        unicodedata.category(char) in ("Mn", "Mc", "Me", "Cn") for char in text
    )
    return not unsure and unicodedata.is_normalized("NFD", text)


def lost_share(
    tokenizer: Tokenizer, texts: Sequence[str], begins: Sequence[bool]
) -> float:
    """Return the share of the chunks' characters, in NFC, that is lost when their tokens are decoded, 0 to 1.

    `begins` tells which chunks begin their document.
    """
    model = tokenizer.model
    unknown = (
        model.unk_token
        if isinstance(model, models.BPE | models.WordPiece | models.WordLevel)
        else None
    )
    unknown_id = None if unknown is None else tokenizer.token_to_id(unknown)
    decoder = tokenizer.decoder
    if decoder is None and token_chars(tokenizer)["readable"].any():
        decoder = decoders.ByteLevel()
    total = lost = 0
    all_ids = ids_within(tokenizer, texts, begins)
    for text, begin, text_ids in zip(texts, begins, all_ids, strict=True):
        ids = [token for token in text_ids.tolist() if token != unknown_id]
        if tokenizer.decoder is None and decoder is not None:
            tokens = [tokenizer.id_to_token(token) or "" for token in ids]
            decoded = str(decoder.decode(tokens))
        else:
            decoded = decode_within(tokenizer, ids, begins=begin)
        contained = Counter(unicodedata.normalize("NFC", text))
        kept = Counter(unicodedata.normalize("NFC", decoded))
        total += len(text)
        lost += (contained - kept).total()
    return lost / max(1, total)


def lossy_tokenizer(share: float) -> str:
    """Return the message about a share of lost text, with the fix; "" if nothing is lost."""
    if not share:
        return ""
    return (
        f"loses {share:.1%} of the text's characters (capitals, accents, newlines or unknown characters), which a model then "
        "cannot learn; use a byte-level tokenizer, which is lossless"
    )


# The tokens that begin and end a document.

# Chat models set EOS to the end of a turn (<|eot_id|>, <|im_end|>). Text for continued pretraining needs the token that
# ended documents in pretraining, which these vocabularies also contain; here the most specific names come first: Llama 3,
# GPT-2 and most byte-level models, OLMo and MPT, Llama 2, Gemma, …
_DOCUMENT_ENDS: Final = (
    "<|end_of_text|>", "<|endoftext|>", "<|end▁of▁sentence|>", "<｜end▁of▁sentence｜>", "<|eos|>", "</s>", "<eos>", "<EOS>",
    "<|eod|>", "<EOD_TOKEN>", "<|END_OF_TEXT|>",
)  # fmt: skip
_TURN_ENDS: Final = (
    "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|turn_end|>",
    "<|END_OF_TURN_TOKEN|>",
)  # fmt: skip


class Ends(NamedTuple):
    """The tokens that begin and end a document (None: no token), and the source of each: a file, or another reason."""

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
    """Return the tokens that begin and end a document of `tokenizer`, whose other files are in the folder `beside`.

    `tokenizer_config` replaces the content of tokenizer_config.json.

    The end is the EOS of tokenizer_config.json, special_tokens_map.json, generation_config.json or config.json, or a token that
    the tokenizer itself appends to a text, or one with the name of a document end. The beginning is only a token that the
    tokenizer prepends to every text: other models have never seen one.
    """
    configs: dict[str, dict[str, Any]] = {}
    for file in (
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
        "config.json",
    ):
        with suppress(OSError, ValueError):
            parsed = (
                json.loads((beside / file).read_text(encoding="utf-8"))
                if beside is not None
                else {}
            )
            configs[file] = parsed if isinstance(parsed, dict) else {}
    if tokenizer_config is not None:
        configs = {**configs, "tokenizer_config.json": tokenizer_config}

    def named(which: str) -> Iterator[tuple[str, str]]:
        """Yield the EOS or BOS tokens of the files, each with its file."""
        for file, config in configs.items():
            token, ids = config.get(f"{which}_token"), config.get(f"{which}_token_id")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                yield text, file
            for number in ids if isinstance(ids, list) else [ids]:
                if (
                    isinstance(number, int)
                    and (text := tokenizer.id_to_token(number)) is not None
                ):
                    yield text, file

    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    # The special tokens that the tokenizer itself adds before and after a text.
    encoded = tokenizer.encode("a", add_special_tokens=True)
    text = [
        place
        for place, is_special in enumerate(encoded.special_tokens_mask)
        if not is_special
    ] or [len(encoded)]
    before = [(token, "its post-processor") for token in encoded.tokens[: text[0]]]
    after = [(token, "its post-processor") for token in encoded.tokens[text[-1] + 1 :]]
    known = [(token, "its name") for token in _DOCUMENT_ENDS if token in added]
    candidates = [
        one
        for one in (*named("eos"), *after)
        if tokenizer.token_to_id(one[0]) is not None
    ]
    chosen = [one for one in candidates if one[0] not in _TURN_ENDS]
    eos, eos_source = next(iter([*chosen, *known, *candidates]), (None, ""))
    if (
        not before
        and configs.get("tokenizer_config.json", {}).get("add_bos_token") is True
    ):
        before = list(named("bos"))
    bos, bos_source = next(iter(before), (None, ""))
    return Ends(bos, eos, bos_source, eos_source)


def find_ends_of(config: recipe.Tokenizer) -> Ends | None:
    """Return the ends of a recipe's tokenizer, or None if its files are not on this machine."""
    from huggingface_hub import try_to_load_from_cache

    if config.source is None:
        return Ends(eos=END_OF_TEXT, eos_source="the tokenizer that is trained")
    path = local_path(config.source)
    if (
        not path.is_file()
    ):  # look in the download cache only; nothing is requested from the Hub
        cached = try_to_load_from_cache(
            config.source, "tokenizer.json", revision=config.revision
        )
        path = Path(cached) if isinstance(cached, str) else path
    if not path.is_file():
        return None
    try:
        tokenizer = _read(path, source=config.source, revision=config.revision)
        return find_ends(tokenizer, path.parent)
    except (
        Exception
    ):  # the library raises a bare one; `run` reports what is wrong with the file
        return None
