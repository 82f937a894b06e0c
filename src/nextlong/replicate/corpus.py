"""Corpus: the user's documents, parted into those that are trained on and those that no model ever sees.

In:  the recipe's sources. Out: `OUT/corpus/train.jsonl`, `held-out.jsonl`, and the haystack of the measurements, of held-out text.

A document goes to one side by its content alone, so copies stay together, and files may come in any order.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from nextlong.corpus.ingest import normalized_hash
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.inputs.files import Part
from nextlong.inputs.listing import list_files
from nextlong.inputs.record import Record, Reject, RejectKind
from nextlong.inputs.records import read_records
from nextlong.inputs.where import LeftOut
from nextlong.plain_data import Json
from nextlong.recipe.keys import Source
from nextlong.replicate.recipe import Corpus
from nextlong.replicate.stage import Stage
from nextlong.rng import keyed_hash, threshold_for

_SIDES: Final = ("train", "held-out")
_MOST_CHARS: Final = 10_000_000  # of a document, as ingest.max_document_chars


def stage_of(corpus: Corpus, out: Path) -> Stage:
    """Return the stage that parts the documents; other files, or changed ones, are another stage."""
    files = {
        source.path: [
            (file.name, file.bytes, file.version) for file in list_files(source, where=f"corpus.sources[{place}].path")
        ]
        for place, source in enumerate(corpus.sources)
    }
    about = {"corpus": corpus.model_dump(mode="json"), "files": files}
    return Stage(out / "corpus", "documents", about)


def part(corpus: Corpus, stage: Stage) -> None:
    """Write both sides and the haystack; raise CorpusError if a side is empty."""
    counts = dict.fromkeys(_SIDES, 0)
    bound, held_chars = threshold_for(corpus.held_out), 0
    rejected: Counter[str] = Counter()
    haystack, essays = (stage.folder / "data" / name for name in ("needle/haystack.txt", "ruler/essays.txt"))
    with store.explained(stage.folder):
        for path in (haystack, essays):
            path.parent.mkdir(parents=True, exist_ok=True)
        files = {side: (stage.folder / f"{side}.jsonl").open("w", encoding="utf-8") for side in _SIDES}
        with files["train"], files["held-out"], haystack.open("w", encoding="utf-8") as straw:
            for row in _rows(corpus, rejected):
                side = _SIDES[int(_place(row["text"]) < bound)]
                if side == "held-out":
                    if held_chars >= corpus.held_out_chars:
                        continue
                    held_chars += len(row["text"])
                    straw.write(row["text"].strip() + "\n\n")
                files[side].write(json.dumps(row, ensure_ascii=False) + "\n")
                counts[side] += 1
            for file in (*files.values(), straw):
                file.flush()
                os.fsync(file.fileno())
        shutil.copyfile(haystack, essays)
    if empty := [side for side in _SIDES if not counts[side]]:
        rejects = f"; rejected were {rejects_in_words(rejected)}" if rejected else ""
        raise CorpusError(
            f"corpus: of {sum(counts.values())} documents none fell to the {empty[0]} side (corpus.held_out={corpus.held_out:g})"
            f"{rejects}; add documents, correct corpus.sources, or change the share"
        )
    stage.finish({"documents": counts, "held_out_chars": held_chars, "rejected": dict(rejected)})


def rejects_in_words(rejected: Mapping[str, int]) -> str:
    """Return how many records hold no document, and why."""
    return ", ".join(
        f"{count:,} × {kind}" for kind, count in sorted(rejected.items(), key=lambda entry: (-entry[1], entry[0]))
    )


def _place(text: str) -> np.uint64:
    hashes = np.array([normalized_hash(text.encode("utf-8"))], np.uint64)
    return np.uint64(keyed_hash(hashes, seed=0, stage="held-out")[0])


def _rows(corpus: Corpus, rejected: Counter[str]) -> Iterator[Json]:
    """Yield the documents; count in `rejected` the records that hold none, by reason."""
    for place, source in enumerate(corpus.sources):
        for file in list_files(source, where=f"corpus.sources[{place}].path"):
            for item in read_records(Part(file), source, max_document_chars=_MOST_CHARS):
                if isinstance(item, LeftOut):
                    continue
                fault = item.kind if isinstance(item, Reject) else _fault(item.text)
                if fault is not None:
                    rejected[fault.value] += 1
                elif isinstance(item, Record):
                    yield {"id": item.source_id, "text": item.text, "source": source.label}


def _fault(text: str) -> RejectKind | None:
    if not text.strip():
        return RejectKind.EMPTY
    return RejectKind.TOO_LONG if len(text) > _MOST_CHARS else None


def source_of(stage: Stage, side: str) -> Source:
    """Return one side as the source of a data recipe."""
    return Source(path=str(stage.folder / f"{side}.jsonl"), name=side)
