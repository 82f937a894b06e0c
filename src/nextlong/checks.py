"""Checks: what a run refuses before its first step, as one list in its order.

In:  a recipe, and a look at its corpus that all checks share, so that each file is
listed and its head is opened once. Out: nothing, or an error that the user can fix.

A step may run for hours. Whatever would make a later one fail is therefore refused
here: `CHECKS` has first what the recipe alone tells and whether its files exist, then
what is checked in the locked run directory, and last what needs to read the documents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from nextlong.artifacts import variant_names, variant_records
from nextlong.artifacts.continuation import continuation_ids, ids_within
from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.deduplicate import minhash_class
from nextlong.corpus.ingest import missing_id_column
from nextlong.corpus.long_documents import MIN_SCORED_TOKENS
from nextlong.corpus.look import Look, kept_shares, look_at
from nextlong.engine.local import refuse_import_by_worker
from nextlong.errors import CorpusError, ExportError
from nextlong.methods.base import Need, method_of
from nextlong.reading import listing
from nextlong.reading.files import InputFile, check_kept, reach
from nextlong.reading.filter import filter_of
from nextlong.reading.formats import estimate_text_bytes, format_of, head_columns
from nextlong.reading.records import InputFormat
from nextlong.recipe import Recipe
from nextlong.recipe.keys import Compose
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.surprisal import check_scorer
from nextlong.sequences.shortfall import uses_a_chunk_once
from nextlong.sequences.tokenizer import check_source, load_or_stand_in
from nextlong.sequences.verify_dependence import check_dependence

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# More bytes per token than any language needs: a larger corpus suffices for sure.
_PLENTY_BYTES_PER_TOKEN: Final = 16
# A character takes at most so many bytes in UTF-8.
_MAX_BYTES_PER_CHAR: Final = 4
# About how many documents are tokenized as a sample, and how many characters of each.
_SAMPLE_TEXTS: Final = 512
_SAMPLE_CHARS: Final = 2048
# An estimate from a sample is trusted if it exceeds one sequence by this factor.
_SAMPLE_MARGIN: Final = 1.25
# A count of all texts may be too low by this factor: caps and weights may select
# slightly longer documents …
_EXACT_MARGIN: Final = 1.01
# … and a tokenizer that is trained later may split texts into more tokens.
_TRAINED_MARGIN: Final = 1.1
# The most files of a source that are opened; each takes a moment, or a request.
_MAX_ID_FILES: Final = 64


class Corpus:
    """The input files of a recipe, as all checks see them.

    Each file is listed and opened once, when a check first asks for it.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        changed_inputs: Literal["refuse", "accept"] = "refuse",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Read nothing yet; `tell` gets notes on what is not read or must be hashed."""
        self._ingest = recipe.ingest
        self._run_dir = recipe.run_path
        self._changed_inputs: Literal["refuse", "accept"] = changed_inputs
        self._tell = tell
        self._listed: list[list[InputFile]] | None = None
        self._recognised: list[list[InputFile]] | None = None

    def list_files(self) -> list[list[InputFile]]:
        """Return the files of each source. Raises CorpusError if a source has none."""
        if self._listed is None:
            self._listed = listing.input_files(self._ingest, tell=self._tell)
        return self._listed

    def recognise_files(self) -> list[list[InputFile]]:
        """Return the files with the identities that an earlier run gave to them.

        Raises RunError if one has changed since, unless changes are accepted.
        """
        # Kept, because files with a new modification time are hashed, which may take
        # long.
        if self._recognised is None:
            self._recognised = listing.recognise_inputs(
                self._ingest.sources,
                self.list_files(),
                self._run_dir,
                changed_inputs=self._changed_inputs,
                tell=self._tell,
            )
        return self._recognised

    @property
    def files(self) -> list[list[InputFile]]:
        """The recognised files of each source."""
        return self.recognise_files()

    @cached_property
    def text_bytes(self) -> list[int]:
        """Bytes of text in each source, estimated from the heads of a few files."""
        sources = self._ingest.sources
        return list(map(estimate_text_bytes, self.files, sources))

    @cached_property
    def looks(self) -> list[Look]:
        """A sample of each source that has records; a small corpus is read whole."""
        return look_at(self._ingest, self.files)


# Checks of the recipe, and of the files that it names.


def check_caller(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RunError for a script that runs again in each worker that imports it."""
    refuse_import_by_worker()


def check_tokenizer(recipe: Recipe, corpus: Corpus) -> None:
    """Raise TokenizerError if `tokenizer.source` is no tokenizer."""
    check_source(recipe.tokenizer)


def check_method(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RecipeError if dependence is to be verified of sequences without any."""
    check_dependence(recipe.compose)


def check_deduplication(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RecipeError if the package for `ingest.dedup: minhash` is missing."""
    if recipe.ingest.dedup == "minhash":
        minhash_class()


def check_filters(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RecipeError if the condition of a source is invalid."""
    for source in recipe.ingest.sources:
        filter_of(source)


def check_encoder(recipe: Recipe, corpus: Corpus) -> None:
    """Raise EncoderError if a package of the encoder is not installed."""
    kind_of(recipe.encoder).check_installed(recipe.encoder)


def check_destination(recipe: Recipe, corpus: Corpus) -> None:
    """Raise ExportError if `export.push` is unknown, or ends with the process.

    No server is contacted.
    """
    push = recipe.export.push
    if push is None:
        return
    destination = f"export.push={push!r}"
    check_kept(push, where=destination, error=ExportError)
    reach(push, where=destination, error=ExportError)


def check_sources_elsewhere(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RunError if a source includes the run directory."""
    listing.check_apart(recipe.ingest.sources, run_dir=recipe.run_dir)


def check_input_files(recipe: Recipe, corpus: Corpus) -> None:
    """Raise CorpusError if a source has no file."""
    corpus.list_files()


def check_run_folder(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RunError if a new run directory has files that no run made."""
    variant_records.check_folder(recipe.run_path)


# Checks of the run directory, once it is locked.


def check_inputs_unchanged(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RunError if a file that an earlier run read has changed or is missing."""
    corpus.recognise_files()


def check_same_documents(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RunError if the runs of this directory read none of the recipe's files.

    Other documents are intended if the recipe names its variant, or if its sources are
    given on the command line.
    """
    run_dir = recipe.run_path
    has_other_sources = any(
        key.startswith("ingest.sources") for key in recipe.overridden
    )
    is_intended = recipe.name is not None or has_other_sources
    has_variants = bool(variant_records.names(run_dir))
    if has_variants and not is_intended:
        listing.check_documents(recipe.ingest.sources, corpus.files, run_dir)


# Checks of the documents, for a variant that was not run before.


def check_scoring(recipe: Recipe, corpus: Corpus) -> None:
    """Raise RecipeError if a model that is to score texts cannot be read."""
    if recipe.compose.verify_dependence is not None:
        check_scorer(recipe.scorer, tokens=recipe.sequence_tokens)
    if recipe.ingest.long_filter is not None:
        check_scorer(recipe.scorer, tokens=MIN_SCORED_TOKENS)
    if Need.CONTEXTS in method_of(recipe).needs:
        # What is longer than half of its context is read up to there.
        check_scorer(recipe.scorer, tokens=1)


def check_id_columns(recipe: Recipe, corpus: Corpus) -> None:
    """Raise CorpusError if no table of a source has the column that names documents.

    JSON lines may have an id in later lines only, and many files take long to open;
    both are checked after reading.
    """
    sources = recipe.ingest.sources
    for index, (source, files) in enumerate(zip(sources, corpus.files, strict=True)):
        if not source.names_ids or len(files) > _MAX_ID_FILES:
            continue
        if not all(_is_table(format_of(file.name, source)) for file in files):
            continue
        heads = [head_columns(file, source) for file in files]
        if all(head and source.id not in head for head in heads):
            raise missing_id_column(
                source,
                f"{files[0].path} has no such column",
                heads[0],
                key=f"ingest.sources[{index}].id",
            )


def _is_table(file_format: InputFormat) -> bool:
    """Return whether the first record of a file has all of its columns."""
    is_document = file_format.extractor is not None
    return file_format.has_columns and not file_format.is_lines and not is_document


def check_enough(recipe: Recipe, corpus: Corpus) -> None:
    """Raise CorpusError if all documents together are shorter than one sequence.

    Of large files only the heads are read. A small corpus is read whole, and a sample
    of it is tokenized, or all of it if the sample leaves doubt.
    """
    if not uses_a_chunk_once(recipe.compose):
        return
    target = recipe.sequence_tokens
    if _capped_bytes(recipe, corpus) > _PLENTY_BYTES_PER_TOKEN * target:
        return
    # Only a corpus that is read whole can be refused: a sample may be wrong.
    looks = [look for look in corpus.looks if look.documents]
    if not looks or not all(look.is_whole for look in looks):
        return
    if count_tokens(recipe, looks) >= _SAMPLE_MARGIN * target:
        return
    tokens = count_tokens(recipe, looks, which="all")
    margin = _EXACT_MARGIN if recipe.tokenizer.train is None else _TRAINED_MARGIN
    if tokens * margin < target:
        raise too_short(recipe.compose, tokens)


def _capped_bytes(recipe: Recipe, corpus: Corpus) -> float:
    """Return an upper bound of the bytes of text that the caps of the sources leave."""
    text_bytes = 0.0
    sources = recipe.ingest.sources
    for source, source_bytes in zip(sources, corpus.text_bytes, strict=True):
        max_bytes = _MAX_BYTES_PER_CHAR * (source.max_chars or math.inf)
        text_bytes += min(source_bytes, max_bytes)
    return text_bytes


# The list of all checks.

When: TypeAlias = Literal["before the lock", "in the run directory", "of documents"]


class Check(NamedTuple):
    """A check, and when a run does it: before or after it locks its directory.

    The checks "of documents" come last, in the locked directory. They read files, and
    only a new variant needs them.
    """

    function: Callable[[Recipe, Corpus], None]
    when: When


CHECKS: Final = (
    Check(check_caller, "before the lock"),
    Check(check_tokenizer, "before the lock"),
    Check(check_method, "before the lock"),
    Check(check_deduplication, "before the lock"),
    Check(check_filters, "before the lock"),
    Check(check_encoder, "before the lock"),
    Check(check_destination, "before the lock"),
    Check(check_sources_elsewhere, "before the lock"),
    Check(check_input_files, "before the lock"),
    Check(check_run_folder, "before the lock"),
    Check(check_inputs_unchanged, "in the run directory"),
    Check(check_same_documents, "in the run directory"),
    # It imports transformers, so a finished run is spared it.
    Check(check_scoring, "of documents"),
    Check(check_id_columns, "of documents"),
    Check(check_enough, "of documents"),
)
# A plan writes nothing, so it may be made for a run directory that a run would refuse,
# and it says itself that an encoder is not installed.
NOT_PLANNED: Final = frozenset({check_encoder, check_run_folder, check_same_documents})


def check(
    recipe: Recipe,
    corpus: Corpus,
    when: When,
    *,
    skip: Collection[Callable[[Recipe, Corpus], None]] = (),
) -> None:
    """Do the checks of one moment, in order; the first that fails raises."""
    for listed in CHECKS:
        if listed.when == when and listed.function not in skip:
            listed.function(recipe, corpus)


def is_new(recipe: Recipe) -> bool:
    """Return whether no run of this recipe has finished in its run directory."""
    run_dir = recipe.run_path
    return variant_names.name_for(recipe, run_dir) not in variant_records.names(run_dir)


# How the tokens of a corpus are counted, here and by `nextlong init`.


def too_short(compose: Compose, tokens: float) -> CorpusError:
    """Return the error for a corpus that is shorter than one sequence."""
    return CorpusError(
        where="compose.target_tokens",
        value=f"{compose.target_tokens:,}",
        problem=(
            "is more than the corpus has: all documents together have about "
            f"{tokens:,.0f} tokens"
        ),
        fix="add documents or lower it",
    )


def count_tokens(
    recipe: Recipe,
    looks: Sequence[Look],
    *,
    which: Literal["a sample", "all"] = "a sample",
) -> float:
    """Estimate the tokens of all kept documents, including separators.

    From a sample of their texts; with all texts, the count is exact except for caps and
    weights, and for a tokenizer that is yet to be trained.
    """
    # The beginnings of some texts of each source, evenly spaced in it.
    text_count = sum(len(look.texts) for look in looks)
    step = max(1, text_count // _SAMPLE_TEXTS)
    heads: list[list[str]] = []
    for look in looks:
        heads.append([text[:_SAMPLE_CHARS] for text in look.texts[::step]])
    # A stand-in for a tokenizer that is yet to be trained learns from the sample alone.
    all_heads = list(itertools.chain.from_iterable(heads))
    tokenizer = load_or_stand_in(recipe.tokenizer, all_heads)

    texts_of_looks = heads if which == "a sample" else [look.texts for look in looks]
    shares = kept_shares(looks)
    tokens = 0.0
    for share, look, texts in zip(shares, looks, texts_of_looks, strict=True):
        # What is counted stands for all distinct texts that select keeps.
        tokens_per_char = _tokens_per_char(recipe, tokenizer, texts)
        tokens += share * look.scale * look.distinct_chars * tokens_per_char
    return tokens


def _tokens_per_char(
    recipe: Recipe, tokenizer: Tokenizer, texts: Sequence[str]
) -> float:
    """Return the tokens per character of texts, with a separator after each chunk."""
    options = recipe.chunk.model_dump()
    chunks: list[str] = []
    begins: list[bool] = []
    for text in texts:
        for start, end in chunk_text(text, **options):
            chunks.append(text[start:end])
            begins.append(start == 0)
    separator_tokens = len(continuation_ids(tokenizer, recipe.compose.separator))
    ids_of_chunks = ids_within(tokenizer, chunks, begins)
    tokens = sum(map(len, ids_of_chunks)) + separator_tokens * len(chunks)
    chars = sum(map(len, chunks))
    return tokens / max(1, chars)
