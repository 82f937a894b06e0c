"""Export section of a recipe: which files are written, and where to.

In:  plain data.
Out: the validated section.

Each format declares which of these keys it supports; a key that none of the chosen
formats supports is an error rather than silently ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from nextlong.plugins import FORMATS
from nextlong.recipe.keys import (
    Auto,
    Named,
    Operational,
    PositiveLength,
    Section,
    as_list,
    keyed,
)

# Keys that only some formats support; every format supports the others.
_FORMAT_KEYS: Final = (
    "row_group_mb",
    "megatron_eod",
    "boundaries",
    "pad_documents_to",
    "compression",
)
_SPLIT_KEYS: Final = ("shared_chunks", "split_seed")
# The attributes that a format must declare for a recipe to be checked against it.
_DECLARED: Final = (
    "name",
    "keys",
    "compressions",
    "max_shard_mb",
    "extra_tokens",
    "eos",
    "no_packing",
)


class Export(Section):
    """sequences → files for trainers."""

    formats: Annotated[tuple[str, ...], BeforeValidator(as_list)] = keyed(
        ("parquet",),
        f"one or more of {', '.join(FORMATS.built_in)}, or a plugin's format",
    )
    pack: PositiveLength | None = keyed(
        None,
        "pack sequences into rows of at most this many tokens, keeping boundaries; "
        "null: one sequence per row",
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = keyed(
        0.0, "fraction of the meta-documents whose sequences form the validation split"
    )
    shared_chunks: Literal["keep", "leave-out"] = keyed(
        "keep",
        "training sequences that share a chunk with validation: keep them, or leave "
        "them out of both splits",
    )
    split_seed: int = keyed(
        0, "seed of the split; runs with the same seed hold out the same meta-documents"
    )
    shard_mb: Annotated[float, Field(gt=0)] | Auto = keyed(
        "auto",
        "token ids per file in MB; auto: total / 16, between 8 and 256 (megatron: "
        "16,000)",
    )
    row_group_mb: Annotated[float, Field(gt=0)] = keyed(
        64.0, "uncompressed size of a Parquet row group in MB"
    )
    compression: Literal["auto", "zstd", "lz4", "snappy", "none"] = keyed(
        "auto",
        "compression of Parquet (auto: zstd) and MDS (auto: none; or zstd) files; "
        "other formats ignore it",
    )
    megatron_eod: str | None = keyed(
        None,
        "megatron: token appended to each document that does not end in it; not "
        "counted in target_tokens",
    )
    boundaries: Literal["sequence", "document"] = Field(
        "sequence",
        description="boundaries in seq_lengths and labels: sequences, or the original "
        "documents of standard, knn, iclm, quest and splice; an extended sequence is "
        "one document",
    )
    pad_documents_to: Annotated[int, Field(gt=1)] | None = keyed(
        None,
        "pad each document to a multiple of this many tokens (twice the "
        "context-parallel ranks); parquet and arrow add seq_lengths_padded and mask "
        "the padding in the labels; null: no padding",
    )
    push: Annotated[Named | None, Operational()] = keyed(
        None,
        "also copy the files to this folder or fsspec URL (s3://, gs://, "
        "hf://datasets/OWNER/NAME)",
    )

    @field_validator("formats", mode="after")
    @classmethod
    def _known_formats(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names or len(set(names)) != len(names):
            raise ValueError("must name at least one format, and none of them twice")
        for name in names:
            # A comma is a list without brackets, as YAML reads it: one string.
            if "," in name:
                raise ValueError(
                    f"a list needs brackets: --set 'export.formats=[{','.join(names)}]'"
                )
            terms_of(name)
        return names

    @model_validator(mode="after")
    def _supported_by_formats(self) -> Self:
        for name in self.formats:
            self._check_format(terms_of(name))
        unused = unused_keys(self.model_dump(mode="json"))
        if unused:
            raise ValueError("; ".join(unused.values()))
        # A run has sequences of one length, whatever files are written of them.
        extra_tokens = {name: terms_of(name).extra_tokens for name in self.formats}
        if len(set(extra_tokens.values())) > 1:
            lengths = ", ".join(
                f"{name} target_tokens + {extra}"
                for name, extra in extra_tokens.items()
            )
            raise ValueError(
                f"these formats need sequences of different lengths ({lengths}), but a "
                "run has only one length; make a variant for each length in the same "
                "run_dir; they share every step before the drafts"
            )
        return self

    def _check_format(self, terms: Any) -> None:
        """Refuse values that one of the formats cannot be written with."""
        max_shard_mb = terms.max_shard_mb
        if self.shard_mb != "auto" and max_shard_mb and self.shard_mb > max_shard_mb:
            raise ValueError(
                f"shard_mb is {self.shard_mb:g} but a {terms.name} file holds at most "
                f"{max_shard_mb:g}; lower it"
            )
        if self.pack is not None and terms.no_packing:
            raise ValueError(
                f"pack is {self.pack} but {terms.name} {terms.no_packing}; set it to "
                "null, or choose another format"
            )
        if self.pad_documents_to is not None and "pad_documents_to" not in terms.keys:
            padding = _supporting(FORMATS.built_in, "pad_documents_to")
            raise ValueError(
                f"pad_documents_to is {self.pad_documents_to} but {terms.name} cannot "
                f"mark padding; set it to null, or export only {' and '.join(padding)}"
            )

    @property
    def extra_tokens(self) -> int:
        """The tokens that the formats need in addition to `compose.target_tokens`."""
        return max(int(terms_of(name).extra_tokens) for name in self.formats)


def terms_of(name: str) -> Any:
    """Return the declaration of a format, a `Format`.

    It names the keys that the format supports and what it requires of sequences. Raises
    ValueError for an unknown name, PluginError for a broken format.
    """
    try:
        terms = FORMATS.load(name, object)
    except KeyError:
        known = FORMATS.names()
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"available: {', '.join(known)}"
        if near:
            advice = f"did you mean {near[0]!r}? {advice}"
        raise ValueError(f"unknown format {name!r}; {advice}") from None
    if not all(hasattr(terms, key) for key in _DECLARED):
        raise FORMATS.broken(name, f"is not a nextlong format but {terms!r:.80}")
    return terms


def unused_keys(export: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of an export section that would have no effect.

    Each has the reason and the fix for its value.
    """
    formats = [str(name) for name in as_list(export.get("formats"))]
    if not all(name in FORMATS for name in formats):
        return {}  # an unknown format is reported elsewhere
    unused: dict[str, str] = {}
    for key in (*_FORMAT_KEYS, *_SPLIT_KEYS):
        default = Export.model_fields[key].default
        value = export.get(key, default)
        if value == default:
            continue
        # Without validation there is no split that these keys could change.
        if key in _SPLIT_KEYS and not export.get("validation"):
            unused[key] = (
                f"{key} is {value} but validation is 0, so there is no split; remove "
                f"{key}, or set validation to a fraction such as 0.01"
            )
        if key in _FORMAT_KEYS and not _supporting(formats, key, value):
            others = _supporting(FORMATS.built_in, key, value)
            unused[key] = (
                f"{key} is {value} but {' and '.join(formats)} does not support it; "
                f"remove it, or add a format that supports it: {', '.join(others)}"
            )
    return unused


def _supporting(formats: Iterable[str], key: str, value: Any = None) -> list[str]:
    """Return the formats that support a key; of `compression`, this value."""
    supporting = []
    for name in formats:
        terms = terms_of(name)
        if key == "compression":
            is_supported = value in ("auto", "none", *terms.compressions)
        else:
            is_supported = key in terms.keys
        if is_supported:
            supporting.append(name)
    return supporting
