"""Trial: run the recipe's own route on 0.6 MB of the user's texts.

In:  a recipe, and texts of its corpus. Out: the seconds and bytes of each step on this
machine, and how much there was to do.

In a trial, LSA stands for an encoder that is a model or a server, exact search for an
index, a small tokenizer for one that takes a second to load, and no evaluation files
are read: the rates of these are measured apart (`measure.py`), or declared.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from nextlong import pipeline
from nextlong.artifacts.corpus_files import read_chunks
from nextlong.artifacts.results import ComposeFiles, TokenizerResult, chunk_files
from nextlong.checks import Corpus
from nextlong.engine.executor import Call, Resources, SerialExecutor
from nextlong.engine.runner import find_done, run_steps
from nextlong.engine.step import Artifact, Artifacts, Step
from nextlong.errors import NextlongError
from nextlong.methods.base import method_of
from nextlong.methods.contexts import ContextsFiles
from nextlong.methods.keywords import Keywords
from nextlong.methods.topics import CLUSTERS, Topics
from nextlong.recipe import Encoder, Recipe
from nextlong.recipe.keys import EXACT
from nextlong.report.plan.amounts import amounts_of
from nextlong.report.plan.costs import Trial
from nextlong.report.plan.sample import sample
from nextlong.retrieval.encoders.base import kind_of
from nextlong.schemas import NO_CHUNK, Layout
from nextlong.sequences.tokenizer import END_OF_TEXT, train_bpe
from nextlong.sequences.verify_dependence import COMPOSED
from nextlong.text import Json

TRIAL_CHARS: Final = 600_000

# Of the tokenizer of a trial: its entries, and what it is trained on.
_VOCABULARY_SIZE: Final = 2048
_TRAINING_TEXTS: Final = 64
_TRAINING_CHARS: Final = 4_000  # of each text

_ROOM: Final = 3  # times the characters of a draft that a trial must hold
_MIN_TOKENS: Final = 256  # of a sequence
_MIN_SEQUENCES: Final = 2
_CHARS_PER_EXTENDED_SEQUENCE: Final = 200_000


def try_route(recipe: Recipe, texts: Sequence[str], *, chars_per_token: float) -> Trial:
    """Run the route on `texts` in a temporary folder.

    Steps that the trial is too small for are missing from what it took.
    """
    with (
        tempfile.TemporaryDirectory(prefix="nextlong-plan-") as name,
        threadpool_limits(1),
    ):
        folder = Path(name)
        run_dir = folder / "run"
        run_dir.mkdir()
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (folder / "sample.jsonl").write_text("".join(lines), encoding="utf-8")
        tried = recipe_for(
            recipe,
            texts,
            folder,
            chars_per_token=chars_per_token,
        )
        corpus = Corpus(tried)
        executor = Timed()
        steps = pipeline.route(tried, corpus.files)
        # A sample may be too small for what the corpus can do. The steps that have
        # finished still tell.
        with suppress(NextlongError):
            run_steps(
                steps, run_dir=run_dir, executor=executor, only=_tried_steps(steps)
            )
        done = _finished(steps, run_dir)
        seconds = {name: executor.seconds[name] for name in done}
        written = {name: step.manifest["bytes"] for name, step in done.items()}
        for of_steps in (seconds, written):
            # A step of another name composes what is then verified.
            if ComposeFiles.step in of_steps:
                of_steps[COMPOSED] = of_steps[ComposeFiles.step]
        if "tokenizer" in done:
            chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        size = sample(tried, corpus).size
        size = replace(size, dimensions=_dimensions(done))
        return Trial(
            amounts=amounts_of(tried, size, chars_per_token=chars_per_token),
            seconds=seconds,
            bytes=written,
            documents_share=_documents_share(done),
        )


def _tried_steps(steps: Sequence[Step]) -> list[str]:
    """Return the names of the steps before one whose model has a rate of its own."""
    names = [step.name for step in steps]
    if ContextsFiles.step in names:
        return names[: names.index(ContextsFiles.step)]
    return names


def _finished(steps: Sequence[Step], run_dir: Path) -> dict[str, Artifact]:
    finished = {}
    for step in steps:
        done = find_done(step, run_dir)
        if done is not None:
            finished[step.name] = done
    return finished


def _dimensions(done: Artifacts) -> int:
    """Return the dimensions that LSA found."""
    if "encoder" not in done:
        return 0
    parts = done["encoder"].manifest["parts"]
    return max((part["counts"].get("dimensions", 0) for part in parts), default=0)


def _documents_share(done: Artifacts) -> float:
    """Return `Trial.documents_share`.

    It is below 1 where sequences take several chunks of a document, as search makes
    them.
    """
    if "compose" not in done:
        return 1.0
    # A trial has one shard, so the ids of chunks are its rows.
    (chunks,) = chunk_files(done).chunks
    documents = read_chunks(chunks, ("doc_row",))["doc_row"]  # shape (chunks,)
    chunks_of_document = np.unique(documents, return_counts=True)[1]
    found = 0
    expected = 0.0
    for part in ComposeFiles.of(done).sequences:
        for ids in pa.ipc.open_file(part).read_all().column("chunk_id"):
            rows = np.unique(ids.values.to_numpy())
            rows = rows[rows != NO_CHUNK]
            found += len(np.unique(documents[rows]))
            # Chunks drawn at random would come from `expected` documents: those of
            # which not all chunks are missed.
            unused = 1 - len(rows) / len(documents)
            expected += float((1 - unused**chunks_of_document).sum())
    return found / expected if expected else 1.0


def recipe_for(
    recipe: Recipe, texts: Sequence[str], folder: Path, *, chars_per_token: float
) -> Recipe:
    """Return the recipe of a trial on `texts`, which lie in `folder`/sample.jsonl."""
    values: Json = recipe.model_dump(mode="json")
    values |= {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "workers": 1,
        "name": None,
    }
    values["ingest"] |= {
        # One shard; what is excluded is not among the texts.
        "sources": [{"path": str(folder / "sample.jsonl")}],
        "shard_mb": 1_000,
        "exclude": None,
        # The model has a rate of its own.
        "long_filter": None,
    }
    # Evaluation files may be large, and their cost does not depend on the corpus.
    values["decontaminate"] |= {"files": []}
    # Exact search on the CPU; its products are timed apart.
    values["search"] |= {"index": EXACT, "device": "cpu"}
    values["export"] |= {"push": None}
    if values["export"].get("megatron_eod") is not None:
        values["export"] |= {"megatron_eod": END_OF_TEXT}
    if recipe.tokenizer.train is None:
        # The user's own tokenizer may take a second to load, in every step that uses
        # it.
        tokenizer_file = folder / "tokenizer.json"
        _train_tokenizer(texts, tokenizer_file)
        values["tokenizer"] |= {
            "source": str(tokenizer_file),
            "chars_per_token": chars_per_token,
        }
        for key in ("bos", "eos"):
            if values["tokenizer"][key] is not None:
                values["tokenizer"][key] = END_OF_TEXT
    if not kind_of(recipe.encoder).is_tried:
        values["encoder"] |= {"model": Encoder().model}
    # A model that writes queries has a rate of its own.
    if isinstance(recipe.options, Keywords):
        values[recipe.compose.method] |= {"queries": "extractive"}
    # A trial sends no requests, and may have no documents about the topics of a file.
    if isinstance(recipe.options, Topics):
        values[recipe.compose.method] |= {"topics": CLUSTERS}

    chars = sum(map(len, texts))
    tokens = chars / chars_per_token
    is_extended = method_of(recipe).layout == Layout.EXTENDED
    room = _ROOM * recipe.compose.draft_factor if is_extended else _ROOM
    target = min(recipe.compose.target_tokens, int(tokens / room))
    target = max(_MIN_TOKENS, target)
    if is_extended:
        # Three of the whole trial.
        sequences = chars // _CHARS_PER_EXTENDED_SEQUENCE
    else:
        sequences = int(tokens / target / 2)
    if recipe.compose.sequences != "all":
        sequences = min(sequences, recipe.compose.sequences)
    values["compose"] |= {
        "target_tokens": target,
        "sequences": max(_MIN_SEQUENCES, sequences),
        # The model has a rate of its own.
        "verify_dependence": None,
    }
    return Recipe.from_dict(values)


def _train_tokenizer(texts: Sequence[str], path: Path) -> None:
    """Write a small tokenizer, trained on the beginnings of some texts."""
    beginnings = [text[:_TRAINING_CHARS] for text in texts[:_TRAINING_TEXTS]]
    tokenizer = train_bpe(beginnings, vocab_size=_VOCABULARY_SIZE)
    path.write_text(tokenizer.to_str(), encoding="utf-8")


class Timed(SerialExecutor):
    """Runs tasks one after the other, and adds up the seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = defaultdict[str, float](float)

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        """Note what to do next, timed as a task of its step."""
        step = label.rpartition(" task ")[0]

        def timed() -> object:
            # Processor time, because other programs may keep the machine busy.
            began = time.process_time()
            result = call(*arguments)
            self.seconds[step] += time.process_time() - began
            return result

        super().submit(
            key,
            timed,
            resources=resources,
            label=label,
        )
