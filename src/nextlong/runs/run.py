"""Opened: a finished run as Python objects.

    import nextlong

    run = nextlong.open("runs/my")
    for sequence in run.sequences():
        sequence.input_ids, sequence.spans, sequence.text

Sequences are looked up as you ask for them; nothing of the corpus is held in memory.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nextlong import arguments, schemas
from nextlong.arrays import Int32s
from nextlong.artifacts import corpus_files, sequence_files, variant_records
from nextlong.artifacts.blocks import Resolved, resolve, span_texts
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.results import TokenizerFiles
from nextlong.artifacts.sequence_files import SequenceFiles, read_tokenizer
from nextlong.engine.runner import open_done
from nextlong.errors import ArgumentError, RecipeError, RunError
from nextlong.export import steps as export_steps
from nextlong.export.formats.base import format_of
from nextlong.picture import before_after, pieces
from nextlong.picture.pieces import clean
from nextlong.plugins import ENCODERS, FORMATS, METHODS
from nextlong.recipe import Recipe
from nextlong.runs import data_folder
from nextlong.text import Json

if TYPE_CHECKING:
    import datasets
    from tokenizers import Tokenizer

_FIRST = 5  # sequences that a notebook shows of a run
_MAX_PIECES = 4000  # that a picture is drawn of


@dataclass(frozen=True, eq=False)
class Sequence:
    """One long sequence. `input_ids` has shape (target_tokens,); `spans` tile it."""

    id: str
    method: str
    input_ids: Int32s
    spans: tuple[schemas.Span, ...]
    _run: Run = field(repr=False, compare=False)
    _block: Resolved = field(repr=False, compare=False)
    _number: int = field(repr=False, compare=False)

    @property
    def texts(self) -> list[str]:
        """The text of each span, from the documents themselves."""
        return self.texts_of(range(len(self.spans)))

    def texts_of(self, places: SequenceOf[int]) -> list[str]:
        """Return the text of some spans, by their places among `spans`.

        The others are not read.
        """
        fix = f"give a list of numbers below {len(self.spans)}"
        last = len(self.spans) - 1
        numbers = [
            arguments.whole_number(place, "places", fix=fix, max_value=last)
            for place in arguments.listed(places, "places", fix=fix)
        ]
        spans = np.array(numbers, np.int64) + self._block.span_offsets[self._number]
        return span_texts(self._block, self._run.files, spans)

    @property
    def text(self) -> str:
        """The text of the whole sequence."""
        return "".join(self.texts)

    def _repr_html_(self) -> str:
        if len(self.spans) > _MAX_PIECES:
            return facts_html(
                self.id,
                tokens=f"{len(self.input_ids):,}",
                chunks=f"{len(self.spans):,}",
            )
        return before_after.svg(self.spans, tokens=len(self.input_ids), name=self.id)


class Run:
    """A finished run directory. `len(run)` is its number of sequences."""

    def __init__(self, run_dir: str | Path) -> None:
        """Open a run directory, or one of its variants, `RUN@NAME`.

        `RUN` alone is the recipe's own settings, or the only variant. Raises RunError
        if there is no finished run, or one of its files is missing or has another size.
        Their bytes are not read: that is for `nextlong verify`.
        """
        named = arguments.path(run_dir, "run_dir", fix="give a run directory")
        self.variant = variant_records.find(named)
        self.path = self.variant.run_dir
        self.record = self.variant.record
        _, name = variant_records.split_name(named)
        self.is_named = name is not None
        try:
            self.recipe = Recipe.from_dict(self.variant.recipe, origin=str(self.record))
        except RecipeError as error:
            raise self._without_plugin() or self._of_earlier_version(error) from None
        # Sizes are compared, not bytes: hashing would read every file of the run.
        self.steps = {
            name: open_done(name, self.path / folder, trust="size")
            for name, folder in self.variant.steps.items()
        }
        self.sequences_per_part = self.variant.sequences_per_part

    def _without_plugin(self) -> RunError | None:
        """Return the error for a run whose plug-in is not installed, if it is one."""
        recipe = self.variant.recipe
        encoder = str(recipe.get("encoder", {}).get("model", "")).partition(":")[0]
        named = [
            (METHODS, str(recipe.get("compose", {}).get("method", ""))),
            (ENCODERS, encoder.replace("-", "_")),
            *((FORMATS, name) for name in recipe.get("export", {}).get("formats", ())),
        ]
        for registry, name in named:
            if name and name not in registry:
                return RunError(
                    where=self.variant.named,
                    problem=(
                        f"it was made with the {registry.kind} {name!r}, which is "
                        "not installed"
                    ),
                    fix="install the package that it comes from",
                )
        return None

    def _of_earlier_version(self, error: RecipeError) -> RunError:
        """Return the error for a recipe that is no longer valid."""
        # The first line names the key; how to correct a recipe does not help here.
        first_line = str(error).splitlines()[0]
        reason, _, _ = first_line.removeprefix(f"{self.record}: ").partition(";")
        drop = f"nextlong gc {self.path} --drop {self.variant.name}"
        return RunError(
            where=self.variant.named,
            problem=(
                f"it was made by an earlier version of nextlong ({reason} in "
                f"{self.record})"
            ),
            fix=(
                "run its recipe again with another run_dir, or remove this variant: "
                f"{drop}"
            ),
        )

    def __str__(self) -> str:
        """Return the name that opens the run.

        Its directory, with the variant's name if there are several.
        """
        if self.is_named or self.other_variants():
            return self.variant.named
        return str(self.path)

    @property
    def name(self) -> str:
        """Its name in a mix: its directory's, with the variant's if it was named."""
        return Path(str(self)).name

    def _repr_html_(self) -> str:
        sources = self.recipe.ingest.sources
        tokens = self.recipe.sequence_tokens
        facts = {
            "method": self.recipe.compose.method,
            "sequences": f"{len(self):,} of exactly {tokens:,} tokens",
            "read from": ", ".join(source.name or source.path for source in sources),
        }
        heads = ""
        for head in ("sequence", "about", "chunks", "mean cosine"):
            heads += f"<th>{head}</th>"
        rows = ""
        for number, sequence in enumerate(islice(self.sequences(), _FIRST)):
            rows += _row_html(number, sequence)
        return (
            f"{facts_html(str(self), **facts)}<table><thead><tr>{heads}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )

    def other_variants(self) -> list[str]:
        """Return the names of the run directory's other variants, the oldest first."""
        return [
            name
            for name in variant_records.names(self.path)
            if name != self.variant.name
        ]

    def __len__(self) -> int:
        return sum(self.sequences_per_part)

    def sequences(self) -> Iterator[Sequence]:
        """Yield every sequence, in draw order."""
        for part, take in enumerate(self.sequences_per_part):
            yield from self._read(part, 0, take)

    def sequence(self, number: int) -> Sequence:
        """Return sequence `number`, counted from 0. Raises IndexError."""
        number = arguments.whole_number(
            number, "number", fix="give the number of a sequence", min_value=None
        )
        if not 0 <= number < len(self):
            raise IndexError(
                f"sequence {number} does not exist: {self} has {len(self)}, counted "
                "from 0"
            )
        # The part that holds the sequence, and its number there.
        ends = list(accumulate(self.sequences_per_part))
        part = bisect_right(ends, number)
        first = number - ends[part] + self.sequences_per_part[part]
        return next(self._read(part, first, first + 1))

    @property
    def data(self) -> Path:
        """The folder of its finished rows, a folder per format, with a data card."""
        return data_folder.folder_of(self.variant)

    def exported(
        self, name: str, *, split: Literal["train", "validation"] = "train"
    ) -> list[Path]:
        """Return the exported files of a format and split, in order.

        Raises RunError if the run did not export it.
        """
        arguments.word(name, "name", FORMATS.names())
        arguments.word(split, "split", ("train", "validation"))
        step = export_steps.step_name(name, split)
        if step not in self.steps:
            command = f"nextlong export {self} --to {name}"
            if split != "train":
                command += " --set export.validation=0.01"
            raise RunError(
                where=self,
                problem=f"it holds no {step} files",
                fix=f"write them with: {command}",
            )
        return self.steps[step].files(format_of(name).suffixes)

    def to_datasets(self) -> datasets.Dataset:
        """Return the rows as a `datasets.Dataset`, mapped from the files.

        `.with_format("torch")` gives tensors. Raises RunError if the run exported
        neither arrow nor parquet, or the package is missing.
        """
        try:
            import datasets
        except ImportError:
            raise RunError(
                where="to_datasets",
                problem="it needs the package datasets",
                fix="pip install datasets",
            ) from None
        if "arrow" in self.steps:
            return datasets.load_from_disk(str(self.exported("arrow")[0].parent))
        return datasets.Dataset.from_parquet(
            [str(path) for path in self.exported("parquet")]
        )

    @cached_property
    def corpus(self) -> CorpusFiles:
        """The documents and chunks that spans refer to."""
        return corpus_files.sequence_corpus(self.steps)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made `input_ids`."""
        return read_tokenizer(TokenizerFiles.of(self.steps).tokenizer)

    @cached_property
    def files(self) -> SequenceFiles:
        """The files of the sequences, and those that they refer to."""
        return SequenceFiles.of(self.steps, self.sequences_per_part)

    def _read(self, part: int, first: int, last: int) -> Iterator[Sequence]:
        for block in resolve(self.files, part, first=first, take=last):
            # Spans become objects one sequence at a time: a block may have 16 MB of
            # ids.
            columns = _span_columns(block)
            offsets = block.span_offsets.tolist()
            for number, (start, stop) in enumerate(pairwise(offsets)):
                own_columns = [column[start:stop] for column in columns]
                first_token, last_token = block.token_offsets[number : number + 2]
                yield Sequence(
                    id=block.sequence_ids[number],
                    method=block.methods[number],
                    input_ids=block.input_ids[first_token:last_token],
                    spans=tuple(map(schemas.Span, *own_columns)),
                    _run=self,
                    _block=block,
                    _number=number,
                )


def _span_columns(block: Resolved) -> list[list[Any]]:
    """Return the fields of all spans of a block, in the order of those of `Span`."""
    return [
        block.chunk_ids.tolist(),
        block.doc_ids.tolist(),
        block.source_ids.tolist(),
        [json.loads(line) if line else {} for line in block.metadata],
        block.char_starts.tolist(),
        block.char_ends.tolist(),
        [schemas.ROLES[role] for role in block.roles.tolist()],
        block.groups.tolist(),
        block.token_starts.tolist(),
        block.token_ends.tolist(),
        block.scores.tolist(),
    ]


def _row_html(number: int, sequence: Sequence) -> str:
    """Return a sequence as a row of the table that a notebook shows."""
    spans = sequence.spans
    lead = pieces.lead_document(spans)
    source_id = next((span.source_id for span in spans if span.doc_id == lead), "")
    chunks = sum(span.role in pieces.CHUNK_ROLES for span in spans)
    cosines = pieces.scored(spans)
    mean = f"{sum(cosines) / len(cosines):.3f}" if cosines else "–"
    about = escape(clean(source_id))
    return (
        f"<tr><td>{number}</td><td>{about}</td><td>{chunks:,}</td><td>{mean}</td></tr>"
    )


def facts_html(title: str, **facts: str) -> str:
    """Return facts as HTML without script or style sheet: a notebook trusts neither."""
    lines = ""
    for name, value in facts.items():
        lines += f"<br>{escape(name)}: {escape(clean(value))}"
    return f"<p><b>{escape(clean(title))}</b>{lines}</p>"


def proportions_of(mix: Any, runs: SequenceOf[Run]) -> tuple[float, ...]:
    """Return the proportions of a mix as plain numbers, one for each run.

    Raises ArgumentError for other arguments.
    """
    fix = f"give a list of {len(runs)} numbers above 0, one for each run"
    shares = arguments.listed(mix, "mix", fix=fix)
    if len(shares) != len(runs):
        raise ArgumentError(
            where="mix",
            problem=f"it has {len(shares)} proportions for {len(runs)} runs",
            fix="give one for each",
        )
    proportions = []
    for index, share in enumerate(shares):
        proportion = arguments.number(share, f"mix[{index}]", fix=fix)
        if proportion <= 0:
            raise arguments.wrong(f"mix[{index}]", share, "is not above 0", fix=fix)
        proportions.append(proportion)
    return tuple(proportions)


def check_mix(
    runs: SequenceOf[Run],
    proportions: SequenceOf[float] | None,
    *,
    by: str = "sequences",
) -> None:
    """Raise a user's error if runs do not mix.

    They have different tokenizers, or one run is given twice.
    """
    if not runs:
        raise RecipeError(
            where="runs",
            problem="no run is given",
            fix="name at least one run directory",
        )
    if by != "sequences" and not proportions:
        raise RecipeError(
            where="by",
            value=repr(by),
            problem="sets the unit of proportions, and the mix has no proportions",
            fix="give one proportion for each run, such as 1,2",
        )
    # Two runs of one step that keep different numbers of sequences are different runs.
    composed = []
    for run in runs:
        composed.append((run.steps["compose"].manifest["fingerprint"], len(run)))
        if composed[-1] in composed[:-1]:
            raise RecipeError(
                where=run,
                problem="it is in the mix twice, with the same sequences",
                fix="name each run once",
            )
    for run in runs[1:]:
        _check_tokens(runs[0], run)


def _check_tokens(first: Run, other: Run) -> None:
    """Raise RunError if the token ids of two runs, or their numbers, do not mix."""
    ids = _ids_of(first)
    for name, value in _ids_of(other).items():
        if value != ids[name]:
            raise RunError(
                where=f"{first} and {other}",
                problem=(
                    f"they do not have the same {name}, so their token ids do not mix"
                ),
                fix=(
                    "run one of them again with the other's `tokenizer`, which reuses "
                    "its vectors and candidates"
                ),
            )
    # In a row, one token is a gap.
    if first.recipe.export.extra_tokens != other.recipe.export.extra_tokens:
        lengths = []
        for run in (first, other):
            formats = ", ".join(run.recipe.export.formats)
            lengths.append(
                f"{run.recipe.sequence_tokens:,} tokens of {run} (for {formats})"
            )
        raise RunError(
            where=f"sequences of {' and '.join(lengths)}",
            problem=(
                "they cannot be mixed: those of one run have one token more than "
                "compose.target_tokens"
            ),
            fix=(
                "run that recipe again with the formats of the other "
                "(--set export.formats=…), which reuses vectors and candidates"
            ),
        )


def _ids_of(run: Run) -> Json:
    """Return what determines the token ids of a run, by its name in a message."""
    tokenizer = run.steps["tokenizer"]
    special = sequence_files.special_ids(run.steps)
    name = TokenizerFiles(tokenizer).tokenizer.name
    hashes = []
    for part in tokenizer.manifest["parts"]:
        if name in part["files"]:
            hashes.append(part["files"][name]["xxh3"])
    return {"tokenizer": hashes, "bos or eos": (special.bos, special.eos)}
