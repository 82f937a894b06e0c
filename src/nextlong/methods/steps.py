"""Methods, as steps: candidates, neighbours or keywords → drafts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nextlong.artefacts.finished import chunks_of
from nextlong.engine.step import Done, Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.methods.documents import draft_documents
from nextlong.methods.nextlong.draft import DraftRules, draft_block
from nextlong.methods.quest.keywords import extract_keywords
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import document_chars, sequence_limit
from nextlong.search.steps import blocks
from nextlong.similarity.steps import shingle_store


def keywords_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """Documents → the keywords of their queries."""
    reading = {"queries", "min_keyword_score", "min_keyword_chars"}

    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"), strict=True)
        return [
            partial(extract_keywords, documents=documents, chunks=chunks, options=recipe.quest)
            for documents, chunks in shards
        ]

    return Step("keywords", 1, recipe.quest.model_dump(include=reading), (ingest, chunk), tasks)


def draft_step(
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    embed: Step,
    metas: Step,
    mine: Step,
    tokenizer: Step,
    screening: Sequence[Step],
) -> Step:
    """CANDIDATES → DRAFTS of the method nextlong; `screening`, shingles and their weights, finds near-copies."""
    compose = recipe.compose
    config: dict[str, Any] = {
        "target_tokens": recipe.sequence_tokens,
        "draft_factor": compose.draft_factor,
        "fit": compose.fit,
        "negatives": compose.negatives,
        "pool": recipe.mine.pool if compose.negatives in ("random-retrieved", "tail") else 0,
        "near_copies": recipe.mine.screened(compose.negatives),
        "max_similarity": None if compose.negatives == "self-repeat" else recipe.mine.max_similarity,
        "seed": recipe.compose_seed if compose.negatives.startswith("random") else 0,
        "max_chars": recipe.chunk.max_chars,
    }

    def tasks(done: Finished) -> list[Task]:
        ranges = zip(blocks(done["metas"].total("drawn")), done["mine"].files(".candidates.arrow"), strict=True)
        rules = DraftRules(chars_per_token=done["tokenizer"].counts[0]["chars_per_token"], **config)
        measure = (shingle_store(done), done["weights"].file(".weights.npy")) if screening else None
        return [
            partial(
                draft_block,
                metas=done["metas"].file(".metas.npy"),
                first=first,
                last=last,
                candidates=candidates,
                documents=done["ingest"].files(".documents.arrow"),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                chunks=chunks_of(done).files(".chunks.arrow"),
                vectors=done["embed"].files(".vectors.npy"),
                measure=measure,
                rules=rules,
            )
            for (first, last), candidates in ranges
        ]

    inputs = (ingest, chunk, embed, metas, mine, tokenizer, *screening)
    return Step("draft", 2, {"method": "nextlong", **config}, inputs, tasks)


def draft_documents_step(recipe: Recipe, documents: Step, source: Step | None, tokenizer: Step) -> Step:
    """Documents, and their neighbours or keywords (`source`), → DRAFTS of the other methods."""
    method: Any = recipe.compose.method
    options: Any = None if method == "standard" else getattr(recipe, method)
    config: dict[str, Any] = {
        "method": method,
        "target_tokens": recipe.sequence_tokens,
        "sequences": sequence_limit(recipe),
        "seed": recipe.compose_seed,
        "options": None if options is None else options.model_dump(),
    }

    def tasks(done: Finished) -> list[Task]:
        return [
            partial(
                draft_documents,
                method=method,
                docs=done["documents"].file(".docs.npy"),
                neighbours=done["neighbours"].files(".candidates.arrow") if "neighbours" in done else (),
                keywords=done["keywords"].files(".keywords.arrow") if "keywords" in done else (),
                drafted_chars=document_chars(recipe, done["tokenizer"].counts[0]["chars_per_token"]),
                sequences=sequence_limit(recipe),
                options=options,
                seed=recipe.compose_seed,
            )
        ]

    def check(done: Done) -> None:
        if not done.total("drafts"):
            raise CorpusError(
                f"compose.method={method} finds no sequence of compose.target_tokens={recipe.compose.target_tokens:,}: "
                "the documents that it puts together are too few or too short; add documents or lower it"
            )

    inputs = (documents, tokenizer) if source is None else (documents, source, tokenizer)
    return Step("draft", 2, config, inputs, tasks, check=check)
