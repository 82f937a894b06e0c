"""Corpora of token ids: six documents, and their files written by hand as other tools write them."""

import json
import struct

import numpy as np

from nextlong.reading.files import FilePart, open_file
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import ReadRequest
from nextlong.reading.token_ids import decoder_of
from nextlong.recipe import Source
from nextlong.sequences.tokenizer import END_OF_TEXT, train_bpe

TEXTS = [
    "The tide turns twice a day.\nAnchors hold.",
    "  two blanks first, é and 日本 after",
    "one",
    "x = 1\n\tif x:\r\n\t\treturn",
    "The tide turns twice a day, and the harbour with it.",
    "🙂 at both ends 🙂",
]


def tokenizer_at(path):
    """Write a small byte-level tokenizer; return it."""
    tokenizer = train_bpe(TEXTS * 3, vocab_size=300)
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return tokenizer


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def with_ends(tokenizer):
    """Return the ids of each document with the end token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [[*ids_of(tokenizer, text), end] for text in TEXTS]


def read_tokens(path, **options):
    """Return the items of all files of a source."""
    source = Source(path=str(path), **options)
    items = []
    for file in list_files(source, where="path"):
        items += read_records(FilePart(file), source, max_document_chars=10_000)
    return items


def texts_of_rows(token_format, folder, tokenizer):
    """Return the decoded text of each row of ids in the files of a folder."""
    source = Source(
        path=str(folder), format=token_format.name, tokenizer=str(tokenizer)
    )
    texts = []
    for file in list_files(source, where="path"):
        request = ReadRequest(FilePart(file), source, (), 100)
        decoder = decoder_of(source, file)
        with open_file(file) as stream:
            for row in token_format.token_rows(stream, request):
                texts.append(decoder.decoded(row.ids.tolist()))
    return texts


def megatron_index(lengths, bounds, *, code=8, width=2, version=1):
    """Return the bytes of an `.idx` file: sequences of `lengths`, documents from `bounds`."""
    ends = np.cumsum(lengths)
    return (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", version, code, len(lengths), len(bounds))
        + np.array(lengths, "<i4").tobytes()
        + np.array((ends - lengths) * width, "<i8").tobytes()
        + np.array(bounds, "<i8").tobytes()
    )


def array_bytes(array, *, has_type=True):
    """Return an array of one or two axes as MDS stores it, with its shape of one byte per axis."""
    array = np.asarray(array)
    codes = {"uint16": 16, "uint32": 32, "int32": 33, "int64": 65}
    head = b"" if has_type else bytes([codes[array.dtype.name]])
    width = 0 if max(array.shape) < 256 else 1
    sizes = np.array(array.shape, f"<u{1 << width}").tobytes()
    return head + bytes([array.ndim << 2 | width]) + sizes + array.tobytes()


def mds_shard(samples, encodings, sizes):
    """Return a shard: `samples` are the bytes of the columns of each sample, in the order of `encodings`."""
    header = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "column_names": list(encodings),
            "column_encodings": list(encodings.values()),
            "column_sizes": sizes,
        }
    ).encode()
    bodies = []
    for pieces in samples:
        own = [
            len(piece)
            for piece, size in zip(pieces, sizes, strict=True)
            if size is None
        ]
        bodies.append(np.array(own, "<u4").tobytes() + b"".join(pieces))
    start = 4 * (len(bodies) + 2) + len(header)
    offsets = start + np.cumsum([0, *map(len, bodies)])
    numbers = np.array([len(bodies), *offsets], "<u4").tobytes()
    return numbers + header + b"".join(bodies)
