"""Ingest: documents, their hashes and lengths, rejects, shard bounds and the share of rejects that stops a run."""

import json

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from nextlong.artifacts.results import IngestResult
from nextlong.corpus.ingest import (
    _check_rejects,
    _ingest_split,
    allowing,
    content_hash,
    normalized_hash,
)
from nextlong.corpus.select import Exclusion
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.listing import list_files
from nextlong.recipe import Ingest, Source
from nextlong.schemas import DOCUMENTS, REJECTS

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def ingest(
    folder, lines, *, shard_bytes=1_000_000, max_document_chars=1000, own_id="id"
):
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a.jsonl").write_text(
        "".join(line + "\n" for line in lines), encoding="utf-8"
    )
    source = Source(path=str(folder / "in"), name="mine", id=own_id)
    parts = tuple(map(FilePart, list_files(source, where="ingest.sources[0].path")))
    settings = Ingest(sources=[source], max_document_chars=max_document_chars)
    return _ingest_split(
        folder / "out",
        parts=parts,
        source=source,
        settings=settings,
        shard_bytes=shard_bytes,
        exclusion=Exclusion(),
        is_first=False,
    )


def table(path):
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def as_lines(texts):
    return [json.dumps({"text": text}) for text in texts]


def test_documents_carry_text_source_and_id_and_their_lengths_lie_beside(tmp_path):
    counts = ingest(tmp_path, ['{"text":"One  \\u00e9","id":"k"}', '{"text":"two"}'])
    assert counts.model_copy(update={"input_hashes": ()}) == IngestResult(
        documents=2,
        text_bytes=10,
        chars=9,
        rejects=0,
        reject_reasons={},
        example="",
        shards=1,
    )
    documents = table(tmp_path / "out.0000.documents.arrow")
    assert documents.schema == DOCUMENTS
    assert documents["text"].to_pylist() == ["One  é", "two"]
    assert documents["source"].to_pylist() == ["mine", "mine"]
    assert documents["source_id"].to_pylist() == ["k", "a.jsonl:2"]
    hashes = np.load(tmp_path / "out.0000.hashes.npy")
    assert hashes.tolist() == [
        xxhash.xxh3_64_intdigest("One  é".encode()),
        xxhash.xxh3_64_intdigest(b"two"),
    ]
    assert documents["content_hash"].to_pylist() == hashes.tolist()
    assert np.load(tmp_path / "out.0000.chars.npy").tolist() == [6, 3]
    of_ids = [
        xxhash.xxh3_64_intdigest(f"mine\0{name}".encode())
        for name in ("k", "a.jsonl:2")
    ]
    assert np.load(tmp_path / "out.0000.id_hashes.npy").tolist() == of_ids
    assert not (tmp_path / "out.rejects.arrow").exists()


@pytest.mark.parametrize(("own_id", "without"), [("id", 0), ("key", 2), ("other", 3)])
def test_documents_without_the_id_that_the_source_names_are_counted(
    tmp_path, own_id, without
):
    lines = ['{"text":"one","key":"k"}', '{"text":"two"}', '{"text":"three","key":""}']
    assert ingest(tmp_path, lines, own_id=own_id).without_id == without


def test_shard_closes_once_it_reaches_its_size(tmp_path):
    counts = ingest(
        tmp_path, as_lines(["x" * 6, "y" * 4, "z" * 12, "w"]), shard_bytes=10
    )
    assert counts.shards == 3
    texts = [
        table(tmp_path / f"out.{k:04d}.documents.arrow")["text"].to_pylist()
        for k in range(3)
    ]
    assert texts == [["x" * 6, "y" * 4], ["z" * 12], ["w"]]


def test_record_batches_hold_about_a_megabyte(tmp_path):
    texts = [str(i) * 200_000 for i in range(8)]
    ingest(tmp_path, as_lines(texts), shard_bytes=10**9, max_document_chars=10**6)
    with pa.OSFile(str(tmp_path / "out.0000.documents.arrow")) as file:
        reader = pa.ipc.open_file(file)
        assert [
            reader.get_batch(i).num_rows for i in range(reader.num_record_batches)
        ] == [5, 3]


def test_record_batches_hold_at_most_4096_documents(tmp_path):
    ingest(tmp_path, as_lines(str(i) for i in range(5000)))
    with pa.OSFile(str(tmp_path / "out.0000.documents.arrow")) as file:
        reader = pa.ipc.open_file(file)
        assert [
            reader.get_batch(i).num_rows for i in range(reader.num_record_batches)
        ] == [4096, 904]
        hashes = reader.read_all()["content_hash"].to_pylist()
    assert hashes == np.load(tmp_path / "out.0000.hashes.npy").tolist()


def test_empty_and_oversized_documents_are_rejects_beside_the_readers_own(tmp_path):
    counts = ingest(
        tmp_path,
        [*as_lines([" \n\t\u3000", "x" * 11, "x" * 10, ""]), "{broken"],
        max_document_chars=10,
    )
    assert counts.documents == 1
    assert counts.reject_reasons == {"broken JSON": 1, "empty": 2, "too long": 1}
    assert (counts.rejects, counts.example) == (4, "a.jsonl:1: empty")
    rejects = table(tmp_path / "out.rejects.arrow")
    assert rejects.schema == REJECTS
    assert rejects["line"].to_pylist() == [1, 2, 4, 5]
    assert rejects["reason"].to_pylist()[:3] == [
        "empty",
        "too long: 11 characters",
        "empty",
    ]


def test_source_without_a_document_writes_no_shard(tmp_path):
    counts = ingest(tmp_path, ["{broken"])
    assert (counts.documents, counts.shards) == (0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in",
        "out.rejects.arrow",
    ]


def test_same_input_gives_the_same_bytes(tmp_path):
    outs = []
    for run in "ab":
        (tmp_path / run).mkdir()
        ingest(
            tmp_path / run,
            as_lines(f"text number {i}" for i in range(3000)),
            shard_bytes=20_000,
        )
        outs.append(
            {path.name: path.read_bytes() for path in (tmp_path / run).glob("out.*")}
        )
    assert len(outs[0]) == 12
    assert outs[0] == outs[1]


@given(st.lists(ANY_TEXT), st.integers(1, 60))
def test_every_text_is_a_document_or_a_reject_and_comes_back_whole(
    tmp_path_factory, texts, shard_bytes
):
    folder = tmp_path_factory.mktemp("any")
    counts = ingest(folder, as_lines(texts), shard_bytes=shard_bytes)
    good = [text for text in texts if text.strip()]
    shards = [
        table(folder / f"out.{k:04d}.documents.arrow") for k in range(counts.shards)
    ]
    assert [text for shard in shards for text in shard["text"].to_pylist()] == good
    for shard in shards[:-1]:
        sizes = [len(text.encode()) for text in shard["text"].to_pylist()]
        assert sum(sizes) >= shard_bytes > sum(sizes[:-1])
    assert counts.rejects == len(texts) - len(good)
    assert (counts.chars, counts.text_bytes) == (
        sum(map(len, good)),
        sum(len(text.encode()) for text in good),
    )


@given(st.one_of(ANY_TEXT, st.text("aA \n\t\u00a0\u2003éÉΣς\x1c\x85-—", max_size=30)))
def test_normalized_hash_is_of_the_text_in_lower_case_with_single_blanks_and_content_hash_of_its_bytes(
    text,
):
    assert content_hash(text.encode()) == xxhash.xxh3_64_intdigest(text.encode())
    assert normalized_hash(text.encode()) == xxhash.xxh3_64_intdigest(
        " ".join(text.lower().split()).encode()
    )


def check(
    *, documents=98, reasons=None, max_reject_share=0.02, example="a.jsonl:7: empty"
):
    reasons = {"empty": 1, "broken JSON": 1} if reasons is None else reasons
    result = IngestResult(
        documents=documents,
        text_bytes=0,
        chars=0,
        rejects=sum(reasons.values()),
        reject_reasons=reasons,
        example=example,
        shards=1,
    )
    _check_rejects([result], max_reject_share, "run/01-ingest/part-00000.rejects.arrow")


def test_share_of_rejects_up_to_the_limit_passes():
    check()
    check(reasons={}, max_reject_share=0.0)


def test_share_of_rejects_over_the_limit_names_all_that_is_needed_to_mend_it():
    with pytest.raises(CorpusError) as caught:
        check(documents=97, reasons={"empty": 1, "broken JSON": 2})
    assert caught.value.where == "ingest.max_reject_share"
    assert caught.value.value == "0.02"
    for named in ("a.jsonl:7", "run/01-ingest/part-00000.rejects.arrow"):
        assert named in caught.value.problem
    assert "ingest.max_reject_share=0.03" in caught.value.fix


def test_the_cure_for_rejects_cures():
    for rejects in range(1, 100):
        share = float(allowing(rejects / 100).partition("=")[2])
        check(
            documents=100 - rejects, reasons={"empty": rejects}, max_reject_share=share
        )
        with pytest.raises(CorpusError) as caught:
            check(
                documents=100 - rejects,
                reasons={"empty": rejects},
                max_reject_share=(rejects - 1) / 100,
            )
        assert caught.value.where == "ingest.max_reject_share"


def test_no_document_at_all_is_refused_whatever_the_limit():
    for options in ({"max_reject_share": 1.0}, {"reasons": {}, "example": ""}):
        with pytest.raises(CorpusError) as caught:
            check(documents=0, **options)
        assert caught.value.where == "ingest.sources"
