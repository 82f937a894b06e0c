"""Sequences: candidates → drafts → tokens → sequences → exported files, as steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

from nextlong.engine import store
from nextlong.engine.step import Done, Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.stages.compose import compose_block
from nextlong.stages.draft import draft_block, refer
from nextlong.stages.export import export_shard
from nextlong.stages.tokenize import tokenize_shard
from nextlong.stages.tokenizer import prepare_tokenizer
from nextlong.steps.candidates import blocks
from nextlong.steps.finished import corpus, sequences_per_part, special_ids, token_store


def tokenizer_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """The tokenizer, loaded or trained, and E."""
    source = recipe.tokenizer.source
    path = None if source is None else Path(source)
    if path is not None and path.is_dir():
        path = path / "tokenizer.json"
    config = recipe.tokenizer.model_dump() | {"joint": recipe.compose.joint, "seed": recipe.seed}
    if path is not None and path.is_file():
        config |= {"source": store.hash_file(path), "revision": None}

    def tasks(done: Finished) -> list[Task]:
        return [
            partial(
                prepare_tokenizer,
                tokenizer=recipe.tokenizer,
                joint=recipe.compose.joint,
                documents=done["ingest"].files(".documents.arrow"),
                chunks=done["chunk"].files(".chunks.arrow"),
                seed=recipe.seed,
            )
        ]

    return Step("tokenizer", 1, config, (ingest, chunk), tasks)


def draft_step(recipe: Recipe, chunk: Step, metas: Step, mine: Step, tokenizer: Step) -> Step:
    """CANDIDATES → DRAFTS."""
    config = {
        "method": recipe.compose.method,
        "target_tokens": recipe.compose.target_tokens,
        "draft_factor": recipe.compose.draft_factor,
        "fit": recipe.compose.fit,
    }

    def tasks(done: Finished) -> list[Task]:
        ranges = zip(blocks(done["metas"].total("drawn")), done["mine"].files(".candidates.arrow"), strict=True)
        return [
            partial(
                draft_block,
                metas=done["metas"].file(".metas.npy"),
                first=first,
                last=last,
                candidates=candidates,
                chunks=done["chunk"].files(".chunks.arrow"),
                target_tokens=recipe.compose.target_tokens,
                chars_per_token=done["tokenizer"].counts[0]["chars_per_token"],
                draft_factor=recipe.compose.draft_factor,
                fit=recipe.compose.fit,
                max_chars=recipe.chunk.max_chars,
            )
            for (first, last), candidates in ranges
        ]

    return Step("draft", 1, config, (chunk, metas, mine, tokenizer), tasks)


def refer_step(recipe: Recipe, chunk: Step, draft: Step) -> Step:
    """DRAFTS → the chunks that they name."""
    count = recipe.compose.sequences
    limit = None if count == "all" else count + count // 16 + 4  # spares for drafts that do not reach T after all

    def tasks(done: Finished) -> list[Task]:
        drafts, chunks = done["draft"].files(".drafts.arrow"), done["chunk"].files(".chunks.arrow")
        return [partial(refer, drafts=drafts, chunks=chunks, limit=limit)]

    return Step("refer", 1, {"limit": limit}, (chunk, draft), tasks)


def tokens_step(ingest: Step, chunk: Step, tokenizer: Step, named: Step) -> Step:
    """Named chunks → TOKENS."""

    def tasks(done: Finished) -> list[Task]:
        shards = zip(
            done["ingest"].files(".documents.arrow"),
            done["chunk"].files(".chunks.arrow"),
            done["refer"].files(".rows.npy"),
            strict=True,
        )
        path = done["tokenizer"].file(".tokenizer.json")
        return [
            partial(tokenize_shard, documents=documents, chunks=chunks, rows=rows, tokenizer=path)
            for documents, chunks, rows in shards
        ]

    return Step("tokens", 1, {}, (ingest, chunk, tokenizer, named), tasks)


def compose_step(recipe: Recipe, chunk: Step, tokenizer: Step, draft: Step, named: Step, tokens: Step) -> Step:
    """DRAFTS and token counts → SEQUENCES."""
    config: dict[str, Any] = {
        "target_tokens": recipe.compose.target_tokens,
        "fit": recipe.compose.fit,
        "position": recipe.compose.position,
        "seed": recipe.compose_seed,
    }

    def tasks(done: Finished) -> list[Task]:
        special = special_ids(done)
        (counts,) = done["refer"].counts
        return [
            partial(
                compose_block,
                drafts=drafts,
                take=take,
                tokens=token_store(done),
                chunks=done["chunk"].files(".chunks.arrow"),
                method=recipe.compose.method,
                joint_tokens=len(special.joint),
                bos_tokens=len(special.bos),
                eos_tokens=len(special.eos),
                **config,
            )
            for drafts, take in zip(done["draft"].files(".drafts.arrow"), counts["take"], strict=True)
        ]

    def check(done: Done) -> None:
        if not done.total("sequences"):
            raise CorpusError(_why_none(recipe, done))

    return Step("compose", 1, config, (chunk, tokenizer, draft, named, tokens), tasks, check=check)


def _why_none(recipe: Recipe, done: Done) -> str:
    reasons: dict[str, int] = {}
    for counts in done.counts:
        for reason, count in counts["dropped"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    longest = max((counts["longest_dropped_tokens"] for counts in done.counts), default=0)
    return (
        f"compose.target_tokens={recipe.compose.target_tokens:,} but the longest sequence that this corpus gives is "
        f"{longest:,} tokens ({'; '.join(f'{count:,} dropped: {reason}' for reason, count in reasons.items())}); "
        "add documents or lower it"
    )


def export_step(recipe: Recipe, name: Literal["parquet", "jsonl"], inputs: tuple[Step, ...]) -> Step:
    """SEQUENCES → files of one format; `inputs` are the steps that `finished` reads."""

    def tasks(done: Finished) -> list[Task]:
        files = done["compose"].files(".sequences.arrow")
        return [
            partial(
                export_shard,
                sequences=path,
                take=take,
                format=name,
                corpus=corpus(done),
                tokens=token_store(done),
                special=special_ids(done),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                row_group_bytes=int(recipe.export.row_group_mb * 1_000_000),
            )
            for path, take in zip(files, sequences_per_part(recipe, done["compose"]), strict=True)
            if take
        ]

    config: dict[str, Any] = {"format": name, "sequences": recipe.compose.sequences}
    if name == "parquet":
        config["row_group_mb"] = recipe.export.row_group_mb
    return Step(name, 1, config, inputs, tasks)
