"""How long the report and the viewer take on a large run: 10,000 sequences of 131,072 tokens, or a million shorter ones.

The run is real as far as it can be in minutes: documents of invented words are
ingested, embedded, searched, drafted, tokenized and composed; then the step that
composes is carried out once more, through the engine, with a task that writes the real
sequences over and over until there are as many as asked for. Files, manifests and the
variant's record are those of any run. With --draw-chunks, all but the first sequences
have chunks drawn at random from the corpus, so that a search has something to search;
the report refuses such sequences, so only the viewer is measured.

    python bench/view.py --out .bench/view
    python bench/view.py --out .bench/million --sequences 1000000 --tokens 4096
    python bench/view.py --out .bench/search --sequences 1000000 --tokens 4096 \
        --draw-chunks --corpus FOLDER --words government '"market price"'

The report is measured as a command (`measure.py`), the viewer over HTTP from its first
request on, and, where playwright and Chromium are installed, by the browser's own first
contentful paint.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import psutil
import pyarrow as pa

import nextlong
from measure import measure
from nextlong import schemas
from nextlong.artifacts import corpus_files, variant_records
from nextlong.artifacts.results import ComposeFiles, ComposeResult, chunk_files
from nextlong.engine.executor import SerialExecutor
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Step
from nextlong.recipe import Recipe
from nextlong.runs.variants import SEARCH_INDEX

TOKENS = 131_072
_DOCUMENTS, _REAL = 24_000, 100  # documents of the corpus, sequences that are composed


def write_corpus(path: Path) -> None:
    """Write documents of a few paragraphs on 60 topics, in words that look like words."""
    draw = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = [
        "".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(30_000)
    ]
    topics = [draw.sample(words, 400) for _ in range(60)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(_DOCUMENTS):
            own = [*draw.choice(topics), *words[:200]]
            lines = [
                " ".join(draw.choices(own, k=draw.randint(30, 90))) + "."
                for _ in range(draw.randint(1, 12))
            ]
            file.write(
                json.dumps({"id": f"document-{number}", "text": "\n".join(lines)})
                + "\n"
            )


def recipe_of(folder: Path, corpus: Path, tokens: int) -> Recipe:
    """Return the recipe of the real sequences."""
    plain = {
        "run_dir": str(folder / "run"),
        "name": "real",
        # `measure` waits for all child processes, and workers would stay.
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(corpus), "name": "bench"}],
            "shard_mb": 2,
        },
        "encoder": {"lsa": {"dimensions": 64}},
        "mine": {"near_duplicates": None},
        "tokenizer": {"train": 8192},
        "compose": {"sequences": _REAL, "target_tokens": tokens},
        "export": {"formats": ["jsonl"]},
    }
    return Recipe.from_dict(plain)


def repeated(
    out: Path, *, sources: list[Path], chunks: list[Path], sequences: int
) -> ComposeResult:
    """Write the sequences of some files over and over, each with a name of its own; a task of the compose step.

    All but the first have chunks drawn from the files `chunks`, if there are any.
    """
    batches = [batch for path in sources for batch in _batches(path)]
    field = schemas.SEQUENCES.get_field_index("chunk_id")
    of_shards = [
        schemas.pack_ids(shard, np.arange(corpus_files.count_chunks(path)))
        for shard, path in enumerate(chunks)
    ]
    every_chunk = np.concatenate([np.empty(0, np.int64), *of_shards])
    rng = np.random.default_rng(7)
    with (
        pa.OSFile(f"{out}.sequences.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.SEQUENCES) as writer,
    ):
        for number in range(sequences):
            batch = batches[number % len(batches)]
            names = pa.array([f"{batch.column('sequence_id')[0].as_py()}-{number}"])
            batch = batch.set_column(0, schemas.SEQUENCES.field("sequence_id"), names)
            if number >= len(batches) and len(every_chunk):
                ids = batch.column(field).values.to_numpy()
                drawn = rng.choice(every_chunk, len(ids))
                ids = np.where(ids == schemas.NO_CHUNK, ids, drawn)
                batch = batch.set_column(
                    field, schemas.SEQUENCES.field(field), pa.array([ids])
                )
            writer.write_batch(batch)
    return ComposeResult(
        sequences=sequences,
        sequences_per_file=(sequences,),
        dropped={},
        longest_dropped_tokens=0,
    )


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        yield from (
            reader.get_batch(number) for number in range(reader.num_record_batches)
        )


def make(folder: Path, asked: argparse.Namespace) -> str:
    """Make the run, unless it is there; return what opens it."""
    corpus, sequences = asked.corpus, asked.sequences
    folder.mkdir(parents=True, exist_ok=True)
    if corpus is None:
        corpus = folder / "corpus.jsonl"
        if not corpus.exists():
            write_corpus(corpus)
    recipe = recipe_of(folder, corpus.absolute(), asked.tokens)
    done = dict(nextlong.run(recipe).steps)
    name = f"of-{sequences}" + "-drawn" * asked.draw_chunks
    if name not in variant_records.names(folder / "run"):
        compose = done["compose"]
        inputs = tuple(Step.of(done[own]) for own in compose.manifest["inputs"])
        task = partial(
            repeated,
            sources=ComposeFiles(compose).sequences,
            chunks=list(chunk_files(done).chunks) if asked.draw_chunks else [],
            sequences=sequences,
        )
        step = Step(
            "compose",
            compose.manifest["version"],
            {**compose.manifest["config"], "repeated": name},
            inputs,
            lambda _: [task],
        )
        known = {own: done[own] for own in done if own not in ("compose", "statistics")}
        done = run_steps(
            [step], run_dir=folder / "run", executor=SerialExecutor(), known=known
        )
        many = Recipe.from_dict(
            {
                **recipe.model_dump(mode="json"),
                "compose": {
                    **recipe.compose.model_dump(mode="json"),
                    "sequences": sequences,
                },
            }
        )
        variant_records.write(many, done, folder / "run", name=name)
    return f"{folder / 'run'}@{name}"


class Viewer(NamedTuple):
    """A viewer that runs, and how long its start took."""

    process: psutil.Process
    host: str
    port: int
    token: str
    started: float

    def page(self, path: str) -> bytes:
        """Return a page."""
        connection = http.client.HTTPConnection(self.host, self.port)
        headers = {"Authorization": f"token {self.token}"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        return text

    def complete(self, path: str) -> tuple[float, float]:
        """Ask for a page until it is complete; return how long that takes, and the CPU time, in ms."""
        began, cpu = time.perf_counter(), self._cpu()
        while b'id="results" data-searching' in self.page(path):
            pass
        return 1000 * (time.perf_counter() - began), 1000 * (self._cpu() - cpu)

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def viewer(run: str) -> Iterator[Viewer]:
    """Yield a viewer that has just been started."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "nextlong", "view", run, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(
                r"http://([\d.]+):(\d+)/\?token=(\S+)",
                process.stdout.readline() if process.stdout else "",
            )
            if found is None:
                raise RuntimeError("the viewer did not start")
            yield Viewer(
                process=psutil.Process(process.pid),
                host=found[1],
                port=int(found[2]),
                token=found[3],
                started=time.perf_counter() - began,
            )
        finally:
            process.terminate()


def first_paint(url: str) -> float | None:
    """Return the browser's first contentful paint in ms; None without playwright."""
    if importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto("about:blank")
        page.goto(url)
        page.wait_for_function(
            "performance.getEntriesByName('first-contentful-paint').length > 0"
        )
        painted: float = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        browser.close()
    return painted


def pages(
    variant: str, sequences: int, tokens: int, words: list[str]
) -> dict[str, Callable[[random.Random], str]]:
    """Return the kinds of pages that are asked for, each as what draws a path."""
    name = quote(variant)
    # Chunks that were drawn at random have other lengths than their spans.
    real = min(sequences, _REAL)
    return {
        "a list, anywhere": lambda draw: (
            f"/{name}/sequences?after={draw.randrange(sequences)}"
        ),
        "a list by cosine": lambda draw: (
            f"/{name}/sequences?least={draw.uniform(0, 0.9):.3f}"
        ),
        "a list that finds nothing": lambda draw: (
            f"/{name}/sequences?name=none{draw.randrange(99)}&after={draw.randrange(sequences)}"
        ),
        "sequences with a text": lambda draw: (
            f"/{name}/sequences?text={quote(draw.choice(words))}"
            f"&most={draw.uniform(0.9, 1):.6f}"
        ),
        "sequences of a document": lambda draw: (
            f"/{name}/sequences?document={draw.randrange(600)}"
        ),
        "a sequence": lambda draw: f"/{name}/sequence/{draw.randrange(real)}",
        "a chunk beside its meta-chunk": lambda draw: (
            f"/{name}/sequence/{draw.randrange(real)}/pairs/{draw.randrange(1, max(2, tokens // 1024))}"
        ),
        "documents by name": lambda draw: (
            f"/{name}/documents?name=document-{draw.randrange(999)}"
        ),
        "documents by text": lambda draw: (
            f"/{name}/documents?text=no+such+word+{draw.randrange(99)}"
        ),
        "a document": lambda draw: f"/{name}/document/{draw.randrange(600)}",
        "what was filtered out": lambda _: f"/{name}/filtered",
    }


def measure_report(run: str, page: Path) -> None:
    """Print what writing the report takes."""
    command = [sys.executable, "-m", "nextlong", "report", run, "-o", str(page)]
    report = measure(command)
    if report.rc:
        raise RuntimeError(report.stderr)
    size = page.stat().st_size / 1e6
    cpu = report.processor_seconds
    print(
        f"report: {report.seconds:.1f} s ({cpu:.1f} s of a core), "
        f"{report.peak_mb:.0f} MB ({report.memory}), page of {size:.1f} MB",
        flush=True,
    )


def main() -> None:
    """Make the run and print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, help="a folder of documents of your own")
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each sequence")
    parser.add_argument("--draw-chunks", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--words", nargs="+", default=["bade", "kilo", '"ga me"'], help="to search for"
    )
    asked = parser.parse_args()
    run = make(asked.out.absolute(), asked)
    print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    if not asked.draw_chunks:
        measure_report(run, asked.out / "report.html")
    draw, variant = random.Random(1), run.rpartition("@")[2]
    folder = asked.out / "run" / SEARCH_INDEX
    shutil.rmtree(folder, ignore_errors=True)
    with viewer(run) as own:
        began = time.perf_counter()
        own.page(f"/{quote(variant)}/sequences")
        first = 1000 * (time.perf_counter() - began)
        print(
            f"viewer: answers after {own.started:.2f} s, its first page after {first:.0f} ms more",
            flush=True,
        )
        for part, query in (("sequences", "sort=cosine"), ("words", "text=first")):
            taken, cpu = own.complete(f"/{quote(variant)}/sequences?{query}")
            print(
                f"index of {part}: {taken / 1000:.1f} s ({cpu / 1000:.1f} s of a core)",
                flush=True,
            )
    for file in sorted(folder.glob("*/*")):
        print(f"{file.name}: {file.stat().st_size / 1e6:,.1f} MB", flush=True)
    with viewer(run) as own:
        taken, cpu = own.complete(f"/{quote(variant)}/sequences")
        print(f"its first page, indexed: {taken:.0f} ms ({cpu:.0f} ms of a core)")
    with viewer(run) as own:
        painted = first_paint(f"http://{own.host}:{own.port}/?token={own.token}")
        if painted is not None:
            print(f"first contentful paint: {painted:.0f} ms", flush=True)
        kinds = pages(variant, asked.sequences, asked.tokens, asked.words)
        for what, path in kinds.items():
            visits = [own.complete(path(draw)) for _ in range(asked.repeats)]
            for times, unit in zip(
                zip(*visits, strict=True), ("ms", "ms of a core"), strict=True
            ):
                print(
                    f"{what:32}{statistics.median(times):6.0f} {unit}, at most {max(times):.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
