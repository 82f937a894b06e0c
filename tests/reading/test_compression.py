"""Compressed streams: all frames of each compression, padding, and what is damaged."""

import io

import pytest
import zstandard
from tests.support.compressed import COMPRESSORS, with_long_window

from nextlong.reading.compression import (
    COMPRESSIONS,
    compression_in,
    compression_of,
    decompressed,
)

CONTENT = b"".join(b'{"text": "document %d"}\n' % number for number in range(5000))
EVERY = pytest.mark.parametrize("suffix", COMPRESSORS)


def read(raw, suffix, *, size=1000):
    """Return all blocks of a compressed file, and the error that ends them."""
    blocks = []
    with decompressed(io.BytesIO(raw), COMPRESSIONS[suffix]) as stream:
        while True:
            try:
                block = stream.read(size)
            except OSError as error:
                return b"".join(blocks), error
            if not block:
                return b"".join(blocks), None
            blocks.append(block)


@EVERY
def test_all_frames_of_a_file_are_read(suffix):
    compress = COMPRESSORS[suffix]
    two = compress(CONTENT) + compress(b"more")
    assert read(two, suffix) == (CONTENT + b"more", None)
    assert read(b"", suffix) == (b"", None)
    # As many bytes as asked for, so that a caller may read a file at once.
    with decompressed(io.BytesIO(two), COMPRESSIONS[suffix]) as stream:
        assert stream.read(len(CONTENT)) == CONTENT


@EVERY
@pytest.mark.parametrize("cut", [1, 5, 200])
def test_a_file_that_ends_early_is_an_error_after_what_it_has(suffix, cut):
    compress = COMPRESSORS[suffix]
    first = compress(CONTENT)
    content, error = read((first + compress(CONTENT[:20_000]))[:-cut], suffix, size=64)
    assert isinstance(error, OSError)
    assert (CONTENT + CONTENT[:20_000]).startswith(content)
    if suffix != ".lz4":
        assert len(content) >= len(CONTENT)


@EVERY
@pytest.mark.parametrize("after", [b"garbage", b'{"text": "plain"}\n'])
def test_what_follows_the_last_frame_is_an_error(suffix, after):
    _, error = read(COMPRESSORS[suffix](CONTENT) + after, suffix)
    assert isinstance(error, OSError)
    _, error = read(after, suffix)
    assert isinstance(error, OSError)


@EVERY
@pytest.mark.parametrize("held", ["", *COMPRESSORS])
def test_content_of_another_compression_is_named(suffix, held):
    content, error = read(COMPRESSORS[held](CONTENT) if held else CONTENT, suffix)
    if held == suffix:
        assert (content, error) == (CONTENT, None)
        return
    assert content == b""
    assert isinstance(error, OSError)
    assert (COMPRESSIONS[held] if held else "compressed data") in str(error)
    assert COMPRESSIONS[suffix] in str(error)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("zeros", [1, 4, 512, 100_000])
def test_zeros_after_a_frame_are_padding(suffix, zeros):
    frame = COMPRESSORS[suffix](CONTENT)
    padding = bytes(zeros)
    assert read(frame + padding, suffix) == (CONTENT, None)
    assert read(frame + padding + frame, suffix) == (CONTENT * 2, None)


def test_a_window_of_two_gigabytes_and_skippable_frames_are_read():
    frame = with_long_window(CONTENT)
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 31
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"about"
    assert read(skippable + frame + skippable, ".zst") == (CONTENT, None)


@EVERY
def test_a_compression_is_known_by_its_name_and_by_its_content(suffix):
    assert compression_of(f"A.JSONL{suffix.upper()}") == COMPRESSIONS[suffix]
    assert compression_in(COMPRESSORS[suffix](CONTENT)) == COMPRESSIONS[suffix]
    assert compression_of("a.jsonl") == compression_in(CONTENT) == ""


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_zstd_file_that_begins_with_its_dictionary_is_read(is_compressed):
    records = [b"WARC/1.0 record %d of a long archive" % n * 9 for n in range(3000)]
    dictionary = zstandard.train_dictionary(30_000, records)
    held = dictionary.as_bytes()
    if is_compressed:
        held = zstandard.compress(held)
    compressor = zstandard.ZstdCompressor(dict_data=dictionary)
    start = b"\x5d\x2a\x4d\x18" + len(held).to_bytes(4, "little") + held
    archive = start + b"".join(map(compressor.compress, records))
    assert read(archive, ".zst") == (b"".join(records), None)
    assert isinstance(read(archive[:1000], ".zst")[1], OSError)
    # A frame of other metadata is no dictionary.
    other = b"\x5d\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    assert read(other + zstandard.compress(CONTENT), ".zst") == (CONTENT, None)
