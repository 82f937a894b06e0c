"""Random rows, as a resolver would give them: sequences of spans in blocks, single or packed together."""

from dataclasses import fields, replace
from itertools import chain

import numpy as np

from nextlong.artifacts.blocks import Resolved, packed
from nextlong.export.formats.base import Options, format_of

DOMAINS = ["wiki", "law-é", "C++", "", "代码"]


def random_blocks(seed, *, rows=20, longest=700, vocabulary=128_256, per_row=1):
    """Return blocks of `rows` sequences in all, each of 1 to `longest` tokens, at most `per_row` of them joined to one row."""
    draw = np.random.default_rng(seed)
    blocks, made = [], 0
    while made < rows:
        count = int(draw.integers(1, min(7, rows - made + 1)))
        block = _block(draw, made, count, longest, vocabulary)
        blocks.append(
            block if per_row == 1 else packed(block, _groups(draw, count, per_row))
        )
        made += count
    return blocks


def read_back(folder, layout):
    """Return the rows of an export folder as the format's reader yields them."""
    made = format_of(layout)
    files = sorted(
        path.name for path in folder.iterdir() if path.name.endswith(made.suffixes)
    )
    return list(made.read(folder, files))


def options(
    *, shard=0, shards=1, vocab_size=128_256, eos_id=None, shard_bytes=1 << 26, **keys
):
    """Return the options of a format's `write`; `token_id` takes a number for a name."""
    keys = {"row_group_mb": 64.0, "compression": "none", "megatron_eod": None} | keys
    return Options(
        keys=keys,
        shard_bytes=shard_bytes,
        vocab_size=vocab_size,
        bos_id=None,
        eos_id=eos_id,
        token_id=int,
        shard=shard,
        shards=shards,
    )


def ended(blocks, *, eos):
    """Return blocks whose documents end in the token `eos`, an id that they have nowhere else."""
    found = []
    for block in blocks:
        ids = np.where(block.input_ids == eos, eos + 1, block.input_ids)
        ids[np.cumsum(block.document_lengths) - 1] = eos
        found.append(replace(block, input_ids=ids))
    return found


def documents_of(blocks):
    """Return the ids of every synthesized document, in order, as lists."""
    return [
        ids.tolist()
        for block in blocks
        for ids in np.split(block.input_ids, np.cumsum(block.document_lengths)[:-1])
    ]


def rows_of(blocks):
    """Return every row as a block of its own."""
    return [_row(block, number) for block in blocks for number in range(len(block))]


def joined(blocks):
    """Return blocks as one block."""
    columns = {}
    for name in (field.name for field in fields(Resolved)):
        own = [getattr(block, name) for block in blocks]
        if isinstance(own[0], list):
            columns[name] = list(chain.from_iterable(own))
        elif name.endswith("_offsets"):
            columns[name] = np.cumsum(
                [0, *np.concatenate([np.diff(offsets) for offsets in own])]
            )
        else:
            columns[name] = np.concatenate(own)
    return Resolved(**columns)


def _row(block, number):
    tokens, documents, spans = (
        slice(*offsets[number : number + 2])
        for offsets in (block.token_offsets, block.document_offsets, block.span_offsets)
    )
    of_spans = (
        "chunk_ids",
        "doc_ids",
        "source_ids",
        "metadata",
        "char_starts",
        "char_ends",
        "roles",
        "groups",
    )
    return replace(
        block,
        sequence_ids=[block.sequence_ids[number]],
        methods=[block.methods[number]],
        domains=[block.domains[number]],
        token_offsets=np.array([0, tokens.stop - tokens.start]),
        input_ids=block.input_ids[tokens],
        document_offsets=np.array([0, documents.stop - documents.start]),
        document_lengths=block.document_lengths[documents],
        span_offsets=np.array([0, spans.stop - spans.start]),
        **{
            name: getattr(block, name)[spans]
            for name in (*of_spans, "token_starts", "token_ends", "scores")
        },
    )


def _groups(draw, count, per_row):
    sizes = []
    while sum(sizes) < count:
        sizes.append(min(int(draw.integers(1, per_row + 1)), count - sum(sizes)))
    return np.concatenate([[0], np.cumsum(sizes)])


def _block(draw, first, count, longest, vocabulary):
    lengths = draw.integers(1, longest + 1, count)
    cuts = [np.unique([0, *draw.integers(0, length, 4), length]) for length in lengths]
    spans = [len(cut) - 1 for cut in cuts]
    total = sum(spans)
    chunk_ids = np.where(draw.random(total) < 0.2, -1, draw.integers(0, 2**40, total))
    return Resolved(
        sequence_ids=[f"nextlong-{first + number:016x}" for number in range(count)],
        methods=draw.choice(["nextlong", "knn"], count).tolist(),
        domains=draw.choice(DOMAINS, count).tolist(),
        token_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        input_ids=draw.integers(0, vocabulary, lengths.sum()).astype(np.int32),
        document_offsets=np.arange(count + 1),
        document_lengths=lengths.astype(np.int32),
        span_offsets=np.concatenate([[0], np.cumsum(spans)]),
        chunk_ids=chunk_ids,
        doc_ids=np.where(chunk_ids < 0, -1, chunk_ids >> 3),
        source_ids=np.array(
            [f"dokument-ø-{chunk % 9}" if chunk >= 0 else "" for chunk in chunk_ids],
            object,
        ),
        metadata=np.array(
            [f'{{"n": {chunk % 3}}}' if chunk >= 0 else None for chunk in chunk_ids],
            object,
        ),
        char_starts=np.where(chunk_ids < 0, -1, 5),
        char_ends=np.where(chunk_ids < 0, -1, 2**33),
        roles=np.where(chunk_ids < 0, 3, draw.integers(0, 3, total)).astype(np.int8),
        groups=np.zeros(total, np.int32),
        token_starts=np.concatenate([cut[:-1] for cut in cuts]).astype(np.int32),
        token_ends=np.concatenate([cut[1:] for cut in cuts]).astype(np.int32),
        scores=draw.random(total).astype(np.float32),
    )
