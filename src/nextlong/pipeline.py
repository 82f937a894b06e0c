"""Pipeline: the whole route on one page, from a recipe to a finished run.

ingest → select → chunk → encoder → embed → mine → draft → refer → tokens → compose → rows → files of each format
                      ├→ metas ──────────────┘  ↑      ↑
                      ├→ shingles → weights ────┘      │
                      └→ tokenizer (and E) ────────────┘

Before `ingest` stands `lines` where a large file is read in parts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nextlong.encoders.sentence_transformers import check_installed
from nextlong.engine import store
from nextlong.engine.local import LocalExecutor, refuse_import_by_worker
from nextlong.engine.progress import Quiet, Reporter
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Done, Finished, Step
from nextlong.errors import ExportError, RunError
from nextlong.recipe import Recipe
from nextlong.stages import file_systems
from nextlong.stages.deduplicate import minhash_class
from nextlong.stages.sources import InputFile, list_files
from nextlong.stages.tokenizer import check_there
from nextlong.steps import candidates, clean, corpus, exports, inputs, sequences, shingles
from nextlong.steps.finished import sequences_per_part

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.yaml"
VARIANTS_FOLDER = "variants"  # of records like RUN_FILE, one a variant of a sweep

# What every worker needs, imported once by the server that workers are forked from.
_PRELOAD = ("nextlong.pipeline", "faiss", "pyarrow.parquet", "tokenizers")
_PRELOAD_EXPORT = ("nextlong.steps.exports", "pyarrow.parquet", "tokenizers")
_PRELOAD_LSA = ("nextlong.encoders.lsa",)


def run(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    when_done: Callable[[Finished], object] = lambda _: None,
) -> dict[str, Done]:
    """Bring the recipe's run directory to its finished state; return the finished steps by name.

    `when_done` gets them while the directory is still this process's own.

    What is there already is kept. `changed_inputs="accept"` ingests anew where input files differ from those that an
    earlier run in this directory read. Raises a NextlongError for every mistake that a user can mend.
    """
    refuse_import_by_worker()
    check_beforehand(recipe)
    reporter = reporter or Quiet()
    run_dir = run_dir_of(recipe)
    files = input_files(recipe)
    with store.locked(run_dir):
        files = recognise_inputs(recipe, files, run_dir, changed_inputs=changed_inputs, tell=reporter.tell)
        # Only once they are ingested, so that a file that was refused may be mended.
        remember = partial(inputs.remember, sources=recipe.ingest.sources, files=files, run_dir=run_dir)
        with store.explained(run_dir):
            store.write_text(run_dir / RECIPE_FILE, recipe.dump())
        with executor_for(recipe) as executor:
            carry_out = partial(run_steps, run_dir=run_dir, executor=executor, reporter=reporter)
            done = _compose(recipe, partial(route, recipe, files, when_ingested=remember), carry_out, reporter)
            sequences.refuse_nothing(recipe, done)
            done = carry_out(exports.export_steps(recipe, exports.read_steps(done)), known=done)
        _record(recipe, done, run_dir)
        when_done(done)
    return done


def check_beforehand(recipe: Recipe) -> None:
    """Raise what hours of work would end in: a package, a tokenizer or a destination's file system that is not there."""
    check_there(recipe.tokenizer)
    if recipe.ingest.dedup == "minhash":
        minhash_class()
    if recipe.encoder.kind == "sentence-transformers":
        check_installed(recipe.encoder.name)
    if recipe.export.push is not None:
        file_systems.reach(recipe.export.push, where=f"export.push={recipe.export.push!r}", error=ExportError)


def _compose(
    recipe: Recipe, route_of: Callable[..., list[Step]], carry_out: Callable[..., dict[str, Done]], reporter: Reporter
) -> dict[str, Done]:
    """Carry out the steps up to composing, with more documents drawn each time, until there are sequences enough."""
    done: dict[str, Done] = {}
    for attempt in itertools.count():
        steps = route_of(attempt=attempt)
        steps = steps[: 1 + [step.name for step in steps].index("compose")]
        known = {step.name: done[step.name] for step in steps if _is_done(step, done)}
        done = carry_out([step for step in steps if step.name not in known], known=known)
        done = {step.name: done[step.name] for step in steps}
        if _is_enough(recipe, done):
            return done
        reporter.tell(sequences.too_few(recipe, done, attempt=attempt))
    raise AssertionError("unreachable: attempts end with the documents")


def _is_done(step: Step, done: Finished) -> bool:
    return step.name in done and done[step.name].manifest["fingerprint"] == step.fingerprint


def _is_enough(recipe: Recipe, done: Finished) -> bool:
    """Say whether another attempt could give no more sequences."""
    wanted = recipe.compose.sequences
    if wanted == "all" or "metas" not in done or sum(sequences_per_part(recipe, done["compose"])) == wanted:
        return True
    (counts,) = done["metas"].counts
    is_all_composed = done["refer"].total("drafts") == done["draft"].total("drafts")
    return bool(counts["drawn"] == counts["eligible"] and is_all_composed)


def run_dir_of(recipe: Recipe) -> Path:
    """Return where the recipe's run lives."""
    return Path(recipe.run_dir).expanduser()


def executor_for(recipe: Recipe, *, work: Literal["all", "export"] = "all") -> LocalExecutor:
    """Return the processes that carry out all steps of a recipe, or only those that export."""
    if work == "export":
        return LocalExecutor(worker_count(recipe), preload=_PRELOAD_EXPORT)
    preload = [*_PRELOAD, *(_PRELOAD_LSA if recipe.encoder.kind == "lsa" else ())]
    return LocalExecutor(worker_count(recipe), preload=preload)


def worker_count(recipe: Recipe) -> int:
    """Return how many processes the recipe asks for; `auto` is one per core that this process may use."""
    if recipe.workers != "auto":
        return recipe.workers
    if hasattr(os, "sched_getaffinity"):  # Linux: those that this process is bound to
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def input_files(recipe: Recipe) -> list[list[InputFile]]:
    """Return the files of each source. Raises CorpusError if a source has none."""
    return [
        list_files(source, where=f"ingest.sources[{place}].path") for place, source in enumerate(recipe.ingest.sources)
    ]


def route(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    *,
    attempt: int = 0,
    when_ingested: Callable[[Done], None] = lambda _: None,
) -> list[Step]:
    """Return the steps of the recipe in the order in which they run.

    Documents are drawn with some to spare, because a few do not fit T; each further `attempt` draws twice as many.
    """
    shard_bytes = corpus.shard_bytes_of(recipe, files)
    splits = corpus.splits_of(recipe, files, shard_bytes=shard_bytes)
    lines = corpus.lines_steps(splits)
    ingest = corpus.ingest_step(recipe, files, splits, lines, shard_bytes=shard_bytes, when_ingested=when_ingested)
    select = corpus.select_step(recipe, ingest, splits)
    deduplicating = _deduplicating(recipe, ingest, select)
    keep = deduplicating[-1] if deduplicating else select
    cut = corpus.chunk_step(recipe, ingest, keep)
    cleaning = clean.cleaning_steps(recipe, ingest, cut)
    chunk = cleaning[-1] if cleaning else cut  # what every step below sees
    tokenizer = sequences.tokenizer_step(recipe, ingest, chunk)  # before the long steps, whose work a typo would waste
    drafted = _draft(recipe, ingest, chunk, tokenizer, attempt)
    draft = drafted[-1]
    refer = sequences.refer_step(recipe, chunk, draft, attempt=attempt)
    tokens = sequences.tokens_step(recipe, ingest, chunk, tokenizer, refer)
    compose = sequences.compose_step(recipe, chunk, tokenizer, draft, refer, tokens)
    writing = exports.export_steps(recipe, (ingest, chunk, tokenizer, refer, tokens, compose))
    return [
        *lines,
        ingest,
        select,
        *deduplicating,
        cut,
        *cleaning,
        tokenizer,
        *drafted,
        refer,
        tokens,
        compose,
        *writing,
    ]


def _deduplicating(recipe: Recipe, ingest: Step, select: Step) -> list[Step]:
    """Return the steps that leave nearly equal documents out; none where only equal ones are."""
    if recipe.ingest.dedup == "exact":
        return []
    minhash = corpus.minhash_step(ingest, select)
    return [minhash, corpus.neardup_step(recipe, ingest, select, minhash)]


def _draft(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, attempt: int) -> list[Step]:
    """Return the steps between the chunks and the drafts, which are the method's own; the last one drafts."""
    method = recipe.compose.method
    encoder = candidates.encoder_step(recipe, ingest, chunk)
    embed = candidates.embed_step(recipe, ingest, chunk, encoder)
    if method == "nextlong":
        metas = candidates.metas_step(recipe, ingest, chunk, attempt=attempt)
        mine = candidates.mine_step(recipe, embed, metas)
        screening = _screening(recipe, ingest, chunk)
        draft = sequences.draft_step(recipe, ingest, chunk, embed, metas, mine, tokenizer, screening)
        return [metas, encoder, embed, mine, *screening, draft]
    documents = candidates.documents_step(recipe, ingest, chunk)
    if method == "standard":
        return [documents, sequences.draft_documents_step(recipe, documents, None, tokenizer)]
    if method == "quest":
        keywords = candidates.keywords_step(recipe, ingest, chunk)
        return [documents, keywords, sequences.draft_documents_step(recipe, documents, keywords, tokenizer)]
    vectors = candidates.docvectors_step(recipe, chunk, embed)
    neighbours = candidates.neighbours_step(recipe, documents, vectors)
    draft = sequences.draft_documents_step(recipe, documents, neighbours, tokenizer)
    return [documents, encoder, embed, vectors, neighbours, draft]


def _screening(recipe: Recipe, ingest: Step, chunk: Step) -> list[Step]:
    """Return the steps that near-copies are measured with; none where they may stay."""
    if recipe.mine.screened(recipe.compose.negatives) is None:
        return []
    shingled = shingles.shingles_step(ingest, chunk)
    return [shingled, shingles.weights_step(recipe, ingest, chunk, shingled)]


# what the run directory remembers


def recognise_inputs(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    tell: Callable[[str], None],
) -> list[list[InputFile]]:
    """Return the files as the run directory knows them. Raises RunError if one that it has read is another now or gone."""
    own_outputs = [file.path for own in files for file in own if Path(file.path).is_relative_to(run_dir.resolve())]
    if own_outputs:
        raise RunError(
            f"ingest.sources reach into run_dir={recipe.run_dir} ({own_outputs[0]}); give it a folder elsewhere"
        )
    recognised, changes = inputs.recognise(recipe.ingest.sources, files, run_dir, tell=tell)
    if changes and changed_inputs != "accept":
        more = f", and {len(changes) - 1} other file{'s' if len(changes) > 2 else ''}" if len(changes) > 1 else ""
        raise RunError(
            f"input files have changed since a run in {run_dir} read them: {changes[0]}{more}; put the old ones back, "
            "give the recipe another run_dir, or say --accept-changed-inputs to read them anew here"
        )
    return recognised


def record_of(recipe: Recipe, done: Finished) -> dict[str, Any]:
    """Return which folders make up the recipe's data set, as `nextlong.open` reads it."""
    return {
        "steps": {name: step.folder.name for name, step in done.items()},
        "sequences_per_part": sequences_per_part(recipe, done["compose"]),
        "recipe": recipe.model_dump(mode="json"),
    }


def _record(recipe: Recipe, done: Finished, run_dir: Path) -> None:
    """Write down which folders make up the data set that was asked for last."""
    with store.explained(run_dir):
        store.write_json(run_dir / RUN_FILE, record_of(recipe, done))
