"""Every compression that is read, made with the libraries of others."""

import bz2
import gzip
import lzma

import pyarrow as pa
import zstandard


def _lz4(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESSORS = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lz4": _lz4,
}


def with_long_window(content, *, bits=31):
    """Compress as `zstd --long=31` does, which needs a window of 2 GB."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=bits, compression_level=1, write_content_size=False
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(content) + compressor.flush()
