"""Measure: score the last meta-chunk of each document among each choice of negatives.

In:  files of documents, and a causal language model.
Out: `documents-*.jsonl`: for each document and choice, the sums of losses over its last
     meta-chunk by kind of word: as the sequence stands, with the earlier meta-chunks
     replaced by unrelated text, and in the document alone.

The pipeline makes the sequences, whose tokenizer is the model's own. A line is written
after each document, so a stopped experiment resumes behind the last one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import nextlong
from nextlong import schemas
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.errors import RunError
from nextlong.recipe import Recipe
from nextlong.recipe.keys import Scorer
from nextlong.retrieval.surprisal import SurprisalModel
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as Row
from nextlong.sequences.dependence import (
    Kind,
    ScoredMetaChunk,
    SequenceText,
    score_meta_chunks,
)
from nextlong.sequences.verify_dependence import Unrelated
from nextlong.text import Json

ARMS: Final = ("top", "random-retrieved", "tail", "random-corpus", "mixed")
_DOCUMENTS: Final = "documents-{}.jsonl"  # of a process
SETTING: Final = "setting.json"
# Groups of tokens: all, the kinds of an arm, and the words that only the document's
# earlier meta-chunks have in every arm, so that arms are compared on the same tokens.
ALL: Final = "all"
COMMON: Final = "own in every arm"
KINDS: Final[Mapping[str, Kind]] = {
    "only own": Kind.OWN,
    "only negatives": Kind.NEGATIVES,
    "both": Kind.BOTH,
    "neither": Kind.NEITHER,
}
GROUPS: Final = (ALL, *KINDS, COMMON)
# Documents drafted for each that is scored: arms drop some, and those of few tokens to
# score or little room for negatives are not scored.
_SPARE: Final = 3.0
_MIN_SCORED: Final = 64  # tokens of the last meta-chunk
_MAX_META_CHUNKS: Final = 3
# Of each meta-chunk: what random-retrieved and tail choose from, as in the paper.
_CANDIDATES: Final = 512
# Unrelated text, as a multiple of the characters that it replaces.
_UNRELATED: Final = 2.0

_Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is measured; a result belongs to one setting."""

    corpus: tuple[str, ...]
    max_documents: int  # of each file
    model: str
    dtype: str
    documents: int
    tokens: int
    chunk_chars: int
    seed: int
    processes: int

    def as_json(self) -> Json:
        """Return what the results depend on, without the folders of files."""
        values = asdict(self)
        # More documents may be measured later, by more processes.
        del values["documents"], values["processes"]
        values["corpus"] = [Path(path).name for path in self.corpus]
        values["model"] = Path(self.model).name
        return values


def measure(setting: Setting, out: Path, report: Callable[[str], None]) -> list[Json]:
    """Score documents until there are as many as the setting asks for; return all.

    Each of `setting.processes` scores every so many-th document on one thread.
    """
    out.mkdir(parents=True, exist_ok=True)
    _check_setting(setting, out)
    tokenizer = out / "tokenizer.json"
    if not tokenizer.exists():
        model = SurprisalModel(_scorer(setting))
        model.tokenizer.backend_tokenizer.save(str(tokenizer))
    runs = {arm: _run(setting, out, tokenizer, arm) for arm in ARMS}
    ids_of_arms = {arm: _scorable(run) for arm, run in runs.items()}
    common = set.intersection(*map(set, ids_of_arms.values()))
    ids = [key for key in ids_of_arms[ARMS[0]] if key in common]
    report(f"{len(ids):,} documents to score, which all arms have")

    done = {record["id"] for record in read_documents(out)}
    wanted = [key for key in ids[: setting.documents] if key not in done]
    spawning = multiprocessing.get_context("spawn")
    processes = []
    for part in range(setting.processes):
        keys = wanted[part :: setting.processes]
        arguments = (setting, out, part, keys)
        processes.append(spawning.Process(target=_score, args=arguments))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return read_documents(out)


def _scorer(setting: Setting) -> Scorer:
    return Scorer(model=setting.model, dtype=setting.dtype, batch_tokens=1)


def _score(setting: Setting, out: Path, part: int, keys: Sequence[str]) -> None:
    """Append the documents of these sequences to a file, one after the other."""
    import torch

    torch.set_num_threads(1)
    model = SurprisalModel(_scorer(setting))
    wanted = set(keys)
    rows: dict[str, dict[str, Row]] = {}
    for arm in ARMS:
        run = Run(f"{out / 'run'}@{arm}")
        for sequence in run.sequences():
            if sequence.id in wanted:
                rows.setdefault(sequence.id, {})[arm] = sequence
    with (out / _DOCUMENTS.format(part)).open("a", encoding="utf-8") as sink:
        for key in keys:
            record = _document(model, rows[key], run.corpus, seed=setting.seed)
            sink.write(json.dumps(record) + "\n")
            sink.flush()
            os.fsync(sink.fileno())


def read_documents(out: Path) -> list[Json]:
    """Return the documents measured so far, by id.

    An incomplete last line of a file is removed.
    """
    records: dict[str, Json] = {}
    for path in sorted(out.glob(_DOCUMENTS.format("*"))):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        complete = [line for line in lines if line.endswith("\n")]
        if len(complete) < len(lines):
            path.write_text("".join(complete), encoding="utf-8")
        for line in complete:
            record = json.loads(line)
            records[record["id"]] = record
    return [records[key] for key in sorted(records)]


def _check_setting(setting: Setting, out: Path) -> None:
    """Write the setting, or compare it with that of the documents measured so far."""
    path = out / SETTING
    wanted = setting.as_json()
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
        return
    if json.loads(path.read_text(encoding="utf-8")) != wanted:
        raise RunError(
            where=path,
            problem="the folder holds results of another setting",
            fix="give another --out, or the same options as before",
        )


def _run(setting: Setting, out: Path, tokenizer: Path, arm: str) -> Run:
    """Run the pipeline with a choice of negatives, as a variant of one run."""
    sources = []
    for path in setting.corpus:
        source = {"path": str(Path(path).resolve()), "name": Path(path).name}
        sources.append({**source, "max_documents": setting.max_documents})
    recipe = {
        "run_dir": str(out / "run"),
        "name": arm,
        "seed": setting.seed,
        "ingest": {"sources": sources},
        "chunk": {"max_chars": setting.chunk_chars},
        "mine": {"candidates": _CANDIDATES},
        "tokenizer": {"source": str(tokenizer)},
        "compose": {
            "sequences": int(_SPARE * setting.documents),
            "target_tokens": setting.tokens,
            "negatives": arm,
        },
    }
    return nextlong.run(Recipe.from_dict(recipe))


def _scorable(run: Run) -> list[str]:
    """Return the ids of the sequences whose documents are scored, in draft order.

    Whether a document is depends on its own chunks only, which all arms share.
    """
    ids = []
    for sequence in run.sequences():
        metas = [span for span in sequence.spans if span.role == "meta"]
        if len(metas) <= _MAX_META_CHUNKS and metas[-1].length >= _MIN_SCORED:
            ids.append(sequence.id)
    return ids


def _document(
    model: SurprisalModel,
    rows: Mapping[str, Row],
    corpus: CorpusFiles,
    *,
    seed: int,
) -> Json:
    """Return the sums of losses of a document in each arm."""
    first = next(iter(rows.values()))
    metas = [span for span in first.spans if span.role == "meta"]
    used = {span.doc_id for row in rows.values() for span in row.spans}
    chars = sum(span.char_end - span.char_start for span in metas)
    # All arms replace the same meta-chunks by the same text.
    unrelated = Unrelated(corpus).text(
        used, chars=_UNRELATED * chars, key=f"{seed}-{first.id}"
    )

    texts = [_text(row, unrelated) for row in rows.values()]
    scored = [chunks[0] for chunks in score_meta_chunks(model, texts, which="last")]
    alone = _loss_alone(model, texts[0])
    is_common = np.ones(len(alone), np.bool_)
    for chunk in scored:
        is_common &= chunk.kinds == Kind.OWN
    arms = {}
    for arm, chunk in zip(rows, scored, strict=True):
        arms[arm] = {"gap": chunk.gap, **_sums(chunk, alone, is_common)}
    return {
        "id": first.id,
        "document": metas[0].source_id,
        "meta_chunks": len(metas),
        "tokens": len(alone),
        "arms": arms,
    }


def _sums(
    chunk: ScoredMetaChunk, alone: NDArray[np.float32], is_common: _Bools
) -> Json:
    """Return tokens and sums of losses by group: as is, replaced, document alone."""
    groups = {ALL: np.ones(len(alone), np.bool_), COMMON: is_common}
    groups |= {name: chunk.kinds == kind for name, kind in KINDS.items()}
    sums = {}
    for name, is_member in groups.items():
        sums[name] = {
            "tokens": int(is_member.sum()),
            "loss": _sum(chunk.loss, is_member),
            "replaced": _sum(chunk.replaced_loss, is_member),
            "alone": _sum(alone, is_member),
        }
    return sums


def _sum(losses: NDArray[np.float32], is_member: _Bools) -> float:
    return round(float(losses[is_member].sum(dtype=np.float64)), 4)


def _text(row: Row, unrelated: str) -> SequenceText:
    roles = [schemas.ROLES.index(span.role) for span in row.spans]
    return SequenceText(texts=row.texts, roles=roles, unrelated=unrelated)


def _loss_alone(model: SurprisalModel, text: SequenceText) -> NDArray[np.float32]:
    """Return the losses of the last meta-chunk after the other meta-chunks only."""
    metas = [
        piece
        for piece, role in zip(text.texts, text.roles, strict=True)
        if role == schemas.META
    ]
    ids = [encoded.ids for encoded in model.encode(metas)]
    first = sum(map(len, ids[:-1]))
    (scores,) = model.score([np.concatenate(ids)], first=[first])
    return scores.loss[first:]
