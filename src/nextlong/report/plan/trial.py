"""Trial: the route itself, carried out on a few megabytes of the user's own texts, to see what each step takes here.

In:  a recipe, texts that stand for its corpus. Out: what each step took on a small and on a larger sample of them: processor
     seconds, bytes, and how much there was to do.

From the two follows what a step takes however little there is to do, and what each unit of work adds. Another distribution's
method or format is tried like those of the house. What a sample cannot stand for is left out: the encoder where it is a
model or a server (LSA takes its place), evaluation files, an approximate index; they are measured or assumed apart.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from nextlong import pipeline
from nextlong.engine import store
from nextlong.engine.estimate import TRIED
from nextlong.engine.executor import Resources, SerialExecutor
from nextlong.engine.runner import run_steps
from nextlong.errors import NextlongError
from nextlong.methods.base import method_of
from nextlong.methods.keywords import Keywords
from nextlong.reading.known_files import input_files
from nextlong.recipe import Encoder, Recipe
from nextlong.recipe.keys import EXACT
from nextlong.retrieval.encoders.base import kind_of
from nextlong.schemas import Layout
from nextlong.sequences.tokenizer import END_OF_TEXT, train_bpe
from nextlong.text import Json

_LARGE = 8_000_000  # characters; the small sample is a quarter of it
_WARM = 200_000  # tried first and not counted: it pays for imports
_ENTRIES, _TRAINED_TEXTS, _TRAINED_CHARS = 2048, 64, 4_000  # of the tokenizer that stands for the user's
_ROOM = 3  # times the characters of a draft that a sample must hold


@dataclass(frozen=True)
class Tried:
    """What a step took on a sample: processor seconds and bytes written."""

    seconds: float
    bytes: float


@dataclass(frozen=True)
class Trial:
    """One sample: the recipe that ran on it, its size, and what each step that finished took, by name."""

    recipe: Recipe
    documents: int
    chars: int
    chunks: int
    eligible: int  # documents that may be drawn, …
    drawn: int  # … those that were (0: a method that draws none), …
    meta_chunks: int  # … and their chunks
    dimensions: int
    chars_per_token: float
    steps: Mapping[str, Tried]


def try_route(recipe: Recipe, texts: Sequence[str], *, chars_per_token: float) -> tuple[Trial, Trial]:
    """Return what the steps of a recipe took on a small and on a larger part of `texts`."""
    large = min(sum(map(len, texts)), _LARGE)
    sizes = (large // 4, large) if large < _WARM else (_WARM, large // 4, large)
    *_, less, more = [_try(recipe, _first(texts, chars), chars_per_token) for chars in sizes]
    return less, more


def _first(texts: Sequence[str], chars: int) -> list[str]:
    """Return so many characters of the texts, spread over them, two texts at least."""
    every = max(1, sum(map(len, texts)) // chars)
    taken: list[str] = []
    held = 0
    for text in [text for first in range(every) for text in texts[first::every]]:
        if held + len(text) > chars and len(taken) > 1:
            break
        taken.append(text)
        held += len(text)
    return taken


def _try(recipe: Recipe, texts: Sequence[str], chars_per_token: float) -> Trial:
    with tempfile.TemporaryDirectory(prefix="nextlong-plan-") as folder:
        corpus = Path(folder) / "sample.jsonl"
        with corpus.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        tried = _recipe_for(recipe, corpus, chars=sum(map(len, texts)), chars_per_token=chars_per_token)
        executor = Timed()
        with threadpool_limits(1):
            try:
                route = pipeline.route(tried, input_files(tried))
                run_steps(route, run_dir=_run_dir(folder), executor=executor)
            except NextlongError:
                pass  # a sample may be too small for what the corpus can do; what has run by then still tells
        return _summed_up(tried, _run_dir(folder), executor.seconds)


def _run_dir(folder: str) -> Path:
    """Return the run directory of a trial, made if it is not there."""
    run_dir = Path(folder) / "run"
    run_dir.mkdir(exist_ok=True)
    return run_dir


def _train(corpus: Path) -> Path:
    """Return a small tokenizer, trained on the sample."""
    path = corpus.with_name("tokenizer.json")
    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"][:_TRAINED_CHARS] for line in itertools.islice(lines, _TRAINED_TEXTS)]
    path.write_text(train_bpe(texts, vocab_size=_ENTRIES).to_str(), encoding="utf-8")
    return path


def _recipe_for(recipe: Recipe, corpus: Path, *, chars: int, chars_per_token: float) -> Recipe:
    """Return the recipe for a sample: as it is, but for what depends on the size of the corpus."""
    plain: Json = recipe.model_dump(mode="json")
    plain |= {"run_dir": str(corpus.parent / "run"), "executor": "serial", "workers": 1, "name": None}
    plain["ingest"] |= {"sources": [{"path": str(corpus)}], "shard_mb": 1_000}
    plain["decontaminate"] |= {"files": []}
    plain["search"] |= {"index": EXACT, "device": "cpu"}
    plain["export"] |= {"push": None}
    if recipe.tokenizer.train is None:  # a small one, because to read a large one thrice takes longer than all else
        plain["tokenizer"] |= {"source": str(_train(corpus)), "chars_per_token": "auto"}
        plain["tokenizer"] |= {key: END_OF_TEXT for key in ("bos", "eos") if plain["tokenizer"][key] is not None}
    if plain["export"].get("megatron_eod") is not None:
        plain["export"] |= {"megatron_eod": END_OF_TEXT}
    if kind_of(recipe.encoder).rate != TRIED:
        plain["encoder"] |= {"model": Encoder().model}
    if isinstance(recipe.options, Keywords):  # a model that writes queries has a rate of its own
        plain[recipe.compose.method] |= {"queries": "extractive"}
    tokens = chars / chars_per_token
    is_extended = method_of(recipe).layout == Layout.EXTENDED
    room = _ROOM * recipe.compose.draft_factor if is_extended else _ROOM
    target = max(256, min(recipe.compose.target_tokens, int(tokens / room)))
    sequences = max(2, chars // 500_000) if is_extended else max(1, int(tokens / target / 2))
    if recipe.compose.sequences != "all":
        sequences = min(sequences, recipe.compose.sequences)
    plain["compose"] |= {"target_tokens": target, "sequences": max(2, sequences)}
    return Recipe.from_dict(plain)


class Timed(SerialExecutor):
    """Carries tasks out one after the other, and adds up the processor seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._step = ""

    def submit(self, key: int, call: Any, *arguments: Any, resources: Resources, label: str) -> None:
        """Note what to do next, and of which step it is."""
        self._step = label.rpartition(" task ")[0]
        super().submit(key, call, *arguments, resources=resources, label=label)

    def ended(self) -> Iterator[tuple[int, Any]]:
        """Do it, timed."""
        began = time.process_time()
        ended = list(super().ended())
        self.seconds[self._step] = self.seconds.get(self._step, 0.0) + time.process_time() - began
        yield from ended


def _summed_up(recipe: Recipe, run_dir: Path, seconds: Mapping[str, float]) -> Trial:
    manifests = {path.parent.name.split("-", 1)[1]: store.read_json(path) for path in run_dir.glob("*/manifest.json")}
    by_name = {manifest["step"]: manifest for manifest in manifests.values()}

    def total(step: str, count: str) -> int:
        return sum(part["counts"].get(count, 0) for part in by_name[step]["parts"]) if step in by_name else 0

    documents = total("chunk", "documents")
    return Trial(
        recipe=recipe,
        documents=documents,
        chars=total("chunk", "chars"),
        chunks=total("chunk", "chunks"),
        eligible=total("meta_documents", "eligible") or documents,
        drawn=total("meta_documents", "drawn"),
        meta_chunks=total("meta_documents", "meta_chunks"),
        dimensions=max(
            (part["counts"].get("dimensions", 0) for part in by_name.get("encoder", {}).get("parts", ())), default=0
        ),
        chars_per_token=next(
            (part["counts"]["chars_per_token"] for part in by_name.get("tokenizer", {}).get("parts", ())), 4.0
        ),
        steps={name: Tried(seconds.get(name, 0.0), manifest["bytes"]) for name, manifest in by_name.items()},
    )
