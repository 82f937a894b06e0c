"""Draft extended documents: choose the negatives of meta-documents, some to spare.

In:  META_DOCUMENTS and CANDIDATES; E, the measured characters per token; to filter
     near-duplicates, SHINGLES and WEIGHTS.
Out: DRAFTS, in sampled order: each meta-chunk followed by a prefix of its candidates
     (paper §3.1.2).

A draft does not decide where a candidate is placed. Composing walks each prefix in
order and skips candidates that an earlier meta-chunk has used, so the negatives of a
sequence are exactly the nearest unused ones.

The tokens of meta-documents are counted, because a document that does not fit T is
dropped. Candidates are counted in characters (`candidates.py`); those that repeat the
meta-document are removed (`filter_candidates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import AnyArray, Floats, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import CorpusFiles, corpus
from nextlong.artifacts.results import DraftResult, TokenizerFiles, TokenizerResult
from nextlong.engine.step import Artifacts, Step, Task
from nextlong.errors import RecipeError
from nextlong.methods.base import method_of
from nextlong.methods.candidates import (
    Candidates,
    Drafting,
    draft_prefixes,
    ordered_candidates,
    read_candidates,
)
from nextlong.methods.filter_candidates import Filtered, filter_near_duplicates
from nextlong.recipe import Recipe, keys
from nextlong.recipe.keys import (
    AUTO,
    EXACT,
    NEGATIVES,
    queries_of_task,
    sequence_limit,
)
from nextlong.retrieval.embed import EmbedFiles, embed_step, encoder_step
from nextlong.retrieval.index import index_steps
from nextlong.retrieval.mine import MineFiles, mine_steps
from nextlong.retrieval.near_duplicates import shingles as shingling
from nextlong.retrieval.near_duplicates.known import kept_pairs
from nextlong.retrieval.near_duplicates.shingles import (
    ComparedDocument,
    ShingleStore,
    WeightsFiles,
)
from nextlong.retrieval.sample import (
    LongDocuments,
    MetaDocumentsFiles,
    meta_documents_step,
    query_ranges,
)
from nextlong.retrieval.shortlist import shortlist_steps
from nextlong.sequences.tokenize import Engine, kept_encoder
from nextlong.text import Json

_EXAMPLES: Final = 8  # near-duplicates recorded by a task
_DROPPED_EXAMPLES: Final = 100  # documents without a draft, recorded by a task
_CHUNKS_AT_ONCE: Final = 64  # of a long document, whose tokens are counted at a time

_Ids = Ints
_Paths = Sequence[Path]
# SHINGLES and WEIGHTS, to filter near-duplicates.
_Filters = tuple[ShingleStore, Path]


def extension_steps(
    recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int
) -> list[Step]:
    """Return the steps of Negative Document Extension."""
    compose = recipe.compose
    mine = recipe.mine
    meta_documents = meta_documents_step(
        compose,
        ingest,
        chunk,
        attempt=attempt,
        seed=recipe.compose_seed,
        max_chars=recipe.chunk.max_chars,
        long_documents=_long_documents(recipe, tokenizer),
    )
    encoder = encoder_step(recipe.encoder, ingest, chunk, seed=recipe.seed)
    shortlisting: list[Step] = []
    shortlist = None
    if mine.shortlist is not None:
        _check_shortlist(recipe)
        shortlisting = shortlist_steps(
            compose, mine, ingest, chunk, meta_documents, seed=recipe.seed
        )
        shortlist = shortlisting[-1]
    embed = embed_step(recipe.encoder, ingest, chunk, encoder, shortlist)

    # Once the mean chunk is known, `pipeline.sized` replaces `auto` by a number for it.
    candidates = keys.candidates_of(compose, mine, chunk_chars=recipe.chunk.max_chars)
    neighbours = {"neighbours": candidates}
    # With a shortlist most vectors are zero and an index would have poor clusters, so
    # the search is exact.
    index: list[Step] = []
    if shortlist is None:
        index = index_steps(
            recipe.search, embed, meta_documents, neighbours, seed=recipe.seed
        )
    mining = mine_steps(
        recipe.search, "mine", embed, meta_documents, shortlisting or index, neighbours
    )
    comparing: list[Step] = []
    if mine.near_duplicates_for(compose.negatives) is not None:
        shingles = shingling.shingles_step(ingest, chunk)
        weights = shingling.weights_step(ingest, chunk, shingles, seed=recipe.seed)
        comparing = [shingles, weights]
    draft = _draft_step(
        recipe,
        (ingest, chunk, embed, meta_documents, mining[-1], tokenizer, *comparing),
        attempt=attempt,
        candidates=candidates,
    )
    # Near-duplicates come before vectors: their weights are a single task, which then
    # runs beside those that embed.
    return [
        meta_documents,
        *shortlisting,
        encoder,
        *comparing,
        embed,
        *index,
        *mining,
        draft,
    ]


def _check_shortlist(recipe: Recipe) -> None:
    """Raise RecipeError for options that a shortlist excludes.

    Only shortlisted chunks have vectors.
    """
    index = recipe.search.index
    negatives = recipe.compose.negatives
    problem = ""
    if recipe.compose.sequences == "all":
        problem = (
            "embeds every chunk with compose.sequences=all, which extends every "
            "document"
        )
        fix = "set compose.sequences to a number"
    elif index not in (AUTO, EXACT):
        problem = (
            f"leaves most vectors empty, which search.index={index} would cluster badly"
        )
        fix = "set search.index=exact"
    elif NEGATIVES[negatives].origin in ("corpus", "both"):
        problem = f"does not embed the random chunks of compose.negatives={negatives}"
        fix = "use other negatives"
    if problem:
        raise RecipeError(
            where="mine.shortlist",
            value="bm25",
            problem=problem,
            fix=f"{fix}, or remove mine.shortlist",
        )


def _long_documents(recipe: Recipe, tokenizer: Step) -> LongDocuments | None:
    """Return how documents longer than a sequence are found; None if there are none."""
    if recipe.checked_chars is None:
        return None
    tokens = keys.longest_tokens(recipe.sequence_tokens)

    def is_longer(done: Artifacts) -> Callable[[int, int], bool]:
        encoder = TokenizerFiles.of(done).tokenizer, recipe.tokenizer.engine
        return partial(_has_tokens, tokens=tokens, text=corpus(done), tokenizer=encoder)

    return LongDocuments(tokenizer, recipe.checked_chars, tokens, is_longer)


def _has_tokens(
    first_chunk: int,
    chunks: int,
    *,
    tokens: int,
    text: CorpusFiles,
    tokenizer: tuple[Path, Engine],
) -> bool:
    """Return whether a document has at least so many tokens.

    Its chunks are encoded in order until they do, so that a book of millions of tokens
    takes no longer than one sequence. The number of characters decides nothing, because
    a token may be one letter or a hundred blanks.
    """
    encoder = kept_encoder(*tokenizer)
    counted = 0
    for first in range(0, chunks, _CHUNKS_AT_ONCE):
        last = min(chunks, first + _CHUNKS_AT_ONCE)
        texts = text.texts(first_chunk + np.arange(first, last)).tolist()
        begins = [index == 0 for index in range(first, last)]
        _, tokens_of_chunks = encoder.encode_chunks(texts, begins)
        counted += int(tokens_of_chunks.sum())
        if counted >= tokens:
            return True
    return False


def _draft_step(
    recipe: Recipe, inputs: Sequence[Step], *, attempt: int, candidates: int
) -> Step:
    """Return the step from CANDIDATES, so many for each meta-chunk, to DRAFTS.

    It filters near-duplicates if shingles and weights are among the inputs.
    """
    compose = recipe.compose
    mine = recipe.mine
    negatives = NEGATIVES[compose.negatives]
    enough = sequence_limit(compose, attempt)
    is_reordered = negatives.origin == "retrieved" and negatives.order != "nearest"
    has_similarity = negatives.origin != "meta-chunk"
    seed = recipe.compose_seed if negatives.order == "random" else 0
    config: Json = {
        **method_of(recipe).promises(recipe.options),
        "target_tokens": recipe.sequence_tokens,
        "draft_factor": compose.draft_factor,
        "fit": compose.fit,
        "negatives": compose.negatives,
        "reorder_top": mine.reorder_top if is_reordered else 0,
        "near_duplicates": mine.near_duplicates_for(compose.negatives),
        "max_similarity": mine.max_similarity if has_similarity else None,
        "seed": seed,
        "max_chars": recipe.chunk.max_chars,
        "engine": recipe.tokenizer.engine,
        "enough": enough,
    }
    if negatives.origin == "both":
        config["hard_share"] = compose.hard_share

    def tasks(done: Artifacts) -> list[Task]:
        meta_documents = MetaDocumentsFiles.of(done).meta_documents
        filters = None
        if "weights" in done:
            filters = shingling.shingle_store(done), WeightsFiles.of(done).weights
        chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        # Draft so many documents that `enough` of them are most likely shorter than T.
        drafted = _surely_enough(
            np.load(meta_documents)["chars"],
            enough=enough,
            sure_chars=keys.SURE_SHARE * compose.target_tokens * chars_per_token,
        )
        draft = partial(
            _draft_block,
            text=corpus(done),
            vectors=EmbedFiles.of(done).vectors,
            tokenizer=(TokenizerFiles.of(done).tokenizer, recipe.tokenizer.engine),
            filters=filters,
            rules=Drafting(
                compose=compose,
                mine=mine,
                target_tokens=recipe.sequence_tokens,
                chars_per_token=chars_per_token,
                max_chars=recipe.chunk.max_chars,
                candidates=candidates,
                seed=seed,
            ),
        )
        blocks = query_ranges(meta_documents, max_queries=queries_of_task(candidates))
        drafting: list[Task] = []
        for (first, last), path in zip(
            blocks, MineFiles.of(done).candidates, strict=True
        ):
            if first < drafted:
                rows = (meta_documents, first, min(last, drafted))
                drafting.append(partial(draft, rows=rows, candidates=path))
        return drafting

    return Step(
        name="draft",
        phase="compose",
        version=7,
        config=config,
        inputs=tuple(inputs),
        tasks=tasks,
        result=DraftResult,
    )


def _surely_enough(chars: _Ids, *, enough: int | None, sure_chars: float) -> int:
    """Return the number of documents of which `enough` are most likely shorter than T.

    Documents have these numbers of characters.
    """
    if enough is None:
        return len(chars)
    sure = np.flatnonzero(chars <= sure_chars)
    return len(chars) if len(sure) <= enough else int(sure[enough])


def _draft_block(
    out: Path,
    *,
    rows: tuple[Path, int, int],
    candidates: Path,
    text: CorpusFiles,
    vectors: _Paths,
    tokenizer: tuple[Path, Engine],
    filters: _Filters | None,
    rules: Drafting,
) -> DraftResult:
    """Write `{out}.drafts.arrow`: drafts of the META_DOCUMENTS `rows` that fit T."""
    # The n meta-documents of the block, in sampled order.
    path, first, last = rows
    metas = np.load(path)[first:last]
    own_texts, own_tokens = _texts_and_tokens(metas, text, tokenizer)
    fits = own_tokens < rules.target_tokens
    compared: list[ComparedDocument] = []
    if filters is not None:
        # Documents that do not fit are not compared with candidates.
        fitting_texts = [
            texts if fit else [] for texts, fit in zip(own_texts, fits, strict=True)
        ]
        compared = shingling.documents_of(fitting_texts)

    # (n,) given up for their candidates.
    are_copies = np.zeros(len(metas), np.bool_)
    near_duplicates = 0
    by_passage = 0
    examples: list[tuple[int, int, int]] = []
    with (
        pa.OSFile(f"{out}.drafts.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.DRAFTS) as writer,
    ):
        block = read_candidates(candidates, metas["chunks"], text.chunks)
        for index, retrieved in enumerate(block):
            if not fits[index]:
                continue
            meta = metas[index]
            target_chars = _target_chars(meta, int(own_tokens[index]), rules)
            ordered = ordered_candidates(
                meta, retrieved, rules, target_chars, text.chunks, vectors
            )
            drafted = _drafted(
                ordered,
                rules,
                filters,
                compared[index] if filters is not None else None,
                target_chars=target_chars,
                document_chars=int(meta["chars"]),
            )
            if drafted is None:
                are_copies[index] = True
                continue
            shortage = _shortage(retrieved, drafted, rules)
            row = _draft_row(meta, drafted, shortage=shortage)
            batch = pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS)
            writer.write_batch(batch)
            near_duplicates += drafted.near_duplicates
            by_passage += drafted.by_passage
            for chunk, repeated in drafted.examples:
                # The repeated text: first chunk and number of chunks.
                if repeated is None:
                    own = int(meta["first_chunk"]), int(meta["chunks"])
                    examples.append((chunk, *own))
                else:
                    examples.append((chunk, repeated, 1))

    dropped: dict[str, int] = {}
    dropped_examples: dict[str, tuple[tuple[int, int, int], ...]] = {}
    for reason, is_dropped in (
        (schemas.DropReason.TOO_LONG, ~fits),
        (schemas.DropReason.NEAR_DUPLICATES, are_copies),
    ):
        dropped[reason] = int(is_dropped.sum())
        indices = np.flatnonzero(is_dropped)[:_DROPPED_EXAMPLES]
        dropped_examples[reason] = tuple(
            zip(
                metas["first_chunk"][indices].tolist(),
                metas["chunks"][indices].tolist(),
                own_tokens[indices].tolist(),
                strict=True,
            )
        )
    return DraftResult(
        drafts=int((fits & ~are_copies).sum()),
        dropped=dropped,
        dropped_examples=dropped_examples,
        near_duplicates=None if filters is None else near_duplicates,
        repeated_passages=None if filters is None else by_passage,
        near_duplicate_examples=tuple(examples[:_EXAMPLES]),
    )


def _texts_and_tokens(
    metas: AnyArray, text: CorpusFiles, tokenizer: tuple[Path, Engine]
) -> tuple[list[list[str]], _Ids]:
    """Return the texts of the chunks of each meta-document, and its tokens, (n,)."""
    own_chunks = corpus_files.ranges(metas["first_chunk"], metas["chunks"])
    if not len(own_chunks):
        return [[] for _ in metas], np.zeros(0, np.int64)
    # (chunks of all n,)
    texts = text.texts(own_chunks).tolist()
    begins = text.begins(own_chunks).tolist()
    _, tokens = kept_encoder(*tokenizer).encode_chunks(texts, begins)
    # (n + 1,)
    bounds = np.concatenate([[0], np.cumsum(metas["chunks"])])
    own_texts = [texts[start:stop] for start, stop in pairwise(bounds.tolist())]
    return own_texts, np.add.reduceat(tokens, bounds[:-1])


def _target_chars(meta: AnyArray, tokens: int, rules: Drafting) -> float:
    """Return T in characters, which is T·E.

    `fit="paper"` uses the corpus's E, as the paper does. `fit="exact"` uses the E of
    the meta-document if that is larger: its negatives are in its own language and
    style, so they have as few tokens per character.
    """
    chars_per_token = rules.chars_per_token
    if rules.compose.fit == "exact":
        own_chars_per_token = int(meta["chars"]) / max(1, tokens)
        chars_per_token = max(chars_per_token, own_chars_per_token)
    return rules.target_tokens * chars_per_token


def _drafted(
    ordered: Candidates,
    rules: Drafting,
    filters: _Filters | None,
    document: ComparedDocument | None,
    *,
    target_chars: float,
    document_chars: int,
) -> Filtered | None:
    """Return the candidates and prefixes of a draft; None if it is given up."""
    draft = partial(
        draft_prefixes,
        rules=rules,
        target_chars=target_chars,
        document_chars=document_chars,
    )
    threshold = rules.mine.near_duplicates
    if filters is None or document is None or threshold is None:
        return Filtered(ordered, draft(ordered), pairs=np.empty((0, 2), np.int64))
    shingles, weights = filters
    return filter_near_duplicates(
        ordered,
        draft,
        document,
        shingles,
        corpus_files.opened(weights),
        threshold,
        known_pairs=kept_pairs(corpus_files.file_version(weights), threshold),
        needed_chars=target_chars - document_chars,
        drafted_chars=target_chars * rules.compose.draft_factor - document_chars,
    )


def _shortage(
    retrieved: Candidates, drafted: Filtered, rules: Drafting
) -> schemas.DropReason | None:
    """Return why the candidates of a draft ran out.

    None if they did not, or if the corpus has no more.
    """
    if not any(drafted.prefixes.ran_out):
        return None
    found_all = [len(ids) == rules.candidates for ids in retrieved.ids]
    could_find_more = np.logical_and(drafted.prefixes.ran_out, found_all)
    # Also where most candidates are copies: there may be others behind them. If hardly
    # any are left among more candidates, the draft is given up.
    if could_find_more.any():
        return schemas.DropReason.TOO_FEW_CANDIDATES
    if drafted.near_duplicates > drafted.negatives:
        return schemas.DropReason.NEAR_DUPLICATES
    return None


def _draft_row(
    meta: AnyArray, drafted: Filtered, *, shortage: schemas.DropReason | None
) -> Json:
    """Return a DRAFTS row: each meta-chunk followed by the prefix of its candidates."""
    first_chunk = int(meta["first_chunk"])
    own_score = np.array([1.0], np.float32)
    ids: list[Ints] = []
    scores: list[Floats] = []
    for group, length in enumerate(drafted.prefixes.lengths):
        ids.append(np.array([first_chunk + group]))
        ids.append(drafted.candidates.ids[group][:length])
        scores.append(own_score)
        scores.append(drafted.candidates.scores[group][:length])
    sizes = np.array(drafted.prefixes.lengths) + 1
    roles = np.full(sizes.sum(), schemas.NEGATIVE, np.int8)
    roles[np.cumsum(sizes) - sizes] = schemas.META
    content_hash = int(meta["content_hash"])
    return {
        "sequence_id": f"nextlong-{content_hash:016x}",
        "key": content_hash,
        "layout": schemas.Layout.EXTENDED.value,
        "chunk_id": np.concatenate(ids),
        "role": roles,
        "group": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        "score": np.concatenate(scores),
        "near_duplicates": drafted.pairs.ravel(),
        "shortage": shortage or "",
    }
