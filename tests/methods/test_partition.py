"""Partitions: similar documents together, sizes alike, and each drafted as if it were the corpus."""

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.damage import breaches, change_array, files, outcomes
from tests.support.larger_cases import thorough

import nextlong
from nextlong.methods.base import CorpusArrays, DraftRequest, Neighbours, method_of
from nextlong.methods.partition import (
    Part,
    assign_clusters,
    parts_of,
    parts_of_clusters,
    train_clusters,
)
from nextlong.methods.vectors import Vectors
from nextlong.report import summary
from nextlong.runs.exported import Exported
from nextlong.schemas import META_DOCUMENTS, SHARD_BITS

# Six directions in the plane, by their angles: two groups of three.
ANGLES = np.deg2rad([0, 180, 20, 200, 40, 220])
CENTRES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("counts", "parts", "expected"),
    [
        ([1, 1, 1, 1, 1, 1], 2, [0, 1, 0, 1, 0, 1]),
        ([9, 1, 1, 1], 2, [0, 1, 1, 1, 1, 1]),  # the last two have no document
        (
            [2, 2, 2, 2, 2, 2],
            3,
            [0, 1, 0, 2, 1, 2],
        ),  # in a row: 0, 20, 40, 180, 200, 220 degrees
        ([5], 1, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_clusters_near_each_other_share_a_part_and_parts_are_of_like_size(
    counts, parts, expected
):
    assert (
        parts_of_clusters(CENTRES, np.array(counts), parts=parts).tolist() == expected
    )


def test_parts_hold_every_document_once_and_share_the_sequences_by_characters(tmp_path):
    rows = np.zeros(8, META_DOCUMENTS)
    rows["chars"] = [10, 20, 10, 20, 10, 20, 10, 20]
    vectors = [CENTRES[[0, 1, 2]], CENTRES[[3, 4, 5, 0, 1]]]
    np.save(tmp_path / "centres.npy", CENTRES)
    clusters = []
    for shard, of_shard in enumerate(vectors):
        np.save(tmp_path / f"{shard}.npy", of_shard.astype(np.float16))
        assign_clusters(
            tmp_path / str(shard),
            vectors=tmp_path / f"{shard}.npy",
            centres=tmp_path / "centres.npy",
        )
        clusters.append(tmp_path / f"{shard}.clusters.npy")
    chosen = [
        Part(number, 2, tmp_path / "centres.npy", clusters).choose(rows, 7)
        for number in range(2)
    ]
    assert [(members.tolist(), share) for members, share in chosen] == [
        ([0, 2, 4, 6], 2),
        ([1, 3, 5, 7], 5),
    ]
    assert Part(0, 2, tmp_path / "centres.npy", clusters).choose(rows, None)[1] is None


def test_centres_are_of_unit_length_and_as_many_as_the_parts_ask_for(tmp_path):
    rng = np.random.default_rng(0)
    np.save(
        tmp_path / "v.npy",
        (rows := rng.normal(size=(200, 4)))
        / np.linalg.norm(rows, axis=1, keepdims=True),
    )
    told = train_clusters(tmp_path / "c", vectors=[tmp_path / "v.npy"], parts=2, seed=0)
    centres = np.load(tmp_path / "c.centres.npy")
    assert (told.parts, told.clusters, centres.shape) == (2, 128, (128, 4))
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, rtol=1e-5)


@pytest.fixture(scope="module")
def partitioned(recipe_for, tmp_path_factory):
    """A function of a method that returns its run in several partitions; all share a run directory."""
    run_dir = tmp_path_factory.mktemp("partitioned") / "run"

    @cache
    def make(method):
        size = (
            20_000 if method == "knn" else 1_500
        )  # whose documents have as many neighbours as fill a sequence
        asked = [
            f"compose.method={method}",
            f"documents.partition_size={size}",
            "compose.sequences=all",
        ]
        return nextlong.run(
            recipe_for(
                run_dir, *asked, "iclm.max_similarity=null", "export.formats=[jsonl]"
            )
        )

    return make


@pytest.mark.parametrize("method", ["iclm", "splice", *thorough("knn")])
def test_each_partition_is_drafted_as_if_it_were_the_corpus(partitioned, method):
    """The neighbours and vectors of each partition's documents alone, given to the method, make the drafts of its task."""
    run = partitioned(method)
    rows = np.load(run.steps["documents"].file(".docs.npy"))
    parts, request = (
        parts_of(run.steps),
        DraftRequest(target_tokens=2048, sequences=None, seed=run.recipe.compose_seed),
    )
    assert len(parts) > 1
    lengths = np.concatenate(
        [np.load(path) for path in run.steps["lengths"].files(".lengths.npy")]
    )
    paths = run.steps["document_vectors"].files(".document_vectors.npy")
    position = {int(first): place for place, first in enumerate(rows["first_chunk"])}
    near = read_candidates(run, rows)
    drafted, members_of = [], [part.choose(rows, None)[0] for part in parts]
    assert sorted(np.concatenate(members_of).tolist()) == list(range(len(rows)))
    for number, members in enumerate(members_of):
        place = {document: at for at, document in enumerate(members.tolist())}
        lists = {
            place[query]: [(place[d], c) for d, c in found if d in place]
            for query, found in near
            if query in place
        }
        tokens = np.add.reduceat(lengths, np.cumsum(rows["chunks"]) - rows["chunks"])[
            members
        ]
        flat = [pair for found in lists.values() for pair in found]
        documents = CorpusArrays(
            content_hashes=rows["content_hash"][members],
            tokens=tokens,
            chunk_offsets=np.arange(len(members) + 1),
            chunk_tokens=tokens,
            neighbours=Neighbours(
                queries=np.array([*lists], np.int64),
                offsets=np.cumsum([0, *map(len, lists.values())]),
                documents=np.array([document for document, _ in flat], np.int64),
                cosines=np.array([cosine for _, cosine in flat], np.float32),
            ),
            vectors=Vectors(paths, members),
        )
        expected = (
            method_of(run.recipe).draft(documents, run.recipe.options, request).drafts
        )
        found = drafts_of_task(run, number, position)
        assert found == [members[draft.documents].tolist() for draft in expected]
        drafted += found
    assert len(drafted) >= len(parts)


def read_candidates(run, rows):
    """Return (document, [(neighbour, cosine), …]) of all queries, as positions among the documents."""
    shards = (rows["first_chunk"] >> SHARD_BITS).tolist()
    position = {}
    for place, shard in enumerate(shards):
        position[shard << SHARD_BITS | place - shards.index(shard)] = place
    read = []
    for path in run.steps["neighbours"].files(".candidates.arrow"):
        with pa.ipc.open_file(path) as reader:
            for row in reader.read_all().to_pylist():
                near = zip(
                    map(position.get, row["neighbour_ids"]), row["scores"], strict=True
                )
                read.append((position[row["chunk_id"]], [*near]))
    return read


def drafts_of_task(run, number, position):
    """Return the documents of each draft of one task of the step."""
    drafts = []
    for name in run.steps["draft"].files(".drafts.arrow"):
        if name.name.startswith(f"part-{number:05d}."):
            with pa.ipc.open_file(name) as reader:
                chunks = [row["chunk_id"] for row in reader.read_all().to_pylist()]
            drafts += [
                [position[chunk] for chunk in ids if chunk in position]
                for ids in chunks
            ]
    return drafts


def test_a_partitioned_run_verifies_and_says_so(partitioned):
    run = partitioned("iclm")
    outcome = outcomes(Path(str(run)), "search")["partitions"]
    assert (outcome.result, outcome.checked) == ("pass", len(run))
    assert (
        "partitions of similar documents"
        in dict(summary.lines(Exported(run.recipe, [run], run.steps)))["partitions"]
    )
    assert "documents.partition_size" in next(run.path.rglob("README.md")).read_text(
        encoding="utf-8"
    )


def test_verify_finds_a_sequence_of_two_partitions(partitioned, tmp_path):
    folder = Path(shutil.copytree(partitioned("splice").path, tmp_path / "run"))
    change_array(
        files(folder, "clusters", ".centres.npy")[0],
        lambda centres: np.random.default_rng(0).shuffle(centres),
    )
    assert (
        "has documents of the partitions [0, 1"
        in breaches(folder, "search")["partitions"]
    )


def test_a_small_corpus_is_drafted_together(recipe_for, started, tmp_path):
    run = nextlong.run(
        recipe_for(
            started(tmp_path / "run"), "compose.method=iclm", "iclm.max_similarity=null"
        )
    )
    assert parts_of(run.steps) == []
    assert "partitions" not in outcomes(run.path, "search")
