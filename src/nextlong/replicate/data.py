"""Data: the user's documents → training and held-out parts → the runs that models are trained and measured on.

OUT/corpus/             train.jsonl, held-out.jsonl, and the haystack of the measurements, of held-out text
OUT/runs/pretraining    standard, short; trains the tokenizer
OUT/runs/extension      a variant for every method and setting; shared steps are made once
OUT/runs/held-out       of held-out documents: hard negatives, and random ones, for the dependency probe

A document goes to one part by its content alone, so copies stay together, and files may come in any order. The runs are made by
the package's own `run` and `sweep`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from nextlong.corpus.ingest import normalized_hash
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import FilteredOut, Reject, RejectKind
from nextlong.recipe import Recipe
from nextlong.recipe.text import merge
from nextlong.replicate.recipe import KEYS, Corpus, Experiment, Replication
from nextlong.report import sweep
from nextlong.rng import keyed_hash, threshold_for
from nextlong.runs import export
from nextlong.runs.run import Run
from nextlong.runs.stats import Stats
from nextlong.text import Json

HELD_OUT_NEGATIVES: Final = ("top", "random-corpus")
_RECORD: Final = "stage.json"
_PARTS: Final = ("train", "held-out")
_MOST_CHARS: Final = 10_000_000  # of a document, as ingest.max_document_chars


@dataclass(frozen=True)
class Stage:
    """A folder `ABOVE/NAME-<fingerprint>`, named after everything that determines its content, as plain data.

    `stage.json` is written last: a stage without it is not finished. Another recipe makes other folders and keeps these.
    """

    above: Path
    name: str
    depends_on: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """The hash of `depends_on`."""
        depends_on = json.dumps(self.depends_on, sort_keys=True, default=str)
        return hashlib.blake2b(depends_on.encode(), digest_size=6).hexdigest()

    @property
    def folder(self) -> Path:
        """The folder of the stage."""
        return self.above / f"{self.name}-{self.fingerprint}"

    @property
    def is_finished(self) -> bool:
        """Whether the stage is complete."""
        return (self.folder / _RECORD).is_file()

    @property
    def record(self) -> Json:
        """What `finish` recorded. Raises RunError if the stage is not finished, or the file is damaged."""
        made: Json = store.read_json(self.folder / _RECORD)["made"]
        return made

    def finish(self, made: Mapping[str, Any]) -> None:
        """Record that the stage is complete, and its results."""
        with store.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            plain = json.loads(json.dumps(self.depends_on, default=str))
            store.write_json(self.folder / _RECORD, {"depends_on": plain, "made": dict(made)})


def split_stage(corpus: Corpus, out: Path) -> Stage:
    """Return the stage that splits the documents; other files, or changed ones, are another stage."""
    files = {
        source.path: [
            (file.name, file.bytes, file.version) for file in list_files(source, where=f"corpus.sources[{place}].path")
        ]
        for place, source in enumerate(corpus.sources)
    }
    return Stage(out / "corpus", "documents", {"corpus": corpus.model_dump(mode="json"), "files": files})


def split_documents(corpus: Corpus, stage: Stage) -> None:
    """Write both parts and the haystack; raise CorpusError if a part is empty."""
    counts = dict.fromkeys(_PARTS, 0)
    bound, held_chars = threshold_for(corpus.held_out), 0
    rejected: Counter[str] = Counter()
    haystack, essays = (stage.folder / "data" / name for name in ("needle/haystack.txt", "ruler/essays.txt"))
    with store.explained(stage.folder):
        for path in (haystack, essays):
            path.parent.mkdir(parents=True, exist_ok=True)
        files = {part: (stage.folder / f"{part}.jsonl").open("w", encoding="utf-8") for part in _PARTS}
        with files["train"], files["held-out"], haystack.open("w", encoding="utf-8") as straw:
            for row in _documents(corpus, rejected):
                hashes = np.array([normalized_hash(row["text"].encode("utf-8"))], np.uint64)
                part = _PARTS[int(keyed_hash(hashes, seed=0, stage="held-out")[0] < bound)]
                if part == "held-out":
                    if held_chars >= corpus.held_out_chars:
                        continue
                    held_chars += len(row["text"])
                    straw.write(row["text"].strip() + "\n\n")
                files[part].write(json.dumps(row, ensure_ascii=False) + "\n")
                counts[part] += 1
            for file in (*files.values(), straw):
                file.flush()
                os.fsync(file.fileno())
        shutil.copyfile(haystack, essays)
    if empty := [part for part in _PARTS if not counts[part]]:
        rejects = f"; rejected: {reject_counts(rejected)}" if rejected else ""
        raise CorpusError(
            f"corpus: of {sum(counts.values())} documents none is in the {empty[0]} part (corpus.held_out={corpus.held_out:g})"
            f"{rejects}; add documents, correct corpus.sources, or change the share"
        )
    stage.finish({"documents": counts, "held_out_chars": held_chars, "rejected": dict(rejected)})


def reject_counts(rejected: Mapping[str, int]) -> str:
    """Return how many records hold no document, by reason."""
    ordered = sorted(rejected.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{count:,} × {kind}" for kind, count in ordered)


def _documents(corpus: Corpus, rejected: Counter[str]) -> Iterator[Json]:
    """Yield the documents; count in `rejected` the records that hold none, by reason."""
    for place, source in enumerate(corpus.sources):
        for file in list_files(source, where=f"corpus.sources[{place}].path"):
            for item in read_records(FilePart(file), source, max_document_chars=_MOST_CHARS):
                if isinstance(item, FilteredOut):
                    continue
                if isinstance(item, Reject):
                    rejected[item.kind.value] += 1
                elif not item.text.strip():
                    rejected[RejectKind.EMPTY.value] += 1
                elif len(item.text) > _MOST_CHARS:
                    rejected[RejectKind.TOO_LONG.value] += 1
                else:
                    yield {"id": item.source_id, "text": item.text, "source": source.label}


@dataclass(frozen=True)
class Arm:
    """A value of an experiment, its run, and the run's statistics.

    `composed` is the fingerprint of the run's sequences: two arms with the same one are trained once.
    """

    experiment: Experiment
    value: Any
    run: str
    composed: str
    stats: Stats

    @property
    def name(self) -> str:
        """The value as tables show it."""
        return f"{self.value:,}" if isinstance(self.value, int) else str(self.value)


@dataclass(frozen=True)
class Runs:
    """All runs to train or measure on; `composed` is the fingerprint of the pretraining sequences."""

    pretraining: str
    composed: str
    tokenizer: Path
    arms: tuple[Arm, ...]
    held_out: tuple[Arm, ...]


def make_runs(recipe: Replication, documents: Stage, out: Path) -> Runs:
    """Run or resume every data recipe."""
    keys = _common_keys(recipe, documents, "train", {"train": recipe.data.vocabulary})
    if recipe.data.tokenizer:
        keys["tokenizer"] = {"source": recipe.data.tokenizer}
    keys["run_dir"] = str(out / "runs" / f"pretraining-{documents.fingerprint}")
    keys["compose"] = {"method": "standard", "target_tokens": recipe.pretrain.tokens, "sequences": "all"}
    pretraining = export.run(Recipe.from_dict(_with_settings(recipe, keys), origin="data of pretraining")).runs[0]
    tokenizer = str(pretraining.steps["tokenizer"].file(".tokenizer.json"))
    arms = make_arms(recipe, documents, out, tokenizer)
    held_out = make_held_out(recipe, documents, out, tokenizer)
    return Runs(str(pretraining.path), _fingerprint(pretraining), Path(tokenizer), arms, held_out)


def make_arms(recipe: Replication, documents: Stage, out: Path, tokenizer: str) -> tuple[Arm, ...]:
    """Return the arms of all experiments, made from the training documents."""
    keys = _common_keys(recipe, documents, "train", {"source": tokenizer})
    keys["run_dir"] = str(out / "runs" / f"extension-{documents.fingerprint}")
    keys["compose"] = {"target_tokens": recipe.extend.tokens, "sequences": recipe.data.sequences}
    path = out / "runs" / "extension.yaml"
    arms = [_sweep(recipe, keys, experiment, recipe.values(experiment), path) for experiment in recipe.experiments]
    return tuple(arm for swept in arms for arm in swept)


def make_held_out(recipe: Replication, documents: Stage, out: Path, tokenizer: str) -> tuple[Arm, ...]:
    """Return the runs of the dependency probe, made from the held-out documents."""
    keys = _common_keys(recipe, documents, "held-out", {"source": tokenizer})
    keys["run_dir"] = str(out / "runs" / f"held-out-{documents.fingerprint}")
    keys["decontaminate"] = {"files": []}
    keys["compose"] = {"target_tokens": recipe.extend.tokens, "sequences": recipe.measure.sequences}
    return tuple(_sweep(recipe, keys, "negatives", HELD_OUT_NEGATIVES, out / "runs" / "held-out.yaml"))


def _fingerprint(run: Run) -> str:
    return str(run.steps["compose"].manifest["fingerprint"])


def _common_keys(recipe: Replication, documents: Stage, part: str, tokenizer: Json) -> Json:
    return {
        "ingest": {"sources": [{"path": str(documents.folder / f"{part}.jsonl"), "name": part}]},
        "chunk": {"max_chars": recipe.data.max_chars},
        "decontaminate": {"files": [str(documents.folder / "held-out.jsonl")]},
        "encoder": {"model": recipe.data.encoder},
        "tokenizer": tokenizer,
    }


def _with_settings(recipe: Replication, keys: Json) -> Json:
    return merge(keys, [f"{key}={json.dumps(value)}" for key, value in recipe.data.settings.items()])


def _sweep(recipe: Replication, keys: Json, experiment: Experiment, values: Sequence[Any], path: Path) -> Iterator[Arm]:
    """Sweep a data recipe over the values of an experiment. Raises CorpusError if one of them cannot be made."""
    with store.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(path, Recipe.from_dict(_with_settings(recipe, keys), origin=path.stem).dump())
    variants = sweep.variants(path, [sweep.Axis(KEYS[experiment], tuple(values))])
    for outcome in sweep.run_variants(variants, make=export.make):
        variant = outcome.variant
        if outcome.stats is None:
            raise CorpusError(f"{variant.name}: {outcome.error}")
        run, value = Run(f"{variant.recipe.run_dir}@{variant.name}"), variant.settings[KEYS[experiment]]
        yield Arm(experiment, value, str(run.variant.named), _fingerprint(run), outcome.stats)
