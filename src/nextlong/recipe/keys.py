"""Recipe keys: the sections of a recipe, one frozen model each.

Each number of the paper (arXiv 2501.12766) is a key here, with the paper's value as default or in a preset under
`recipes/`. Defaults and meanings stand in the field descriptions, from which `nextlong init` writes its comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from nextlong.plugins import INDEXES, INPUT_FORMATS, METHODS, Registry

_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_WRITTEN = re.compile(r"(\d{1,15})([kKmM]?)", re.ASCII)
_WITH_A_UNIT = re.compile(r"[\d.,_]+\s*[^\W\d_]+")


def read_length(text: str) -> int | None:
    """Return the length that 8192, 8k, 64K or 1M stands for; None if the text is none."""
    match = _WRITTEN.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def _in_full(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    length = read_length(value)
    if length is None and _WITH_A_UNIT.fullmatch(value.strip()):
        raise ValueError("a length is a whole number: 131072, or in short 128k (k is 1,024) or 1M (M is 1,048,576)")
    return value if length is None else length


# An int of a recipe that may be written as 128k.
Length = Annotated[int, BeforeValidator(_in_full)]
PositiveLength = Annotated[Length, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class NegativeChoice:
    """Where negatives come from (retrieved candidates, the whole corpus, or the meta-chunk itself), and in what order."""

    origin: Literal["retrieved", "corpus", "meta-chunk"] = "retrieved"
    order: Literal["nearest", "random", "farthest"] = "nearest"

    @property
    def are_nearest(self) -> bool:
        """Whether the nearest candidates serve first."""
        return self.origin == "retrieved" and self.order == "nearest"

    @property
    def repeat_meta_chunk(self) -> bool:
        """Whether the meta-chunk serves as its own negative, so that repeats are the point."""
        return self.origin == "meta-chunk"


NEGATIVES: Final[Mapping[str, NegativeChoice]] = {
    "top": NegativeChoice(),
    "random-retrieved": NegativeChoice(order="random"),
    "tail": NegativeChoice(order="farthest"),
    "random-corpus": NegativeChoice(origin="corpus", order="random"),
    "self-repeat": NegativeChoice(origin="meta-chunk"),
}

Auto = Literal["auto"]
Positive = Annotated[int, Field(gt=0)]
Named = Annotated[str, Field(min_length=1)]


def as_list(value: Any) -> Any:
    """Return a lone text as a list of it: `formats: jsonl`."""
    return [value] if isinstance(value, str) else value


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"names {twice[0]!r} twice; name it once")
    return names


_Names = Annotated[tuple[Named, ...], AfterValidator(_each_once)]
# Fit for a file's name, and for RUN@name.
VariantName = Annotated[str, Field(pattern=r"^[\w+=,][\w.+=,-]*$", max_length=120)]


class MayBePath:
    """Marks a key that names a model or a file, perhaps of this machine; a data set card gives its last name only."""


class MayBePrivate:
    """Marks a key that names a place which is nobody else's business; a data set card says it only if it is the default."""


class Operational:
    """Marks a key that says how or where to work, never what is made: another value of it makes nothing anew.

    Only `tokenizer.engine` has the steps that encode done again, with the same ids: it is changed where one gave wrong ones.
    """


class Section(BaseModel, frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False):
    """A section of a recipe."""

    def identity(self) -> dict[str, JsonValue]:
        """Return what the section makes, as plain data: its keys but the operational ones, those of its sections too."""
        fields = type(self).model_fields.items()
        operational = {name for name, field in fields if any(isinstance(mark, Operational) for mark in field.metadata)}
        plain: dict[str, JsonValue] = self.model_dump(mode="json", exclude=operational)
        sections = {name: getattr(self, name) for name in plain}
        return plain | {name: value.identity() for name, value in sections.items() if isinstance(value, Section)}


def options_class(registry: Registry, name: str) -> type[Section]:
    """Return the model of an extension's section of the recipe. Raises PluginError if it cannot serve as one."""
    options = getattr(registry.load(name, object), "Options", None)
    if not (isinstance(options, type) and issubclass(options, Section)):
        cure = "which must be a class made from nextlong's Section"
        raise registry.broken(name, f"has {options!r} for its Options, {cure}")
    if required := [key for key, field in options.model_fields.items() if field.is_required()]:
        raise registry.broken(name, f"has no default for its option {required[0]!r}")
    return options


def _key(default: Any, meaning: str) -> Any:
    """Return the field of a key, which `nextlong init` explains by its meaning."""
    return Field(default, description=meaning)


_ID: Final = "id"


class Source(Section):
    """Where documents come from: one path or glob, one name."""

    path: Named = Field(
        description="files, a glob or a folder; any fsspec URL (s3://, gs://, hf://); .jsonl[.gz|.zst], .parquet, "
        "Arrow/HF dataset folders, .csv, .tsv, .warc[.gz], .html, .txt/.md"
    )
    name: str = _key("", "the name of the source in every report; by default the path")
    text: str = _key("text", "the column that holds the text; a.b reads a nested field")
    id: Named = _key(
        _ID,
        "the column of your own ids; a document without one is named file:line; a column other than `id` must exist",
    )
    format: str = _key(
        "auto", "auto: by the file name; else jsonl, parquet, arrow, csv, tsv, warc, html, text or another package's"
    )
    filter: Named | None = _key(
        None,
        "an SQL condition on other columns: only matching documents are used, e.g. language = 'en' AND score > 0.5",
    )
    metadata: Annotated[_Names, BeforeValidator(as_list)] = _key(
        (), "columns to carry along as metadata of each document, into the spans of every export"
    )
    license: str = _key("", "of the texts, as SPDX spells it; stated on the data set card")
    weight: Annotated[float, Field(gt=0)] | None = _key(
        None,
        "relative share of characters among the weighted sources; nothing is repeated, the scarcest sets the scale",
    )
    max_documents: Positive | None = _key(None, "keep at most this many documents, drawn by keyed hash")
    max_chars: Positive | None = _key(None, "keep at most this many characters, drawn by keyed hash")

    @field_validator("format")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != "auto" and name not in (known := INPUT_FORMATS.declarations(object)):
            raise ValueError(f"is not an input format; choose auto or one of {', '.join(known)}")
        return name

    @property
    def names_ids(self) -> bool:
        """Whether the recipe names a column of ids that is not the default, and so has to be there."""
        return self.id != _ID

    @property
    def label(self) -> str:
        """The name that documents carry in their `source` column."""
        return self.name or self.path


class Ingest(Section):
    """files → documents."""

    sources: tuple[Source, ...] = Field(description="at least one")
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = _key(
        0.01, "stop when more than this share of the records cannot be read"
    )
    max_document_chars: Positive = _key(10_000_000, "longer documents are rejected")
    dedup: Literal["exact", "normalized", "minhash"] = _key(
        "exact",
        "remove duplicate documents: exact | normalized (ignores case and white space) | minhash (near-duplicates; "
        "needs nextlong[dedup])",
    )
    dedup_threshold: Annotated[float, Field(gt=0, le=1)] = _key(
        0.8, "minhash: share of the five-word runs of two documents that makes them nearly equal"
    )
    exclude: Named | None = _key(
        None, "JSON Lines of documents to exclude: source and id, or a whole source; nextlong view writes one"
    )
    shard_mb: Annotated[float, Field(gt=0)] | Auto = _key(
        "auto", "MB of text in a shard; auto: total / 32, between 1 and 128"
    )

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if not self.sources:
            raise ValueError("sources is empty; name at least one file, folder or URL")
        labels = [source.label for source in self.sources]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"sources share the name {twice[0]!r}; give each its own name")
        return self


class Ray(Section):
    """The cluster of executor=ray; the run directory lies under the same path on all its nodes."""

    address: Named | None = _key(
        None, "of a running cluster: host:port, auto or ray://…; null starts one on this machine"
    )
    retries: Annotated[int, Field(ge=0)] = _key(3, "how often a task whose worker or node was lost is run again")


class Chunk(Section):
    """documents → chunks."""

    max_chars: PositiveLength = _key(2048, "granularity s of the paper, in characters; at least 16")
    length: Literal["slice", "paper"] = _key(
        "slice", "what counts against max_chars: the slice, or (paper) its paragraphs without the newlines between"
    )
    oversize: Literal["split", "keep"] = _key(
        "split", "a paragraph over max_chars: cut at sentence ends, then words; or (paper) kept whole"
    )

    @field_validator("max_chars")
    @classmethod
    def _some_words(cls, value: int) -> int:
        if value < 16:
            why = "holds no words that others could be similar to, and every pair of chunks is compared"
            raise ValueError(f"a chunk of fewer than 16 characters {why}; raise it")
        return value


class Decontaminate(Section):
    """evaluation texts → chunks that share a run of words with one are left out."""

    files: _Names = _key((), "evaluation files: json, jsonl, csv, tsv, txt, md; paths or URLs")
    ngram: Positive = _key(13, "this many words in a row; shorter texts count as a whole")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"files": value} if isinstance(value, list | tuple) else value


class Mine(Section):
    """meta-chunks → candidates."""

    candidates: Positive | Auto = _key(
        "auto",
        "nearest chunks kept for each meta-chunk (512 in the paper); auto: enough for target_tokens, at least 1024",
    )
    reorder_top: Positive = _key(
        512, "how many of the nearest candidates compose.negatives: random-retrieved and tail reorder"
    )
    near_duplicates: Annotated[float, Field(ge=1e-6, le=1)] | None = _key(
        0.8, "no negative shares this much of its words with its meta-document or another negative; null: as they come"
    )
    max_similarity: Annotated[float, Field(gt=0, le=1)] | None = _key(
        None, "no negative has a higher cosine to its meta-chunk"
    )

    shortlist: Literal["bm25"] | None = _key(
        None, "bm25: embed only the meta-documents and the chunks that share words with them; null: every chunk"
    )
    shortlist_chunks: Positive | Auto = _key(
        "auto",
        "chunks that the shortlist has for each meta-document; auto: one to two times the chunks of its draft",
    )

    def near_duplicates_for(self, negatives: str) -> float | None:
        """Return `near_duplicates`, None where repeating is the point."""
        return None if NEGATIVES[negatives].repeat_meta_chunk else self.near_duplicates


class Tokenizer(Section):
    """text → token ids; exactly one of `source` and `train`."""

    source: str | None = _key(None, "a tokenizer.json, a folder with one, or a hub name")
    train: Annotated[int, Field(ge=300)] | None = _key(
        None, "train a byte-level BPE of this many entries on the corpus"
    )
    revision: str = _key("main", "of a hub name")
    bos: str | None = _key(None, "this special token before each sequence, counted in target_tokens")
    eos: str | None = _key(None, "this special token after each sequence, counted in target_tokens")
    chars_per_token: Annotated[float, Field(gt=0)] | Auto = _key("auto", "E of the paper; auto: measured on the corpus")
    engine: Annotated[Literal["auto", "reference"], Operational()] = _key(
        "auto", "auto: fastokens, some forty times as fast, where its ids are those of the reference (tokenizers)"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.source is None) == (self.train is None):
            either = "give either source (a tokenizer.json or a hub name) or train (a vocabulary size)"
            example = "--set tokenizer.train=null beside --set tokenizer.source=…"
            raise ValueError(f"{either}, and null for the other ({example})")
        return self


class Compose(Section):
    """candidates → sequences."""

    method: str = _key("nextlong", f"which documents make one sequence: {' | '.join(METHODS.built_in)}")
    sequences: Positive | Literal["all"] = _key(100, "how many; all: one from every eligible document")
    target_tokens: Annotated[Length, Field(ge=2, lt=2**31)] = _key(
        131_072, "T of the paper: the exact length of each sequence; 128k and 64K count 1,024s"
    )
    fit: Literal["exact", "paper"] = _key(
        "exact",
        "exact: share the token budget, cut only a sequence's last negative; paper: k by formula, cut at T, drop "
        "if shorter",
    )
    min_gap_tokens: Positive | Auto = _key(
        "auto",
        "exact: tokens of negatives that stand between two meta-chunks at least; a document whose share of "
        "target_tokens cannot hold them is dropped; auto: half a mean chunk",
    )
    position: Literal["head", "tail", "random"] = _key(
        "head", "where a meta-chunk stands among its negatives: head | tail | random"
    )
    negatives: Literal["top", "random-retrieved", "tail", "random-corpus", "self-repeat"] = _key(
        "top",
        "which candidates serve: top | random-retrieved | tail | random-corpus | self-repeat (the paper's ablation)",
    )
    max_uses: Positive | None = _key(None, "a chunk is a negative in at most this many sequences of the data set")
    draft_factor: Annotated[float, Field(ge=1)] = _key(
        1.5, "w of the paper: text drafted, as a multiple of what T needs"
    )
    min_meta_chunks: Positive = _key(2, "documents with fewer chunks are not extended (paper: 1)")
    separator: str = _key("\n", "the separator between a chunk that does not end in a newline and the next")
    seed: int | None = _key(None, "for the draw of meta-documents and random positions; default: the recipe's seed")

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS.built_in and method not in (names := METHODS.names()):
            *others, last = map(repr, names)
            choices = {"expected": f"{', '.join(others)} or {last}"}
            raise PydanticCustomError("literal_error", "Input should be {expected}", choices)
        return method


class Documents(Section):
    """Vectors of whole documents, for methods that look for similar documents."""

    vector: Literal["mean", "first"] = _key("mean", "of the chunks' vectors: their mean, or the first")
    partition_size: Positive = _key(
        1 << 28,
        "neighbours of all documents that one task holds at most, 60 bytes each; above it documents are drafted in "
        "partitions of similar ones, and no sequence spans two",
    )


AUTO: Final = "auto"  # index: chosen by what either takes
EXACT: Final = "exact"  # index: every query against every vector


class Search(Section):
    """vectors → an index of them: how the nearest are found."""

    index: Named = _key(
        AUTO,
        "exact; a FAISS factory string with inverted lists, as IVF,SQ8 or IVF4096,Flat; auto: by what either takes",
    )
    recall: Annotated[float, Field(gt=0, lt=1)] = _key(
        0.95, "of an approximate index: this share of the exact nearest is found; measured, and held to by verify"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Operational()] = _key(
        "auto", "of exact search; auto: a GPU where torch and one are there; never changes the data"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        kinds = INDEXES.declarations(object).values() if self.index not in (AUTO, EXACT) else ()
        if kinds and not any(re.fullmatch(kind.takes, self.index) for kind in kinds):
            raise ValueError(f"index is {self.index!r}; it must be auto, {' or '.join(kind.usage for kind in kinds)}")
        return self
