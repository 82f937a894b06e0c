"""Tokens: the stored ids of every chunk in use against the reference tokenizer's, and their text against the document's.

In:  TOKENS, tokenizer.json, DOCUMENTS, CHUNKS. The reference is `Tokenizer.encode(text, add_special_tokens=False)` of the
`tokenizers` library on the chunk's slice of its document. Sequences refer to these ids, and `exports` compares files with
them, so each chunk is tokenized once here however many sequences it stands in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import BOS, EOS, JOINT, SHARD_BITS
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import Ids
from nextlong.verify.outcome import Outcome

_BATCH_CHUNKS = 512


def check_tokens(run: Artefacts) -> list[Outcome]:
    """Tokenize every chunk that a sequence names, and decode what is stored for it."""
    ids, texts = Outcome("token ids", "chunks"), Outcome("decoded text", "chunks")
    _check_special(run, ids)
    if not (decodes := _decodes_to_text(run)):
        texts.skipped = "this tokenizer's decoder does not give back the text"
    for shard, used in enumerate(run.used_rows()):
        named, offsets, stored = run.token_shard(shard)
        wanted = np.flatnonzero(used)
        absent = wanted[~np.isin(wanted, named)]
        for row in absent.tolist():
            ids.breach(f"chunk {shard << SHARD_BITS | row} stands in a sequence but has no tokens")
        for part, slices in run.chunk_texts(shard, np.setdiff1d(wanted, absent)):
            for start in range(0, len(slices), _BATCH_CHUNKS):
                rows = part[start : start + _BATCH_CHUNKS]
                places = np.searchsorted(named, rows).tolist()
                stored_ids = [stored[offsets[place] : offsets[place + 1]] for place in places]
                names = (rows | (shard << SHARD_BITS)).tolist()
                _compare_ids(run, names, slices[start : start + _BATCH_CHUNKS], stored_ids, ids)
                if decodes:
                    _compare_texts(run, names, slices[start : start + _BATCH_CHUNKS], stored_ids, texts)
    return [ids, texts]


def _compare_ids(
    run: Artefacts, names: list[int], texts: list[str], stored: list[NDArray[np.uint32]], outcome: Outcome
) -> None:
    outcome.checked += len(names)
    encodings = run.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for name, encoding, stored_ids in zip(names, encodings, stored, strict=True):
        true = np.array(encoding.ids, np.int64)
        if not np.array_equal(true, stored_ids):
            outcome.breach(f"chunk {name}: {_first_difference(stored_ids.astype(np.int64), true)}")


def _first_difference(stored: Ids, true: Ids) -> str:
    if len(stored) != len(true):
        return f"{len(stored)} tokens stored, the reference tokenizer gives {len(true)}"
    place = int(np.flatnonzero(stored != true)[0])
    return f"token {place} is {stored[place]}, the reference tokenizer gives {true[place]}"


def _compare_texts(
    run: Artefacts, names: list[int], texts: list[str], stored: list[NDArray[np.uint32]], outcome: Outcome
) -> None:
    outcome.checked += len(names)
    normalizer = run.tokenizer.normalizer
    decoded = run.tokenizer.decode_batch([ids.tolist() for ids in stored], skip_special_tokens=False)
    for name, text, decoded_as in zip(names, texts, decoded, strict=True):
        expected = text if normalizer is None else normalizer.normalize_str(text)
        if decoded_as != expected:
            at = next(
                (n for n, (a, b) in enumerate(zip(decoded_as, expected, strict=False)) if a != b),
                min(len(decoded_as), len(expected)),
            )
            outcome.breach(
                f"chunk {name} at character {at}: tokens say {decoded_as[at : at + 20]!r}, "
                f"the document {expected[at : at + 20]!r}"
            )


def _decodes_to_text(run: Artefacts) -> bool:
    return type(run.tokenizer.decoder).__name__ == "ByteLevel"


def _check_special(run: Artefacts, outcome: Outcome) -> None:
    """Compare the ids that the run put between chunks with the reference tokenizer's."""
    (part,) = run.steps["tokenizer"].manifest["parts"]
    said = part["counts"]
    for role, key in ((JOINT, "joint_ids"), (BOS, "bos_id"), (EOS, "eos_id")):
        stored = said[key] if isinstance(said[key], list) else [] if said[key] is None else [said[key]]
        if stored != run.special_ids[role]:
            outcome.breach(f"tokenizer {key} is {said[key]}, the reference tokenizer gives {run.special_ids[role]}")
