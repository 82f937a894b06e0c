"""Carry out: all of a replication in order. Again: does nothing; after a kill: goes on where it was."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.replicate import corpus, data, measure, models
from nextlong.replicate.data import Runs
from nextlong.replicate.measure import Measured
from nextlong.replicate.models import Trained
from nextlong.replicate.recipe import Replication
from nextlong.replicate.stage import Stage

RECIPE = "replicate.yaml"


@dataclass(frozen=True)
class Replicated:
    """A finished replication: what it was made from, and where everything lies."""

    recipe: Replication
    out: Path
    documents: Stage
    runs: Runs
    models: tuple[Trained, ...]

    def measured(self, model: Trained) -> list[Measured]:
        """Return the measurements of a model."""
        return list(measure.planned(self.recipe, model, self.runs.held_out, self.documents, self.out))


def replicate(recipe: Replication, *, report: Callable[[str], None]) -> Replicated:
    """Bring about everything that the recipe asks for but the report; `report` gets a line a stage."""
    if not recipe.corpus.sources:
        raise RecipeError("corpus.sources is empty; name files with documents of yours")
    measure.check(recipe)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    out = Path(recipe.out).expanduser()
    with store.locked(out):
        with store.explained(out):
            store.write_text(out / RECIPE, recipe.dump())
        documents = corpus.stage_of(recipe.corpus, out)
        if not documents.is_finished:
            corpus.part(recipe.corpus, documents)
        counts = documents.record["documents"]
        rejected = documents.record.get("rejected")  # stages of earlier versions did not count them
        beside = f"; rejected: {corpus.rejects_in_words(rejected)}" if rejected else ""
        report(f"documents: {counts['train']:,} to train on, {counts['held-out']:,} held out{beside}")
        began = time.monotonic()
        runs = data.make(recipe, documents, out)
        report(
            f"data: {len(runs.arms)} runs to compare, {len(runs.held_out)} held out ({time.monotonic() - began:.0f} s)"
        )
        _tell_scarce(recipe, runs, report)
        measure.check_samples(recipe, documents, runs.tokenizer)
        planned = models.planned(recipe, runs, out)
        replicated = Replicated(recipe, out, documents, runs, tuple(planned))
        for number, model in enumerate(planned, start=1):
            _train_and_measure(replicated, model, report=partial(_numbered, report, f"[{number}/{len(planned)}]"))
    return replicated


def _tell_scarce(recipe: Replication, runs: Runs, report: Callable[[str], None]) -> None:
    """Say which runs hold fewer sequences than asked for, so that training reads them more often than the others."""
    for arm in runs.arms:
        if (count := arm.stats.sequences) < recipe.data.sequences:
            times = recipe.extend.trained_tokens / (count * recipe.extend.tokens)
            report(
                f"{arm.experiment}={arm.name}: the corpus gives {count:,} sequences of {recipe.data.sequences:,}, which are read "
                f"{times:.2g} times; add documents, or lower data.sequences"
            )


def _numbered(report: Callable[[str], None], number: str, line: str) -> None:
    report(f"{number} {line}")


def _train_and_measure(replicated: Replicated, model: Trained, *, report: Callable[[str], None]) -> None:
    todo = replicated.measured(model)
    if model.stage.is_finished and all(one.stage.is_finished for one in todo):
        report(f"{model.name}: kept")
        return
    models.train(model, report=lambda line: report(f"{model.name}: {line}"))
    began = time.monotonic()
    measure.measure(model, todo, replicated.recipe)
    report(f"{model.name}: measured in {time.monotonic() - began:.0f} s")
