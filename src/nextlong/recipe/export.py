"""Recipe's export: what is written of the sequences, and where to; which keys a format takes, its own declaration says."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from nextlong.plugins import FORMATS
from nextlong.recipe.keys import Auto, Named, Operational, PositiveLength, Section, as_list

# The keys that only some formats take; what is not here suits all.
_KEYS_OF_FORMATS: Final = ("row_group_mb", "megatron_eod", "boundaries", "pad_documents_to", "compression")
_OF_A_SPLIT: Final = ("shared_chunks", "split_seed")
# What a recipe must know of a format.
_TERMS: Final = ("name", "keys", "compressions", "most_shard_mb", "extra_tokens", "eos", "no_packing")


class Export(Section):
    """sequences → files that trainers read."""

    formats: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        ("parquet",), description=f"any of: {', '.join(FORMATS.built_in)}; or one provided by a plugin package"
    )
    pack: PositiveLength | None = Field(
        None, description="tokens of a row that holds several sequences, boundaries kept; null: one sequence per row"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the meta-documents whose sequences are a validation split of their own"
    )
    shared_chunks: Literal["keep", "leave-out"] = Field(
        "keep",
        description="train sequences with a chunk that validation has too: keep them, or leave them out of both splits",
    )
    split_seed: int = Field(0, description="of the split; runs with the same one hold out the same meta-documents")
    shard_mb: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto", description="MB of token ids in a file; auto: total / 16, between 8 and 256 (megatron: 16,000)"
    )
    row_group_mb: Annotated[float, Field(gt=0)] = Field(64.0, description="uncompressed size of a Parquet row group")
    compression: Literal["auto", "zstd", "lz4", "snappy", "none"] = Field(
        "auto",
        description="of Parquet (auto: zstd) and MDS (auto: none; else zstd) files; formats that cannot take it stay as they are",
    )
    megatron_eod: str | None = Field(
        None,
        description="megatron: this token after each document that does not end in it; not counted in target_tokens",
    )
    boundaries: Literal["sequence", "document"] = Field(
        "sequence",
        description="what seq_lengths count and labels begin anew at: sequences, or the original documents of standard, knn, iclm, "
        "quest and splice; an extended sequence is one document",
    )
    pad_documents_to: Annotated[int, Field(gt=1)] | None = Field(
        None,
        description="pad each document to a multiple of this many tokens (2 · the ranks of context parallelism); parquet and arrow "
        "then have seq_lengths_padded, and labels that mask the padding; null: no padding",
    )
    push: Annotated[Named | None, Operational()] = Field(
        None, description="put the files there too: a folder or any fsspec URL (s3://, gs://, hf://)"
    )

    @field_validator("formats", mode="after")
    @classmethod
    def _that_are_there(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names or len(set(names)) != len(names):
            raise ValueError("must name at least one format, each once")
        for name in names:
            if "," in name:
                raise ValueError(f"lists stand in brackets: --set 'export.formats=[{','.join(names)}]'")
            terms_of(name)
        return names

    @model_validator(mode="after")
    def _as_formats_take_it(self) -> Self:
        for terms in map(terms_of, self.formats):
            if self.shard_mb != "auto" and self.shard_mb > (most := terms.most_shard_mb or self.shard_mb):
                why = f"a file of {terms.name} holds {most:g} at most"
                raise ValueError(f"shard_mb is {self.shard_mb:g} but {why}; lower it")
            if self.pack is not None and (why := terms.no_packing):
                raise ValueError(f"pack is {self.pack} but {terms.name} {why}; leave it null, or choose another format")
            if self.pad_documents_to is not None and "pad_documents_to" not in terms.keys:
                cure = f"export {' and '.join(_takers(FORMATS.built_in, 'pad_documents_to'))} alone"
                why = f"{terms.name} cannot mark padding"
                raise ValueError(f"pad_documents_to is {self.pad_documents_to} but {why}; leave it null, or {cure}")
        if unused := unused_keys(self.model_dump(mode="json")):
            raise ValueError("; ".join(unused.values()))
        wanted = {name: terms_of(name).extra_tokens for name in self.formats}
        if len(set(wanted.values())) > 1:
            more = {name: f" + {extra}" if extra else "" for name, extra in wanted.items()}
            lengths = ", ".join(f"{name} target_tokens{extra}" for name, extra in more.items())
            why = f"formats want sequences of different lengths ({lengths}), and one composition has one"
            cure = "give each length a run of its own in the same run_dir, which shares every step before the drafts"
            raise ValueError(f"{why}; {cure}")
        return self

    @property
    def extra_tokens(self) -> int:
        """How many tokens more than `compose.target_tokens` a sequence has, because its formats want them."""
        return max(int(terms_of(name).extra_tokens) for name in self.formats)


def terms_of(name: str) -> Any:
    """Return the declaration of a format, a `Format`: the keys it takes, and what it wants of sequences.

    Raises ValueError if there is none of that name, PluginError if it is broken.
    """
    try:
        terms = FORMATS.load(name, object)
    except KeyError:
        known = FORMATS.names()
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no format {name!r}; {advice}there are: {', '.join(known)}") from None
    if not all(hasattr(terms, key) for key in _TERMS):
        raise FORMATS.broken(name, f"is not a nextlong format, but {terms!r:.80}")
    return terms


def unused_keys(export: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of an export section, as plain data, that nothing would take: why, and the cure."""
    formats = [str(name) for name in as_list(export.get("formats"))]
    if not all(name in FORMATS for name in formats):
        return {}  # that is a mistake of its own
    unused: dict[str, str] = {}
    for key in (*_KEYS_OF_FORMATS, *_OF_A_SPLIT):
        value = export.get(key, default := Export.model_fields[key].default)
        if value == default:
            continue
        if key in _OF_A_SPLIT and not export.get("validation"):
            cure = f"leave {key} out, or give validation a share such as 0.01"
            unused[key] = f"{key} is {value} but validation is 0, so nothing is split; {cure}"
        if key in _KEYS_OF_FORMATS and not _takers(formats, key, value):
            cure = f"leave it out, or add a format that does: {', '.join(_takers(FORMATS.built_in, key, value))}"
            unused[key] = f"{key} is {value} but {' and '.join(formats)} cannot take it; {cure}"
    return unused


def _takers(formats: Iterable[str], key: str, value: Any = None) -> list[str]:
    """Return the formats that take a key, of `compression` with this value."""
    if key == "compression":
        return [name for name in formats if value in ("auto", "none", *terms_of(name).compressions)]
    return [name for name in formats if key in terms_of(name).keys]
