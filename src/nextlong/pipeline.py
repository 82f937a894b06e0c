"""Pipeline: the whole route on one page, from a recipe to a finished run.

In:  a recipe. Out: the finished steps in its run directory, and the record of the
     variant.

ingest → select → chunk → encoder → embed → index → mine → draft
                     ├→ meta_documents ──────────────┘       ↑
                     ├→ shingles → weights ──────────────────┤
                     └→ tokenizer (and E) ───────────────────┘
draft → referenced_chunks → tokens → compose → rows → files

`line_counts` comes before `ingest` if tasks read a large file in parts.

Array jobs divide the tasks of one step among processes that a scheduler starts on many
machines: `run_before` runs once, then `run_share` in every job, and an ordinary run
confirms their results and completes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from nextlong.artifacts import variant_names, variant_records
from nextlong.artifacts.results import (
    ChunkResult,
    ComposeFiles,
    IngestFiles,
    TokenizerResult,
)
from nextlong.checks import Corpus, check, is_new
from nextlong.corpus.chunk import chunk_step
from nextlong.corpus.decontaminate import decontaminate_steps
from nextlong.corpus.deduplicate import minhash_steps
from nextlong.corpus.filter_report import filter_report_step
from nextlong.corpus.ingest import ingest_step
from nextlong.corpus.long_documents import long_document_steps
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
from nextlong.engine.local import LocalExecutor
from nextlong.engine.progress import Reporter
from nextlong.engine.runner import find_done, run_array_job, run_steps, steps_before
from nextlong.engine.step import Artifact, Artifacts, Step
from nextlong.export import steps as export_steps
from nextlong.methods.base import ChunkMethod, DocumentMethod, Need, method_of
from nextlong.methods.contexts import CONTEXTS_STEPS
from nextlong.methods.documents import drafting_steps
from nextlong.plugins import METHODS
from nextlong.reading import listing
from nextlong.reading.files import InputFile
from nextlong.recipe import Recipe
from nextlong.recipe.keys import candidates_of, checked_chars, sequence_limit
from nextlong.retrieval.encoders.base import kind_of, preloaded
from nextlong.retrieval.encoders.sentence_transformers import count_gpus
from nextlong.retrieval.index import has_driver
from nextlong.sequences.compose import compose_step
from nextlong.sequences.shortfall import another_attempt, refuse_nothing
from nextlong.sequences.tokenize import referenced_chunks_step, tokens_step
from nextlong.sequences.tokenizer import (
    is_worth_sharing,
    share_tokenizer,
    tokenizer_step,
)
from nextlong.sequences.verify_dependence import COMPOSED, verify_dependence_step

_CHARS_PER_TOKEN: Final = 4  # of English text, about
# What each step does, as progress shows it.
STEP_TITLES: Final = {
    "line_counts": "count the lines of large files",
    "ingest": "read the documents, remove exact duplicates",
    "select": "apply the limits and weights of the sources",
    "minhash": "compute MinHash signatures",
    "similar_pairs": "find pairs of similar documents",
    "near_duplicates": "remove near-duplicate documents",
    "gzip_scores": "compress the long documents",
    "gzip": "remove long documents that compress too well or too badly",
    "long_filter_scores": "measure what long documents gain from long context",
    "long_filter": "remove long documents that gain little from long context",
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
    "topics": "find topics",
    "topic_words": "count the words of topics",
    "topic_hits": "search for the documents of topics",
    "contexts": "find chunks that lower the entropy of a model",
    # The documents of further attempts.
    **dict.fromkeys(CONTEXTS_STEPS[1:], "find more such chunks"),
    "draft": "choose the chunks of each sequence",
    "referenced_chunks": "list the chunks in use",
    "tokens": "tokenize the chunks in use",
    COMPOSED: "build sequences, to be verified",
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
    """Return the first steps of the recipe, from the input files to the chunks.

    `when_ingested` is called with the finished step `ingest`.
    """
    shard_bytes = shard_bytes_of(recipe.ingest, files)
    splits = splits_of(recipe.ingest.sources, files, shard_bytes=shard_bytes)
    line_counts = line_counts_steps(splits)
    ingest = ingest_step(
        recipe.ingest,
        files,
        splits,
        line_counts,
        shard_bytes=shard_bytes,
        when_ingested=when_ingested,
    )
    select = select_step(recipe.ingest, ingest, splits, seed=recipe.seed)

    deduplicating: list[Step] = []
    kept = select
    if recipe.ingest.dedup == "minhash":
        deduplicating = minhash_steps(
            ingest, select, threshold=recipe.ingest.dedup_threshold
        )
        kept = deduplicating[-1]

    long_documents = long_document_steps(recipe, splits, ingest, kept)
    if long_documents:
        kept = long_documents[-1]

    chunk = chunk_step(recipe.chunk, ingest, kept)
    decontaminating = decontaminate_steps(recipe.decontaminate, ingest, chunk)
    filter_report = filter_report_step(
        recipe.ingest,
        splits,
        ingest,
        select,
        [*deduplicating, *long_documents, *decontaminating],
    )
    return [
        *line_counts,
        ingest,
        select,
        *deduplicating,
        *long_documents,
        chunk,
        *decontaminating,
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

    There are more drafts than requested sequences, because a few drafts do not fit T;
    each further `attempt` doubles them.
    """
    documents = document_steps(recipe, files, when_ingested=when_ingested)
    steps_by_name = {step.name: step for step in documents}
    ingest = steps_by_name["ingest"]
    chunk = _cleaned_chunks(steps_by_name)

    # The tokenizer comes before the long steps, so that a typo in its name does not
    # waste their work.
    tokenizer = tokenizer_step(
        recipe.tokenizer,
        ingest,
        chunk,
        separator=recipe.compose.separator,
        seed=recipe.seed,
        megatron_eod=recipe.export.megatron_eod,
    )
    drafting = _drafting_steps(recipe, ingest, chunk, tokenizer, attempt=attempt)
    draft = drafting[-1]
    referenced = referenced_chunks_step(
        chunk, draft, limit=sequence_limit(recipe.compose, attempt)
    )
    tokens = tokens_step(
        ingest, chunk, tokenizer, referenced, engine=recipe.tokenizer.engine
    )
    # Methods that compare texts have these steps. Composing uses them to judge a
    # negative that it cuts.
    comparing = [step for step in drafting if step.name in ("shingles", "weights")]
    is_verified = recipe.compose.verify_dependence is not None
    compose = compose_step(
        recipe.compose,
        (ingest, chunk, tokenizer, draft, referenced, tokens, *comparing),
        name=COMPOSED if is_verified else ComposeFiles.step,
        target_tokens=recipe.sequence_tokens,
        seed=recipe.compose_seed,
        near_duplicates=recipe.mine.near_duplicates_for(recipe.compose.negatives),
        engine=recipe.tokenizer.engine,
    )
    composing = [compose]
    if is_verified:
        compose = verify_dependence_step(
            recipe.compose,
            recipe.scorer,
            compose,
            (ingest, chunk, tokenizer, referenced, tokens),
        )
        composing.append(compose)
    exporting = export_steps.export_steps(
        recipe.export,
        (ingest, chunk, tokenizer, referenced, tokens, compose),
        sequences=recipe.compose.sequences,
    )
    return [
        *documents,
        tokenizer,
        *drafting,
        referenced,
        tokens,
        *composing,
        *exporting,
    ]


def _drafting_steps(
    recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int
) -> list[Step]:
    """Return the steps of the recipe's method, from the chunks to the drafts."""
    method = method_of(recipe)
    if isinstance(method, DocumentMethod):
        return drafting_steps(method, recipe, ingest, chunk, tokenizer, attempt=attempt)
    chunk_method: ChunkMethod[Any] = METHODS.load(method.name, ChunkMethod)
    return chunk_method.steps(recipe, ingest, chunk, tokenizer, attempt=attempt)


def _cleaned_chunks(steps_by_name: Mapping[str, Step]) -> Step:
    """Return the step with the chunks that all later steps use."""
    return steps_by_name.get("decontaminate", steps_by_name["chunk"])


def _up_to(name: str, steps: Sequence[Step]) -> list[Step]:
    """Return the steps from the first to the one of this name, which is included."""
    names = [step.name for step in steps]
    return list(steps[: names.index(name) + 1])


def sized(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> Recipe:
    """Return the recipe with the two values that depend on its corpus filled in.

    They are the number for `mine.candidates: auto`, which depends on the mean chunk,
    and, if there are such documents, the length above which a document may be too long
    for a sequence. Until the tokenizer is done, the recipe is returned as it is.
    """
    if not _is_sizable(recipe):
        return recipe
    steps_by_name = {step.name: step for step in _steps_to_size(recipe, files)}
    run_dir = recipe.run_path
    ingested = find_done(steps_by_name["ingest"], run_dir)
    chunked = find_done(_cleaned_chunks(steps_by_name), run_dir)
    tokenized = find_done(steps_by_name["tokenizer"], run_dir)
    if ingested is None or chunked is None or tokenized is None:
        return recipe

    shards = chunked.results(ChunkResult)
    chars = sum(shard.chars for shard in shards)
    chunks = sum(shard.chunks for shard in shards)
    candidates = candidates_of(
        recipe.compose, recipe.mine, chunk_chars=chars / max(1, chunks)
    )
    recipe = recipe.with_candidates(candidates)

    longest_chars = 0
    for path in IngestFiles(ingested).chars:
        document_chars = np.load(path, mmap_mode="r")
        longest_chars = max(longest_chars, int(document_chars.max(initial=0)))
    # A longer document may exceed the sequence, so its tokens are counted before it is
    # sampled.
    chars_per_token = tokenized.result(TokenizerResult).chars_per_token
    max_unchecked_chars = checked_chars(recipe.sequence_tokens, chars_per_token)
    if longest_chars > max_unchecked_chars:
        return recipe.with_checked_chars(max_unchecked_chars)
    return recipe


def _is_sizable(recipe: Recipe) -> bool:
    """Return whether a recipe has values that `sized` fills in."""
    return Need.CHUNK_NEIGHBOURS in method_of(recipe).needs


def _steps_to_size(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    *,
    when_ingested: Callable[[Artifact], None] = lambda _: None,
) -> list[Step]:
    """Return the steps on which `sized` depends: all up to the tokenizer."""
    steps = route(recipe, files, when_ingested=when_ingested)
    return _up_to("tokenizer", steps)


@dataclass(frozen=True)
class Session:
    """A checked recipe with its input files and a locked run directory.

    Ordinary runs and array jobs share it.
    """

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
        """Run the steps of `route`; see `runner.run_steps`."""
        return run_steps(
            steps,
            run_dir=self.recipe.run_path,
            executor=self.executor,
            reporter=self.reporter,
            known=known,
            only=only,
        )

    def run_before(self, name: str) -> list[str]:
        """Run the steps that the step `name` depends on, before array jobs share it.

        Returns their names.
        """
        # Sizing runs all steps up to the tokenizer. If the jobs are to share one of
        # these, it must not run here.
        names_to_size = {step.name for step in _steps_to_size(self.recipe, self.files)}
        follows_chunks = "chunk" in steps_before(self.route(), name)
        if follows_chunks and name not in names_to_size:
            self._size()
        # Only the route of the sized recipe is final: where documents are long, the
        # sample of meta-documents depends on the tokenizer too.
        steps = self.route()
        needed = steps_before(steps, name)
        self.run_steps(steps, only=needed)
        return [step.name for step in steps if step.name in needed]

    def run_share(self, name: str, *, job: tuple[int, int]) -> tuple[int, int]:
        """Run the tasks of the step `name` that belong to array job (k, n).

        Returns how many it ran and how many there are; see `runner.run_array_job`.
        """
        return run_array_job(
            self.route(),
            name,
            job=job,
            run_dir=self.recipe.run_path,
            executor=self.executor,
            reporter=self.reporter,
        )

    def route(self, recipe: Recipe | None = None, *, attempt: int = 0) -> list[Step]:
        """Return the steps of `route`, by default of the `sized` recipe."""
        if recipe is None:
            recipe = sized(self.recipe, self.files)
        return route(
            recipe, self.files, attempt=attempt, when_ingested=self._remember_files
        )

    def _remember_files(self, ingest: Artifact) -> None:
        """Record the input files in the run directory.

        Not before ingest succeeds, so that a user may correct a rejected file.
        """
        listing.remember(
            ingest,
            sources=self.recipe.ingest.sources,
            files=self.files,
            run_dir=self.recipe.run_path,
        )

    def make_variant(self) -> tuple[dict[str, Artifact], variant_records.Variant]:
        """Run all steps and record the variant.

        Returns the finished steps by name, and the variant.
        """
        recipe = self.recipe
        # A name that is taken is refused before the first step.
        name = variant_names.name_for(recipe, recipe.run_path)
        done = self._compose()
        refuse_nothing(recipe, done)
        export_steps.check_names(recipe.export.formats, done)
        if recipe.export.push is not None:
            export_steps.check_read(done, recipe.run_path, trust="hash")

        # The exports of the finished steps, whichever attempt composed them.
        exporting = export_steps.export_steps(
            recipe.export,
            export_steps.read_steps(done),
            sequences=recipe.compose.sequences,
        )
        done = self.run_steps(exporting, known=done)
        variant = variant_records.write(recipe, done, recipe.run_path, name=name)
        return done, variant

    def _compose(self) -> dict[str, Artifact]:
        """Run the steps up to `compose` until there are enough sequences.

        Each attempt drafts twice as many, or searches for twice as many candidates, as
        the one before it, as long as that may help.
        """
        recipe, done = self._size()
        attempt = 0
        while True:
            steps = _up_to("compose", self.route(recipe, attempt=attempt))
            done = self._run_rest(steps, done)
            retry = another_attempt(
                self.recipe.compose,
                done,
                attempt=attempt,
                candidates=self._raisable_candidates(recipe),
            )
            if retry is None:
                return done
            self.reporter.tell(retry.why)
            attempt = retry.attempt
            if retry.candidates is not None:
                recipe = recipe.with_candidates(retry.candidates)

    def _size(self) -> tuple[Recipe, dict[str, Artifact]]:
        """Return the `sized` recipe, and the steps that ran to size it."""
        if not _is_sizable(self.recipe):
            return self.recipe, {}
        done: dict[str, Artifact] = {}
        steps = _steps_to_size(
            self.recipe, self.files, when_ingested=self._remember_files
        )
        run_dir = self.recipe.run_path
        if any(find_done(step, run_dir) is None for step in steps):
            # Building all steps checks the recipe before the first of them runs.
            self.route(self.recipe)
            done = self.run_steps(steps)
        return sized(self.recipe, self.files), done

    def _run_rest(self, steps: Sequence[Step], done: Artifacts) -> dict[str, Artifact]:
        """Return the finished steps by name; those that are not in `done` run now."""
        done_by_fingerprint = {
            artifact.manifest["fingerprint"]: artifact for artifact in done.values()
        }
        known: dict[str, Artifact] = {}
        rest: list[Step] = []
        for step in steps:
            if step.fingerprint in done_by_fingerprint:
                known[step.name] = done_by_fingerprint[step.fingerprint]
            else:
                rest.append(step)
        finished = self.run_steps(rest, known=known)
        return {step.name: finished[step.name] for step in steps}

    def _raisable_candidates(self, recipe: Recipe) -> int | None:
        """Return the candidates of a sized recipe; None if the user chose them.

        None as well for a recipe that has nothing to size.
        """
        if self.recipe.mine.candidates != "auto":
            return None
        candidates = recipe.mine.candidates
        return None if candidates == "auto" else candidates


@contextmanager
def session(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    mode: Literal["alone", "together"] = "alone",
) -> Iterator[Session]:
    """Check a recipe and lock its run directory.

    `mode` is "alone", or "together" with other array jobs; `changed_inputs="accept"`
    ingests again if input files differ from those that an earlier run in this directory
    read. Raises a NextlongError for every mistake that can be found before the first
    step.
    """
    reporter = reporter or Reporter()
    tell = reporter.tell
    corpus = Corpus(recipe, changed_inputs=changed_inputs, tell=tell)
    check(recipe, corpus, "before the lock")
    with store.locked(recipe.run_path, mode=mode):
        check(recipe, corpus, "in the run directory")
        # Array jobs follow a run that has read the documents.
        if mode == "alone" and is_new(recipe):
            check(recipe, corpus, "of documents")
            for note in _notes_on_large_files(recipe, corpus):
                tell(note)
        with one_thread(), executor_for(recipe, tell=tell) as executor:
            if mode == "alone" and is_new(recipe):
                chars = _tokenized_chars(recipe, corpus)
                if is_worth_sharing(recipe.tokenizer, chars=chars):
                    executor.share(partial(share_tokenizer, recipe.tokenizer))
            yield Session(recipe, corpus.files, executor, reporter)


def _tokenized_chars(recipe: Recipe, corpus: Corpus) -> float:
    """Return about how many characters of a corpus the sequences of a recipe have."""
    chars = float(sum(corpus.text_bytes))
    if recipe.compose.sequences == "all":
        return chars
    sequence_chars = _CHARS_PER_TOKEN * recipe.compose.target_tokens
    return min(chars, recipe.compose.sequences * sequence_chars)


def _notes_on_large_files(recipe: Recipe, corpus: Corpus) -> list[str]:
    """Return a note for each large file that keeps workers waiting."""
    shard_bytes = shard_bytes_of(recipe.ingest, text_bytes=sum(corpus.text_bytes))
    return whole_files(
        recipe.ingest.sources,
        corpus.files,
        shard_bytes=shard_bytes,
        workers=worker_count(recipe),
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
        done, _ = opened.make_variant()
        return done


def executor_for(
    recipe: Recipe,
    *,
    work: Literal["all", "export"] = "all",
    tell: Callable[[str], object] = lambda _: None,
) -> Executor:
    """Return the executor for all steps of a recipe, or only for exports.

    `tell` receives what it is waiting for.
    """
    if recipe.executor == "serial":
        return SerialExecutor()
    if recipe.executor == "ray":
        # Ray is an optional package.
        from nextlong.engine.ray import RayExecutor

        return RayExecutor(
            recipe.ray.address,
            workers=worker_count(recipe),
            retries=recipe.ray.retries,
            tell=tell,
        )
    # What each worker imports at its start.
    if work == "export":
        preload = ["nextlong.export.steps", "pyarrow.parquet", "tokenizers", "pandas"]
    else:
        preload = preloaded(recipe.encoder)
    return LocalExecutor(
        worker_count(recipe), count_gpus=lambda: count_gpus_for(recipe), preload=preload
    )


def count_gpus_for(recipe: Recipe) -> int:
    """Return the number of GPUs of this machine that the recipe can use.

    Counting GPUs imports torch, which takes seconds, so it happens only if a model runs
    on GPUs or a driver is loaded.
    """
    encodes_on_gpus = kind_of(recipe.encoder).asks_for_gpus
    writes_queries = Need.KEYWORDS in method_of(recipe).needs
    scores_tokens = recipe.scorer.model is not None and recipe.scorer.device != "cpu"
    runs_a_model = encodes_on_gpus or writes_queries or scores_tokens
    if runs_a_model or (recipe.search.device != "cpu" and has_driver()):
        return count_gpus()
    return 0


def worker_count(recipe: Recipe) -> int:
    """Return the number of worker processes.

    `auto` is one per core that this process may use.
    """
    return usable_cpus() if recipe.workers == "auto" else recipe.workers
