"""Recipe keys: the sections of a recipe, and the amounts of data that follow from them.

In:  plain data, as YAML gives it.
Out: validated, immutable sections, one frozen pydantic model each, and numbers that
     steps and `nextlong plan` share.

Each parameter of the paper (arXiv 2501.12766) is a key, with the paper's value as its
default or in a preset under `recipes/`. The field descriptions are the documentation:
`nextlong init` writes them as comments, and the reference page of the docs is generated
from them.
"""

from __future__ import annotations

import codecs
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nextlong.plugins import (
    INDEXES,
    INPUT_FORMATS,
    KNOWN_ANSWERS,
    METHODS,
    Registry,
)

# Lengths are powers of two, so k is 1,024 as in the names of models: 128k is 131,072.
_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_LENGTH = re.compile(r"(\d{1,15})([kKmM]?)", re.ASCII)
_WITH_A_UNIT = re.compile(r"[\d.,_]+\s*[^\W\d_]+")

# Sequences of up to this length share meta-documents and candidates.
_SHARED_TOKENS = 131_072
# Enough for `_SHARED_TOKENS` at 864 characters per chunk.
_FEWEST_CANDIDATES = 1024
# Of English; limits the number of neighbours, and serves plans for models.
TYPICAL_CHARS_PER_TOKEN = 4.5
_DOCUMENT_MARGIN = 1.2
# Times the chunks of a draft; docs/retrieval.md compares other values.
_SHORTLISTED = 2
# Of all chunks, in the shortlists of all meta-documents: these overlap, so less than a
# fifth of the chunks is embedded.
_LISTED_SHARE = 0.25
# A document of T·E characters times this margin probably has T tokens, so it is worth
# counting them before its chunks are searched for.
_LONG_MARGIN = 1.5
# Mean chunks in compose.min_gap_tokens: auto (docs/decisions/0003-exact-fit.md).
MIN_GAP_CHUNKS = 0.5
# Of T·E: a document of at most so many characters almost never exceeds T, in any
# language.
SURE_SHARE = 0.5
TOKENIZER_BYTES = 150e6  # memory of a tokenizer and its cache
# Tasks at least, so that small data sets use several cores.
BLOCKS = 16
# Per task at most.
MOST_QUERIES = 8_192


def read_length(text: str) -> int | None:
    """Return the number that a length such as 8192, 8k, 64K or 1M means.

    None if the text is not a length.
    """
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = match.groups()
    return int(number) * _UNITS[unit.lower()]


def _in_full(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    length = read_length(value)
    if length is None and _WITH_A_UNIT.fullmatch(value.strip()):
        raise ValueError(
            "a length is a whole number, such as 131072, 128k (k is 1,024) or 1M (M is "
            "1,048,576)"
        )
    return value if length is None else length


# An integer that a recipe may write as 128k.
Length = Annotated[int, BeforeValidator(_in_full)]
PositiveLength = Annotated[Length, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class NegativeChoice:
    """Where negatives come from, and their order.

    origin: the retrieved candidates, the whole corpus, both of these in turn, or the
        meta-chunk itself, which is then repeated on purpose
    """

    origin: Literal["retrieved", "corpus", "both", "meta-chunk"] = "retrieved"
    order: Literal["nearest", "random", "farthest"] = "nearest"


NEGATIVES: Final[Mapping[str, NegativeChoice]] = {
    "top": NegativeChoice(),
    "random-retrieved": NegativeChoice(order="random"),
    "tail": NegativeChoice(order="farthest"),
    "random-corpus": NegativeChoice(origin="corpus", order="random"),
    "mixed": NegativeChoice(origin="both", order="random"),
    "self-repeat": NegativeChoice(origin="meta-chunk"),
}

Auto = Literal["auto"]
Positive = Annotated[int, Field(gt=0)]
Named = Annotated[str, Field(min_length=1)]


def as_list(value: Any) -> Any:
    """Wrap a single string in a list, so that `formats: jsonl` is allowed."""
    return [value] if isinstance(value, str) else value


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"names {repeated[0]!r} twice; name it once")
    return names


_Names = Annotated[tuple[Named, ...], AfterValidator(_each_once)]


# Marks of keys, which stand in their annotations: `Annotated[str, MayBePath()]`.


class MayBePath:
    """Mark a key that may hold a local path; a data card shows only its last part."""


class MayBePrivate:
    """Mark a key that may hold private information.

    A data card shows its value only if it is the default.
    """


class Operational:
    """Mark a key that changes how or where a run works, never its data.

    Changing it invalidates no cached step. The one exception is `tokenizer.engine`:
    changing it reruns the steps that tokenize, because it is a workaround for an engine
    that produced wrong ids.
    """


def _http(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("does not start with http:// or https://; give the whole URL")
    return url


Url = Annotated[str, AfterValidator(_http), MayBePrivate()]


class Section(
    BaseModel, frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
):
    """A section of a recipe."""

    def identity(self) -> dict[str, JsonValue]:
        """Return the section as plain data without operational keys.

        They are left out of nested sections too. Fingerprints are made of this.
        """
        # A new key counts by default (docs/decisions/0013-what-a-step-is-known-by.md).
        operational: set[str] = set()
        for name, field in type(self).model_fields.items():
            if any(isinstance(mark, Operational) for mark in field.metadata):
                operational.add(name)
        identity: dict[str, JsonValue] = self.model_dump(
            mode="json", exclude=operational
        )
        for name in identity:
            value = getattr(self, name)
            if isinstance(value, Section):
                identity[name] = value.identity()
        return identity


def options_class(registry: Registry, name: str) -> type[Section]:
    """Return the model of an extension's recipe section.

    Raises PluginError if the extension declares no valid one.
    """
    declared = registry.load(name, object)
    options = getattr(declared, "Options", None)
    if not (isinstance(options, type) and issubclass(options, Section)):
        rule = "which must be a subclass of nextlong.recipe.Section"
        raise registry.broken(name, f"has {options!r} for its Options, {rule}")
    for key, field in options.model_fields.items():
        if field.is_required():
            raise registry.broken(name, f"has no default for its option {key!r}")
    return options


def keyed(default: Any, meaning: str) -> Any:
    """Return the field of a key with its description."""
    return Field(default, description=meaning)


_ID: Final = "id"


def _single_as_string(columns: Any) -> Any:
    """Return the only item of a list, so that a column has one spelling."""
    if columns in ([], ()):
        raise ValueError("names no column; name the one with the text")
    is_single = isinstance(columns, list | tuple) and len(columns) == 1
    return columns[0] if is_single else columns


# A list of one column is that column, so that equal recipes compare equal.
_TextColumns = Annotated[Named | _Names, BeforeValidator(_single_as_string)]


class Source(Section):
    """One source of documents: a path, folder, glob or URL, under one name."""

    path: Named = Field(
        description="a file, folder, glob or fsspec URL (s3://, gs://, hf://); .jsonl, "
        ".parquet, Arrow or HF dataset folders, .csv, .tsv, .warc, .html, .txt, .md, "
        ".mds, .idx with .bin, .ds; .gz, .zst, .bz2, .xz, .lz4"
    )
    name: str = keyed(
        "", "name of the source in reports and metadata; default: the path"
    )
    text: _TextColumns = keyed(
        "text",
        "column with the text; a.b reads a field, a[].b a field of each object in a "
        "list, [title, body] joins columns",
    )
    id: Named = keyed(
        _ID,
        "column with document ids; documents without an id are named file:line; a "
        "column other than `id` must exist",
    )
    format: str = keyed(
        "auto",
        "auto: by file extension; or jsonl, parquet, arrow, csv, tsv, warc, html, "
        "text, mds, megatron, datatrove, or a plugin's format",
    )
    tokenizer: Named | None = keyed(
        None,
        "for token ids (mds, megatron, datatrove): the tokenizer that made them, as "
        "tokenizer.json, folder or name on the hub",
    )
    end_token: Named | None = keyed(
        None,
        "for token ids: the token after each document; null: the tokenizer's "
        "<|end_of_text|>, <|endoftext|>, </s> or <eos>",
    )
    split: Named | None = keyed(
        None,
        "split of a data set folder, as for load_dataset: train, train+validation, or "
        "all (every file); null: train",
    )
    config: Named | None = keyed(
        None, "config of a data set folder; null: the default one of its README.md"
    )
    encoding: Named | None = keyed(
        None,
        "encoding of text files, such as cp1252, gb18030 or utf-16; null: UTF-8; not "
        "for Parquet, Arrow and WARC",
    )
    filter: Named | None = keyed(
        None,
        "SQL condition on the columns; only matching documents are used, e.g. language "
        "= 'en' AND score > 0.5",
    )
    metadata: Annotated[_Names, BeforeValidator(as_list)] = keyed(
        (), "columns to keep as metadata of each document; exported with every span"
    )
    license: str = keyed(
        "", "SPDX license identifier of the texts; written to the data card"
    )
    weight: Annotated[float, Field(gt=0)] | None = keyed(
        None,
        "relative share of characters among the weighted sources; no document is "
        "repeated, so the scarcest source limits the others",
    )
    max_documents: Positive | None = keyed(
        None, "maximum number of documents, sampled by keyed hash"
    )
    max_chars: Positive | None = keyed(
        None, "maximum number of characters, sampled by keyed hash"
    )

    @field_validator("format")
    @classmethod
    def _known(cls, name: str) -> str:
        if name == "auto":
            return name
        known = INPUT_FORMATS.declarations(object)
        if name not in known:
            raise ValueError(
                f"unknown input format; choose auto or one of {', '.join(known)}"
            )
        return name

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str | None) -> str | None:
        if name is None:
            return None
        try:
            # It refuses codecs that are no encodings of text, such as base64.
            known = io.TextIOWrapper(io.BytesIO(), name)
        except LookupError:
            raise ValueError(
                "unknown encoding; choose one of Python's, such as cp1252, gb18030 or "
                "utf-16"
            ) from None
        # One spelling, so that `latin1` and `iso-8859-1` read the same documents.
        canonical = codecs.lookup(known.encoding).name
        return None if canonical == "utf-8" else canonical

    @model_validator(mode="after")
    def _text_is_no_id(self) -> Self:
        if self.id in self.text_columns:
            raise ValueError(
                f"text and id are both {self.id!r}; name another column for one of them"
            )
        return self

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of the text, also of a single one."""
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def names_ids(self) -> bool:
        """Whether the recipe names an id column, which must then exist."""
        return self.id != _ID

    @property
    def label(self) -> str:
        """The name that documents carry in their `source` column."""
        return self.name or self.path


class Ingest(Section):
    """files → documents."""

    sources: tuple[Source, ...] = Field(description="one or more sources of documents")
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = keyed(
        0.01, "stop if more than this fraction of the records is invalid"
    )
    max_document_chars: Positive = keyed(
        10_000_000, "reject documents with more characters"
    )
    dedup: Literal["exact", "normalized", "minhash"] = keyed(
        "exact",
        "duplicate documents to remove: exact | normalized (ignores case and white "
        "space) | minhash (near-duplicates; needs nextlong[dedup])",
    )
    dedup_threshold: Annotated[float, Field(gt=0, le=1)] = keyed(
        0.8,
        "minhash: Jaccard similarity of five-word shingles above which two documents "
        "are near-duplicates",
    )
    filter: Literal["gzip"] | None = keyed(
        None,
        "gzip: of the documents of 8,192 tokens or more of each source, remove the "
        "fifth that compresses most and the fifth that compresses least (Olmo 3)",
    )
    long_filter: Annotated[float, Field(gt=0, lt=1)] | None = keyed(
        None,
        "share of the documents of 8,192 tokens or more of each source to keep: those "
        "whose last tokens gain most from context beyond 2,048 tokens, by scorer.model",
    )
    exclude: Named | None = keyed(
        None,
        "JSON Lines file of documents to exclude, by source and id, or whole sources; "
        "nextlong view writes one",
    )
    shard_mb: Annotated[float, Field(gt=0)] | Auto = keyed(
        "auto", "text per shard in MB; auto: total / 32, between 1 and 128"
    )

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if not self.sources:
            raise ValueError("sources is empty; name at least one file, folder or URL")
        labels = [source.label for source in self.sources]
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        if repeated:
            raise ValueError(
                f"sources share the name {repeated[0]!r}; give each its own name"
            )
        return self


class Ray(Section):
    """The cluster of executor: ray; nodes must see the run directory at one path."""

    address: Named | None = keyed(
        None,
        "address of a running cluster: host:port, auto or ray://…; null: start one on "
        "this machine",
    )
    retries: Annotated[int, Field(ge=0)] = keyed(
        3, "how often to retry a task whose worker or node was lost"
    )


class Chunk(Section):
    """documents → chunks."""

    max_chars: Annotated[Length, Field(ge=16)] = keyed(
        2048, "maximum chunk size in characters (the paper's granularity s)"
    )
    length: Literal["slice", "paper"] = keyed(
        "slice",
        "slice: max_chars counts every character; paper: it does not count newlines "
        "between paragraphs",
    )
    oversize: Literal["split", "keep"] = keyed(
        "split",
        "paragraphs over max_chars: split at sentence ends, then words; keep: leave "
        "them whole, as in the paper",
    )


class Decontaminate(Section):
    """Remove chunks that share a word n-gram with evaluation texts."""

    files: _Names = keyed(
        (), "evaluation files (json, jsonl, csv, tsv, txt, md): paths or URLs"
    )
    ngram: Positive = keyed(
        13, "length of the word n-grams; shorter texts are compared as a whole"
    )


class Mine(Section):
    """meta-chunks → candidates."""

    candidates: Positive | Auto = keyed(
        "auto",
        "candidates retrieved for each meta-chunk (512 in the paper); auto: the chunks "
        "that fill target_tokens, at least 1024, doubled while sequences are too few",
    )
    reorder_top: Positive = keyed(
        512,
        "number of nearest candidates that compose.negatives: random-retrieved and "
        "tail choose from",
    )
    near_duplicates: Annotated[float, Field(ge=1e-6, le=1)] | None = keyed(
        0.8,
        "filter out negatives that share this fraction of their words with their "
        "meta-document or another negative; null: no filter",
    )
    max_similarity: Annotated[float, Field(gt=0, le=1)] | None = keyed(
        None, "maximum cosine of a negative to its meta-chunk; null: no limit"
    )

    shortlist: Literal["bm25"] | None = keyed(
        None,
        "bm25: embed only the meta-documents and the chunks that BM25 finds for them; "
        "null: embed every chunk",
    )
    shortlist_chunks: Positive | Auto = keyed(
        "auto",
        "chunks in the shortlist of each meta-document; auto: one to two times those "
        "of its draft",
    )

    def near_duplicates_for(self, negatives: str) -> float | None:
        """Return `near_duplicates`; None if the negatives repeat the meta-chunk."""
        if NEGATIVES[negatives].origin == "meta-chunk":
            return None
        return self.near_duplicates


class Tokenizer(Section):
    """text → token ids; set exactly one of `source` and `train`."""

    source: str | None = keyed(
        None,
        "tokenizer.json file, a folder with one, or a name on the Hugging Face hub",
    )
    train: Annotated[int, Field(ge=300)] | None = keyed(
        None, "vocabulary size of a byte-level BPE tokenizer to train on the corpus"
    )
    revision: str = keyed("main", "revision of a tokenizer on the hub")
    bos: str | None = keyed(
        None, "special token before each sequence, counted in target_tokens"
    )
    eos: str | None = keyed(
        None, "special token after each sequence, counted in target_tokens"
    )
    chars_per_token: Annotated[float, Field(gt=0)] | Auto = keyed(
        "auto", "characters per token (the paper's E); auto: measured on the corpus"
    )
    engine: Annotated[Literal["auto", "reference"], Operational()] = keyed(
        "auto",
        "auto: fastokens (about 40 times as fast) where its ids equal those of "
        "tokenizers; reference: tokenizers only",
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.source is None) == (self.train is None):
            raise ValueError(
                "set either source (a tokenizer.json or a hub name) or train (a "
                "vocabulary size), and leave the other null (--set "
                "tokenizer.train=null --set tokenizer.source=…)"
            )
        return self


class KnownAnswers(Section):
    """Tasks with known answers, inserted between meta-chunks."""

    share: Annotated[float, Field(ge=0, le=1)] = keyed(
        0.0, "share of the sequences that get tasks; 0: none"
    )
    kinds: Annotated[_Names, BeforeValidator(as_list)] = keyed(
        (),
        "tasks of each of these sequences; []: all of "
        f"{', '.join(KNOWN_ANSWERS.built_in)}",
    )

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        known = KNOWN_ANSWERS.names()
        for name in kinds:
            if name not in known:
                raise ValueError(
                    f"unknown kind {name!r}; choose among {', '.join(known)}"
                )
        return kinds

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds that are inserted."""
        return self.kinds or tuple(KNOWN_ANSWERS.built_in)


class Compose(Section):
    """candidates → sequences."""

    method: str = keyed(
        "nextlong",
        f"how documents are combined into sequences: {' | '.join(METHODS.built_in)}",
    )
    sequences: Positive | Literal["all"] = keyed(
        100, "number of sequences; all: one from every eligible document"
    )
    target_tokens: Annotated[Length, Field(ge=2, lt=2**31)] = keyed(
        131_072,
        "exact length of each sequence in tokens (the paper's T); 128k means 131,072",
    )
    fit: Literal["exact", "paper"] = keyed(
        "exact",
        "exact: share the token budget among the gaps and cut only the last negative; "
        "paper: fixed number of negatives, cut at T, shorter sequences dropped",
    )
    min_gap_tokens: Positive | Auto = keyed(
        "auto",
        "exact: minimum tokens of negatives between two meta-chunks; a document for "
        "which they do not fit into target_tokens is dropped; auto: half a mean chunk",
    )
    position: Literal["head", "tail", "random"] = keyed(
        "head",
        "position of a meta-chunk in its group of negatives: head | tail | random",
    )
    negatives: Literal[
        "top", "mixed", "random-retrieved", "tail", "random-corpus", "self-repeat"
    ] = keyed(
        "top",
        "which candidates are used: top | mixed (some of them random chunks; not in "
        "the paper) | random-retrieved | tail | random-corpus | self-repeat (the "
        "paper's ablation)",
    )
    hard_share: Annotated[float, Field(gt=0, lt=1)] = keyed(
        0.5,
        "mixed: probability that a negative is a top candidate; the others are random "
        "chunks of other documents",
    )
    verify_dependence: Annotated[float, Field(ge=0)] | None = keyed(
        None,
        "keep only sequences in which the earlier meta-chunks lower the loss of the "
        "later ones, by the model scorer.model, by more than this (nats per token, on "
        "words that only the earlier ones have); null: keep all",
    )
    max_uses: Positive | None = keyed(
        None, "maximum number of sequences in which a chunk is a negative"
    )
    draft_factor: Annotated[float, Field(ge=1)] = keyed(
        1.5, "text to draft, as a multiple of the text that fills T (the paper's w)"
    )
    min_meta_chunks: Positive = keyed(2, "minimum chunks of a meta-document (paper: 1)")
    tasks: KnownAnswers = KnownAnswers()
    separator: str = keyed(
        "\n", "inserted after a chunk that does not end in a newline"
    )
    seed: int | None = keyed(
        None,
        "seed for sampling meta-documents and random positions; null: the recipe's "
        "seed",
    )

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        # A built-in name is known without asking which other packages are installed.
        if method in METHODS.built_in:
            return method
        names = METHODS.names()
        if method not in names:
            *others, last = map(repr, names)
            choices = {"expected": f"{', '.join(others)} or {last}"}
            raise PydanticCustomError(
                "literal_error", "Input should be {expected}", choices
            )
        return method


class Documents(Section):
    """Vectors of whole documents, for methods that search for similar documents."""

    vector: Literal["mean", "first"] = keyed(
        "mean", "vector of a document: mean of its chunk vectors, or the first one"
    )
    partition_size: Positive = keyed(
        1 << 28,
        "maximum number of neighbours (60 bytes each) in the memory of one task; above "
        "it, documents are drafted in partitions of similar documents, and no sequence "
        "spans two partitions",
    )


AUTO: Final = "auto"  # index: the faster of exact and approximate search
EXACT: Final = "exact"  # index: compare every query with every vector


class Search(Section):
    """vectors → nearest neighbours: the index and its recall."""

    index: Named = keyed(
        AUTO,
        "exact, or a FAISS factory string with inverted lists such as IVF,SQ8 or "
        "IVF4096,Flat; auto: the faster one",
    )
    recall: Annotated[float, Field(gt=0, lt=1)] = keyed(
        0.95,
        "minimum recall of an approximate index; measured on this corpus and checked "
        "by verify",
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Operational()] = keyed(
        "auto",
        "device for exact search; auto: a GPU if torch finds one; never changes the "
        "data",
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.index in (AUTO, EXACT):
            return self
        kinds = INDEXES.declarations(object).values()
        if any(re.fullmatch(kind.takes, self.index) for kind in kinds):
            return self
        usages = " or ".join(kind.usage for kind in kinds)
        raise ValueError(f"index is {self.index!r}; use auto, {usages}")


class Scorer(Section):
    """texts → loss and entropy of each token, by a causal language model."""

    model: Annotated[Named | None, MayBePath()] = keyed(
        None,
        "causal language model: a folder, a name on the Hugging Face Hub, or a .gguf "
        "file; null: none, for recipes that score nothing",
    )
    revision: Named | None = keyed(
        None, "branch, tag or commit of a Hub model; null: its main branch"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = keyed(
        "auto", "precision; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Operational()] = keyed(
        "auto", "device; auto: a GPU if torch finds one"
    )
    batch_tokens: Annotated[PositiveLength, Operational()] = keyed(
        16_384, "tokens in a batch of several rows, with padding"
    )


def draws(compose: Compose, attempt: int = 0) -> int | None:
    """Return how many documents to sample; None for all.

    The first attempt samples a quarter more than sequences, for documents that do not
    fit; each further attempt twice as many.
    """
    if compose.sequences == "all":
        return None
    return (compose.sequences * 5 // 4 + 8) << attempt


def candidates_of(compose: Compose, mine: Mine, *, chunk_chars: float) -> int:
    """Return how many candidates each meta-chunk gets, for chunks of this mean length.

    One meta-chunk may need as many as the whole sequence has. `auto` rounds up to a
    power of two, so that sequences of similar lengths share the search.
    """
    if mine.candidates != "auto":
        return mine.candidates
    needed = max(1.0, _draft_chunks(compose, chunk_chars))
    return max(_FEWEST_CANDIDATES, 1 << math.ceil(math.log2(needed)))


def longest_tokens(sequence_tokens: int) -> int:
    """Return the tokens of a document that is too long for this and shorter lengths."""
    return max(sequence_tokens, _SHARED_TOKENS)


def checked_chars(sequence_tokens: int, chars_per_token: float) -> int:
    """Return the characters above which the tokens of a document are counted first."""
    tokens = longest_tokens(sequence_tokens)
    return math.ceil(_LONG_MARGIN * tokens * chars_per_token)


def queries_of_task(neighbours: float) -> int:
    """Return the most queries of a task, so that their neighbours take some 100 MB."""
    times_the_fewest = max(1.0, neighbours / _FEWEST_CANDIDATES)
    return max(1, math.floor(MOST_QUERIES / times_the_fewest))


def shortlist_chunks(
    compose: Compose,
    mine: Mine,
    *,
    chunks: float,
    chunk_chars: float,
    meta_documents: float,
) -> int:
    """Return the number of chunks in the shortlist of each meta-document.

    The corpus has `chunks` of this mean length.
    """
    if mine.shortlist_chunks != "auto":
        return mine.shortlist_chunks
    # Twice the chunks of a draft, while all shortlists together have at most a quarter
    # of the chunks; in a smaller corpus fewer, but never less than a draft.
    drafted = _draft_chunks(compose, chunk_chars)
    fitting = _LISTED_SHARE * chunks / max(1.0, meta_documents)
    return math.ceil(min(_SHORTLISTED * drafted, max(drafted, fitting)))


def _draft_chunks(compose: Compose, chunk_chars: float) -> float:
    """Return the number of chunks in a draft, for chunks with this mean length."""
    sequence_chars = compose.target_tokens * TYPICAL_CHARS_PER_TOKEN
    return sequence_chars * compose.draft_factor / max(1.0, chunk_chars)


def sequence_limit(compose: Compose, attempt: int = 0) -> int | None:
    """Return the number of drafts; None for all.

    Slightly more than sequences, for those that do not fit T.
    """
    if compose.sequences == "all":
        return None
    return (compose.sequences * 17 // 16 + 4) << attempt


def blocks(documents: float, queries: float, *, neighbours: float = 0.0) -> float:
    """Return about how many tasks search for `queries` of these documents.

    As many draft or compose them.
    """
    by_queries = queries / queries_of_task(neighbours)
    return max(1.0, min(BLOCKS, documents), by_queries)


def document_chars(sequence_tokens: int, chars_per_token: float) -> float:
    """Return the characters that fill a sequence: T·E and a margin.

    E is a mean, so the margin is needed. Only used to find neighbours.
    """
    return sequence_tokens * chars_per_token * _DOCUMENT_MARGIN
