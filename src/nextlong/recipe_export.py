"""Recipe's export: the section that says what is written of the sequences, and where to."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nextlong.recipe_keys import Auto, Named, Positive, Section


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
        "auto", description="of Parquet (auto: zstd) and MDS (auto: none; zstd) files"
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
        if "axolotl" in self.formats and self.pack is not None:
            raise ValueError(
                f"pack is {self.pack} but axolotl takes a packed row for one document; leave it null, or choose another format"
            )
        return self
