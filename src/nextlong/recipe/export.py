"""Recipe's export: the section that says what is written of the sequences, and where to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from nextlong.recipe.keys import Auto, Named, Positive, Section

_PARQUET: Final = ("parquet", "torchtitan", "axolotl")
_MDS: Final = ("mds", "prolong")
# The formats that take a key, and those that take a word of `compression`; what is not here suits all.
_TAKERS: Final[Mapping[str, tuple[str, ...]]] = {"row_group_mb": _PARQUET, "megatron_eod": ("megatron",)}
_COMPRESSED: Final[Mapping[Any, tuple[str, ...]]] = {
    "zstd": (*_PARQUET, *_MDS),
    "lz4": _PARQUET,
    "snappy": _PARQUET,
}
_OF_A_SPLIT: Final = ("shared_chunks", "split_seed")


class Export(Section):
    """sequences → files that trainers read."""

    formats: tuple[Literal["parquet", "arrow", "jsonl", "mds", "megatron", "torchtitan", "axolotl", "prolong"], ...] = (
        Field(
            ("parquet",),
            description="any of: parquet, arrow, jsonl, mds, megatron; as a trainer wants it: torchtitan, axolotl, prolong",
        )
    )
    pack: Positive | None = Field(
        None, description="tokens of a row that holds several sequences, boundaries kept; null: one sequence a row"
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
    push: Named | None = Field(
        None, description="put the files there too: a folder or any fsspec URL (s3://, gs://, hf://)"
    )

    @field_validator("formats", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _some_format(self) -> Self:
        if not self.formats or len(set(self.formats)) != len(self.formats):
            raise ValueError("formats must name at least one format, each once")
        if self.shard_mb != "auto" and self.shard_mb > 4000 and {"mds", "prolong"} & set(self.formats):
            raise ValueError(
                f"shard_mb is {self.shard_mb:g} but MDS counts a shard's bytes in 32 bits; 4000 is the most"
            )
        if unused := unused_keys(self.model_dump(mode="json")):
            raise ValueError("; ".join(unused.values()))
        if "axolotl" in self.formats and self.pack is not None:
            raise ValueError(
                f"pack is {self.pack} but axolotl takes a packed row for one document; leave it null, or choose another format"
            )
        return self


def unused_keys(export: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of an export section, as plain data, that nothing would take: why, and the cure."""
    named = export.get("formats")
    formats = named if isinstance(named, list | tuple) else [named]
    takers = {**_TAKERS, "compression": _COMPRESSED.get(str(export.get("compression")), ())}
    unused = {}
    for key in (*takers, *_OF_A_SPLIT):
        value = export.get(key, Export.model_fields[key].default)
        if value == Export.model_fields[key].default:
            continue
        if key in _OF_A_SPLIT:
            if not export.get("validation"):
                unused[key] = (
                    f"{key} is {value} but validation is 0, so nothing is split; leave {key} out, or give validation a share "
                    "such as 0.01"
                )
        elif takers[key] and not any(name in formats for name in takers[key]):
            unused[key] = (
                f"{key} is {value} but {' and '.join(map(str, formats))} cannot take it; leave it out, or add a format that "
                f"does: {', '.join(takers[key])}"
            )
    return unused
