"""Solve the tasks of a format `reconstruction` by embeddings alone, as a baseline.

    python bench/reconstruction.py RUN

In:  a run that exported `reconstruction` and embedded all chunks. Out: the mean reward
and the share of exact orders of two answers that read nothing: random options, and the
options whose vectors are most similar to the chunks of the document around each place.
A model that only compares topics does about as well as the second.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import nextlong
from nextlong.artifacts import corpus_files
from nextlong.export.reward import score
from nextlong.retrieval.embed import EmbedFiles
from nextlong.rng import rng_for

_RANDOM_ANSWERS = 50  # of each task

Vectors = Callable[[Sequence[int]], NDArray[np.float32]]


def answer_by_vectors(task: dict[str, Any], vectors: Vectors) -> str:
    """Return the options whose vectors fit best to the chunks around the places.

    The fit is the mean cosine to the nearest shown chunk before a place and after it;
    of all assignments of different options to places, the one with the largest sum.
    """
    # (options, dimensions), and for each place the chunks around it likewise.
    options = vectors(task["extra_info"]["option_chunk_ids"])
    own = task["extra_info"]["shown_chunk_ids"]
    fits = []
    for index, chunk in enumerate(own):
        if chunk is not None:
            continue
        before = [one for one in own[:index] if one is not None][-1:]
        after = [one for one in own[index:] if one is not None][:1]
        around = vectors([*before, *after])
        fits.append((options @ around.T).mean(axis=1))
    _, chosen = linear_sum_assignment(-np.array(fits))
    return _answer(chosen + 1)


def _answer(numbers: NDArray[np.int64]) -> str:
    return f"<answer>{', '.join(map(str, numbers.tolist()))}</answer>"


def measure(tasks: Sequence[dict[str, Any]], vectors: Vectors) -> dict[str, Any]:
    """Return the mean reward and the share of exact orders of both answers."""
    by_vectors = []
    at_random = []
    for number, task in enumerate(tasks):
        truth = task["reward_model"]["ground_truth"]
        by_vectors.append(score(answer_by_vectors(task, vectors), truth))
        options = len(task["extra_info"]["option_chunk_ids"])
        rng = rng_for(0, "reconstruction.random", number)
        for _ in range(_RANDOM_ANSWERS):
            guess = rng.permutation(options)[: truth.count(",") + 1] + 1
            at_random.append(score(_answer(guess), truth))
    measured: dict[str, Any] = {"tasks": len(tasks)}
    for name, rewards in (("embeddings", by_vectors), ("random", at_random)):
        measured[f"{name}: mean reward"] = round(float(np.mean(rewards)), 3)
        measured[f"{name}: exact"] = round(float(np.mean(np.equal(rewards, 1))), 3)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a run directory, or RUN@VARIANT")
    run = nextlong.open(parser.parse_args().run)
    tasks = []
    for path in run.exported("reconstruction"):
        with path.open(encoding="utf-8") as lines:
            tasks += [json.loads(line) for line in lines]
    paths = EmbedFiles.of(run.steps).vectors

    def vectors(ids: Sequence[int]) -> NDArray[np.float32]:
        return corpus_files.vectors(np.array(ids, np.int64), paths)

    print(json.dumps(measure(tasks, vectors), indent=1))


if __name__ == "__main__":
    main()
