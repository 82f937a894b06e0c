"""A look into files: how many documents there are, however they are sorted."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planned import sources_in

from nextlong.corpus import look as plan_look
from nextlong.corpus.select import Exclusion
from nextlong.reading.files import FilePart, open_file
from nextlong.reading.formats import format_of
from nextlong.reading.listing import input_files, list_files
from nextlong.reading.records import ReadRequest
from nextlong.recipe import Source


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "parquet", "arrow"])
@pytest.mark.parametrize("order", ["short first", "long first"])
def test_files_sorted_by_length_are_seen_in_all_places(
    tmp_path, monkeypatch, kind, order
):
    """4,000 short documents and 400 long ones, one kind after the other in a single file."""
    texts = [f"s{n} " + "word " * 20 for n in range(4000)] + [
        f"l{n} " + "word " * 400 for n in range(400)
    ]
    if order == "long first":
        texts.reverse()
    write_texts(tmp_path / f"c.{kind}", texts)
    source = sources_in(tmp_path, (f"c.{kind}", {}))
    monkeypatch.setattr(plan_look, "_READ_BYTES", 300_000)
    monkeypatch.setattr(plan_look, "_MIN_READ_BYTES", 100)
    (look,) = plan_look.look_at(source.ingest, input_files(source.ingest))
    assert not look.is_whole
    assert (
        look.read_bytes < sum(map(len, texts)) * 0.7
    )  # less than half, and once more at places that meet
    assert look.text_bytes == pytest.approx(sum(map(len, texts)), rel=0.2)
    assert look.documents * look.scale == pytest.approx(4400, rel=0.25)


def write_texts(path, texts, *, rows=100):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    if path.name.endswith(".jsonl"):
        path.write_text(lines)
    elif path.name.endswith(".zst"):
        path.write_bytes(zstandard.compress(lines.encode()))
    elif path.name.endswith(".parquet"):
        pq.write_table(
            pa.table({"text": texts}),
            path,
            row_group_size=rows,
            compression="none",
            use_dictionary=False,
        )
    else:
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, pa.schema([("text", pa.string())])) as writer,
        ):
            for first in range(0, len(texts), rows):
                writer.write_batch(
                    pa.record_batch({"text": texts[first : first + rows]})
                )


def test_files_unlike_each_other_weigh_by_their_size(tmp_path, monkeypatch):
    """Twenty files of two long documents, twenty of twenty short ones, a tenth as large."""
    (tmp_path / "c").mkdir()
    for number in range(20):
        for kind, count, words in (("a", 2, 4000), ("b", 20, 40)):
            rows = [
                json.dumps({"text": f"{kind}{number}.{n} " + "word " * words}) + "\n"
                for n in range(count)
            ]
            (tmp_path / "c" / f"{kind}{number:02d}.jsonl").write_text("".join(rows))
    source = sources_in(tmp_path, ("c", {}))
    monkeypatch.setattr(plan_look, "_READ_BYTES", 400_000)
    monkeypatch.setattr(plan_look, "_MIN_READ_BYTES", 100)
    (look,) = plan_look.look_at(source.ingest, input_files(source.ingest))
    assert not look.is_whole
    assert look.read_bytes < 1_000_000
    assert look.documents * look.scale == pytest.approx(440, rel=0.25)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "parquet", "arrow", "csv"])
def test_a_sampled_source_of_nothing_but_rejects_counts_by_its_size(
    tmp_path, monkeypatch, kind
):
    (tmp_path / "good.jsonl").write_text(
        "".join(
            json.dumps({"text": f"t{n} " + "word " * 200}) + "\n" for n in range(2000)
        )
    )
    blank = [" " * (1000 + n % 2) for n in range(2000)]
    if kind == "csv":
        (tmp_path / "bad.csv").write_text(
            "text\n" + "".join(f'"{text}"\n' for text in blank)
        )
    else:
        write_texts(tmp_path / f"bad.{kind}", blank)
    source = sources_in(tmp_path, ("good.jsonl", {}), (f"bad.{kind}", {}))
    monkeypatch.setattr(plan_look, "_READ_BYTES", 400_000)
    monkeypatch.setattr(plan_look, "_MIN_READ_BYTES", 100)
    good, bad = plan_look.look_at(source.ingest, input_files(source.ingest))
    assert (good.is_whole, bad.documents) == (False, 0)
    assert bad.rejects.total() * bad.scale == pytest.approx(2000, rel=0.25)


TEXTS = [f"document {number:03d} " + "of the tide " * 5 for number in range(200)]
MOST = 10_000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("places"), {}
    for name in ("a.jsonl", "a.parquet", "a.jsonl.zst"):
        write_texts(folder / name, TEXTS, rows=20)
        source = Source(path=str(folder / name))
        made[name] = (*list_files(source, where="path"), source)
    return made


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@given(position=st.floats(0, 1, exclude_max=True), read_bytes=st.integers(500, 4000))
def test_a_place_holds_records_of_the_file_and_says_their_share(
    files, name, position, read_bytes
):
    file, source = files[name]
    with open_file(file) as stream:
        request = ReadRequest(FilePart(file), source, (), MOST)
        items, share = format_of(file.name, source).read_at(
            stream, request, position=position, read_bytes=read_bytes
        )
        numbers = [TEXTS.index(item.text) for item in items]  # a reject has no text
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert 0 < share <= 1
    assert len(numbers) / len(TEXTS) == pytest.approx(share, abs=0.01)
    assert numbers[0] / len(TEXTS) == pytest.approx(min(position, 1 - share), abs=0.11)


def test_a_compressed_file_is_read_through_and_a_share_of_it_kept(files):
    file, source = files["a.jsonl.zst"]
    reading, draw = (
        plan_look._Reading(source, [file], MOST, Exclusion()),
        random.Random(7),
    )
    texts, share = reading.sample_through(file, share=0.5, max_bytes=10**9, draw=draw)
    assert {text.decode() for text in texts} < set(TEXTS)
    assert len(texts) / len(TEXTS) == pytest.approx(share, abs=0.01)
    texts, share = reading.sample_through(file, share=1.0, max_bytes=10**9, draw=draw)
    assert ([text.decode() for text in texts], share) == (TEXTS, 1.0)
    texts, share = reading.sample_through(file, share=1.0, max_bytes=500, draw=draw)
    assert [text.decode() for text in texts] == TEXTS[: len(texts)]
    assert len(texts) / len(TEXTS) == pytest.approx(share, rel=0.05)
