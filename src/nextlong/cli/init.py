"""The command `nextlong init`: write the first recipe for a user's files.

In:  files and folders, or what lies beside the recipe.
Out: a recipe whose paths are relative to it, and notes on what was found.

It proposes the longest context length (a power of two) for which the corpus and its
documents are large enough, a number of sequences that uses each chunk about twice,
shorter chunks if few documents have two, and as many chunks of a meta-document as avoid
the warning `few-meta-chunks`.
"""

from __future__ import annotations

import argparse
import glob
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from nextlong.arrays import Doubles, Ints
from nextlong.artifacts.variant_records import INPUTS
from nextlong.checks import Corpus, check_tokenizer, count_tokens
from nextlong.cli.columns import (
    MAX_FILES,
    FileLook,
    files_of,
    forget_files,
    looks_into,
    source_notes,
)
from nextlong.cli.common import absolute, already_exists, first_few, present, write
from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.ingest import allowing
from nextlong.corpus.look import Look, look_at
from nextlong.errors import CorpusError, NextlongError, RecipeError
from nextlong.reading.compression import COMPRESSIONS
from nextlong.reading.dataset_folder import (
    README,
    SAVED,
    Metadata,
    choose_split,
    read_metadata,
)
from nextlong.reading.formats import UNREADABLE, format_of
from nextlong.reading.listing import kind_of_name, list_files, reaches, split_of
from nextlong.reading.records import Reject
from nextlong.recipe import Recipe, Source
from nextlong.recipe.keys import read_length
from nextlong.recipe.recipe import commented
from nextlong.recipe.text import preset_path
from nextlong.runs.statistics.after_last import (
    enough_meta_chunks,
    shares_after_last,
    three_chunk_chars,
)
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.runs.statistics.warnings import small_corpus
from nextlong.sequences.tokenizer import Ends, find_ends_of
from nextlong.text import Json, counted

_DATA_SUFFIXES: Final = (
    ".jsonl",
    ".jsonl.zst",
    ".jsonl.gz",
    ".jsonl.bz2",
    ".jsonl.xz",
    ".jsonl.lz4",
    ".parquet",
    ".csv",
    ".tsv",
)
# Not part of a source's name.
_OTHER_SUFFIXES: Final = (
    ".json",
    ".ndjson",
    ".arrow",
    ".txt",
    ".md",
    *COMPRESSIONS,
)
# A .json file may be a recipe.
_NEVER_RECIPES: Final = tuple(
    {*_DATA_SUFFIXES, *_OTHER_SUFFIXES, ".html", ".htm", ".warc"} - {".json"}
)
_LIKE_A_RECIPE: Final = re.compile(
    rb'^\s*"?(ingest|base|run_dir|tokenizer|compose)"?\s*:', re.MULTILINE
)
_RECIPE_HEAD_BYTES: Final = 1 << 16
# Folders without documents of the user: other programs and nextlong write them.
_OTHERS_FOLDERS: Final = frozenset(
    {"nextlong-demo", "nextlong-runs", "node_modules", "__pycache__"}
)
# The first is in a run directory, the second in an environment.
_OTHERS_FILES: Final = (INPUTS, "pyvenv.cfg")
_MODEL_FILES: Final = frozenset(
    {"tokenizer.json", "tokenizer_config.json", "config.json"}
)
_MAX_NAMES: Final = 10_000  # in a folder, looked at until one is that of a document
_VOCABULARY: Final = 32_000
_NAMED_FILES: Final = 3  # in a sentence, and rejected records

_MIN_TOKENS: Final = 1_024  # of a sequence
_MAX_TOKENS: Final = 131_072
_MIN_EXTENDABLE: Final = 0.1  # of the documents, which have two chunks or more
_MIN_LEFT: Final = 0.1  # of the extendable documents, by compose.min_meta_chunks
_FEW_EXTENDABLE: Final = 0.25  # of the documents, which is worth a note
# A sequence is at least this many times as long as the median extended document, also
# where the corpus is small for it.
_ROOM: Final = 2
_DOCUMENTS_PER_CHUNK: Final = 0.8  # in a sequence; 0.46 to 0.81 in seven corpora
_USES: Final = 2.0  # of a chunk, on average
_MAX_SEQUENCES: Final = 1_000  # of a first run


@dataclass(frozen=True)
class _MinChunks:
    """The proposed compose.min_meta_chunks, and what it costs.

    documents: those with as many chunks, of the `extendable` ones, which have two
    share: the tokens expected after the last meta-chunk
    share_of_all: the same, if all documents with two chunks were extended
    """

    meta_chunks: int
    documents: float
    extendable: float
    share: float
    share_of_all: float

    def __str__(self) -> str:
        remain = f"{self.documents:,.0f} of the {self.extendable:,.0f} documents"
        return (
            f"compose.min_meta_chunks: {self.meta_chunks}, so that {self.share:.0%} "
            f"instead of {self.share_of_all:.0%} of the tokens come after the last "
            f"meta-chunk, where they extend no dependency; {remain} with two chunks "
            "or more remain to be extended"
        )


@dataclass(frozen=True)
class _Proposal:
    """Lengths and numbers, and about how many documents and tokens they follow from."""

    target_tokens: int
    sequences: int
    max_chars: int
    documents: float
    tokens: float
    rejects: int
    reject_share: float
    first_rejects: Sequence[Reject] = ()
    min_chunks: _MinChunks | None = None
    short_chunks: str = ""
    few_extendable: str = ""
    small_corpus: str = ""

    def __str__(self) -> str:
        uses = self.sequences * self.target_tokens / self.tokens
        documents = counted(round(self.documents), "document")
        message = (
            f"about {documents} with {self.tokens:,.0f} tokens: "
            f"{counted(self.sequences, 'sequence')} of {self.target_tokens:,} tokens, "
            f"each chunk used {uses:.1f} times on average"
        )
        if not self.rejects:
            return message
        rejected = f"{counted(self.rejects, 'record')} would be rejected"
        message += f"; {rejected} ({self.reject_share:.1%})"
        examples = ", ".join(
            f"{reject.file}:{reject.line} ({reject.reason})"
            for reject in self.first_rejects
        )
        if not examples:
            return message
        if self.rejects > len(self.first_rejects):
            return f"{message}, such as {examples}"
        return f"{message}: {examples}"


@dataclass(frozen=True)
class NewRecipe:
    """A first recipe, the proposal in it, and its sources.

    proposal: None if the files are unreadable
    problem: why its files give no documents, "" if they do
    sources: given by the user, or found in the folder `beside`
    unused: the folders with documents beside the recipe that are no source
    """

    recipe: Recipe
    proposal: _Proposal | None
    problem: str
    sources: Sequence[str]
    beside: Path | None
    unused: Sequence[Path] = ()


def init(args: argparse.Namespace) -> None:
    """Run the command."""
    _check_may_write(args.recipe, is_forced=args.force)
    if args.preset is not None:
        _copy_preset(args)
    else:
        _write_new_recipe(args)


def _check_may_write(path: Path, *, is_forced: bool) -> None:
    """Refuse a recipe's path that is no recipe's; documents are never overwritten."""
    if path.name.lower().endswith(_NEVER_RECIPES):
        raise RecipeError(
            where=path,
            problem="it is the name of a data file, not of a recipe",
            fix=f"use: nextlong init my.yaml {path}",
        )
    if path.is_dir():
        raise RecipeError(
            where=path,
            problem="it is a folder",
            fix=f"RECIPE is the file to write: nextlong init my.yaml {path}",
        )
    if path.exists() and not is_forced:
        raise already_exists(path)
    if path.is_file() and path.stat().st_size > 0:
        head = path.read_bytes()[:_RECIPE_HEAD_BYTES]
        if not _LIKE_A_RECIPE.search(head):
            raise RecipeError(
                where=path,
                problem="it is not a recipe, so it is not overwritten",
                fix="choose another name",
            )


def _copy_preset(args: argparse.Namespace) -> None:
    path: Path = args.recipe
    option = ""
    if args.full:
        option = "--full"
    elif args.tokenizer:
        option = "--tokenizer"
    if option:
        raise NextlongError(
            where="--preset",
            problem="it copies a recipe unchanged",
            fix=f"remove {option}, then edit the copy",
        )
    if args.sources:
        raise NextlongError(
            where="--preset",
            problem="it has its own sources",
            fix="remove the files, then edit ingest.sources in the copy",
        )
    write(path, preset_path(args.preset).read_text(encoding="utf-8"))
    to_do = "check ingest.sources and tokenizer"
    _present(
        args,
        Recipe.load(path),
        has_documents=True,
        notes=[],
        written=_written(path, to_do),
    )


def _write_new_recipe(args: argparse.Namespace) -> None:
    path: Path = args.recipe
    new = new_recipe(path, args.sources, tokenizer=args.tokenizer)
    has_documents = bool(new.sources)
    is_refused = has_documents and not _is_readable(new)

    given = [*args.sources, args.tokenizer or ""]
    text = commented(
        _with_relative_paths(new.recipe, path.parent, given),
        heading=_heading(path, is_full=args.full),
        include="all" if args.full else "important",
    )
    write(path, text)

    to_do = "check ingest.sources and tokenizer"
    if not has_documents and new.unused:
        to_do = "no folder was chosen: set ingest.sources to the path of one"
    elif not has_documents:
        to_do = (
            "no documents were found in its folder: set ingest.sources to the path of "
            "yours"
        )
    _present(
        args,
        new.recipe,
        has_documents=has_documents,
        notes=list(notes(new)),
        written="" if is_refused else _written(path, to_do),
    )
    if is_refused:
        problem, fix = _refusal(new)
        raise NextlongError(
            where=path, problem=f"it was written, but {problem}", fix=fix
        )


def _heading(path: Path, *, is_full: bool) -> str:
    heading = (
        f"A recipe of nextlong. `nextlong plan {path}` estimates its cost, `nextlong "
        f"run {path}` runs it.\n"
        "Relative paths start from the folder of this file."
    )
    if is_full:
        return heading
    return (
        f"{heading}\n"
        "Every other key has its default: `nextlong init --full` writes all keys, with "
        "their meaning."
    )


def _written(path: Path, to_do: str) -> str:
    return f"wrote {path}; {to_do}, then: nextlong run {path}"


def _present(
    args: argparse.Namespace,
    recipe: Recipe,
    *,
    has_documents: bool,
    notes: Sequence[str],
    written: str,
) -> None:
    sources = [
        source.model_dump(include={"path", "name", "text", "id"})
        for source in recipe.ingest.sources
    ]
    outcome: Json = {
        "recipe": str(args.recipe),
        "run_dir": recipe.run_dir,
        "sources": sources,
        "tokenizer": recipe.tokenizer.source or recipe.tokenizer.train,
        "has_documents": has_documents,
        "notes": notes,
    }
    lines = [*notes, written] if written else notes
    present(args, outcome, "\n".join(lines))


def new_recipe(
    recipe_path: Path, given: Sequence[str] = (), *, tokenizer: str | None = None
) -> NewRecipe:
    """Return a recipe for the sources `given`, or else for what lies beside it.

    These are the documents in the recipe's folder; without any, an example path.
    `tokenizer` is a file, a folder, a hub name, or the size of a vocabulary to train;
    by default the tokenizer.json in the recipe's folder. Raises CorpusError for a
    source that does not exist, TokenizerError for an unusable tokenizer.
    """
    forget_files()
    folder = Path(absolute(recipe_path)).parent
    sources = _sources_given(given) or _sources_beside(folder)
    found_paths: list[str] = []
    for path in _gathered(sources):
        found_paths += _split_up(path)
    paths = list(dict.fromkeys(found_paths)) or [str(folder / "data/*.jsonl")]

    # Absolute paths, until the recipe is written beside its documents.
    names = _names(paths)
    tokenizer_keys = _tokenizer_keys(tokenizer, folder)
    described = list(map(_source_keys, paths, names))
    for keys in described:
        # Token ids are most likely those of the tokenizer of the recipe.
        if _holds_token_ids(keys["path"]) and "source" in tokenizer_keys:
            keys["tokenizer"] = tokenizer_keys["source"]
    plain: Json = {
        "run_dir": str(_folder_of_runs(folder, paths) / "runs" / recipe_path.stem),
        "ingest": {"sources": described},
        "tokenizer": tokenizer_keys,
    }
    recipe = Recipe.from_dict(plain)
    check_tokenizer(recipe, Corpus(recipe))
    ends = find_ends_of(recipe.tokenizer) or Ends()
    for key, token in (("bos", ends.bos), ("eos", ends.eos)):
        if token is not None:
            tokenizer_keys[key] = token

    # Lengths and numbers follow from a sample of the documents, if they can be read.
    proposal = None
    problem = ""
    if found_paths:
        recipe = Recipe.from_dict(plain)
        samples, problem = _sampled(recipe)
        proposal = _propose(recipe, samples)
    if proposal is not None:
        plain |= _proposed_keys(proposal, recipe)
    return NewRecipe(
        recipe=Recipe.from_dict(plain),
        proposal=proposal,
        problem=problem,
        sources=sources,
        beside=None if given else folder,
        unused=() if given else _unused_folders(folder, sources),
    )


def _sources_given(given: Sequence[str]) -> list[str]:
    """Return the sources that the user gave.

    Raises CorpusError for one that does not exist; URLs are not looked at.
    """
    sources = []
    for path in given:
        if "://" in path:
            sources.append(path)
        else:
            sources.append(absolute(path))
            files_of(absolute(path))
    return sources


def _proposed_keys(proposal: _Proposal, recipe: Recipe) -> Json:
    keys: Json = {}
    if proposal.max_chars != recipe.chunk.max_chars:
        keys["chunk"] = {"max_chars": proposal.max_chars}
    keys["compose"] = {
        "target_tokens": proposal.target_tokens,
        "sequences": proposal.sequences,
    }
    if proposal.min_chunks is not None:
        keys["compose"]["min_meta_chunks"] = proposal.min_chunks.meta_chunks
    return keys


def _folder_of_runs(folder: Path, paths: Sequence[str]) -> Path:
    """Return the folder, or the nearest one above it, where no source reads runs."""
    # A URL is not looked at: it may need a package.
    local = [Source(path=path) for path in paths if "://" not in path]
    for candidate in (folder, *folder.parents):
        runs = candidate / "runs"
        if not any(reaches(source, runs) for source in local):
            return candidate
    return folder


def _source_keys(path: str, name: str) -> Json:
    """Return the keys of a source: what its files show, if it is not the default."""
    looks = looks_into(path)
    tables = [look for look in looks if look.has_columns]
    with_text = [look for look in tables if look.text]
    keys: Json = {"path": path, "name": name}
    best = next(iter([*with_text, *tables]), None)
    if best is not None:
        keys |= {"text": best.text, "id": best.id}
    keys["encoding"] = next((look.encoding for look in looks if look.encoding), None)
    keys |= _split_keys(path)
    return {key: value for key, value in keys.items() if value}


def _holds_token_ids(path: str) -> bool:
    """Return whether a file of a source holds token ids and no text."""
    for look in looks_into(path):
        file_format = format_of(look.file.name, Source(path=path))
        if file_format.has_token_ids and not look.text:
            return True
    return False


def _tokenizer_keys(tokenizer: str | None, folder: Path) -> Json:
    """Return the keys of the tokenizer given, of the folder's, or of a new one."""
    beside = folder / "tokenizer.json"
    if tokenizer is None:
        return {"source": str(beside)} if beside.is_file() else {"train": _VOCABULARY}
    size = read_length(tokenizer)
    if size is not None:
        return {"train": size}
    exists = Path(tokenizer).expanduser().exists()
    return {"source": absolute(tokenizer) if exists else tokenizer}


def _with_relative_paths(recipe: Recipe, folder: Path, given: Sequence[str]) -> Recipe:
    """Return the recipe with paths that start from its folder.

    A path that the user gave as an absolute one stays absolute, unless it is below the
    folder.
    """
    here = Path(absolute(folder))
    far = [absolute(path) for path in given if Path(path).expanduser().is_absolute()]

    def seen_from_here(path: str) -> str:
        is_below = Path(path).is_relative_to(here)
        is_far = any(Path(path).is_relative_to(start) for start in far)
        return path if is_far and not is_below else os.path.relpath(path, here)

    plain = recipe.as_data()
    plain["run_dir"] = os.path.relpath(recipe.run_dir, here)
    for source in plain["ingest"]["sources"]:
        if "://" not in source["path"]:
            source["path"] = seen_from_here(source["path"])
        if source["tokenizer"] and Path(source["tokenizer"]).is_absolute():
            source["tokenizer"] = seen_from_here(source["tokenizer"])
    tokenizer = recipe.tokenizer.source
    if tokenizer is not None and Path(tokenizer).is_absolute():
        plain["tokenizer"]["source"] = seen_from_here(tokenizer)
    return Recipe.from_dict(plain)


def _split_keys(path: str) -> dict[str, str | None]:
    """Return the split and config that are read of a data set folder with several.

    {} for other sources.
    """
    chosen = None
    if "://" not in path:
        with suppress(CorpusError):  # a glob without files
            chosen = split_of(Source(path=path), where="FILE")
    if chosen is None or not chosen.note:
        return {}
    return {"split": chosen.split, "config": chosen.config}


def _sampled(recipe: Recipe) -> tuple[list[Look], str]:
    """Return a sample of each source with documents, and why there is none.

    If a source is remote, no sample.
    """
    if any("://" in source.path for source in recipe.ingest.sources):
        return [], ""
    try:
        files = [list_files(source, where="FILE") for source in recipe.ingest.sources]
        looks = look_at(recipe.ingest, files)
    except (NextlongError, *UNREADABLE) as error:
        return [], str(error)
    samples = [look for look in looks if look.documents]
    if samples:
        return samples, ""
    return [], _why_no_documents(looks)


def _why_no_documents(looks: Sequence[Look]) -> str:
    reasons: Counter[str] = Counter()
    for look in looks:
        reasons += look.skipped
        for kind, count in look.rejects.items():
            reasons[str(kind)] += count
    counts = [f"{count:,} × {reason}" for reason, count in reasons.items()]
    problem = "no record is a document"
    if counts:
        problem += f": {', '.join(counts)}"
    return f"{problem}; use other files"


def _propose(recipe: Recipe, samples: Sequence[Look]) -> _Proposal | None:
    """Return lengths and numbers that fit samples of a recipe's sources.

    None if these are too small.
    """
    try:
        tokens = count_tokens(recipe, list(samples)) if samples else 0.0
    except (NextlongError, *UNREADABLE):
        return None
    if tokens < _MIN_TOKENS:
        return None

    # A sample represents `scale` times as much of its source.
    documents = sum(sample.scale * sample.distinct_documents for sample in samples)
    chars = sum(sample.scale * sample.distinct_chars for sample in samples)
    tokens_per_char = tokens / chars

    # (n,) the characters of each sampled document, its chunks, and how many documents
    # of its source it stands for.
    document_chars = _chars_of_documents(samples)
    median_chars = float(np.median(document_chars))
    max_chars = recipe.chunk.max_chars
    max_chars, short_chunks = _chunk_chars(document_chars, max_chars)
    options = recipe.chunk.model_dump() | {"max_chars": max_chars}
    chunks, weights = _chunks_of_documents(samples, options)

    # Documents of more chunks leave fewer tokens after the last meta-chunk.
    min_chunks = _min_chunks(chunks, weights)
    meta_chunks = recipe.compose.min_meta_chunks
    if min_chunks is not None:
        meta_chunks = min_chunks.meta_chunks
    is_extendable = chunks >= meta_chunks
    extendable = float(weights[is_extendable].sum())

    # A sequence is as long as the corpus or its documents are large enough for.
    sampled_chunks = np.ceil(document_chars / max_chars).sum()
    chunk_tokens = tokens_per_char * document_chars.sum() / sampled_chunks
    # The warning `small-corpus` counts the documents of a sequence, which are fewer
    # than its chunks.
    distinct_tokens = min(tokens, documents * chunk_tokens / _DOCUMENTS_PER_CHUNK)
    from_corpus = _power_of_two(THRESHOLDS.max_of_corpus * distinct_tokens)
    from_documents = _room_for(document_chars[is_extendable], tokens_per_char)
    from_documents = min(from_documents, _power_of_two(tokens))
    target_tokens = max(_MIN_TOKENS, from_corpus, from_documents)
    target_tokens = min(_max_tokens(recipe), target_tokens)
    # Of other documents a sequence takes what its own one leaves.
    own_tokens = tokens_per_char * _median(document_chars[is_extendable])
    other_chunks = max(0.0, target_tokens - own_tokens) / chunk_tokens
    in_sequence = 1 + _DOCUMENTS_PER_CHUNK * other_chunks
    warning = small_corpus(min(documents, in_sequence), documents)

    # Each chunk is used about twice, and no more documents extended than there are.
    sequences = min(_USES * tokens / target_tokens, extendable, _MAX_SEQUENCES)
    few_extendable = ""
    smaller = three_chunk_chars(median_chars)
    if extendable < _FEW_EXTENDABLE * documents and smaller < max_chars:
        few_extendable = (
            f"only {extendable:,.0f} of {documents:,.0f} documents have "
            f"compose.min_meta_chunks={meta_chunks} chunks or more and can be "
            f"extended; chunk.max_chars: {smaller} would give the median document "
            "three chunks"
        )

    # Rejected records do not change the proposal, but too many of them stop a run.
    rejects = sum(sample.rejects.total() for sample in samples)
    records = sum(sample.documents for sample in samples) + rejects
    first_rejects: list[Reject] = []
    for sample in samples:
        first_rejects += sample.first_rejects
    return _Proposal(
        target_tokens=target_tokens,
        sequences=max(1, math.floor(sequences)),
        max_chars=max_chars,
        documents=documents,
        tokens=tokens,
        rejects=rejects,
        reject_share=rejects / max(1, records),
        first_rejects=first_rejects[:_NAMED_FILES],
        min_chunks=min_chunks,
        short_chunks=short_chunks,
        few_extendable=few_extendable,
        small_corpus="" if warning is None else warning.message,
    )


def _chunk_chars(document_chars: Ints, max_chars: int) -> tuple[int, str]:
    """Return the size of chunks to propose, and why it is not the default."""
    share = (document_chars > max_chars).mean()
    if share >= _MIN_EXTENDABLE:
        return max_chars, ""
    shorter = three_chunk_chars(_median(document_chars))
    note = (
        f"chunk.max_chars: {shorter}, so that the median document has three chunks; "
        f"only {share:.0%} of the documents have more than {max_chars:,} characters"
    )
    return shorter, note


def _room_for(document_chars: Ints, tokens_per_char: float) -> int:
    """Return a power of two with room for the median of these documents."""
    if not len(document_chars):
        return _MIN_TOKENS
    room = _ROOM * tokens_per_char * _median(document_chars)
    return 1 << math.ceil(math.log2(room))


def _median(chars: Ints) -> float:
    return float(np.median(chars)) if len(chars) else 0.0


def _max_tokens(recipe: Recipe) -> int:
    """Return the longest sequence to propose."""
    if recipe.tokenizer.train is None:
        return _MAX_TOKENS
    # The warning `stand-in-tokenizer` is given for longer sequences of a tokenizer that
    # is trained on the corpus.
    return THRESHOLDS.stand_in_tokens // 2


def _chars_of_documents(samples: Sequence[Look]) -> Ints:
    """Return the characters of each sampled document, shape (n,)."""
    chars: list[int] = []
    for sample in samples:
        chars += [len(text) for text in sample.texts]
    return np.array(chars)


def _chunks_of_documents(
    samples: Sequence[Look], options: Json
) -> tuple[Ints, Doubles]:
    """Return the chunks of each sampled document, and the documents it stands for.

    Shape (n,) each.
    """
    chunks: list[int] = []
    weights: list[float] = []
    for sample in samples:
        chunks += [len(chunk_text(text, **options)) for text in sample.texts]
        stands_for = sample.scale * sample.distinct_documents
        weights += [stands_for / len(sample.texts)] * len(sample.texts)
    return np.array(chunks, np.int64), np.array(weights)


def _min_chunks(chunks: Ints, weights: Doubles) -> _MinChunks | None:
    """Return the compose.min_meta_chunks that avoids the warning `few-meta-chunks`.

    None if the default does or none can.
    """
    documents = list(zip(chunks.tolist(), weights.tolist(), strict=True))
    shares = shares_after_last(documents)
    enough = enough_meta_chunks(shares)
    if enough is None:
        return None
    default = min(shares)
    if enough == default or shares[enough].remaining < _MIN_LEFT:
        return None
    return _MinChunks(
        meta_chunks=enough,
        documents=float(weights[chunks >= enough].sum()),
        extendable=float(weights[chunks >= default].sum()),
        share=shares[enough].share,
        share_of_all=shares[default].share,
    )


def _power_of_two(at_most: float) -> int:
    return 1 << math.floor(math.log2(max(1.0, at_most)))


def notes(new: NewRecipe) -> Iterator[str]:
    """Yield notes on a new recipe: sources, tokenizer, proposal, and unused files."""
    yield from _notes_on_sources(new)
    if new.sources or new.recipe.tokenizer.source is not None:
        yield from _tokenizer_notes(new.recipe)
    if new.problem and not _problems_of_files(new):
        yield new.problem
    if new.proposal is not None:
        yield from _proposal_notes(new.proposal)
    # A folder of documents beside the recipe is named, not read: they may be others.
    if new.unused:
        folders = ", ".join(str(folder) for folder in new.unused)
        command = f"nextlong init RECIPE {shlex.quote(str(new.unused[0]))}"
        yield (
            "folders not used, because they may not be documents, or are another "
            f"split: {folders}; to use them, give all sources as FILE arguments, such "
            f"as: {command}"
        )
    if new.beside is not None:
        used = {*new.sources, str(new.recipe.tokenizer.source)}
        yield from _unused_notes(new.beside, used)
        yield from _unused_notes(new.beside / "data", used)


def _notes_on_sources(new: NewRecipe) -> Iterator[str]:
    # The source of a recipe without documents is only an example.
    if not new.sources:
        return
    for source in new.recipe.ingest.sources:
        yield from source_notes(source, looks_into(source.path))
        yield from _split_notes(source)
    for path in new.sources:
        yield from _unsupported_notes(Path(path))


def _proposal_notes(proposal: _Proposal) -> Iterator[str]:
    yield str(proposal)
    if proposal.min_chunks is not None:
        yield str(proposal.min_chunks)
    for note in (
        proposal.short_chunks,
        proposal.few_extendable,
        proposal.small_corpus,
    ):
        if note:
            yield note


def _split_notes(source: Source) -> Iterator[str]:
    """Yield which split of a data set is read."""
    if source.split is None:
        return
    chosen = split_of(source, where="FILE")
    if chosen is not None and chosen.note:
        yield (
            f"{source.label}: {chosen.note}; to change that, set split (all: every "
            "file)"
        )


def _unsupported_notes(folder: Path) -> Iterator[str]:
    """Yield the files in a folder that no format is known for; hidden ones are not."""
    unknown = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part[0] == "." for part in name.parts)
        if path.is_file() and not is_hidden and kind_of_name(path.name) == "unknown":
            unknown.append(str(name))
    if unknown:
        shown = first_few(unknown, max_names=_NAMED_FILES)
        yield f"{folder}: skipped, unsupported extension: {shown}"


def _unused_notes(folder: Path, used: Container[str]) -> Iterator[str]:
    """Yield the files of documents in a folder that no source names."""
    unused = []
    for path in folder.glob("*"):
        is_document = path.is_file() and kind_of_name(path.name) == "documents"
        if is_document and str(path) not in used:
            unused.append(path.name)
    if unused:
        shown = first_few(sorted(unused), max_names=_NAMED_FILES)
        yield (
            f"{folder}: not used, because they may not be documents, or are another "
            f"split: {shown}; to use them, give them as FILE arguments"
        )


def _tokenizer_notes(recipe: Recipe) -> Iterator[str]:
    source = recipe.tokenizer.source
    ends = find_ends_of(recipe.tokenizer)
    if source is None:
        yield (
            "tokenizer: will be trained on these documents "
            f"({recipe.tokenizer.train:,} "
            "tokens), so it is not compatible with any pretrained model; to continue "
            "the pretraining of a model, pass its tokenizer with --tokenizer"
        )
    elif ends is None:
        yield (
            f"tokenizer: {source} could not be read, so its end-of-text token is "
            "unknown; check its name, or set tokenizer.eos"
        )
    elif ends.eos is None:
        yield (
            "tokenizer: no end-of-text token was found, so a model will not learn "
            "where a text ends; set tokenizer.eos"
        )
    else:
        yield (
            f"tokenizer: {ends.eos} ends each sequence (according to {ends.eos_source})"
        )
    if source is not None and ends is not None and ends.bos is not None:
        yield (
            f"tokenizer: {ends.bos} begins each sequence (according to "
            f"{ends.bos_source})"
        )


def _is_readable(new: NewRecipe) -> bool:
    """Return whether a run will accept the files.

    None is damaged, each table has a text column, and few records are rejected.
    """
    if new.problem or _has_many_rejects(new) or _problems_of_files(new):
        return False
    return all(
        _has_text(looks_into(source.path)) for source in new.recipe.ingest.sources
    )


def _problems_of_files(new: NewRecipe) -> list[str]:
    """Return why files cannot be read, which the notes of each source say."""
    problems: list[str] = []
    for source in new.recipe.ingest.sources:
        looks = looks_into(source.path)
        problems += [look.problem for look in looks if look.problem]
    return problems


def _refusal(new: NewRecipe) -> tuple[str, str]:
    """Return why a run will not accept the files, and the fix."""
    without_text = []
    for source in new.recipe.ingest.sources:
        looks = looks_into(source.path)
        could_be_read = not any(look.problem for look in looks)
        if could_be_read and not _has_text(looks):
            without_text.append(source.label)
    if without_text:
        names = first_few(without_text, max_names=_NAMED_FILES)
        return f"no column of {names} looks like text", "set the source's key `text`"
    problem = "`nextlong run` would refuse its files"
    if _has_many_rejects(new) and new.proposal is not None:
        fix = f"correct the records, or set {allowing(new.proposal.reject_share)}"
        return f"{problem}: too many records would be rejected", fix
    return problem, "solve the problems above"


def _has_many_rejects(new: NewRecipe) -> bool:
    if new.proposal is None:
        return False
    return new.proposal.reject_share > new.recipe.ingest.max_reject_share


def _has_text(looks: Sequence[FileLook]) -> bool:
    """Return whether a source has a text column, or no tables."""
    tables = [look for look in looks if look.has_columns]
    return not tables or any(look.text for look in tables)


def _split_up(path: str) -> list[str]:
    """Return a path, or several if its files hold their texts in different columns.

    These are one per file, or one per suffix. Plain text files are kept as one folder,
    because only all of them show which ones describe the others.
    """
    looks = looks_into(path)  # the first files of each suffix
    text_columns = {look.text for look in looks if look.text}
    if len(text_columns) < 2:
        return [path]
    files = files_of(path)
    if len(files) <= MAX_FILES:
        return [file.path for file in files]
    # Many files of one suffix in different columns stay one source: a note names them.
    suffixes = list(dict.fromkeys(look.suffix for look in looks))
    has_only_tables = all(look.has_columns for look in looks)
    if len(suffixes) > 1 and has_only_tables and Path(path).is_dir():
        return [f"{glob.escape(path)}/**/*{suffix}" for suffix in suffixes]
    return [path]


def _sources_beside(folder: Path) -> list[str]:
    """Return the files and folders of documents in a folder and its `data`."""
    readme = folder / README
    content = readme.read_bytes() if readme.is_file() else b""
    if read_metadata(content, b"", b"", where=str(folder)).configs:
        return [str(folder)]  # a copy of a data set of the hub

    # The names of files tell which split a source belongs to.
    file_of_source = _candidates_beside(folder)
    names = {
        str(file.relative_to(folder)): source for source, file in file_of_source.items()
    }
    chosen = choose_split(
        list(names), Metadata(), split=None, config=None, where=str(folder)
    )
    sources = list(names.values())
    if chosen is not None:
        sources = [names[name] for name in chosen.names]

    # Copies of data sets, whose files may be deeper or have other suffixes.
    others = set(folder.glob("*")) - file_of_source.keys() - {folder / "data"}
    data_sets = [below for below in sorted(others) if _has_train_split(below)]
    return [str(source) for source in [*sources, *data_sets]]


def _candidates_beside(folder: Path) -> dict[Path, Path]:
    """Return the files of documents and the folders with some, each with a file.

    They are in a folder and its `data`.
    """
    data = folder / "data"
    file_of_source = {path: path for path in _data_files(folder)}
    file_of_source |= {path: path for path in _data_files(data)}
    for parent, pattern in ((folder, "*"), (data, "**/*")):
        for below in sorted(parent.glob("*")):
            if below == data or not _may_hold_documents(below):
                continue
            first = _first_data_file(below, pattern)
            if first is not None:
                file_of_source[below] = first
    return file_of_source


def _data_files(folder: Path) -> list[Path]:
    """Return the files of documents in a folder, by suffix."""
    files: list[Path] = []
    for suffix in _DATA_SUFFIXES:
        files += sorted(folder.glob(f"*{suffix}"))
    return files


def _first_data_file(folder: Path, pattern: str) -> Path | None:
    """Return a file of documents in a folder; None if there is none."""
    for suffix in _DATA_SUFFIXES:
        first = next(folder.glob(f"{pattern}{suffix}"), None)
        if first is not None:
            return first
    return None


def _may_hold_documents(path: Path) -> bool:
    """Return whether a path is a folder that a user may keep documents in.

    It is not hidden, and neither a run directory nor an environment.
    """
    if path.name in _OTHERS_FOLDERS or path.name.startswith("."):
        return False
    # Files such as lost+found/inputs.json cannot be asked for without permission.
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return False
    return not any((path / name).is_file() for name in _OTHERS_FILES)


def _has_train_split(path: Path) -> bool:
    """Return whether a folder is a data set with a split to train on.

    It is a copy of one of the hub, or a saved one.
    """
    if not _may_hold_documents(path):
        return False
    readme = path / README
    has_shards = any(path.glob("data/train-*-of-*"))
    chosen = None
    # Its configs may have no default one, and its files may not be readable.
    with suppress(CorpusError, OSError):
        content = readme.read_bytes() if readme.is_file() else b""
        configs = read_metadata(content, b"", b"", where=str(path)).configs
        if has_shards or configs or (path / SAVED).is_file():
            chosen = split_of(Source(path=str(path)), where="FILE")
    return chosen is not None and "train" in chosen.split.split("+")


def _unused_folders(folder: Path, sources: Sequence[str]) -> list[Path]:
    """Return the folders with documents that no source is, or is in.

    They are in a folder and its `data`.
    """
    used = [Path(source) for source in sources]
    if folder in used:
        return []
    data = folder / "data"
    below = [path for path in sorted(folder.glob("*")) if path != data]
    below += sorted(data.glob("*"))
    unused = []
    for path in below:
        is_used = any(source.is_relative_to(path) for source in used)
        if not is_used and _may_hold_documents(path) and _holds_a_document(path):
            unused.append(path)
    return unused


def _holds_a_document(folder: Path) -> bool:
    """Return whether a file in a folder and its folders has the name of a document.

    Only the first files are asked.
    """
    names_left = _MAX_NAMES
    for parent, folders, names in os.walk(folder):
        # The vocabulary of a model is no document.
        is_model = not _MODEL_FILES.isdisjoint(names)
        if not is_model and any(kind_of_name(name) == "documents" for name in names):
            return True
        names_left -= len(names)
        if names_left < 0:
            return False
        folders[:] = [
            name for name in folders if _may_hold_documents(Path(parent) / name)
        ]
    return False


def _gathered(paths: Sequence[str]) -> list[str]:
    """Return the paths; many files that are all of their suffix become one glob."""
    kept = list(dict.fromkeys(paths))
    if len(kept) <= MAX_FILES:
        return kept
    for folder in dict.fromkeys(Path(path).parent for path in kept):
        for suffix in _DATA_SUFFIXES:
            files = {str(path) for path in folder.glob(f"*{suffix}")}
            if len(files) > 1 and files <= set(kept):
                # The glob stands where the first of its files stood.
                first = min(files, key=kept.index)
                kept[kept.index(first)] = f"{glob.escape(str(folder))}/*{suffix}"
                kept = [path for path in kept if path not in files]
    return kept


def _names(paths: Sequence[str]) -> list[str]:
    """Return a unique name for each path, the shortest of its possible ones."""
    possible_names = [_possible_names(path) for path in paths]
    paths_with_name: Counter[str] = Counter()
    for names in possible_names:
        paths_with_name.update(set(names))
    chosen = []
    for names in possible_names:
        unique = [name for name in names if paths_with_name[name] == 1]
        chosen.append(unique[0] if unique else names[-1])
    return chosen


def _possible_names(path: str) -> list[str]:
    """Return names for a path, the preferred first.

    Its stem, or the folder of a glob; with the folders before it; then ends of the
    path, such as `books/*.jsonl`; then the path.
    """
    parts = _parts(path.partition("://")[2] or path)
    is_pattern = [glob.has_magic(part) for part in parts]
    if any(is_pattern):
        stem = parts[: is_pattern.index(True)] or [path]
    else:
        stem = [*parts[:-1], _without_suffixes(parts[-1])]
    whole = [part for part in _parts(path) if part != "**"]
    tails = [stem[-length:] for length in range(1, len(stem) + 1)]
    tails += [whole[-length:] for length in range(2, len(whole) + 1)]
    return [*map("/".join, tails), path]


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).parts if part != "/"]


def _without_suffixes(name: str) -> str:
    suffixes = "|".join(map(re.escape, (*_DATA_SUFFIXES, *_OTHER_SUFFIXES)))
    return re.sub(rf"(?<=.)({suffixes})+$", "", name)
