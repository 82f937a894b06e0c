"""Tokens, as steps: the tokenizer, the chunks that drafts name, their ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from nextlong.artifacts.finished import chunks_of, corpus, special_ids, token_store
from nextlong.artifacts.results import (
    ChunkResult,
    ComposeResult,
    ReferencedChunksResult,
    TokenizerResult,
    TokensResult,
)
from nextlong.engine import store
from nextlong.engine.estimate import TRIED, Estimate, one
from nextlong.engine.runner import open_done
from nextlong.engine.step import Artifact, Artifacts, Step, Task
from nextlong.errors import RunError
from nextlong.recipe import Compose, Recipe
from nextlong.recipe.amounts import MIN_GAP_CHUNKS, TOKENIZER_BYTES, blocks
from nextlong.recipe.keys import NEGATIVES
from nextlong.retrieval.near_duplicates.shingles import shingle_store
from nextlong.sequences.compose import compose_drafts
from nextlong.sequences.corpus_size import is_extended
from nextlong.sequences.fit import Rules
from nextlong.sequences.tokenize import Known, Wanted, list_referenced_chunks, tokenize_shards
from nextlong.sequences.tokenizer import MEASURED_CHUNKS, TRAINING_CHARS, local_path, prepare_tokenizer, token_id
from nextlong.sequences.truncate import ComposeInputs
from nextlong.text import Json

# A worker keeps fastokens, which loads in the time that it takes to encode 200 MB, from task to task. Of less, several idle
# workers are done sooner than one.
_CHARS_OF_A_TASK: Final = 40_000_000


def tokenizer_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """The tokenizer, loaded or trained, and E."""
    source = recipe.tokenizer.source
    config = recipe.tokenizer.identity() | {"separator": recipe.compose.separator, "seed": recipe.seed}
    if source is not None and (path := local_path(source)).is_file():
        config |= {"source": store.hash_file(path), "revision": None}
        # Before anything runs; of a tokenizer that is fetched or trained, as soon as it is there.
        check_eod(recipe.export.megatron_eod, path)

    def tasks(done: Artifacts) -> list[Task]:
        return [
            partial(
                prepare_tokenizer,
                tokenizer=recipe.tokenizer,
                separator=recipe.compose.separator,
                documents=done["ingest"].files(".documents.arrow"),
                chunks=chunks_of(done).files(".chunks.arrow"),
                seed=recipe.seed,
            )
        ]

    def check(done: Artifact) -> None:
        check_eod(recipe.export.megatron_eod, done.file(".tokenizer.json"))

    estimate = Estimate(
        work=lambda amounts: min(
            amounts.kept_chars, TRAINING_CHARS if source is None else MEASURED_CHUNKS * amounts.chunk_chars
        ),
        seconds=5e-8,
        disk=one,
        bytes=5e6 if source is None or not path.is_file() else path.stat().st_size,
        memory=lambda _: TOKENIZER_BYTES,
        rate=TRIED if source is None else "tokenizer",
    )
    return Step("tokenizer", 5, config, (ingest, chunk), tasks, TokenizerResult, check=check, estimate=estimate)


def referenced_chunks_step(chunk: Step, draft: Step, *, limit: int | None) -> Step:
    """The first `limit` DRAFTS, None for all → the chunks that they name."""

    def tasks(done: Artifacts) -> list[Task]:
        drafts, chunks = done["draft"].files(".drafts.arrow"), chunks_of(done).files(".chunks.arrow")
        return [partial(list_referenced_chunks, drafts=drafts, chunks=chunks, limit=limit)]

    estimate = Estimate(
        # 0.03 ms a draft of 400 chunks, 0.1 ms a shard: a sample, whose milliseconds are mostly start-up, cannot tell.
        work=lambda amounts: amounts.drafted_chunks + amounts.chunks / 40,
        seconds=8e-8,
        disk="referenced_chunks",
        bytes=8,
        memory="chunks",
        rate="",
    )
    return Step(
        "referenced_chunks", 1, {"limit": limit}, (chunk, draft), tasks, ReferencedChunksResult, estimate=estimate
    )


def tokens_step(
    ingest: Step, chunk: Step, tokenizer: Step, named: Step, *, engine: Literal["auto", "reference"]
) -> Step:
    """Referenced chunks → TOKENS; what earlier drafts of the run directory named is copied."""
    version = 3
    config = {"engine": engine}

    def tasks(done: Artifacts) -> list[Task]:
        inputs = {step.name: step.fingerprint for step in (ingest, chunk, tokenizer)}
        earlier = _earlier_tokens(done["tokenizer"].folder.parent, inputs, version=version, config=config)
        shards = zip(
            done["ingest"].files(".documents.arrow"),
            chunks_of(done).files(".chunks.arrow"),
            done["referenced_chunks"].files(".rows.npy"),
            strict=True,
        )
        wanted = [
            Wanted(shard, *paths, known=[files[shard] for files in earlier]) for shard, paths in enumerate(shards)
        ]
        chunked = chunks_of(done).results(ChunkResult)
        chunks, chars = sum(part.chunks for part in chunked), sum(part.chars for part in chunked)
        together = _CHARS_OF_A_TASK * chunks // max(1, chars)
        path = done["tokenizer"].file(".tokenizer.json")
        return [
            partial(tokenize_shards, wanted=group, tokenizer=path, engine=engine)
            for group in _groups(wanted, chunks=together)
        ]

    def check(done: Artifact) -> None:
        encoded = enumerate(done.results(TokensResult))
        wrong = {number: task.mismatches for number, task in encoded if task.mismatches}
        if wrong:
            mismatches = ", ".join(f"{count:,} of task {number}" for number, count in wrong.items())
            raise RunError(
                f"fastokens gave other ids than the reference for some of the chunks that are checked ({mismatches}); "
                "run again with --set tokenizer.engine=reference, and please report it with your tokenizer's name"
            )

    estimate = Estimate(
        work="referenced_chars",
        seconds=1.3e-8,
        disk="referenced_chars",
        bytes=0.9,
        tasks=lambda amounts: max(1.0, amounts.referenced_chars / _CHARS_OF_A_TASK),
        memory=lambda _: TOKENIZER_BYTES,
        rate="tokens",
    )
    return Step(
        "tokens",
        version,
        config,
        (ingest, chunk, tokenizer, named),
        tasks,
        TokensResult,
        check=check,
        estimate=estimate,
    )


def _groups(wanted: Sequence[Wanted], *, chunks: int) -> list[list[Wanted]]:
    """Group consecutive shards, at most `chunks` wanted chunks in a group of several."""
    groups: list[list[Wanted]] = [[]]
    room = chunks
    for shard in wanted:
        rows = len(np.load(shard.rows, mmap_mode="r"))
        if groups[-1] and rows > room:
            groups.append([])
            room = chunks
        groups[-1].append(shard)
        room -= rows
    return groups


def _earlier_tokens(
    run_dir: Path, inputs: Mapping[str, str], *, version: int, config: Mapping[str, Any]
) -> list[list[Known]]:
    """Return rows, offsets and ids of each shard, for each finished TOKENS that has the same ids for the same rows."""
    earlier = []
    for folder in sorted(run_dir.glob("[0-9][0-9]-tokens-*")):
        try:
            tokens = open_done("tokens", folder)
            manifest = tokens.manifest
            same = manifest["version"] == version and manifest["config"] == config
            is_right = not any(shard.mismatches for shard in tokens.results(TokensResult))
            if not same or not is_right or not inputs.items() <= manifest["inputs"].items():
                continue
            (named,) = run_dir.glob(f"[0-9][0-9]-referenced_chunks-{manifest['inputs']['referenced_chunks']}")
            rows = open_done("referenced_chunks", named).files(".rows.npy")
            earlier.append(list(zip(rows, tokens.files(".offsets.npy"), tokens.files(".ids.npy"), strict=True)))
        except (RunError, ValueError):
            continue  # unfinished, harmed or half removed: these rows are tokenized anew
    return earlier


def check_eod(megatron_eod: str | None, tokenizer: Path) -> None:
    """Raise TokenizerError if `export.megatron_eod` is not a token of the tokenizer."""
    if megatron_eod is not None:
        token_id(megatron_eod, tokenizer=tokenizer, key="export.megatron_eod")


def compose_step(
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    tokenizer: Step,
    referenced: Step,
    tokens: Step,
    *,
    draft: Step,
    near_duplicate_steps: Sequence[Step],
) -> Step:
    """DRAFTS and token counts → SEQUENCES; with `near_duplicate_steps`, negatives are compared again where they are cut."""
    compose = recipe.compose
    max_uses = compose.max_uses if is_extended(compose) else None
    config: Json = {
        "method": compose.method,
        "target_tokens": recipe.sequence_tokens,
        "fit": compose.fit,
        "min_gap_tokens": compose.min_gap_tokens if has_gaps(compose) else None,
        "position": compose.position,
        "reuse": "free" if NEGATIVES[compose.negatives].repeat_meta_chunk else "never",
        "seed": recipe.compose_seed,
        "max_uses": max_uses,
    }

    def tasks(done: Artifacts) -> list[Task]:
        special = special_ids(done)
        rules = Rules(
            target_tokens=recipe.sequence_tokens,
            fit=compose.fit,
            min_gap_tokens=min_gap_tokens(compose, done),
            position=compose.position,
            reuse=config["reuse"],
            separator_tokens=len(special.separator),
            bos_tokens=len(special.bos),
            eos_tokens=len(special.eos),
        )
        threshold = recipe.mine.near_duplicates_for(compose.negatives)
        near_duplicates = None
        if near_duplicate_steps and threshold is not None and compose.fit == "exact":
            near_duplicates = (shingle_store(done), done["weights"].file(".weights.npy"), threshold)
        task = partial(
            compose_drafts,
            inputs=ComposeInputs(
                tokens=token_store(done),
                corpus=corpus(done),
                token_chars=done["tokenizer"].file(".tokenchars.npy"),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                near_duplicates=near_duplicates,
            ),
            rules=rules,
            method=compose.method,
            seed=recipe.compose_seed,
            max_uses=max_uses,
        )
        drafts = done["draft"].files(".drafts.arrow")
        takes = done["referenced_chunks"].result(ReferencedChunksResult).take
        if max_uses is not None:
            return [partial(task, drafts=drafts, take=takes)]
        return [partial(task, drafts=[path], take=[take]) for path, take in zip(drafts, takes, strict=True)]

    estimate = Estimate(
        work="drafted_chunks",
        seconds=1e-5,
        disk="drafted_chunks",
        bytes=30,
        # With max_uses, what a sequence may take depends on the sequences before it.
        tasks=one if max_uses is not None else lambda amounts: blocks(amounts.drafts, amounts.queries),
    )
    inputs = (ingest, chunk, tokenizer, draft, referenced, tokens, *near_duplicate_steps)
    return Step("compose", 6, config, inputs, tasks, ComposeResult, estimate=estimate)


def has_gaps(compose: Compose) -> bool:
    """Say whether each gap between two meta-chunks must hold negatives; the paper's Algorithm 1 does not ask for it."""
    return is_extended(compose) and compose.fit == "exact"


def min_gap_tokens(compose: Compose, done: Artifacts) -> int:
    """Return `compose.min_gap_tokens`; auto: half of the tokens of a mean chunk of the corpus, by E."""
    if not has_gaps(compose):
        return 0
    if compose.min_gap_tokens != "auto":
        return compose.min_gap_tokens
    shards = chunks_of(done).results(ChunkResult)
    chars = sum(shard.chars for shard in shards) / max(1, sum(shard.chunks for shard in shards))
    chunk_tokens = chars / done["tokenizer"].result(TokenizerResult).chars_per_token
    return max(1, math.ceil(MIN_GAP_CHUNKS * chunk_tokens))
