"""Corpus: files → documents → chunks, as steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nextlong.corpus.chunk import chunk_shard
from nextlong.corpus.deduplicate import (
    PERMUTATIONS,
    Signatures,
    band_width,
    minhash_shard,
    near_duplicates,
    passes_for,
    similar_pairs,
)
from nextlong.corpus.ingest import check_ids, check_kept, check_rejects, ingest_split
from nextlong.corpus.parts import Splits, every_part, numbered, places, task_bytes
from nextlong.corpus.select import select_documents
from nextlong.engine.estimate import Estimate, per_shard
from nextlong.engine.step import Config, Done, Finished, Step, Task
from nextlong.inputs.files import InputFile, Part
from nextlong.inputs.formats import format_of
from nextlong.inputs.json_lines import count_lines
from nextlong.inputs.remembered import hash_of
from nextlong.inputs.sizes import auto_shard_bytes, estimate_text_bytes
from nextlong.inputs.split import can_be_parted, split_inputs
from nextlong.inputs.where import evaluator
from nextlong.recipe import Recipe, Source
from nextlong.results import (
    ChunkResult,
    IngestResult,
    LineCountResult,
    MinhashResult,
    NearDuplicatesResult,
    SelectResult,
    SimilarPairsResult,
)


def shard_bytes_of(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> int:
    """Return how much text a shard holds; `auto` looks into the heads of a few files."""
    if recipe.ingest.shard_mb != "auto":
        return int(recipe.ingest.shard_mb * 1_000_000)
    sources = recipe.ingest.sources
    return auto_shard_bytes(
        sum(estimate_text_bytes(source_files, source) for source_files, source in zip(files, sources, strict=True))
    )


def shard_bytes_for(recipe: Recipe, text_bytes: float) -> int:
    """Return how much text a shard would hold if there were so much in all."""
    if recipe.ingest.shard_mb != "auto":
        return int(recipe.ingest.shard_mb * 1_000_000)
    return auto_shard_bytes(int(text_bytes))


def splits_of(recipe: Recipe, files: Sequence[Sequence[InputFile]], *, shard_bytes: int) -> Splits:
    """Return what each task reads, of each source; a part of a file holds about as much text as a shard."""
    return [
        split_inputs(
            source_files, source, shard_bytes=shard_bytes, part_bytes=_part_bytes(source_files, source, shard_bytes)
        )
        for source, source_files in zip(recipe.ingest.sources, files, strict=True)
    ]


def _part_bytes(files: Sequence[InputFile], source: Source, shard_bytes: int) -> int:
    large = [file for file in files if file.bytes > shard_bytes and can_be_parted(file, source)]
    text_bytes = estimate_text_bytes(large, source)
    return shard_bytes * sum(file.bytes for file in large) // text_bytes if text_bytes else shard_bytes


def line_counts_steps(splits: Splits) -> list[Step]:
    """Parts of large files → how many lines end in each; no step where no file is parted."""
    parts = [part for part in every_part(splits) if part.stop is not None and not part.skips]
    if not parts:
        return []
    config = [[part.file.name, part.file.identity, part.start, part.stop] for part in parts]
    tasks = [partial(_count, part=part) for part in parts]
    estimate = Estimate(work=lambda amounts: amounts.text_bytes, seconds=3e-10, tasks=per_shard, rate="")
    return [Step("line_counts", 1, {"parts": config}, (), lambda _: tasks, LineCountResult, estimate=estimate)]


def _extractor(source: Source, files: Sequence[InputFile]) -> dict[str, str]:
    """Return which version of a library takes out the text of a source's files, where one does."""
    extractors = (format_of(file.name, source).extractor for file in files)
    extractor = next(filter(None, extractors), None)
    return {} if extractor is None else {"extractor": extractor()}


def _count(_: Path, *, part: Part) -> LineCountResult:
    return LineCountResult(**count_lines(part)._asdict())


def ingest_step(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    splits: Splits,
    line_counts: Sequence[Step],
    *,
    shard_bytes: int,
    when_ingested: Callable[[Done], None],
) -> Step:
    """files → DOCUMENTS, refused afterwards if too many records were rejects; `line_counts` are the `line_counts_steps`."""
    sources = recipe.ingest.sources

    def tasks(done: Finished) -> list[Task]:
        counted = iter([part for step in done.values() for part in step.results(LineCountResult)])
        return [
            partial(
                _ingest_and_hash,
                parts=parts,
                source=source,
                shard_bytes=shard_bytes,
                max_document_chars=recipe.ingest.max_document_chars,
                hash_normalized=recipe.ingest.dedup == "normalized",
            )
            for source, of_source in zip(sources, splits, strict=True)
            for parts in numbered(of_source, counted)
        ]

    def check(done: Done) -> None:
        ingested = done.results(IngestResult)
        check_rejects(
            documents=sum(part.documents for part in ingested),
            rejects=sum(part.rejects for part in ingested),
            reasons=sum((Counter(part.reject_reasons) for part in ingested), Counter[str]()),
            max_reject_share=recipe.ingest.max_reject_share,
            example=next((part.example for part in ingested if part.example), ""),
            rejects_at=f"{done.folder}/part-*.rejects.arrow",
            left_out=sum(part.left_out_by_where for part in ingested),
        )
        parts = iter(ingested)
        for place, (source, source_splits) in enumerate(zip(sources, splits, strict=True)):
            of_source = [next(parts) for _ in source_splits]
            check_kept(source, of_source, key=f"ingest.sources[{place}].keep")
            check_ids(source, of_source, files[place], key=f"ingest.sources[{place}].id")
        when_ingested(done)

    config = {
        "sources": [
            # Names below the source: a moved corpus is the same.
            {"format": source.format, "id": source.id, "label": source.label, "text": source.text}
            | {key: value for key in ("where", "keep") if (value := getattr(source, key))}
            | ({"evaluator": evaluator()} if source.where else {})
            | _extractor(source, source_files)
            | {"files": [[file.name, file.identity] for file in source_files]}
            for source, source_files in zip(sources, files, strict=True)
        ],
        "max_document_chars": recipe.ingest.max_document_chars,
        "shard_bytes": shard_bytes,
        **({"hash_normalized": True} if recipe.ingest.dedup == "normalized" else {}),
        **places(splits),
    }
    estimate = Estimate(
        work=lambda amounts: amounts.text_bytes,
        seconds=6e-9,
        disk=lambda amounts: amounts.text_bytes,
        bytes=0.4,
        tasks=per_shard,
    )
    inputs, bytes_of = tuple(line_counts), task_bytes(splits)
    return Step("ingest", 5, config, inputs, tasks, IngestResult, check=check, sizes=bytes_of, estimate=estimate)


def _ingest_and_hash(out: Path, *, parts: tuple[Part, ...], **options: Any) -> IngestResult:
    """Ingest some files, and hash those whose first part it reads: a small one while the page cache still holds it."""
    ingested = ingest_split(out, parts=parts, **options)
    hashes = tuple(hash_of(part.file) for part in parts if part.begins_file)
    return ingested.model_copy(update={"input_hashes": hashes})


def compared_hashes(recipe: Recipe) -> str:
    """Return the suffix of ingest's files whose equal values are duplicates."""
    return ".normalized.npy" if recipe.ingest.dedup == "normalized" else ".hashes.npy"


def select_step(recipe: Recipe, ingest: Step, splits: Splits) -> Step:
    """Which documents stay: no duplicates, caps and weights."""
    sources = recipe.ingest.sources
    source_of_split = [place for place, of_source in enumerate(splits) for _ in of_source]

    def tasks(done: Finished) -> list[Task]:
        shard_sources = [
            place
            for place, part in zip(source_of_split, done["ingest"].results(IngestResult), strict=True)
            for _ in range(part.shards)
        ]
        return [
            partial(
                select_documents,
                hashes=done["ingest"].files(".hashes.npy"),
                compared=done["ingest"].files(compared_hashes(recipe)),
                chars=done["ingest"].files(".chars.npy"),
                shard_sources=shard_sources,
                sources=sources,
                seed=recipe.seed,
            )
        ]

    caps = [source.model_dump(include={"weight", "max_documents", "max_chars"}) for source in sources]
    drawn = any(value is not None for cap in caps for value in cap.values())
    estimate = Estimate(
        work=lambda amounts: amounts.documents, seconds=2e-7, disk=lambda amounts: amounts.documents, bytes=1.0
    )
    config = {"sources": caps, "seed": recipe.seed if drawn else None}
    return Step("select", 2, config, (ingest,), tasks, SelectResult, estimate=estimate)


def minhash_steps(recipe: Recipe, ingest: Step, select: Step) -> list[Step]:
    """Selected documents → which of them stay: of nearly equal ones the longest. Signatures, pairs that are similar, clusters."""
    threshold = recipe.ingest.dedup_threshold
    minhash = _minhash_step(ingest, select, width=band_width(threshold))
    pairs = _similar_pairs_step(ingest, minhash, threshold)
    return [minhash, pairs, _near_duplicates_step(ingest, select, pairs)]


def _minhash_step(ingest: Step, select: Step, *, width: int) -> Step:
    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), done["select"].files(".keep.npy"), strict=True)
        return [partial(minhash_shard, documents=documents, keep=keep, width=width) for documents, keep in shards]

    estimate = Estimate(
        work=lambda amounts: amounts.kept_chars,
        seconds=5e-8,
        disk=lambda amounts: amounts.documents,
        bytes=512 + 12 * (PERMUTATIONS // width),
        tasks=per_shard,
    )
    return Step("minhash", 2, {"width": width}, (ingest, select), tasks, MinhashResult, estimate=estimate)


def _similar_pairs_step(ingest: Step, minhash: Step, threshold: float) -> Step:
    bands = PERMUTATIONS // band_width(threshold)

    def tasks(done: Finished) -> list[Task]:
        own = done["minhash"]
        passes = passes_for(sum(part.documents for part in own.results(MinhashResult)))
        files = Signatures(
            signatures=tuple(own.files(".signatures.npy")),
            band_hashes=tuple(own.files(".band_hashes.npy")),
            band_rows=tuple(own.files(".band_rows.npy")),
            hashes=tuple(done["ingest"].files(".hashes.npy")),
        )
        return [
            partial(similar_pairs, files=files, band=band, step=step, passes=passes, threshold=threshold)
            for band in range(bands)
            for step in range(passes)
        ]

    estimate = Estimate(
        work=lambda amounts: amounts.documents,
        seconds=2e-5,
        disk=lambda amounts: amounts.documents,
        bytes=16.0,
        tasks=lambda amounts: bands * passes_for(round(amounts.documents)),
        memory=lambda amounts: 60 * amounts.documents / passes_for(round(amounts.documents)),
    )
    config: Config = {"threshold": threshold}
    return Step("similar_pairs", 1, config, (ingest, minhash), tasks, SimilarPairsResult, estimate=estimate)


def _near_duplicates_step(ingest: Step, select: Step, pairs: Step) -> Step:
    def tasks(done: Finished) -> list[Task]:
        return [
            partial(
                near_duplicates,
                pairs=done["similar_pairs"].files(".pairs.npy"),
                keep=done["select"].files(".keep.npy"),
                hashes=done["ingest"].files(".hashes.npy"),
                chars=done["ingest"].files(".chars.npy"),
            )
        ]

    estimate = Estimate(
        work=lambda amounts: amounts.documents,
        seconds=1e-6,
        disk=lambda amounts: amounts.documents,
        bytes=1.0,
        memory=lambda amounts: 40 * amounts.documents,
    )
    inputs = (ingest, select, pairs)
    return Step("near_duplicates", 2, {}, inputs, tasks, NearDuplicatesResult, estimate=estimate)


def chunk_step(recipe: Recipe, ingest: Step, keep: Step) -> Step:
    """DOCUMENTS → CHUNKS; `keep` is the step that says which documents stay."""

    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), done[keep.name].files(".keep.npy"), strict=True)
        return [
            partial(chunk_shard, documents=documents, keep=keep, **recipe.chunk.model_dump())
            for documents, keep in shards
        ]

    estimate = Estimate(
        work=lambda amounts: amounts.kept_chars,
        seconds=3e-9,
        disk=lambda amounts: amounts.chunks,
        bytes=21,  # 4 + 8 + 8 and a bit
        tasks=per_shard,
    )
    return Step("chunk", 1, recipe.chunk.identity(), (ingest, keep), tasks, ChunkResult, estimate=estimate)
