"""OLMo: what is written, by hand and read back; OLMo-core itself reads it in tests/readers."""

import gzip

import numpy as np
import pytest
from tests.support.random_rows import (
    documents_of,
    ended,
    options,
    random_blocks,
    read_back,
)

from nextlong.artifacts.results import ShardResult
from nextlong.errors import ExportError
from nextlong.export.formats import olmo

EOS = 0


def options_for(vocabulary):
    return options(vocab_size=vocabulary, eos_id=EOS)


@pytest.mark.parametrize("per_row", [1, 4])
@pytest.mark.parametrize(
    ("vocabulary", "width"), [(300, 2), (65_536, 2), (65_537, 4), (128_256, 4)]
)
def test_every_document_is_read_back_and_takes_the_bytes_that_the_vocabulary_needs(
    tmp_path, vocabulary, width, per_row
):
    blocks = ended(random_blocks(3, vocabulary=vocabulary, per_row=per_row), eos=EOS)
    counts = olmo.FORMAT.write(tmp_path / "part-00000", blocks, options_for(vocabulary))
    expected = documents_of(blocks)
    assert counts == ShardResult(
        rows=sum(map(len, blocks)), tokens=sum(map(len, expected))
    )
    assert [
        row["input_ids"].tolist() for row in read_back(tmp_path, "olmo")
    ] == expected
    raw = (tmp_path / "part-00000.npy").read_bytes()
    assert len(raw) == width * counts.tokens
    assert np.frombuffer(raw, f"<u{width}").tolist() == [
        token for ids in expected for token in ids
    ]


def test_offsets_stand_a_line_a_document(tmp_path):
    blocks = ended(random_blocks(5, rows=3), eos=EOS)
    olmo.FORMAT.write(tmp_path / "part-00000", blocks, options_for(128_256))
    ends = np.cumsum([len(ids) for ids in documents_of(blocks)]).tolist()
    lines = (
        gzip.decompress((tmp_path / "part-00000.csv.gz").read_bytes())
        .decode()
        .splitlines()
    )
    assert lines == [
        f"{start},{end}" for start, end in zip([0, *ends], ends, strict=False)
    ]


def test_the_same_rows_are_the_same_bytes(tmp_path):
    blocks = ended(random_blocks(7), eos=EOS)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        olmo.FORMAT.write(tmp_path / name / "part-00000", blocks, options_for(128_256))
    for suffix in (".npy", ".csv.gz"):
        one, other = (
            (tmp_path / name / f"part-00000{suffix}").read_bytes()
            for name in ("a", "b")
        )
        assert one == other


def test_a_document_without_its_end_or_with_one_too_many_is_refused(tmp_path):
    (block, *_) = ended(random_blocks(9, rows=4), eos=EOS)
    block.input_ids[-1] = 5
    with pytest.raises(ExportError, match="not end in the EOS"):
        olmo.FORMAT.write(tmp_path / "part-00000", [block], options_for(128_256))
    (block, *_) = ended(random_blocks(9, rows=4), eos=EOS)
    block.input_ids[0] = EOS
    with pytest.raises(ExportError, match="not end in the EOS"):
        olmo.FORMAT.write(tmp_path / "part-00000", [block], options_for(128_256))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["0,3", "4,6"], "has a document from 4 to 6 after one that ends at 3"),
        (["0,3", "3,3", "3,6"], "has a document from 3 to 3 after one that ends at 3"),
        (["0,3", "3,7"], "does not have 2 or 4 bytes for each of the 7 tokens"),
        ([], "does not have 2 or 4 bytes for each of the 0 tokens"),
    ],
)
def test_offsets_that_do_not_tile_the_array_are_found(tmp_path, lines, told):
    (tmp_path / "part-00000.npy").write_bytes(np.arange(6, dtype="<u2").tobytes())
    (tmp_path / "part-00000.csv.gz").write_bytes(
        gzip.compress("".join(f"{line}\n" for line in lines).encode())
    )
    with pytest.raises(ValueError, match=told):
        list(olmo.FORMAT.read(tmp_path, ["part-00000.npy"]))
