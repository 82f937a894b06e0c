"""Pipeline: the whole route on one page, from a recipe to a finished run.

In:  a recipe. Out: the finished steps in its run directory, and the record of the variant.

ingest → select → chunk → encoder → embed → index → mine → draft → referenced_chunks → tokens → compose → rows → files
                     ├→ meta_documents ────────────┘        ↑             ↑
                     ├→ shingles → weights ─────────────────┘             │
                     └→ tokenizer (and E) ────────────────────────────────┘

`line_counts` comes before `ingest` if tasks read a large file in parts.

Array jobs divide the tasks of one step among processes that a scheduler starts on many machines: `run_before` runs once, then
`run_share` in every job, and an ordinary run confirms their results and completes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from nextlong.artifacts import record
from nextlong.artifacts.finished import ChunkResult, TokenizerResult
from nextlong.corpus.chunk import chunk_step
from nextlong.corpus.decontaminate import decontaminate_steps
from nextlong.corpus.deduplicate import minhash_class, minhash_steps
from nextlong.corpus.filter_report import filter_report_step
from nextlong.corpus.ingest import check_named_ids, ingest_step
from nextlong.corpus.select import select_step
from nextlong.corpus.splits import (
    line_counts_steps,
    shard_bytes_of,
    splits_of,
    whole_files,
)
from nextlong.engine import store
from nextlong.engine.executor import (
    Executor,
    SerialExecutor,
    one_thread,
    usable_cpus,
)
from nextlong.engine.local import LocalExecutor, refuse_import_by_worker
from nextlong.engine.progress import Reporter
from nextlong.engine.runner import find_done, run_array_job, run_steps, steps_before
from nextlong.engine.step import Artifact, Artifacts, Step
from nextlong.errors import ExportError
from nextlong.export import steps as export_steps
from nextlong.methods.base import Need, method_of
from nextlong.reading import listing
from nextlong.reading.files import InputFile, check_kept, reach
from nextlong.reading.filter import filter_of
from nextlong.recipe import Recipe
from nextlong.recipe.keys import candidates_of, checked_chars, sequence_limit
from nextlong.retrieval.encoders.base import kind_of, preloaded
from nextlong.retrieval.encoders.sentence_transformers import count_gpus
from nextlong.retrieval.index import has_driver
from nextlong.sequences.compose import compose_step
from nextlong.sequences.shortfall import another_attempt, check_enough, refuse_nothing
from nextlong.sequences.tokenize import referenced_chunks_step, tokens_step
from nextlong.sequences.tokenizer import check_source, tokenizer_step

# What each step does, as progress shows it.
STEP_TITLES: Final = {
    "line_counts": "count the lines of large files",
    "ingest": "read the documents, remove exact duplicates",
    "select": "apply the limits and weights of the sources",
    "minhash": "compute MinHash signatures",
    "similar_pairs": "find pairs of similar documents",
    "near_duplicates": "remove near-duplicate documents",
    "chunk": "split the documents into chunks",
    "eval_ngrams": "read the evaluation texts",
    "decontaminate": "remove chunks with evaluation texts",
    "filter_report": "record what was filtered out",
    "tokenizer": "load or train the tokenizer",
    "lengths": "count the tokens of each chunk",
    "meta_documents": "sample the meta-documents",
    "documents": "list the documents",
    "encoder": "prepare the encoder",
    "embed": "encode the chunks as vectors",
    "document_vectors": "average the vectors of each document",
    "shingles": "hash runs of words to detect near-duplicates",
    "weights": "weight words by rarity",
    "index": "choose and train the search index",
    "index_shards": "add the vectors to the index",
    "tune": "tune the search to the requested recall",
    "least_scores": "find the score that a neighbor must exceed",
    "scan": "search the corpus block by block",
    "mine": "find hard negatives",
    "neighbours": "find the nearest neighbors",
    "clusters": "find the clusters of similar documents",
    "partition": "assign the documents to partitions",
    "keywords": "extract keywords",
    "draft": "choose the chunks of each sequence",
    "referenced_chunks": "list the chunks in use",
    "tokens": "tokenize the chunks in use",
    "compose": "build sequences of exactly T tokens",
    "rows": "arrange the rows of the export",
    "statistics": "compute the statistics",
}


def document_steps(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    *,
    when_ingested: Callable[[Artifact], None] = lambda _: None,
) -> list[Step]:
    """Return the first steps of the recipe, from the files to the chunks."""
    shard_bytes = shard_bytes_of(recipe.ingest, files)
    splits = splits_of(recipe.ingest.sources, files, shard_bytes=shard_bytes)
    line_counts = line_counts_steps(splits)
    reads = (recipe.ingest, files, splits, line_counts)
    ingest = ingest_step(*reads, shard_bytes=shard_bytes, when_ingested=when_ingested)
    select = select_step(recipe.ingest, ingest, splits, seed=recipe.seed)
    deduplicating = []
    if recipe.ingest.dedup == "minhash":
        deduplicating = minhash_steps(
            ingest, select, threshold=recipe.ingest.dedup_threshold
        )
    all_chunks = chunk_step(
        recipe.chunk, ingest, deduplicating[-1] if deduplicating else select
    )
    cleaning = decontaminate_steps(recipe.decontaminate, ingest, all_chunks)
    filter_report = filter_report_step(
        recipe.ingest, splits, ingest, select, [*deduplicating, *cleaning]
    )
    return [
        *line_counts,
        ingest,
        select,
        *deduplicating,
        all_chunks,
        *cleaning,
        filter_report,
    ]


def route(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    *,
    attempt: int = 0,
    when_ingested: Callable[[Artifact], None] = lambda _: None,
) -> list[Step]:
    """Return the steps of the recipe in the order in which they run.

    The drafts exceed the requested sequences, because a few drafts do not fit T; each further `attempt` doubles them.
    """
    documents = document_steps(recipe, files, when_ingested=when_ingested)
    by_name = {step.name: step for step in documents}
    ingest = by_name["ingest"]
    # The chunks that all later steps use: after decontamination, if there is any.
    chunk = by_name.get("decontaminate", by_name["chunk"])
    separator, eod = recipe.compose.separator, recipe.export.megatron_eod
    # The tokenizer comes before the long steps, so that a typo in its name does not waste their work.
    tokenizer = tokenizer_step(
        recipe.tokenizer,
        ingest,
        chunk,
        separator=separator,
        seed=recipe.seed,
        megatron_eod=eod,
    )
    drafted = method_of(recipe).steps(recipe, ingest, chunk, tokenizer, attempt=attempt)
    draft = drafted[-1]
    referenced = referenced_chunks_step(
        chunk, draft, limit=sequence_limit(recipe.compose, attempt)
    )
    tokens = tokens_step(
        ingest, chunk, tokenizer, referenced, engine=recipe.tokenizer.engine
    )
    measured = [step for step in drafted if step.name in ("shingles", "weights")]
    compose = compose_step(
        recipe.compose,
        (ingest, chunk, tokenizer, draft, referenced, tokens, *measured),
        target_tokens=recipe.sequence_tokens,
        seed=recipe.compose_seed,
        near_duplicates=recipe.mine.near_duplicates_for(recipe.compose.negatives),
    )
    exported_from = (ingest, chunk, tokenizer, referenced, tokens, compose)
    exporting = export_steps.export_steps(
        recipe.export, exported_from, sequences=recipe.compose.sequences
    )
    return [*documents, tokenizer, *drafted, referenced, tokens, compose, *exporting]


def sized(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> Recipe:
    """Return the recipe with what follows from its corpus, once the corpus is known.

    This is the number for `mine.candidates: auto`, which depends on the mean chunk, and
    whether there are documents that are probably longer than a sequence.
    """
    if not _is_sizable(recipe):
        return recipe
    steps = {step.name: step for step in _steps_to_size(recipe, files)}
    chunk = steps.get("decontaminate", steps["chunk"])
    ingested, chunked, tokenized = (
        find_done(step, recipe.run_path)
        for step in (steps["ingest"], chunk, steps["tokenizer"])
    )
    if ingested is None or chunked is None or tokenized is None:
        return recipe
    shards = chunked.results(ChunkResult)
    chars = sum(shard.chars for shard in shards)
    chunk_chars = chars / max(1, sum(shard.chunks for shard in shards))
    count = candidates_of(recipe.compose, recipe.mine, chunk_chars=chunk_chars)
    chars_per_token = tokenized.result(TokenizerResult).chars_per_token
    checked = checked_chars(recipe.sequence_tokens, chars_per_token)
    longest = max(
        (
            int(np.load(path, mmap_mode="r").max(initial=0))
            for path in ingested.files(".chars.npy")
        ),
        default=0,
    )
    recipe = recipe.with_candidates(count)
    return recipe.with_checked_chars(checked) if longest > checked else recipe


def _is_sizable(recipe: Recipe) -> bool:
    return Need.CHUNK_NEIGHBOURS in method_of(recipe).needs


def _steps_to_size(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    *,
    when_ingested: Callable[[Artifact], None] = lambda _: None,
) -> list[Step]:
    """Return the steps on which `sized` depends: all up to the tokenizer."""
    steps = route(recipe, files, when_ingested=when_ingested)
    return steps[: 1 + [step.name for step in steps].index("tokenizer")]


@dataclass(frozen=True)
class _Session:
    """A checked recipe with its input files and a locked run directory; shared by ordinary runs and array jobs."""

    recipe: Recipe
    files: list[list[InputFile]]
    executor: Executor
    reporter: Reporter

    def run_steps(
        self,
        steps: Sequence[Step],
        *,
        known: Artifacts | None = None,
        only: Container[str] | None = None,
    ) -> dict[str, Artifact]:
        run_dir, executor, reporter = self.recipe.run_path, self.executor, self.reporter
        return run_steps(
            steps,
            run_dir=run_dir,
            executor=executor,
            reporter=reporter,
            known=known,
            only=only,
        )

    def run_before(self, step: str) -> list[str]:
        """Run the steps that `step` depends on, before array jobs share it; return their names."""
        to_size = {one.name for one in _steps_to_size(self.recipe, self.files)}
        follows_chunks = "chunk" in steps_before(self.route(), step)
        if follows_chunks and step not in to_size:
            self._size()
        # The sized recipe: where documents are long, the sample needs the tokenizer.
        steps = self.route()
        needed = steps_before(steps, step)
        self.run_steps(steps, only=needed)
        return [one.name for one in steps if one.name in needed]

    def run_share(self, step: str, *, job: tuple[int, int]) -> tuple[int, int]:
        """Run the tasks of one step that belong to array job (k, n); see `runner.run_array_job`."""
        run_dir, executor, reporter = self.recipe.run_path, self.executor, self.reporter
        return run_array_job(
            self.route(),
            step,
            job=job,
            run_dir=run_dir,
            executor=executor,
            reporter=reporter,
        )

    def route(self, recipe: Recipe | None = None, *, attempt: int = 0) -> list[Step]:
        """Return the steps of `route`, by default of the `sized` recipe."""
        recipe = recipe or sized(self.recipe, self.files)
        return route(recipe, self.files, attempt=attempt, when_ingested=self._remember)

    def _remember(self, ingest: Artifact) -> None:
        """Record the input files in the run directory.

        Not before ingest succeeds, so that a user may correct a rejected file.
        """
        listing.remember(
            ingest,
            sources=self.recipe.ingest.sources,
            files=self.files,
            run_dir=self.recipe.run_path,
        )

    def _size(self) -> tuple[Recipe, dict[str, Artifact]]:
        """Return the `sized` recipe, and the steps that ran to size it."""
        done: dict[str, Artifact] = {}
        if _is_sizable(self.recipe):
            steps = _steps_to_size(
                self.recipe, self.files, when_ingested=self._remember
            )
            if any(find_done(step, self.recipe.run_path) is None for step in steps):
                # Building all steps checks the recipe before the first of them runs.
                self.route(self.recipe)
                done = self.run_steps(steps)
        return sized(self.recipe, self.files), done

    def make_variant(self) -> tuple[dict[str, Artifact], record.Variant]:
        """Run all steps and record the variant; return the finished steps by name, and the variant."""
        recipe, name = self.recipe, record.name_for(self.recipe, self.recipe.run_path)
        sized_recipe, done = self._size()
        attempt = 0
        # Run up to `compose`, with twice the drafts or candidates in each attempt,
        # until there are enough sequences.
        while True:
            steps = self.route(sized_recipe, attempt=attempt)
            steps = steps[: 1 + [step.name for step in steps].index("compose")]
            finished = {
                before.manifest["fingerprint"]: before for before in done.values()
            }
            known = {
                step.name: finished[step.fingerprint]
                for step in steps
                if step.fingerprint in finished
            }
            done = self.run_steps(
                [step for step in steps if step.name not in known], known=known
            )
            done = {step.name: done[step.name] for step in steps}
            candidates = None  # the recipe's own number stays
            found = sized_recipe.mine.candidates
            if recipe.mine.candidates == "auto" and found != "auto":
                candidates = found
            retry = another_attempt(
                recipe.compose, done, attempt=attempt, candidates=candidates
            )
            if retry is None:
                break
            self.reporter.tell(retry.why)
            attempt = retry.attempt
            if retry.candidates is not None:
                sized_recipe = sized_recipe.with_candidates(retry.candidates)
        refuse_nothing(recipe, done)
        export_steps.check_names(recipe.export.formats, done)
        if recipe.export.push is not None:
            export_steps.check_read(done, recipe.run_path, trust="hash")
        read, sequences = export_steps.read_steps(done), recipe.compose.sequences
        done = self.run_steps(
            export_steps.export_steps(recipe.export, read, sequences=sequences),
            known=done,
        )
        return done, record.write(recipe, done, recipe.run_path, name=name)


@contextmanager
def session(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    mode: Literal["alone", "together"] = "alone",
) -> Iterator[_Session]:
    """Check a recipe and lock its run directory, "alone" or "together" with other array jobs.

    `changed_inputs="accept"` ingests again if input files differ from those that an earlier run in this directory read.
    Raises a NextlongError for every mistake that can be found before the first step.
    """
    reporter = reporter or Reporter()
    files = prepare(recipe, tell=reporter.tell)
    run_dir = recipe.run_path
    record.check_folder(run_dir)
    with store.locked(run_dir, mode=mode):
        sources, tell = recipe.ingest.sources, reporter.tell
        files = listing.recognise_inputs(
            sources, files, run_dir, changed_inputs=changed_inputs, tell=tell
        )
        is_intended = recipe.name is not None or any(
            key.startswith("ingest.sources") for key in recipe.overridden
        )
        if record.variant_names(run_dir) and not is_intended:
            listing.check_documents(sources, files, run_dir)
        if mode == "alone" and record.name_for(
            recipe, run_dir
        ) not in record.variant_names(run_dir):
            for note in check_corpus(recipe, files):
                tell(note)
        with one_thread(), executor_for(recipe, tell=tell) as executor:
            yield _Session(recipe, files, executor, reporter)


def prepare(
    recipe: Recipe,
    *,
    encoder: Literal["installed", "any"] = "installed",
    tell: Callable[[str], object] = lambda _: None,
) -> list[list[InputFile]]:
    """Check everything that would otherwise fail after hours of work; return the input files of each source.

    `tell` gets notes on what is not read of a data set.

    Raises a NextlongError if a package, a tokenizer, an input file or the file system of the destination is missing.
    """
    refuse_import_by_worker()
    check_source(recipe.tokenizer)
    if recipe.ingest.dedup == "minhash":
        minhash_class()
    for source in recipe.ingest.sources:
        filter_of(source)
    if encoder == "installed":
        kind_of(recipe.encoder).check_installed(recipe.encoder)
    if recipe.export.push is not None:
        destination = f"export.push={recipe.export.push!r}"
        check_kept(recipe.export.push, where=destination, error=ExportError)
        reach(recipe.export.push, where=destination, error=ExportError)
    listing.check_apart(recipe.ingest.sources, run_dir=recipe.run_dir)
    return listing.input_files(recipe.ingest, tell=tell)


def check_corpus(recipe: Recipe, files: list[list[InputFile]]) -> list[str]:
    """Return notes about a corpus that was not run before. Raises CorpusError if it is too small for the sequences."""
    check_named_ids(recipe.ingest.sources, files)
    check_enough(recipe, files)
    shard_bytes, workers = shard_bytes_of(recipe.ingest, files), worker_count(recipe)
    return whole_files(
        recipe.ingest.sources, files, shard_bytes=shard_bytes, workers=workers
    )


def run(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
) -> dict[str, Artifact]:
    """Run a recipe, reusing finished steps; return its steps by name.

    Raises a NextlongError for every mistake that a user can fix.
    """
    with session(recipe, reporter=reporter, changed_inputs=changed_inputs) as opened:
        return opened.make_variant()[0]


def executor_for(
    recipe: Recipe,
    *,
    work: Literal["all", "export"] = "all",
    tell: Callable[[str], object] = lambda _: None,
) -> Executor:
    """Return the executor for all steps of a recipe, or only for exports; `tell` receives what it is waiting for."""
    if recipe.executor == "serial":
        return SerialExecutor()
    if recipe.executor == "ray":
        from nextlong.engine.ray import RayExecutor

        workers, retries = worker_count(recipe), recipe.ray.retries
        return RayExecutor(
            recipe.ray.address, workers=workers, retries=retries, tell=tell
        )
    exporting = ["nextlong.export.steps", "pyarrow.parquet", "tokenizers", "pandas"]
    preload = exporting if work == "export" else preloaded(recipe.encoder)
    return LocalExecutor(
        worker_count(recipe), count_gpus=lambda: count_gpus_for(recipe), preload=preload
    )


def count_gpus_for(recipe: Recipe) -> int:
    """Return the number of GPUs of this machine that the recipe can use.

    Counting GPUs imports torch, which takes seconds, so it happens only if a model runs on GPUs or a driver is loaded.
    """
    is_model = (
        kind_of(recipe.encoder).asks_for_gpus
        or Need.KEYWORDS in method_of(recipe).needs
    )
    return (
        count_gpus()
        if is_model or (recipe.search.device != "cpu" and has_driver())
        else 0
    )


def worker_count(recipe: Recipe) -> int:
    """Return the number of processes; `auto` is one per core that this process may use."""
    return usable_cpus() if recipe.workers == "auto" else recipe.workers
