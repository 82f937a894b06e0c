"""Pipeline: the whole route on one page, from a recipe to steps.

    ingest → select → chunk → encoder → embed ──┐
                        └──────→ metas → mine ←─┘
                                           └→ draft → refer → tokens → compose → one export a format
                        └──────→ tokenizer ──↑

Each step names the keys of the recipe that it depends on, and nothing else of it: `compose.position` is not among
those of `draft`, so changing it keeps everything down to the tokens.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nextlong.errors import CorpusError, RunError
from nextlong.recipe import Recipe
from nextlong.run import store
from nextlong.run.local import LocalExecutor
from nextlong.run.progress import Reporter
from nextlong.run.runner import run_steps
from nextlong.run.step import Done, Finished, Step, Task
from nextlong.stages.chunk import chunk_shard
from nextlong.stages.compose import compose_block
from nextlong.stages.draft import draft_block, refer
from nextlong.stages.embed import embed_shard, fit_encoder
from nextlong.stages.export import export_shard
from nextlong.stages.ingest import check_rejects, ingest_split
from nextlong.stages.mine import draw_metas, mine_block
from nextlong.stages.resolve import Corpus, SpecialIds
from nextlong.stages.select import select_documents
from nextlong.stages.sizes import auto_shard_bytes, estimate_text_bytes
from nextlong.stages.sources import InputFile, list_files, split_inputs
from nextlong.stages.tokenize import tokenize_shard
from nextlong.stages.tokenizer import prepare_tokenizer
from nextlong.stages.tokens import TokenStore

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.yaml"
_INPUTS_FILE = "inputs.json"

# Keys that say how to compute, not what: changing them must not throw vectors away.
_OPERATIONAL = {
    "batch_size",
    "device",
    "concurrency",
    "requests_per_minute",
    "max_attempts",
    "timeout_s",
    "api_key_env",
}

_LEAST_FETCH = (
    1024  # covers target_tokens up to 131,072 at 2,048 characters a chunk, so shorter targets mine nothing anew
)
_TYPICAL_CHARS_PER_TOKEN = 4.5  # of English; only bounds how many neighbours may be needed
_BLOCKS = 16  # tasks over meta-documents: enough that small data sets parallelise …
_MOST_METAS_PER_BLOCK = 256  # … and few enough documents in each to stay within memory

# What every worker needs, imported once by the server that workers are forked from.
_PRELOAD = ("nextlong.pipeline", "faiss", "pyarrow.parquet", "tokenizers")
_PRELOAD_LSA = ("sklearn.utils.extmath", "scipy.sparse")


def run(recipe: Recipe, *, reporter: Reporter | None = None, changed_inputs: str = "refuse") -> dict[str, Done]:
    """Bring the recipe's run directory to its finished state; return the finished steps by name.

    What is there already is kept. `changed_inputs="accept"` ingests anew where input files differ from those that an
    earlier run in this directory read. Raises a NextlongError for every mistake that a user can mend.
    """
    run_dir = Path(recipe.run_dir)
    files = input_files(recipe)
    with store.locked(run_dir):
        _check_inputs(recipe, files, run_dir, changed_inputs)
        steps = route(recipe, files)
        preload = [*_PRELOAD, *(_PRELOAD_LSA if recipe.encoder.kind == "lsa" else ())]
        with LocalExecutor(worker_count(recipe), preload=preload) as executor:
            done = run_steps(steps, run_dir=run_dir, executor=executor, reporter=reporter)
        _record(recipe, done, run_dir)
    return done


def worker_count(recipe: Recipe) -> int:
    """Return how many processes the recipe asks for; `auto` is one per core that this process may use."""
    return len(os.sched_getaffinity(0)) if recipe.workers == "auto" else recipe.workers


def input_files(recipe: Recipe) -> list[list[InputFile]]:
    """Return the files of each source. Raises CorpusError if a source has none."""
    return [
        list_files(source, where=f"ingest.sources[{place}].path") for place, source in enumerate(recipe.ingest.sources)
    ]


def route(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> list[Step]:
    """Return the steps of the recipe in the order in which they run."""
    ingest = _ingest(recipe, files)
    select = _select(recipe, ingest, files)
    chunk = _chunk(recipe, ingest, select)
    encoder = _encoder(recipe, ingest, chunk)
    embed = _embed(recipe, ingest, chunk, encoder)
    metas = _metas(recipe, ingest, chunk)
    mine = _mine(recipe, embed, metas)
    tokenizer = _tokenizer(recipe, ingest, chunk)
    draft = _draft(recipe, chunk, metas, mine, tokenizer)
    named = _refer(recipe, chunk, draft)
    tokens = _tokens(ingest, chunk, tokenizer, named)
    compose = _compose(recipe, chunk, tokenizer, draft, named, tokens)
    exports = [
        _export(recipe, name, ingest, chunk, tokenizer, named, tokens, compose) for name in recipe.export.formats
    ]
    return [ingest, select, chunk, encoder, embed, metas, mine, tokenizer, draft, named, tokens, compose, *exports]


# files → documents → chunks


def _shard_bytes(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> int:
    if recipe.ingest.shard_mb != "auto":
        return int(recipe.ingest.shard_mb * 1_000_000)
    sources = recipe.ingest.sources
    return auto_shard_bytes(sum(estimate_text_bytes(own, source) for own, source in zip(files, sources, strict=True)))


def _ingest(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> Step:
    shard_bytes = _shard_bytes(recipe, files)
    sources = recipe.ingest.sources

    def tasks(_: Finished) -> list[Task]:
        return [
            partial(
                ingest_split,
                files=split,
                source=source,
                shard_bytes=shard_bytes,
                max_document_chars=recipe.ingest.max_document_chars,
            )
            for source, own in zip(sources, files, strict=True)
            for split in split_inputs(own, shard_bytes=shard_bytes)
        ]

    def check(done: Done) -> None:
        reasons: Counter[str] = Counter()
        for counts in done.counts:
            reasons.update(counts["reject_reasons"])
        check_rejects(
            documents=done.total("documents"),
            rejects=done.total("rejects"),
            reasons=reasons,
            max_reject_share=recipe.ingest.max_reject_share,
            example=next((counts["example"] for counts in done.counts if counts["example"]), ""),
            rejects_at=f"{done.folder}/part-*.rejects.arrow",
        )

    reading = {"label", "text", "id", "format"}
    config = {
        "sources": [
            {key: getattr(source, key) for key in sorted(reading)}
            | {"files": [[file.path, file.identity] for file in own]}
            for source, own in zip(sources, files, strict=True)
        ],
        "max_document_chars": recipe.ingest.max_document_chars,
        "shard_bytes": shard_bytes,
    }
    return Step("ingest", 1, config, (), tasks, check=check)


def _select(recipe: Recipe, ingest: Step, files: Sequence[Sequence[InputFile]]) -> Step:
    sources = recipe.ingest.sources
    split_counts = [len(split_inputs(own, shard_bytes=_shard_bytes(recipe, files))) for own in files]
    source_of_split = [place for place, count in enumerate(split_counts) for _ in range(count)]

    def tasks(done: Finished) -> list[Task]:
        shard_sources = [
            place
            for place, counts in zip(source_of_split, done["ingest"].counts, strict=True)
            for _ in range(counts["shards"])
        ]
        return [
            partial(
                select_documents,
                hashes=done["ingest"].files(".hashes.npy"),
                chars=done["ingest"].files(".chars.npy"),
                shard_sources=shard_sources,
                sources=sources,
                seed=recipe.seed,
            )
        ]

    caps = [source.model_dump(include={"weight", "max_documents", "max_chars"}) for source in sources]
    return Step("select", 1, {"sources": caps, "seed": recipe.seed}, (ingest,), tasks)


def _chunk(recipe: Recipe, ingest: Step, select: Step) -> Step:
    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), done["select"].files(".keep.npy"), strict=True)
        return [
            partial(chunk_shard, documents=documents, keep=keep, **recipe.chunk.model_dump())
            for documents, keep in shards
        ]

    return Step("chunk", 1, recipe.chunk.model_dump(), (ingest, select), tasks)


# chunks → vectors → candidates


def _encoder(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    def tasks(done: Finished) -> list[Task]:
        if recipe.encoder.kind != "lsa":
            return []
        return [
            partial(
                fit_encoder,
                documents=done["ingest"].files(".documents.arrow"),
                chunks=done["chunk"].files(".chunks.arrow"),
                encoder=recipe.encoder,
                seed=recipe.seed,
            )
        ]

    options = recipe.encoder.model_dump()[recipe.encoder.kind.replace("-", "_")]
    config = {"model": recipe.encoder.model} | {key: value for key, value in options.items() if key not in _OPERATIONAL}
    if recipe.encoder.kind == "lsa":
        config["seed"] = recipe.seed
    return Step("encoder", 1, config, (ingest, chunk), tasks)


def _embed(recipe: Recipe, ingest: Step, chunk: Step, encoder: Step) -> Step:
    def tasks(done: Finished) -> list[Task]:
        fitted = done["encoder"].stem() if recipe.encoder.kind == "lsa" else None
        shards = zip(done["ingest"].files(".documents.arrow"), done["chunk"].files(".chunks.arrow"), strict=True)
        return [
            partial(embed_shard, documents=documents, chunks=chunks, shard=shard, encoder=recipe.encoder, fitted=fitted)
            for shard, (documents, chunks) in enumerate(shards)
        ]

    # One server's rate limit is kept by one process; its requests run in threads.
    lanes = 1 if recipe.encoder.kind == "openai" else None
    return Step("embed", 1, {}, (ingest, chunk, encoder), tasks, lanes=lanes)


def _draws(recipe: Recipe) -> int | None:
    """Return how many meta-documents to draw: a quarter more than sequences, for those that turn out not to fit."""
    count = recipe.compose.sequences
    return None if count == "all" else count + count // 4 + 8


def _metas(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    config: dict[str, Any] = {
        "draws": _draws(recipe),
        "min_meta_chunks": recipe.compose.min_meta_chunks,
        "seed": recipe.compose_seed,
    }

    def tasks(done: Finished) -> list[Task]:
        chunks, hashes = done["chunk"].files(".chunks.arrow"), done["ingest"].files(".hashes.npy")
        return [partial(draw_metas, chunks=chunks, hashes=hashes, **config)]

    def check(done: Done) -> None:
        (counts,) = done.counts
        if not counts["drawn"]:
            raise CorpusError(
                f"none of the {counts['documents']:,} documents has compose.min_meta_chunks="
                f"{recipe.compose.min_meta_chunks} chunks of at most chunk.max_chars={recipe.chunk.max_chars} characters; "
                "lower either, or add longer documents"
            )

    return Step("metas", 1, config, (ingest, chunk), tasks, check=check)


def _blocks(count: int) -> list[tuple[int, int]]:
    """Return the ranges of meta-documents that one task takes; they depend on their number alone."""
    size = min(max(1, math.ceil(count / _BLOCKS)), _MOST_METAS_PER_BLOCK)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def fetch_of(recipe: Recipe) -> int:
    """Return how many candidates each meta-chunk gets.

    One meta-chunk may need as many as the whole sequence holds. `auto` doubles the paper's count for chunks that are
    shorter than s, as most are, and rounds to a power of two.
    """
    if recipe.mine.fetch != "auto":
        return recipe.mine.fetch
    drafted_chars = recipe.compose.target_tokens * _TYPICAL_CHARS_PER_TOKEN * recipe.compose.draft_factor
    return max(_LEAST_FETCH, 2 << math.ceil(math.log2(max(1.0, drafted_chars / recipe.chunk.max_chars))))


def _mine(recipe: Recipe, embed: Step, metas: Step) -> Step:
    fetch = fetch_of(recipe)

    def tasks(done: Finished) -> list[Task]:
        path, vectors = done["metas"].file(".metas.npy"), done["embed"].files(".vectors.npy")
        return [
            partial(mine_block, metas=path, first=first, last=last, vectors=vectors, fetch=fetch)
            for first, last in _blocks(done["metas"].total("drawn"))
        ]

    return Step("mine", 1, {"fetch": fetch}, (embed, metas), tasks)


# candidates → sequences


def _tokenizer(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
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


def _draft(recipe: Recipe, chunk: Step, metas: Step, mine: Step, tokenizer: Step) -> Step:
    config = {
        "method": recipe.compose.method,
        "target_tokens": recipe.compose.target_tokens,
        "draft_factor": recipe.compose.draft_factor,
        "fit": recipe.compose.fit,
    }

    def tasks(done: Finished) -> list[Task]:
        blocks = zip(_blocks(done["metas"].total("drawn")), done["mine"].files(".candidates.arrow"), strict=True)
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
            for (first, last), candidates in blocks
        ]

    return Step("draft", 1, config, (chunk, metas, mine, tokenizer), tasks)


def _refer(recipe: Recipe, chunk: Step, draft: Step) -> Step:
    count = recipe.compose.sequences
    limit = None if count == "all" else count + count // 16 + 4  # spares for drafts that do not reach T after all

    def tasks(done: Finished) -> list[Task]:
        drafts, chunks = done["draft"].files(".drafts.arrow"), done["chunk"].files(".chunks.arrow")
        return [partial(refer, drafts=drafts, chunks=chunks, limit=limit)]

    return Step("refer", 1, {"limit": limit}, (chunk, draft), tasks)


def _tokens(ingest: Step, chunk: Step, tokenizer: Step, named: Step) -> Step:
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


def token_store(done: Finished) -> TokenStore:
    """Return the tokens of a finished run."""
    tokens = done["tokens"]
    return TokenStore(
        rows=done["refer"].files(".rows.npy"), offsets=tokens.files(".offsets.npy"), ids=tokens.files(".ids.npy")
    )


def corpus(done: Finished) -> Corpus:
    """Return the text of a finished run."""
    return Corpus(tuple(done["ingest"].files(".documents.arrow")), tuple(done["chunk"].files(".chunks.arrow")))


def special_ids(done: Finished) -> SpecialIds:
    """Return the ids that a finished run puts between chunks."""
    (counts,) = done["tokenizer"].counts
    bos, eos = ((counts[key],) if counts[key] is not None else () for key in ("bos_id", "eos_id"))
    return SpecialIds(joint=tuple(counts["joint_ids"]), bos=bos, eos=eos)


def _compose(recipe: Recipe, chunk: Step, tokenizer: Step, draft: Step, named: Step, tokens: Step) -> Step:
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


def sequences_per_part(recipe: Recipe, compose: Done) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set: the first `compose.sequences` in draw order."""
    left = compose.total("sequences") if recipe.compose.sequences == "all" else recipe.compose.sequences
    take = []
    for counts in compose.counts:
        take.append(min(left, counts["sequences"]))
        left -= take[-1]
    return take


def _export(
    recipe: Recipe, name: Any, ingest: Step, chunk: Step, tokenizer: Step, named: Step, tokens: Step, compose: Step
) -> Step:
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

    config = {"format": name, "sequences": recipe.compose.sequences}
    if name == "parquet":
        config["row_group_mb"] = recipe.export.row_group_mb
    return Step(name, 1, config, (ingest, chunk, tokenizer, named, tokens, compose), tasks)


# what the run directory remembers


def _check_inputs(recipe: Recipe, files: Sequence[Sequence[InputFile]], run_dir: Path, changed_inputs: str) -> None:
    """Raise RunError if a file that this directory has read before is another now; else remember the files."""
    path = run_dir / _INPUTS_FILE
    known: dict[str, str] = store.read_json(path) if path.exists() else {}
    now = {file.path: file.identity for own in files for file in own}
    changed = sorted(name for name in now if name in known and known[name] != now[name])
    if changed and changed_inputs != "accept":
        raise RunError(
            f"{changed[0]} has changed since a run in {run_dir} read it (it was {known[changed[0]]}, it is "
            f"{now[changed[0]]}{f'; so have {len(changed) - 1} other files' if len(changed) > 1 else ''}); put the old file "
            "back, give the recipe another run_dir, or say --accept-changed-inputs to read it anew here"
        )
    with store.explained(run_dir):
        store.write_json(path, known | now)


def _record(recipe: Recipe, done: Finished, run_dir: Path) -> None:
    """Write down which folders make up the data set that was asked for last."""
    with store.explained(run_dir):
        store.write_text(run_dir / RECIPE_FILE, recipe.dump())
        store.write_json(
            run_dir / RUN_FILE,
            {
                "steps": {name: step.folder.name for name, step in done.items()},
                "sequences_per_part": sequences_per_part(recipe, done["compose"]),
                "recipe": recipe.model_dump(mode="json"),
            },
        )
