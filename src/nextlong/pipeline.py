"""Pipeline: the whole route on one page, from a recipe to a finished run.

ingest → select → chunk → encoder → embed → index → mine → draft → named_chunks → tokens → compose → rows → files of each format
                     ├→ meta_documents ────────────┘        ↑             ↑
                     ├→ shingles → weights ─────────────────┘             │
                     └→ tokenizer (and E) ────────────────────────────────┘

Before `ingest` stands `line_counts` where a large file is read in parts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from nextlong.artefacts import record
from nextlong.artefacts.names import name_for
from nextlong.compose.steps import compose_step, gives_nothing, is_enough, refuse_nothing, too_few
from nextlong.corpus import steps as corpus_steps
from nextlong.corpus.decontaminate_steps import cleaning_steps
from nextlong.corpus.deduplicate import minhash_class
from nextlong.corpus.ingest import check_named_ids
from nextlong.corpus.left_out_step import left_out_step
from nextlong.corpus.parts import whole_files
from nextlong.embed.base import kind_of
from nextlong.embed.sentence_transformers import count_gpus
from nextlong.embed.steps import embed_step, encoder_step
from nextlong.engine import shared, store
from nextlong.engine.executor import Capacity, Executor
from nextlong.engine.local import LocalExecutor, refuse_import_by_worker
from nextlong.engine.progress import Quiet, Reporter
from nextlong.engine.runner import run_steps
from nextlong.engine.serial import SerialExecutor
from nextlong.engine.step import Done, Finished, Step
from nextlong.errors import ExportError
from nextlong.export import steps as export_steps
from nextlong.inputs import file_systems, remembered
from nextlong.inputs.files import InputFile
from nextlong.inputs.remembered import check_apart, input_files, recognise_inputs
from nextlong.inputs.where import where_of
from nextlong.methods.base import Need, Upstream, method_of
from nextlong.recipe import Recipe
from nextlong.search.choose import has_driver
from nextlong.tokens.enough import check_enough, mostly_too_long
from nextlong.tokens.steps import named_chunks_step, tokenizer_step, tokens_step
from nextlong.tokens.tokenizer import check_there
from nextlong.workers import EXPORT_STEPS, preloaded

# Takes steps, and those that are known to be finished; returns the finished ones by name.
CarryOut = Callable[..., dict[str, Done]]


def run(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    when_done: Callable[[Finished, record.Variant, CarryOut], object] = lambda *_: None,
) -> dict[str, Done]:
    """Make the recipe's variant of the run directory; return the finished steps by name.

    `when_done` gets them, the variant, and what runs further steps, while the directory is still this process's own.

    What is there already is kept. `changed_inputs="accept"` ingests again where input files differ from those that an
    earlier run in this directory read. Raises a NextlongError for every mistake that a user can mend.
    """
    refuse_import_by_worker()
    check_beforehand(recipe)
    reporter = reporter or Quiet()
    run_dir = record.run_dir_of(recipe)
    check_apart(recipe, run_dir)
    files = input_files(recipe)
    with store.locked(run_dir), shared.opened(record.store_of(recipe), run_dir) as stored:
        name = name_for(recipe, run_dir)
        files = recognise_inputs(recipe, files, run_dir, changed_inputs=changed_inputs, tell=reporter.tell)
        if name not in record.variant_names(run_dir):
            check_named_ids(recipe.ingest.sources, files)
            check_enough(recipe, files)
            shard_bytes = corpus_steps.shard_bytes_of(recipe, files)
            for note in (
                mostly_too_long(recipe, files),
                *whole_files(recipe.ingest.sources, files, shard_bytes=shard_bytes, workers=worker_count(recipe)),
            ):
                if note:
                    reporter.tell(note)
        # Only once they are ingested, so that a file that was refused may be mended.
        remember = partial(
            remembered.remember,
            sources=recipe.ingest.sources,
            files=files,
            run_dir=run_dir,
            stored=record.store_of(recipe),
        )
        with executor_for(recipe, tell=reporter.tell) as executor:
            carry_out = partial(run_steps, run_dir=run_dir, executor=executor, reporter=reporter, shared=stored)
            done = _compose(recipe, partial(route, recipe, files, when_ingested=remember), carry_out, reporter)
            refuse_nothing(recipe, done)
            export_steps.check_names(recipe, done)
            if recipe.export.push is not None:
                export_steps.check_read(done, run_dir, trust="hash")
            done = carry_out(export_steps.export_steps(recipe, export_steps.read_steps(done)), known=done)
            when_done(done, record.write(recipe, done, run_dir, name=name), carry_out)
    return done


def check_encoder(recipe: Recipe) -> None:
    """Raise EncoderError if the encoder's package is not there."""
    kind_of(recipe.encoder).check_installed(recipe.encoder)


def check_beforehand(recipe: Recipe, *, encoder: Literal["installed", "any"] = "installed") -> None:
    """Raise what hours of work would end in: a package, a tokenizer or a destination's file system that is not there."""
    check_there(recipe.tokenizer)
    if recipe.ingest.dedup == "minhash":
        minhash_class()
    for source in recipe.ingest.sources:
        where_of(source)
    if encoder == "installed":
        check_encoder(recipe)
    if recipe.export.push is not None:
        file_systems.reach(recipe.export.push, where=f"export.push={recipe.export.push!r}", error=ExportError)


def _compose(
    recipe: Recipe, route_of: Callable[..., list[Step]], carry_out: Callable[..., dict[str, Done]], reporter: Reporter
) -> dict[str, Done]:
    """Carry out the steps up to composing, with more drafted each time, until there are sequences enough."""
    done: dict[str, Done] = {}
    for attempt in itertools.count():
        steps = route_of(attempt=attempt)
        steps = steps[: 1 + [step.name for step in steps].index("compose")]
        known = {step.name: done[step.name] for step in steps if _is_done(step, done)}
        done = carry_out([step for step in steps if step.name not in known], known=known)
        done = {step.name: done[step.name] for step in steps}
        if is_enough(recipe, done) or gives_nothing(done):
            return done
        reporter.tell(too_few(recipe, done, attempt=attempt))
    raise AssertionError("unreachable: attempts end with the documents")


def _is_done(step: Step, done: Finished) -> bool:
    return step.name in done and done[step.name].manifest["fingerprint"] == step.fingerprint


def executor_for(
    recipe: Recipe, *, work: Literal["all", "export"] = "all", tell: Callable[[str], object] = lambda _: None
) -> Executor:
    """Return what carries out all steps of a recipe, or only those that export; `tell` gets what it waits for."""
    if recipe.executor == "serial":
        return SerialExecutor()
    if recipe.executor == "ray":
        from nextlong.engine.ray import RayExecutor

        workers, retries = worker_count(recipe), recipe.ray.retries
        return RayExecutor(recipe.ray.address, workers=workers, retries=retries, tell=tell)
    if work == "export":
        return LocalExecutor(capacity_here(recipe), preload=EXPORT_STEPS)
    return LocalExecutor(capacity_here(recipe), preload=preloaded(recipe))


def capacity_here(recipe: Recipe) -> Capacity:
    """Return what this machine has for the recipe.

    Counting GPUs imports torch, which takes seconds: only where a model runs on them, or a driver is loaded.
    """
    is_model = kind_of(recipe.encoder).asks_for_gpus or Need.KEYWORDS in method_of(recipe).needs
    asks = is_model or (recipe.search.device != "cpu" and has_driver())
    return Capacity(cpus=worker_count(recipe), count_gpus=count_gpus if asks else lambda: 0)


def worker_count(recipe: Recipe) -> int:
    """Return how many processes the recipe asks for; `auto` is one per core that this process may use."""
    return usable_cpus() if recipe.workers == "auto" else recipe.workers


def usable_cpus() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux: those that this process is bound to
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def route(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    *,
    attempt: int = 0,
    when_ingested: Callable[[Done], None] = lambda _: None,
) -> list[Step]:
    """Return the steps of the recipe in the order in which they run.

    More is drafted than asked for, because a few drafts do not fit T; each further `attempt` drafts twice as much.
    """
    shard_bytes = corpus_steps.shard_bytes_of(recipe, files)
    splits = corpus_steps.splits_of(recipe, files, shard_bytes=shard_bytes)
    line_counts = corpus_steps.line_counts_steps(splits)
    ingest = corpus_steps.ingest_step(
        recipe, files, splits, line_counts, shard_bytes=shard_bytes, when_ingested=when_ingested
    )
    select = corpus_steps.select_step(recipe, ingest, splits)
    deduplicating = _deduplicating(recipe, ingest, select)
    keep = deduplicating[-1] if deduplicating else select
    all_chunks = corpus_steps.chunk_step(recipe, ingest, keep)
    cleaning = cleaning_steps(recipe, ingest, all_chunks)
    chunk = cleaning[-1] if cleaning else all_chunks  # what every step below sees
    left_out = left_out_step(recipe, splits, ingest, select, [*deduplicating, *cleaning])
    tokenizer = tokenizer_step(recipe, ingest, chunk)  # before the long steps, whose work a typo would waste
    drafted = _draft(recipe, ingest, chunk, tokenizer, attempt)
    draft = drafted[-1]
    named = named_chunks_step(recipe, chunk, draft, attempt=attempt)
    tokens = tokens_step(recipe, ingest, chunk, tokenizer, named)
    measured = [step for step in drafted if step.name in ("shingles", "weights")]
    compose = compose_step(recipe, ingest, chunk, tokenizer, named, tokens, draft=draft, near_copy_steps=measured)
    writing = export_steps.export_steps(recipe, (ingest, chunk, tokenizer, named, tokens, compose))
    return [
        *line_counts,
        ingest,
        select,
        *deduplicating,
        all_chunks,
        *cleaning,
        left_out,
        tokenizer,
        *drafted,
        named,
        tokens,
        compose,
        *writing,
    ]


def _deduplicating(recipe: Recipe, ingest: Step, select: Step) -> list[Step]:
    """Return the steps that leave nearly equal documents out; none where only equal ones are."""
    if recipe.ingest.dedup != "minhash":
        return []
    return corpus_steps.minhash_steps(recipe, ingest, select)


def _draft(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, attempt: int) -> list[Step]:
    """Return the steps between the chunks and the drafts, which are the method's own; the last one drafts."""
    encoder = encoder_step(recipe, ingest, chunk)
    upstream = Upstream(ingest, chunk, tokenizer, encoder, embed_step(recipe, ingest, chunk, encoder))
    return method_of(recipe).steps(recipe, upstream, attempt=attempt)
