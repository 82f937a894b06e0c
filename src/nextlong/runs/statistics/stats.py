"""Stats: a data set in numbers, as groups in the order in which a reader asks.

Shares are in [0, 1], cosines in [-1, 1], distances in tokens. None: does not apply, or
was not measured. docs/reference/json.md describes every group.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from typing import Final

from nextlong.corpus.filter_report import LeftOut
from nextlong.recipe.keys import NEGATIVES
from nextlong.runs.statistics.tally import Bin, Distribution, Spread
from nextlong.schemas import Layout
from nextlong.text import Json

# Choices of negatives that are controls of the paper's ablation (§4.4): what these
# negatives are, and what they are not.
_CONTROLS: Final = {
    "random-retrieved": ("similar chunks in random order", "the hardest negatives"),
    "tail": (
        "the least similar of the chunks that search found",
        "the hardest negatives",
    ),
    "random-corpus": ("random", "hard negatives"),
    "self-repeat": ("copies of their meta-chunk", "hard negatives"),
}


@dataclass(frozen=True)
class Setting:
    """What the run was asked for; a setting that its method does not use is None.

    `method_name` is the method as reports name it; `scores` says what its cosines
    compare a text with. `search` describes the approximate index and its measured
    recall; None if the search was exact. `shortlist` describes the share of chunks that
    were embedded, and what that misses; None if all were. `queries` is the model that
    made the queries for keywords.
    """

    method: str
    method_name: str
    layout: str
    scores: str
    negatives: str | None
    hard_share: float | None
    position: str | None
    fit: str | None
    max_uses: int | None
    min_meta_chunks: int | None
    encoder: str | None
    search: str | None
    shortlist: str | None
    queries: str | None
    max_chars: int
    target_tokens: int

    @property
    def is_extended(self) -> bool:
        """Whether sequences extend a document by negatives."""
        return self.layout == Layout.EXTENDED

    @property
    def repeats_meta_chunks(self) -> bool:
        """Whether the recipe asks for meta-chunks as their own negatives."""
        return (
            self.negatives is not None
            and NEGATIVES[self.negatives].origin == "meta-chunk"
        )


@dataclass(frozen=True)
class Yields:
    """From documents to sequences.

    `drafts` = `kept` + `spare` + `untried` + all of `dropped` (reason → count). Where
    documents are extended, each sampled document gives one draft. `spare` sequences
    were composed beyond the number requested; `untried` drafts were not needed.
    """

    documents: int
    eligible: int
    drawn: int
    asked: int | str
    drafts: int
    kept: int
    spare: int
    untried: int
    dropped: dict[str, int]
    dropped_examples: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class CutOff:
    """Of the `of_tokens` tokens of the documents in sequences, `tokens` are cut off.

    A document counts once per sequence.
    """

    tokens: int
    of_tokens: int


@dataclass(frozen=True)
class Tokens:
    """The tokens of all sequences, and what they belong to.

    `meta_share` is the share of the meta-documents. `chars_per_token` is the mean of
    the chunks that are not cut.
    """

    total: int
    by_role: dict[str, int]
    by_source: dict[str, int]
    meta_share: float | None
    chars_per_token: float | None
    cut_off: CutOff | None


@dataclass(frozen=True)
class RankMean:
    """The mean cosine of the `count` negatives of one rank to their meta-chunks.

    Without negatives, it is that of documents, ranked behind the first of a sequence.
    """

    rank: int
    mean: float
    count: int


@dataclass(frozen=True)
class SourceMean:
    """The mean cosine of the `count` negatives of a source's meta-documents.

    Without negatives, it is that of the source's documents.
    """

    mean: float
    count: int


@dataclass(frozen=True)
class Similarity:
    """The cosines of negatives to their meta-chunks, or of documents.

    `random` is the baseline, the cosines of pairs of random chunks; None without
    vectors of all chunks or without negatives.
    """

    cosine: Distribution
    by_rank: tuple[RankMean, ...]
    by_source: dict[str, SourceMean]
    random: Spread | None


@dataclass(frozen=True)
class NearIdentical:
    """How many negatives have a cosine of at least `cosine` to their meta-chunk.

    The sequence with index `sequence` has the most of them, `max_per_sequence`.
    """

    cosine: float
    negatives: int
    share: float
    sequence: int | None
    max_per_sequence: int


@dataclass(frozen=True)
class Negatives:
    """The chunks between those of a meta-document, and their tokens by source."""

    from_own_document: int
    near_identical: NearIdentical | None
    tokens_by_source: dict[str, int]


@dataclass(frozen=True)
class AfterLast:
    """The tokens after the last meta-chunk, where they extend no dependency.

    `short` sequences have a last meta-chunk of fewer than `short_tokens` tokens: 64, or
    a quarter of the longest chunks if these are shorter.
    """

    tokens: int
    share: float
    short: int
    short_share: float
    short_tokens: int


@dataclass(frozen=True)
class MetaChunks:
    """The meta-chunks of a sequence, and what follows the last of them."""

    per_sequence: Distribution
    after_last: AfterLast


@dataclass(frozen=True)
class GapGain:
    """The gain of meta-chunks from `low` to `high` tokens behind the one before.

    It is the mean over the `tokens` that show a dependence; None without any.
    """

    low: int
    high: int
    meta_chunks: int
    tokens: int
    gain: float | None


@dataclass(frozen=True)
class DependenceStats:
    """How much a model needs the earlier meta-chunks to predict the later ones.

    `gain`, in nats, is the mean of each sequence, over the tokens of words that only
    the earlier meta-chunks have; `tokens` counts these in each later meta-chunk. `kept`
    sequences have a gain above `min_gain`; None: no sequence was filtered out. Without
    meta-chunks, documents take their place. `standard_error` is that of the mean gain.
    """

    model: str
    min_gain: float | None
    sequences: int
    kept: int
    tokens: Spread | None
    gain: Distribution | None
    standard_error: float | None
    by_gap: tuple[GapGain, ...]


@dataclass(frozen=True)
class Uses:
    """`chunks` chunks were used between `low` and `high` times."""

    low: int
    high: int
    chunks: int


@dataclass(frozen=True)
class Hub:
    """A chunk that many sequences share; it is the `ordinal`-th of its document."""

    chunk_id: int
    source_id: str
    ordinal: int
    uses: int


@dataclass(frozen=True)
class Reuse:
    """How often a chunk is used, other than as a meta-chunk.

    `overused_share` of the uses are of chunks used over 16 times; `hubs` are the most
    used chunks.
    """

    distinct_chunks: int
    mean: float | None
    max: int | None
    overused_share: float | None
    histogram: tuple[Uses, ...]
    hubs: tuple[Hub, ...]


@dataclass(frozen=True)
class Chunks:
    """The chunks in the sequences.

    `tokens` counts every chunk as it is there, cut ones too; `repeated` are those that
    occur twice in a sequence.
    """

    tokens: Distribution | None
    reuse: Reuse
    repeated: int


@dataclass(frozen=True)
class InParts:
    """`documents` of `of_documents` are split, with other documents in between.

    A document counts once per sequence.
    """

    documents: int
    of_documents: int


@dataclass(frozen=True)
class Documents:
    """The documents in the sequences; `distinct` counts each of them once."""

    distinct: int
    per_sequence: Spread | None
    in_parts: InParts | None


@dataclass(frozen=True)
class WithKeywords:
    """How many of the `documents` of a source have a keyword."""

    documents: int
    with_keywords: int


@dataclass(frozen=True)
class Corpus:
    """The documents that the sequences are made from, and what was filtered out.

    `document_chars` counts every document that has chunks, `chars_by_source` the
    characters of all chunks. `contaminated` says how many chunks each evaluation file
    removed; `unshared_keywords` counts documents without a keyword that another
    document has.
    """

    document_chars: Distribution | None
    chars_by_source: dict[str, int]
    left_out: tuple[LeftOut, ...]
    contaminated: dict[str, int] | None
    keywords: dict[str, WithKeywords] | None
    unshared_keywords: int | None


@dataclass(frozen=True)
class NearDuplicates:
    """What the run's steps skipped as near-duplicates; None if they did not look.

    `repeated_passages` are those of the `chunks` that count only because of a shared
    100-word passage; `documents` are those that the method filtered out.
    """

    chunks: int | None
    repeated_passages: int | None
    documents: int | None


@dataclass(frozen=True)
class RankWork:
    """How unevenly `ranks` context-parallel ranks work under a mask, over all rows.

    The imbalance of a row is the work of its busiest rank over the mean.
    """

    mask: str
    ranks: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Exposure:
    """The targets by their effective left context, in tokens, under a mask.

    The mask is `sequence`, or `document` where sequences hold several documents.
    """

    mask: str
    targets: int
    mean: float
    histogram: tuple[Bin, ...]


@dataclass(frozen=True)
class Attention:
    """What attention masks make of the rows: `work` by mask and ranks, `exposure`."""

    work: tuple[RankWork, ...]
    exposure: tuple[Exposure, ...]


@dataclass(frozen=True)
class StepCost:
    """What a step took: seconds, bytes on disk, and the peak memory of one task."""

    step: str
    seconds: float
    bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class DataWarning:
    """A problem of a data set: a stable name, and a message with its effect and a fix.

    `change` is the setting of the recipe, KEY=VALUE, that is likely to solve it; "" if
    no single setting does.
    """

    name: str
    message: str
    change: str = ""

    def for_run(self, name: str) -> DataWarning:
        """Return the warning with the name of the run in its commands.

        Files and the published card have RUN instead.
        """
        message = self.message.replace(" RUN ", f" {shlex.quote(name)} ")
        return replace(self, message=message)

    def __str__(self) -> str:
        """Return the message and the name, by which docs/warnings.md lists it."""
        return f"{self.message} [{self.name}]"


@dataclass(frozen=True)
class Tasks:
    """The `texts` of tasks with known answers by kind, and the sequences with some.

    `without_room` sequences, spare ones included, were chosen but have none.
    """

    sequences: int
    without_room: int
    texts: dict[str, int]


@dataclass(frozen=True)
class ContextCounts:
    """What a model looked at to find contexts, and how many there are in the sequences.

    `anchors` are uncertain tokens of the scored `documents`, `candidates` chunks tried
    for these documents.
    """

    documents: int
    anchors: int
    candidates: int
    contexts: int


@dataclass(frozen=True)
class Stats:
    """A data set in numbers; `run` is what `nextlong.open` takes.

    `negatives` and `meta_chunks` are None where no document is extended, `similarity`
    where the method computes none, `distance_tokens` where no document is split,
    `tasks` where the recipe inserts none, `dependence` where it does not verify it,
    `contexts` where the method needs none.
    """

    run: str
    setting: Setting
    sequences: int
    yields: Yields
    tokens: Tokens
    similarity: Similarity | None
    distance_tokens: Distribution | None
    negatives: Negatives | None
    meta_chunks: MetaChunks | None
    dependence: DependenceStats | None
    chunks: Chunks
    documents: Documents
    corpus: Corpus
    near_duplicates: NearDuplicates
    tasks: Tasks | None
    contexts: ContextCounts | None
    attention: Attention
    steps: tuple[StepCost, ...]
    warnings: tuple[DataWarning, ...]

    @property
    def control(self) -> str:
        """Why the data are a control of an experiment; "" if they are for training."""
        if self.setting.negatives not in _CONTROLS:
            return ""
        what_they_are, what_they_are_not = _CONTROLS[self.setting.negatives]
        cosines = []
        if self.similarity is not None:
            cosines.append(f"cosine {self.similarity.cosine.mean:.2f}")
            if self.similarity.random is not None:
                cosines.append(f"random pairs {self.similarity.random.mean:.2f}")
        in_brackets = f" ({', '.join(cosines)})" if cosines else ""
        return (
            f"Negatives are {what_they_are}{in_brackets}: a control of the paper's "
            f"ablation, not {what_they_are_not}."
        )

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists."""
        return asdict(self) | {"control": self.control}
