"""Methods, as steps: candidates, neighbours or keywords → drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.finished import chunks_of, special_ids
from nextlong.artifacts.results import DraftResult, KeywordsResult, LengthsResult, TokenizerResult
from nextlong.engine import store
from nextlong.engine.estimate import TRIED, Amounts, Estimate, per_shard
from nextlong.engine.executor import Resources
from nextlong.engine.step import Artifact, Artifacts, Step, Task, each_shard
from nextlong.errors import CorpusError, RecipeError
from nextlong.methods.base import DocumentMethod, Method, Need, NeighbourSearch, Request, method_of
from nextlong.methods.documents import count_tokens, draft_documents
from nextlong.methods.extend import DraftRules, draft_block
from nextlong.methods.keywords import Keywords, extract_keywords
from nextlong.methods.partition import count_parts, partition_steps, parts_of
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import SURE_SHARE, TOKENIZER_BYTES, blocks, candidates_of, sequence_limit
from nextlong.recipe.keys import AUTO, EXACT, NEGATIVES
from nextlong.retrieval.embed import document_vectors_step, embed_step, encoder_step
from nextlong.retrieval.index import document_neighbours, index_steps
from nextlong.retrieval.mine import mine_steps
from nextlong.retrieval.near_duplicates.shingles import shingle_store, shingles_step, weights_step
from nextlong.retrieval.sample import documents_step, meta_documents_step, query_ranges
from nextlong.retrieval.shortlist import shortlist_steps
from nextlong.text import Json

_DRAFT = Estimate(
    work="drafted_chunks",
    seconds=8e-5,
    disk="drafted_chunks",
    bytes=21,  # id, role, group and score, and a share of the header
    tasks=lambda amounts: blocks(amounts.drafts, amounts.queries),
)

# methods that extend a meta-document


def extension_steps(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
    """Return the steps of Negative Document Extension."""
    encoder = encoder_step(recipe, ingest, chunk)
    meta_documents = meta_documents_step(recipe, ingest, chunk, attempt=attempt)
    neighbours = {"neighbours": candidates_of(recipe)}
    if is_short := recipe.mine.shortlist is not None:
        _check_shortlist(recipe)
    shortlisting = shortlist_steps(recipe, ingest, chunk, meta_documents) if is_short else []
    embed = embed_step(recipe, ingest, chunk, encoder, shortlisting[-1] if is_short else None)
    # Most vectors are zero with a shortlist, and an index of them would have poor clusters: the search is exact.
    index = [] if is_short else index_steps(recipe, embed, meta_documents, neighbours)
    mining = mine_steps(recipe, "mine", embed, meta_documents, index, neighbours, shortlist=shortlisting)
    near_duplicate_steps = _near_duplicate_steps(recipe, ingest, chunk)
    draft = draft_step(
        recipe, ingest, chunk, embed, meta_documents, mining[-1], tokenizer, near_duplicate_steps, attempt=attempt
    )
    # Near-duplicates before vectors: their weights are one task, which then runs beside those that embed.
    return [meta_documents, *shortlisting, encoder, *near_duplicate_steps, embed, *index, *mining, draft]


def _check_shortlist(recipe: Recipe) -> None:
    """Raise RecipeError for what needs the vectors of chunks that are not on a shortlist."""
    compose, index = recipe.compose, recipe.search.index
    if compose.sequences == "all":
        why = "embeds every chunk with compose.sequences=all, which extends every document; give compose.sequences a number"
    elif index not in (AUTO, EXACT):
        why = f"leaves most vectors empty, which search.index={index} would cluster badly; set search.index=exact"
    elif NEGATIVES[compose.negatives].origin == "corpus":
        why = f"does not embed the random chunks that compose.negatives={compose.negatives} takes; take other negatives"
    else:
        return
    raise RecipeError(f"mine.shortlist=bm25 {why}, or remove mine.shortlist")


def _near_duplicate_steps(recipe: Recipe, ingest: Step, chunk: Step) -> list[Step]:
    """Return the steps that near-duplicates are measured with; none where they may stay."""
    if recipe.mine.near_duplicates_for(recipe.compose.negatives) is None:
        return []
    shingled = shingles_step(ingest, chunk)
    return [shingled, weights_step(recipe, ingest, chunk, shingled)]


def draft_step(
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    embed: Step,
    meta_documents: Step,
    mine: Step,
    tokenizer: Step,
    near_duplicate_steps: Sequence[Step],
    *,
    attempt: int,
) -> Step:
    """CANDIDATES → DRAFTS of extended documents; `near_duplicate_steps`, shingles and their weights, finds near-duplicates."""
    compose, choice = recipe.compose, NEGATIVES[recipe.compose.negatives]
    config: Json = {
        "target_tokens": recipe.sequence_tokens,
        "draft_factor": compose.draft_factor,
        "fit": compose.fit,
        "negatives": compose.negatives,
        "reorder_top": recipe.mine.reorder_top if choice.are_reordered else 0,
        "near_duplicates": recipe.mine.near_duplicates_for(compose.negatives),
        "max_similarity": None if choice.repeat_meta_chunk else recipe.mine.max_similarity,
        "seed": recipe.compose_seed if choice.are_random else 0,
        "max_chars": recipe.chunk.max_chars,
    }

    enough = sequence_limit(recipe.compose, attempt)

    def tasks(done: Artifacts) -> list[Task]:
        meta_documents = done["meta_documents"].file(".meta_documents.npy")
        ranges = zip(query_ranges(meta_documents), done["mine"].files(".candidates.arrow"), strict=True)
        chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        rules = DraftRules(chars_per_token=chars_per_token, **config)
        sure_chars = SURE_SHARE * recipe.compose.target_tokens * chars_per_token
        drafted = _surely_enough(np.load(meta_documents)["chars"], enough=enough, sure_chars=sure_chars)
        measure = (shingle_store(done), done["weights"].file(".weights.npy")) if near_duplicate_steps else None
        return [
            partial(
                draft_block,
                meta_documents=meta_documents,
                first=first,
                last=min(last, drafted),
                candidates=candidates,
                documents=done["ingest"].files(".documents.arrow"),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                engine=recipe.tokenizer.engine,
                chunks=chunks_of(done).files(".chunks.arrow"),
                vectors=done["embed"].files(".vectors.npy"),
                measure=measure,
                rules=rules,
            )
            for (first, last), candidates in ranges
            if first < drafted
        ]

    inputs = (ingest, chunk, embed, meta_documents, mine, tokenizer, *near_duplicate_steps)
    promises = _promises(method_of(recipe), recipe)
    whole = {**promises, **config, "engine": recipe.tokenizer.engine, "enough": enough}
    return Step("draft", 5, whole, inputs, tasks, DraftResult, estimate=_DRAFT)


def _surely_enough(chars: NDArray[np.int64], *, enough: int | None, sure_chars: float) -> int:
    """Return how many documents, of so many characters each, to draft so that `enough` are most likely shorter than T."""
    sure = np.flatnonzero(chars <= sure_chars)
    return len(chars) if enough is None or len(sure) <= enough else int(sure[enough])


def _promises(method: Method[Any], recipe: Recipe) -> Json:
    """Return what a method says of its drafts, which `verify` holds them to."""
    return {
        "method": method.name,
        "layout": method.layout.value,
        "repeats_documents": method.repeats_documents(recipe.options),
    }


# methods that put documents, or parts of them, together


def document_steps(
    method: DocumentMethod[Any], recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int
) -> list[Step]:
    """Return the steps that give a method what it needs, and the one that drafts."""
    search = NeighbourSearch()
    if Need.DOCUMENT_NEIGHBOURS in method.needs:
        search = method.search(recipe, recipe.options, attempt=attempt)
    documents = documents_step(recipe, ingest, chunk, queries=search.queries)
    needed = [documents, lengths_step(recipe, ingest, chunk, tokenizer)]
    on_the_way = []
    if Need.DOCUMENT_NEIGHBOURS in method.needs:
        encoder = encoder_step(recipe, ingest, chunk)
        embed = embed_step(recipe, ingest, chunk, encoder)
        vectors = document_vectors_step(recipe, chunk, embed)
        neighbours = document_neighbours(recipe, neighbours=search.neighbours, attempt=attempt)
        index = index_steps(recipe, vectors, documents, neighbours)
        *scanning, mine = mine_steps(recipe, "neighbours", vectors, documents, index, neighbours)
        parts = partition_steps(recipe, documents, vectors, neighbours)
        on_the_way = [encoder, embed, vectors, *parts, *index, *scanning]
        needed += [*parts, mine]
        if Need.DOCUMENT_VECTORS in method.needs:
            needed.append(vectors)
    if Need.KEYWORDS in method.needs:
        needed.append(keywords_step(recipe, ingest, chunk))
    draft = draft_documents_step(method, recipe, needed, tokenizer, attempt=attempt)
    return [documents, *on_the_way, *(step for step in needed[1:] if step not in on_the_way), draft]


def lengths_step(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step) -> Step:
    """CHUNKS → how many tokens each takes."""

    def tasks(done: Artifacts) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)
        given: dict[str, Any] = {
            "tokenizer": done["tokenizer"].file(".tokenizer.json"),
            "engine": recipe.tokenizer.engine,
            "separator_tokens": len(special_ids(done).separator),
        }
        return [partial(count_tokens, documents=documents, chunks=chunks, **given) for documents, chunks in shards]

    estimate = Estimate(
        work="kept_chars",
        seconds=1.3e-8,
        disk="chunks",
        bytes=4,
        tasks=per_shard,
        memory=lambda _: TOKENIZER_BYTES,
        rate="tokens",
    )
    return Step(
        "lengths",
        1,
        {"engine": recipe.tokenizer.engine},
        (ingest, chunk, tokenizer),
        tasks,
        LengthsResult,
        estimate=estimate,
    )


def keywords_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """Documents → the keywords of their queries."""
    options = recipe.options
    if not isinstance(options, Keywords):
        raise METHODS.broken(
            recipe.compose.method,
            "needs keywords, but its Options do not derive from nextlong.methods.keywords.Keywords, whose keys say how "
            "they are read",
        )

    files = {"documents": (ingest, ".documents.arrow"), "chunks": (chunk, ".chunks.arrow")}
    tasks = each_shard(partial(extract_keywords, options=options), **files)
    config: Json = options.model_dump(include=set(Keywords.model_fields))
    model = Path(options.queries).expanduser()
    if options.queries != "extractive" and model.is_dir():
        config["files"] = store.hash_folder(model)
    needs = Resources(gpu="unused" if options.queries == "extractive" else "optional")  # a model takes one for itself
    estimate = Estimate(
        work="kept_chars",
        seconds=5e-8,
        disk="kept_documents",
        bytes=80,
        tasks=per_shard,
        rate=TRIED if options.queries == "extractive" else "queries",
    )
    return Step("keywords", 3, config, (ingest, chunk), tasks, KeywordsResult, resources=needs, estimate=estimate)


def draft_documents_step(
    method: DocumentMethod[Any], recipe: Recipe, needed: Sequence[Step], tokenizer: Step, *, attempt: int
) -> Step:
    """Documents, their lengths, neighbours or keywords (`needed`) → DRAFTS."""
    limit = sequence_limit(recipe.compose, attempt)
    config: Json = {
        **_promises(method, recipe),
        "version": method.version,
        "target_tokens": recipe.sequence_tokens,
        "sequences": limit,
        "seed": recipe.compose_seed,
        "options": recipe.options.identity(),
    }

    def files(done: Artifacts, name: str, suffix: str) -> Any:
        return done[name].files(suffix) if name in {step.name for step in needed} else None

    def tasks(done: Artifacts) -> list[Task]:
        special = special_ids(done)
        room = recipe.sequence_tokens - len(special.bos) - len(special.eos)
        draft = partial(
            draft_documents,
            method=method.name,
            options=recipe.options,
            docs=done["documents"].file(".docs.npy"),
            lengths=done["lengths"].files(".lengths.npy"),
            neighbours=files(done, "neighbours", ".candidates.arrow"),
            vectors=files(done, "document_vectors", ".document_vectors.npy"),
            keywords=files(done, "keywords", ".keywords.arrow"),
            request=Request(target_tokens=room, sequences=limit, seed=recipe.compose_seed),
        )
        parts = parts_of(done)
        if not parts:
            return [draft]
        # Sequences are taken from the first task on, so spare ones would displace those of the last parts.
        asked = None if recipe.compose.sequences == "all" else recipe.compose.sequences << attempt
        request = Request(target_tokens=room, sequences=asked, seed=recipe.compose_seed)
        return [partial(draft, request=request, part=part) for part in parts]

    def check(done: Artifact) -> None:
        drafted = done.results(DraftResult)
        if not any(part.drafts or part.starved for part in drafted):
            raise CorpusError(
                f"compose.method={method.name} finds no sequence of compose.target_tokens="
                f"{recipe.compose.target_tokens:,}: the documents that it puts together are too few or too short; add "
                "documents or lower it"
            )

    def parts(amounts: Amounts) -> int:
        return count_parts(recipe, queries=amounts.queries, neighbours=min(amounts.neighbours, amounts.vectors))

    estimate = replace(
        _DRAFT,
        work=lambda amounts: amounts.chunks + amounts.drafted_chunks,
        seconds=1e-6,
        tasks=parts,
        # Lengths and documents, and the neighbours as a graph and as what it is made from; of all documents, rows and places.
        memory=lambda amounts: (
            50 * amounts.kept_documents
            + (
                150 * amounts.kept_documents if Need.KEYWORDS in method.needs else 0
            )  # ten hashes, flags, a range's sorting
            + (12 * amounts.chunks + 50 * amounts.kept_documents + 60 * amounts.all_neighbours) / parts(amounts)
        ),
    )
    return Step("draft", 4, config, (*needed, tokenizer), tasks, DraftResult, check=check, estimate=estimate)
