"""What `mine.shortlist: bm25` finds of what the full search finds, and how many chunks it embeds for that.

    python bench/shortlist.py my.yaml --sequences 8 --chunks 1 2 4 8

Runs the recipe as it is, with every chunk embedded, and the shortlist for each setting in the same run directory. `--chunks` is
`mine.shortlist_chunks` as a multiple of the chunks of a draft. Compared are, for each meta-chunk, as many of the nearest as its
sequence has chunks for each meta-chunk: those of all chunks, and those of the embedded ones. `cosine` is the mean cosine of the
shortlist over that of the full search, on average over these ranks and at the worst rank that half of the meta-chunks have.
`around rank 100` is the share of the chunks of the full search that are shortlisted, each rank weighted as `nextlong stats` meets
it (`retrieval/shortlist.py`), and `estimated` what `stats` tells, from the control chunks alone; ± is its standard deviation over
200 other control samples.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextlong import pipeline
from nextlong.artifacts import lookup
from nextlong.engine.step import Artifact
from nextlong.recipe import Recipe
from nextlong.recipe.keys import TYPICAL_CHARS_PER_TOKEN
from nextlong.retrieval.embed import EmbedFiles
from nextlong.retrieval.sample import MetaDocumentsFiles, read_queries
from nextlong.retrieval.shortlist import (
    _CONTROL,
    _SHORTLISTED,
    CONTROL_SHARE,
    ShortlistFiles,
    _ShortlistResult,
)

_RANKS = 1024  # nearest kept of each meta-chunk


def main() -> int:
    """Print a row for each setting; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--sequences", nargs="+", type=int, required=True)
    parser.add_argument("--chunks", nargs="+", type=float, default=[1, 2, 4, 8])
    asked = parser.parse_args()
    embedded = EmbedFiles.of(pipeline.run(Recipe.load(asked.recipe))).vectors
    vectors = np.concatenate([np.load(path) for path in embedded]).astype(np.float32)
    print(
        "| sequences | chunks of a draft | embedded | cosine, mean | cosine, worst rank | overlap | around rank 100 | estimated |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for sequences in asked.sequences:
        for factor in asked.chunks:
            recipe = Recipe.load(
                asked.recipe, overrides=[f"compose.sequences={sequences}"]
            )
            drafted_chars = (
                recipe.compose.target_tokens
                * TYPICAL_CHARS_PER_TOKEN
                * recipe.compose.draft_factor
            )
            print(
                _row(asked.recipe, sequences, factor, drafted_chars, vectors, embedded),
                flush=True,
            )
    return 0


def _row(
    path: str,
    sequences: int,
    factor: float,
    drafted_chars: float,
    vectors: NDArray[np.float32],
    embedded: list[Path],
) -> str:
    with pipeline.session(Recipe.load(path)) as session:
        chunk = session.run_steps(session.route(), only={"ingest", "select", "chunk"})[
            "chunk"
        ]
    counts = [part["counts"] for part in chunk.manifest["parts"]]
    a_draft = (
        drafted_chars
        * sum(one["chunks"] for one in counts)
        / sum(one["chars"] for one in counts)
    )
    settings = [
        f"compose.sequences={sequences}",
        "mine.shortlist=bm25",
        f"mine.shortlist_chunks={round(factor * a_draft)}",
    ]
    with pipeline.session(Recipe.load(path, overrides=settings)) as session:
        route = session.route()
        until = {
            step.name
            for step in route[: 1 + [step.name for step in route].index("shortlist")]
        }
        done: dict[str, Artifact] = session.run_steps(route, only=until)
    marks = np.concatenate([np.load(file) for file in ShortlistFiles.of(done).marks])
    starts = np.cumsum(
        [0, *(result.chunks for result in done["shortlist"].results(_ShortlistResult))]
    )

    def places(ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(starts[ids >> 32] + (ids & 0xFFFFFFFF), np.int64)

    ids, exclude, _ = read_queries(MetaDocumentsFiles.of(done).meta_documents)
    sums, full_sums, numbers = np.zeros((3, _RANKS))
    found = listed = 0
    around, estimated, redrawn = [], [], []
    rng = np.random.default_rng(0)
    draws = rng.random((200, len(marks))) < CONTROL_SHARE
    weights = CONTROL_SHARE * (1 - CONTROL_SHARE) ** np.arange(len(marks))
    for query, (first, last) in zip(ids, exclude, strict=True):
        cosines = vectors @ lookup.vectors(np.array([query]), embedded)[0]
        cosines[places(first) : places(last - 1) + 1] = -1
        wanted = min(_RANKS, max(1, round(a_draft / (last - first))))
        full = np.argsort(-cosines, kind="stable")[:wanted]
        short = np.argsort(-np.where(marks > 0, cosines, -1), kind="stable")[:wanted]
        sums[:wanted] += cosines[short]
        full_sums[:wanted] += cosines[full]
        numbers[:wanted] += 1
        found, listed = found + np.isin(full, short).sum(), listed + wanted
        ranked = np.argsort(-cosines, kind="stable")[: len(marks) - int(last - first)]
        on_list = marks[ranked] & _SHORTLISTED
        around.append(on_list @ weights[: len(ranked)] / weights[: len(ranked)].sum())
        estimated.append(on_list[np.argmax(marks[ranked] & _CONTROL)])
        redrawn.append(on_list[draws[:, ranked].argmax(axis=1)])
    common = numbers >= len(ids) / 2
    ratios = (sums / np.maximum(full_sums, 1e-9))[common]
    return (
        f"| {sequences} | {factor:g}× | {np.mean(marks > 0):.1%} | {sums.sum() / full_sums.sum():.1%} | {ratios.min():.1%} "
        f"| {found / listed:.1%} | {np.mean(around):.1%} | {np.mean(estimated):.1%}, mean of 200 draws "
        f"{np.mean(redrawn):.1%} ± {np.std(np.mean(redrawn, axis=0)):.1%} |"
    )


if __name__ == "__main__":
    sys.exit(main())
