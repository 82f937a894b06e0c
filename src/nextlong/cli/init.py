"""The command `nextlong init`: write the first recipe for a user's files, with paths relative to the recipe.

It proposes the longest context length (a power of two) for which the corpus and its documents are large enough, a number of
sequences that uses each chunk about twice, shorter chunks if few documents have two, and as many chunks of a meta-document as
avoid the warning `few-meta-chunks`.
"""

from __future__ import annotations

import argparse
import glob
import itertools
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts.record import INPUTS
from nextlong.checks import Corpus, check_tokenizer, count_tokens
from nextlong.cli.columns import (
    MAX_FILES,
    FileLook,
    files_of,
    forget_files,
    looks_into,
    source_notes,
)
from nextlong.cli.common import absolute, first_few, present, write
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
from nextlong.reading.formats import UNREADABLE
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
_OTHER_SUFFIXES: Final = (
    ".json",
    ".ndjson",
    ".arrow",
    ".txt",
    ".md",
    *COMPRESSIONS,
)  # not part of a source's name
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
_OTHERS_FILES: Final = (INPUTS, "pyvenv.cfg")  # in a run directory, an environment
_MODEL_FILES: Final = frozenset(
    {"tokenizer.json", "tokenizer_config.json", "config.json"}
)
_NAMES_LOOKED_AT: Final = 10_000  # in a folder, until one is that of a document
_VOCABULARY: Final = 32_000
_NAMED_FILES: Final = 3  # in a sentence, and rejected records

_MIN_TOKENS, _MAX_TOKENS = 1_024, 131_072  # of a sequence
_MIN_EXTENDABLE: Final = 0.1  # of the documents, which have two chunks or more
_MIN_LEFT: Final = 0.1  # of the extendable documents, by compose.min_meta_chunks
_FEW_EXTENDABLE: Final = 0.25  # of the documents, which is worth a note
_ROOM: Final = (
    4  # a sequence is this many times as long as the median extended document
)
_DOCUMENTS_PER_CHUNK: Final = 0.8  # in a sequence; 0.46 to 0.81 in seven corpora
_USES: Final = 2.0  # of a chunk, on average
_MAX_SEQUENCES: Final = 1_000  # of a first run


@dataclass(frozen=True)
class _LeastChunks:
    """The proposed compose.min_meta_chunks, and what it costs: documents with as many chunks, of those with two.

    `share` of the tokens are expected after the last meta-chunk; `share_of_all` if all documents with two chunks were
    extended.
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
            f"instead of {self.share_of_all:.0%} of the tokens stand after the last "
            f"meta-chunk, where they stretch no dependency; {remain} with two chunks "
            "or more remain to be extended"
        )


@dataclass(frozen=True)
class _Proposal:
    """Lengths and numbers, and the approximate number of documents and tokens that they follow from."""

    target_tokens: int
    sequences: int
    max_chars: int
    documents: float
    tokens: float
    rejects: int
    reject_share: float
    first_rejects: Sequence[Reject] = ()
    least: _LeastChunks | None = None
    few_extendable: str = ""

    def __str__(self) -> str:
        uses = self.sequences * self.target_tokens / self.tokens
        message = (
            f"about {self.documents:,.0f} documents with {self.tokens:,.0f} tokens: {counted(self.sequences, 'sequence')} of "
            f"{self.target_tokens:,} tokens, each chunk used {uses:.1f} times on average"
        )
        if not self.rejects:
            return message
        examples = ", ".join(
            f"{reject.file}:{reject.line} ({reject.reason})"
            for reject in self.first_rejects
        )
        such_as = (
            f"{', such as' if self.rejects > len(self.first_rejects) else ':'} {examples}"
            if examples
            else ""
        )
        return f"{message}; {counted(self.rejects, 'record')} would be rejected ({self.reject_share:.1%}){such_as}"


@dataclass(frozen=True)
class _NewRecipe:
    """A first recipe, the proposal in it (None: files unreadable), and its sources, given or found in the folder `beside`.

    `problem` is why its files give no documents, "" if they do. `unused` are the folders with documents beside the recipe that
    are no source.
    """

    recipe: Recipe
    proposal: _Proposal | None
    problem: str
    sources: Sequence[str]
    beside: Path | None
    unused: Sequence[Path] = ()


def init(args: argparse.Namespace) -> None:
    path: Path = args.recipe
    # Documents are never overwritten.
    if path.name.lower().endswith(_NEVER_RECIPES):
        raise RecipeError(
            f"{path} is the name of a data file, not of a recipe; use: nextlong init my.yaml {path}"
        )
    if path.is_dir():
        raise RecipeError(
            f"{path} is a folder; RECIPE is the file to write: nextlong init my.yaml {path}"
        )
    if path.exists() and not args.force:
        raise RecipeError(
            f"{path} exists; choose another name, or add --force to overwrite it"
        )
    if (
        path.is_file()
        and path.stat().st_size
        and not _LIKE_A_RECIPE.search(path.read_bytes()[:_RECIPE_HEAD_BYTES])
    ):
        raise RecipeError(
            f"{path} is not a recipe, so it is not overwritten; choose another name"
        )
    messages: list[str] = []
    has_documents = is_readable = True
    unused: Sequence[Path] = ()
    if args.preset is not None:
        if option := "--full" if args.full else "--tokenizer" if args.tokenizer else "":
            raise NextlongError(
                f"--preset copies a recipe unchanged; remove {option}, then edit the copy"
            )
        if args.sources:
            raise NextlongError(
                "--preset has its own sources; remove the files, then edit ingest.sources in the copy"
            )
        write(path, preset_path(args.preset).read_text(encoding="utf-8"))
        recipe = Recipe.load(path)
    else:
        new = new_recipe(path, args.sources, tokenizer=args.tokenizer)
        recipe, has_documents, is_readable = (
            new.recipe,
            bool(new.sources),
            _is_readable(new),
        )
        heading = f"A recipe of nextlong. `nextlong plan {path}` estimates its cost, `nextlong run {path}` runs it.\n"
        heading += "Relative paths start from the folder of this file."
        if not args.full:
            heading += "\nEvery other key has its default: `nextlong init --full` writes all keys, with their meaning."
        given = [*args.sources, args.tokenizer or ""]
        write(
            path,
            commented(
                _with_relative_paths(recipe, path.parent, given),
                heading=heading,
                include="all" if args.full else "important",
            ),
        )
        messages = list(notes(new))
        unused = new.unused
    named = [
        source.model_dump(include={"path", "name", "text", "id"})
        for source in recipe.ingest.sources
    ]
    outcome: Json = {"recipe": str(path), "run_dir": recipe.run_dir, "sources": named}
    outcome |= {
        "tokenizer": recipe.tokenizer.source or recipe.tokenizer.train,
        "has_documents": has_documents,
    }
    is_refused, to_do = (
        has_documents and not is_readable,
        "check ingest.sources and tokenizer",
    )
    if not has_documents:
        to_do = "no documents were found in its folder: set ingest.sources to the path of yours"
        if unused:
            to_do = "no folder was chosen: set ingest.sources to the path of one"
    wrote = [] if is_refused else [f"wrote {path}; {to_do}, then: nextlong run {path}"]
    present(args, {**outcome, "notes": messages}, "\n".join([*messages, *wrote]))
    if is_refused:
        raise NextlongError(f"{path} was written, but {_refusal(new)}")


def new_recipe(
    recipe_path: Path, given: Sequence[str] = (), *, tokenizer: str | None = None
) -> _NewRecipe:
    """Return a recipe for the sources `given`, else for the documents in the recipe's folder, else with an example path.

    `tokenizer` is a file, a folder, a hub name, or the size of a vocabulary to train; by default the tokenizer.json in the
    recipe's folder. Raises CorpusError for a source that does not exist, TokenizerError for an unusable tokenizer.
    """
    forget_files()
    folder = Path(absolute(recipe_path)).parent
    sources = [
        path if "://" in path else absolute(path) for path in given
    ] or _sources_beside(folder)
    for path in sources if given else ():
        if "://" not in path:
            files_of(path)  # raises CorpusError for one that does not exist
    found_paths = [
        path for gathered in _gathered(sources) for path in _split_up(gathered)
    ]
    paths = list(dict.fromkeys(found_paths)) or [str(folder / "data/*.jsonl")]
    local = [
        Source(path=path) for path in paths if "://" not in path
    ]  # a URL may need a package to be looked at
    # Runs are written to the folder, or to the nearest one above it, where no source would read them.
    places = (folder, *folder.parents)
    outside = next(
        (
            one
            for one in places
            if not any(reaches(source, one / "runs") for source in local)
        ),
        folder,
    )
    named = []
    for path, name in zip(paths, _names(paths), strict=True):
        looks = looks_into(path)
        tables = [look for look in looks if look.has_columns]
        first = next(
            (look for look in tables if look.text), tables[0] if tables else None
        )
        columns = {} if first is None else {"text": first.text, "id": first.id}
        encoding = next(filter(None, (one.encoding for one in looks)), None)
        keys = columns | {"encoding": encoding} | _split_keys(path)
        named.append(
            {"path": path, "name": name}
            | {key: value for key, value in keys.items() if value}
        )
    beside, size = (
        folder / "tokenizer.json",
        _VOCABULARY if tokenizer is None else read_length(tokenizer),
    )
    made: dict[str, str | int] = {} if size is None else {"train": size}
    if tokenizer is None and beside.is_file():
        made = {"source": str(beside)}
    elif tokenizer is not None and size is None:
        made = {
            "source": absolute(tokenizer)
            if Path(tokenizer).expanduser().exists()
            else tokenizer
        }
    plain: Json = {
        "run_dir": str(outside / "runs" / recipe_path.stem),
        "ingest": {"sources": named},
        "tokenizer": made,
    }
    recipe = Recipe.from_dict(plain)
    check_tokenizer(recipe, Corpus(recipe))
    ends = find_ends_of(recipe.tokenizer) or Ends()
    made |= {
        key: token
        for key, token in (("bos", ends.bos), ("eos", ends.eos))
        if token is not None
    }
    proposal = None
    problem = ""
    if found_paths:
        samples, problem = _sampled(Recipe.from_dict(plain))
        proposal = _propose(Recipe.from_dict(plain), samples)
    if proposal is not None:
        if proposal.max_chars != recipe.chunk.max_chars:
            plain["chunk"] = {"max_chars": proposal.max_chars}
        plain["compose"] = {
            "target_tokens": proposal.target_tokens,
            "sequences": proposal.sequences,
        }
        if proposal.least is not None:
            plain["compose"] |= {"min_meta_chunks": proposal.least.meta_chunks}
    return _NewRecipe(
        recipe=Recipe.from_dict(plain),
        proposal=proposal,
        problem=problem,
        sources=sources,
        beside=None if given else folder,
        unused=() if given else _unused_folders(folder, sources),
    )


def _with_relative_paths(recipe: Recipe, folder: Path, given: Sequence[str]) -> Recipe:
    """Return the recipe with paths that start from its folder.

    A path that the user gave as an absolute one stays absolute, unless it is below the folder.
    """
    here = Path(absolute(folder))
    far = [absolute(path) for path in given if Path(path).expanduser().is_absolute()]

    def seen(path: str) -> str:
        is_below = Path(path).is_relative_to(here)
        is_far = any(Path(path).is_relative_to(start) for start in far)
        return path if is_far and not is_below else os.path.relpath(path, here)

    plain = recipe.as_data()
    plain["run_dir"] = os.path.relpath(recipe.run_dir, here)
    for source in plain["ingest"]["sources"]:
        if "://" not in source["path"]:
            source["path"] = seen(source["path"])
    tokenizer = recipe.tokenizer.source
    if tokenizer is not None and Path(tokenizer).is_absolute():
        plain["tokenizer"]["source"] = seen(tokenizer)
    return Recipe.from_dict(plain)


def _split_keys(path: str) -> dict[str, str | None]:
    """Return the split and config that are read of a data set folder with several; {} for other sources."""
    chosen = None
    if "://" not in path:
        with suppress(CorpusError):  # a glob without files
            chosen = split_of(Source(path=path), where="FILE")
    if chosen is None or not chosen.note:
        return {}
    return {"split": chosen.split, "config": chosen.config}


def _sampled(recipe: Recipe) -> tuple[list[Look], str]:
    """Return a sample of each source with documents, and why there is none; no sample of a remote source."""
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
    reasons: Counter[str] = Counter()
    for look in looks:
        reasons += look.skipped
        reasons.update({str(kind): count for kind, count in look.rejects.items()})
    counts = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.items())
    found = f": {counts}" if counts else ""
    return [], f"no record is a document{found}; use other files"


def _propose(recipe: Recipe, samples: Sequence[Look]) -> _Proposal | None:
    """Return lengths and numbers that fit samples of a recipe's sources, None if these are too small."""
    try:
        tokens = count_tokens(recipe, list(samples)) if samples else 0.0
    except (NextlongError, *UNREADABLE):
        return None
    if tokens < _MIN_TOKENS:
        return None
    document_chars = np.array(
        [len(text) for sample in samples for text in sample.texts]
    )  # of each sampled document
    max_chars = recipe.chunk.max_chars
    if (document_chars > max_chars).mean() < _MIN_EXTENDABLE:
        # With this size the median document has three chunks.
        max_chars = three_chunk_chars(float(np.median(document_chars)))
    # A sample represents `scale` times as much of its source.
    documents = sum(sample.scale * sample.distinct_documents for sample in samples)
    options = recipe.chunk.model_dump() | {"max_chars": max_chars}
    chunks, weights = _chunks_of_documents(samples, options)
    least = _least_chunks(chunks, weights)
    meta_chunks = recipe.compose.min_meta_chunks if least is None else least.meta_chunks
    is_extendable = chunks >= meta_chunks
    extendable = float(weights[is_extendable].sum())
    tokens_per_char = tokens / sum(
        sample.scale * sample.distinct_chars for sample in samples
    )
    chunk_tokens = (
        tokens_per_char
        * document_chars.sum()
        / np.ceil(document_chars / max_chars).sum()
    )
    # The warning `small-corpus` counts the documents of a sequence, which are fewer than its chunks.
    most_tokens = min(tokens, documents * chunk_tokens / _DOCUMENTS_PER_CHUNK)
    longer = document_chars[is_extendable]
    from_documents = _MIN_TOKENS
    if len(longer):
        from_documents = 1 << math.ceil(
            math.log2(_ROOM * tokens_per_char * float(np.median(longer)))
        )
    # The warning `stand-in-tokenizer` is given for longer sequences of a tokenizer that is trained on the corpus.
    most = (
        _MAX_TOKENS
        if recipe.tokenizer.train is None
        else THRESHOLDS.stand_in_tokens // 2
    )
    from_documents = min(from_documents, _power_of_two(tokens))
    length = min(
        most,
        max(
            _MIN_TOKENS,
            _power_of_two(THRESHOLDS.max_of_corpus * most_tokens),
            from_documents,
        ),
    )
    sequences = max(
        1, math.floor(min(_USES * tokens / length, extendable, _MAX_SEQUENCES))
    )
    few_extendable = ""
    smaller = three_chunk_chars(float(np.median(document_chars)))
    if extendable < _FEW_EXTENDABLE * documents and smaller < max_chars:
        few_extendable = (
            f"only {extendable:,.0f} of {documents:,.0f} documents have "
            f"compose.min_meta_chunks={meta_chunks} chunks or more and can be extended; "
            f"chunk.max_chars: {smaller} would give the median document three chunks"
        )
    rejects = sum(sample.rejects.total() for sample in samples)
    read = sum(sample.documents for sample in samples) + rejects
    first_rejects = [reject for sample in samples for reject in sample.first_rejects][
        :_NAMED_FILES
    ]
    return _Proposal(
        length,
        sequences,
        max_chars,
        documents,
        tokens,
        rejects,
        rejects / max(1, read),
        first_rejects,
        least,
        few_extendable,
    )


def _chunks_of_documents(
    samples: Sequence[Look], options: Json
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the chunks of each sampled document, and how many documents of its source it stands for, shape (n,) each."""
    chunks: list[int] = []
    weights: list[float] = []
    for sample in samples:
        chunks += [len(chunk_text(text, **options)) for text in sample.texts]
        stands_for = sample.scale * sample.distinct_documents
        weights += [stands_for / len(sample.texts)] * len(sample.texts)
    return np.array(chunks, np.int64), np.array(weights)


def _least_chunks(
    chunks: NDArray[np.int64], weights: NDArray[np.float64]
) -> _LeastChunks | None:
    """Return the compose.min_meta_chunks that avoids the warning `few-meta-chunks`, None if the default does or none can."""
    documents = list(zip(chunks.tolist(), weights.tolist(), strict=True))
    shares = shares_after_last(documents)
    enough = enough_meta_chunks(shares)
    if enough is None or enough == min(shares) or shares[enough].remaining < _MIN_LEFT:
        return None
    return _LeastChunks(
        meta_chunks=enough,
        documents=float(weights[chunks >= enough].sum()),
        extendable=float(weights[chunks >= min(shares)].sum()),
        share=shares[enough].share,
        share_of_all=shares[min(shares)].share,
    )


def _power_of_two(most: float) -> int:
    return 1 << math.floor(math.log2(max(1.0, most)))


def notes(new: _NewRecipe) -> Iterator[str]:
    """Yield notes on the sources of a new recipe, its tokenizer and its proposal, and the files that it does not use."""
    for source in new.recipe.ingest.sources if new.sources else ():
        yield from source_notes(source, looks_into(source.path))
        if source.split is not None:
            chosen = split_of(source, where="FILE")
            if chosen is not None and chosen.note:
                yield f"{source.label}: {chosen.note}; to change that, set split (all: every file)"
    for path in map(Path, new.sources):
        below = (
            file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()
        )
        shown = (
            file for file in below if not any(part[0] == "." for part in file.parts)
        )
        unknown = [str(file) for file in shown if kind_of_name(file.name) == "unknown"]
        if unknown:
            yield f"{path}: skipped, unsupported extension: {first_few(unknown, most=_NAMED_FILES)}"
    if new.sources or new.recipe.tokenizer.source is not None:
        yield from _tokenizer_notes(new.recipe)
    if new.problem and not _problems_of_files(new):
        yield new.problem
    if new.proposal is not None:
        yield str(new.proposal)
        if new.proposal.least is not None:
            yield str(new.proposal.least)
        if new.proposal.few_extendable:
            yield new.proposal.few_extendable
    if new.unused:
        why = "because they may not be documents, or are another split"
        named = ", ".join(str(folder) for folder in new.unused)
        command = f"nextlong init RECIPE {shlex.quote(str(new.unused[0]))}"
        yield (
            f"folders not used, {why}: {named}; to use them, give all sources as FILE "
            f"arguments, such as: {command}"
        )
    for place in (new.beside, new.beside / "data") if new.beside else ():
        used = {*new.sources, str(new.recipe.tokenizer.source)}
        names = sorted(
            path.name
            for path in place.glob("*")
            if path.is_file() and str(path) not in used
        )
        if unused := [name for name in names if kind_of_name(name) == "documents"]:
            why = "because they may not be documents, or are another split"
            named = first_few(unused, most=_NAMED_FILES)
            yield f"{place}: not used, {why}: {named}; to use them, give them as FILE arguments"


def _tokenizer_notes(recipe: Recipe) -> Iterator[str]:
    source, ends = recipe.tokenizer.source, find_ends_of(recipe.tokenizer)
    if source is None:
        cure = "to continue the pretraining of a model, pass its tokenizer with --tokenizer"
        trained = (
            f"will be trained on these documents ({recipe.tokenizer.train:,} tokens)"
        )
        yield f"tokenizer: {trained}, so it is not compatible with any pretrained model; {cure}"
    elif ends is None:
        yield f"tokenizer: {source} was not read, so its end-of-text token is unknown; set tokenizer.eos"
    elif ends.eos is None:
        yield "tokenizer: no end-of-text token was found, so a model will not learn where a text ends; set tokenizer.eos"
    else:
        yield f"tokenizer: {ends.eos} ends each sequence (according to {ends.eos_source})"
    if source is not None and ends is not None and ends.bos is not None:
        yield f"tokenizer: {ends.bos} begins each sequence (according to {ends.bos_source})"


def _is_readable(new: _NewRecipe) -> bool:
    """Return whether a run will accept the files: none is damaged, each table has a text column, few records are rejected."""
    if new.problem or _has_many_rejects(new) or _problems_of_files(new):
        return False
    of_sources = [looks_into(source.path) for source in new.recipe.ingest.sources]
    return all(map(_has_text, of_sources))


def _problems_of_files(new: _NewRecipe) -> list[str]:
    """Return why files of the sources cannot be read, which the notes of each source say."""
    of_sources = [looks_into(source.path) for source in new.recipe.ingest.sources]
    return [look.problem for looks in of_sources for look in looks if look.problem]


def _refusal(new: _NewRecipe) -> str:
    """Return why a run will not accept the files, with the cure."""
    without_text = []
    for source in new.recipe.ingest.sources:
        looks = looks_into(source.path)
        could_be_read = not any(look.problem for look in looks)
        if could_be_read and not _has_text(looks):
            without_text.append(source.label)
    if without_text:
        names = first_few(without_text, most=_NAMED_FILES)
        return f"no column of {names} looks like text; set the source's key `text`"
    problem = "`nextlong run` would refuse its files"
    if _has_many_rejects(new) and new.proposal is not None:
        cure = f"correct the records, or set {allowing(new.proposal.reject_share)}"
        return f"{problem}: too many records would be rejected; {cure}"
    return f"{problem}; solve the problems above"


def _has_many_rejects(new: _NewRecipe) -> bool:
    most = new.recipe.ingest.max_reject_share
    return new.proposal is not None and new.proposal.reject_share > most


def _has_text(looks: Sequence[FileLook]) -> bool:
    """Return whether a table of a source has a text column, or the source has no tables."""
    tables = [look for look in looks if look.has_columns]
    return not tables or any(look.text for look in tables)


def _split_up(path: str) -> list[str]:
    """Return a path, or one per file or suffix if its files hold their texts in different columns.

    Plain text files are kept as one folder, because only all of them show which ones describe the others.
    """
    files = looks_into(path)  # the first of each suffix
    if len({look.text for look in files if look.text}) < 2:
        return [path]
    listed = files_of(path)
    if len(listed) <= MAX_FILES:
        return [file.path for file in listed]
    suffixes = dict.fromkeys(look.suffix for look in files)
    if (
        len(suffixes) < 2
        or not all(look.has_columns for look in files)
        or not Path(path).is_dir()
    ):
        return [path]
    return [f"{glob.escape(path)}/**/*{suffix}" for suffix in suffixes]


def _sources_beside(folder: Path) -> list[str]:
    """Return the files and folders of documents in a folder and its `data`."""
    readme = folder / README
    content = readme.read_bytes() if readme.is_file() else b""
    if read_metadata(content, b"", b"", place=str(folder)).configs:
        return [str(folder)]  # a copy of a data set of the hub
    places = ((folder, "*"), (folder / "data", "**/*"))
    # Of each source a file, by whose name it belongs to a split.
    files = {
        path: path
        for place, _ in places
        for suffix in _DATA_SUFFIXES
        for path in sorted(place.glob(f"*{suffix}"))
    }
    for place, pattern in places:
        for below in sorted(place.glob("*")):
            is_candidate = _may_hold_documents(below) and below != folder / "data"
            inside = (below.glob(f"{pattern}{suffix}") for suffix in _DATA_SUFFIXES)
            first = next(itertools.chain.from_iterable(inside), None)
            if is_candidate and first is not None:
                files[below] = first
    names = {str(file.relative_to(folder)): path for path, file in files.items()}
    chosen = choose_split(
        list(names), Metadata(), split=None, config=None, place=str(folder)
    )
    kept = names.values() if chosen is None else map(names.__getitem__, chosen.names)
    others = [
        below
        for below in sorted(folder.glob("*"))
        if below not in files and below != folder / "data"
    ]
    data_sets = [below for below in others if _has_train_split(below)]
    return [*map(str, kept), *map(str, data_sets)]


def _may_hold_documents(path: Path) -> bool:
    """Return whether a path is a folder that is not hidden, and not a run directory or an environment."""
    if path.name in _OTHERS_FOLDERS or path.name.startswith("."):
        return False
    # Files such as lost+found/inputs.json cannot be asked for without permission.
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return False
    return not any((path / name).is_file() for name in _OTHERS_FILES)


def _has_train_split(path: Path) -> bool:
    """Return whether a folder is a copy of a data set of the hub, or a saved one, with a split to train on."""
    if not _may_hold_documents(path):
        return False
    readme = path / README
    has_shards = any(path.glob("data/train-*-of-*"))
    chosen = None
    # Its configs may have no default one, and its files may not be readable.
    with suppress(CorpusError, OSError):
        content = readme.read_bytes() if readme.is_file() else b""
        configs = read_metadata(content, b"", b"", place=str(path)).configs
        if has_shards or configs or (path / SAVED).is_file():
            chosen = split_of(Source(path=str(path)), where="FILE")
    return chosen is not None and "train" in chosen.split.split("+")


def _unused_folders(folder: Path, sources: Sequence[str]) -> list[Path]:
    """Return the folders with documents in a folder and its `data` that no source is, or is in."""
    used = [Path(source) for source in sources]
    if folder in used:
        return []
    data = folder / "data"
    below = [path for path in sorted(folder.glob("*")) if path != data]
    below += sorted(data.glob("*"))
    return [
        path
        for path in below
        if not any(source.is_relative_to(path) for source in used)
        and _may_hold_documents(path)
        and _holds_a_document(path)
    ]


def _holds_a_document(folder: Path) -> bool:
    """Return whether one of the first files in a folder and its folders has the name of a document."""
    names_left = _NAMES_LOOKED_AT
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
    """Return the paths; many files that are all of their suffix in a folder become one glob."""
    kept = list(dict.fromkeys(paths))
    if len(kept) <= MAX_FILES:
        return kept
    for folder in dict.fromkeys(Path(path).parent for path in kept):
        for suffix in _DATA_SUFFIXES:
            files = [str(path) for path in folder.glob(f"*{suffix}")]
            if len(files) > 1 and set(files) <= set(kept):
                kept[kept.index(min(files, key=kept.index))] = (
                    f"{glob.escape(str(folder))}/*{suffix}"
                )
                kept = [path for path in kept if path not in set(files)]
    return kept


def _names(paths: Sequence[str]) -> list[str]:
    """Return the stem of each path, or the folder of a glob, with as many folders before it as make it unique.

    If that is not enough, the end of the path, such as `books/*.jsonl`.
    """
    suffixes = "|".join(map(re.escape, (*_DATA_SUFFIXES, *_OTHER_SUFFIXES)))
    candidates = []  # of each path, its possible names, the preferred first
    for path in paths:
        whole = [part for part in PurePosixPath(path).parts if part not in ("/", "**")]
        *folders, name = [
            part
            for part in PurePosixPath(path.partition("://")[2] or path).parts
            if part != "/"
        ]
        wild = next(
            (
                place
                for place, part in enumerate([*folders, name])
                if glob.has_magic(part)
            ),
            None,
        )
        stem = (
            [*folders, re.sub(rf"(?<=.)({suffixes})+$", "", name)]
            if wild is None
            else folders[:wild] or [path]
        )
        tails = [stem[-length:] for length in range(1, len(stem) + 1)]
        tails += [whole[-length:] for length in range(2, len(whole) + 1)]
        candidates.append([*map("/".join, tails), path])
    times = Counter(name for names in candidates for name in set(names))
    return [
        next((name for name in names if times[name] == 1), names[-1])
        for names in candidates
    ]
