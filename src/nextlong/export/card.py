"""Card: the README.md of an export folder, as Hugging Face data set cards are written.

In:  plain facts about an export. Out: YAML front matter (made by PyYAML, so that any name survives) and Markdown: how to
load it, what it holds, where it comes from, how it was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import yaml

from nextlong.citation import NEXTLONG, Citation
from nextlong.export.formats.base import Format
from nextlong.export.rows import fill, percent
from nextlong.plain_data import Json
from nextlong.schemas import Layout

_SIZES: Final = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")

# Licences that the hub knows, most of which are spelled as SPDX spells them; any other goes by `other` and its own name.
_HUB_NAMES: Final = (
    "afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 "
    "cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 "
    "cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 "
    "cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 gfdl gpl-2.0 gpl-3.0 isc lgpl-2.1 lgpl-3.0 mit mpl-2.0 "
    "ms-pl ncsa odbl odc-by ofl-1.1 osl-3.0 pddl postgresql unlicense wtfpl zlib"
)
_HUB_LICENCES: Final = frozenset(_HUB_NAMES.split())
_HUB_SPELLINGS: Final = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "gfdl-1.3": "gfdl"}

_SPANS = "what every token is: chunk, document, characters, role, token range, cosine; the spans tile the sequence"
_MEANINGS: Final = {
    "sequence_id": "the method, and the content hash of the meta-document or a hash of all its documents",
    "sequence_ids": "the sequences of the row, in order",
    "method": "which documents stand together, and in what order",
    "domain": "the source of the meta-document, or of the first document",
    "input_ids": "token ids",
    "length": "how many tokens the row holds",
    "seq_lengths": "lengths of the synthesised documents in the row, which sum to its length; no boundary of chunks",
    "indices": "[start, end) of each synthesised document in the row; no boundary of chunks",
    "attention_mask": "1 everywhere: nothing is padded",
    "labels": "`input_ids`, and -100 where nothing is to be learned",
    "position_ids": "0, 1, 2, … from the start of each synthesised document",
    "text": "the text of the sequence",
    "spans": _SPANS,
}

# What the sequences of a layout are.
_MADE: Final = {
    Layout.EXTENDED: "one short document cut into chunks, and between two of them stand the most similar chunks of other "
    "documents: what used to depend on the paragraph before now depends on one far back, past look-alikes",
    Layout.CONCATENATED: "made of whole short documents",
    Layout.INTERLEAVED: "made of short documents cut into parts, which stand shuffled, those of each document in their order",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where documents came from. `licence` is what the user says, `tokens` how many of the export are from there."""

    name: str
    path: str
    licence: str = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the export. `files` is a path or glob below the export folder: of data files, a folder or a prefix.

    `documents` are those that its sequences are made of, each counted once.
    """

    name: str
    files: str
    rows: int
    sequences: int
    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Laid:
    """One format: what its splits hold, how many tokens a row can hold, and its folder below the card, "" for the card's."""

    format: Format
    splits: Sequence[Split]
    room: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card tells. `statistics` are label → value in the order of the page; `recipes` are YAML, one a run.

    `left_out`: how many sequences stand in no split because they share a chunk with validation, and of how many.
    `runs` of a mix: name, sequences and tokens of each.
    """

    name: str
    format: Format
    splits: Sequence[Split]
    room: int  # tokens that a row can hold
    methods: Mapping[str, Layout]  # by name
    target_tokens: Sequence[int]  # of the sequences; several where runs of several lengths are mixed
    tokenizer: str
    vocabulary: int
    eos: int | None  # the id of the EOS token
    sources: Sequence[Source]
    recipes: Sequence[str]
    version: str
    languages: Sequence[str] = ()
    left_out: tuple[int, int] = (0, 0)
    statistics: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()  # what looks poor
    runs: Sequence[tuple[str, int, int]] = ()
    citations: Sequence[Citation] = (NEXTLONG,)  # what to cite
    folder: str = ""  # of the format, below the card
    beside: Sequence[Laid] = ()  # other formats, in folders beside it
    preferred: Sequence[str] = ()  # the formats that come first, in this order

    @property
    def laid(self) -> Sequence[Laid]:
        """Every format: those `preferred`, then the one that the card is about, then the others."""
        laid = [Laid(self.format, self.splits, self.room, self.folder), *self.beside]
        places = {name: place for place, name in enumerate(self.preferred)}
        return sorted(laid, key=lambda one: places.get(one.format.name, len(places)))


def card(facts: Facts) -> str:
    """Return the README.md of an export."""
    plain = front_matter(facts)
    # PyYAML loses such characters as U+0085 where it may write them as they are.
    printable = json.dumps(plain, ensure_ascii=False).isprintable()
    matter = yaml.safe_dump(plain, sort_keys=False, allow_unicode=printable, width=120)
    sections = (
        f"# {_line(facts.name)}",
        _what(facts),
        "## Load it\n\n" + "\n\n".join(_fenced(_loading(facts, laid), "python") for laid in facts.laid),
        "## What it holds\n\n" + "\n\n".join(f"{_splits(laid)}\n\n{_columns(laid.format)}" for laid in facts.laid),
        _left_out(facts),
        f"## Where it comes from\n\n{_sources(facts)}",
        _statistics(facts),
        _warnings(facts),
        f"## How it was made\n\n{_made(facts)}",
        _mixed(facts),
        *(_fenced(_without_secrets(recipe), "yaml") for recipe in facts.recipes),
        _cited(facts),
    )
    return f"---\n{matter}---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def public_name(path: str) -> str:
    """Return the last name of a path or URL; what lies on the Hugging Face hub keeps its whole name."""
    if path.startswith("hf://"):
        return path
    without_query = path.partition("?")[0] if path.startswith(("http://", "https://")) else path
    return without_query.rstrip("/").rpartition("/")[2]


def front_matter(facts: Facts) -> Json:
    """Return the metadata by the keys of the hub's data set cards; none that nobody gave."""
    matter: Json = {"pretty_name": facts.name}
    if facts.languages:
        matter["language"] = list(facts.languages)
    matter |= _licence([source.licence.strip() for source in facts.sources])
    matter["task_categories"] = ["text-generation"]
    matter["size_categories"] = [_size_category(sum(split.rows for split in facts.splits))]
    matter["tags"] = [
        *("long-context", "pretraining", "synthetic", "nextlong"),
        *(f"method:{method}" for method in facts.methods),
    ]
    # `datasets` reads all configurations of a card with one reader, so one format alone is named.
    if loadable := next((laid for laid in facts.laid if laid.format.hub == "loads"), None):
        data_files = [{"split": split.name, "path": split.files} for split in loadable.splits]
        matter["configs"] = [{"config_name": "default", "data_files": data_files}]
    else:
        matter["viewer"] = False  # the hub would take the JSON files beside the data for it
    return matter


def _licence(given: list[str]) -> dict[str, str]:
    """Return what the sources agree on in the hub's words; `other` where they do not, nothing where nobody says."""
    distinct = {re.sub(r"-(only|or-later)$", "", licence.lower()) for licence in given}
    if distinct <= {""}:
        return {}
    only = _HUB_SPELLINGS.get(min(distinct), min(distinct))
    if len(distinct) == 1 and only in _HUB_LICENCES:
        return {"license": only}
    name = re.sub(r"[^a-z0-9.]+", "-", only).strip("-") if len(distinct) == 1 else "several"
    return {"license": "other", "license_name": name or "own"}


def _size_category(rows: int) -> str:
    exponent = len(str(rows)) - 4  # 3 digits: under 1K; 4: 1K to 10K
    if exponent < 0:
        return f"n<{_SIZES[0]}"
    return f"{_SIZES[exponent]}<n<{_SIZES[exponent + 1]}" if exponent < len(_SIZES) - 1 else f"n>{_SIZES[-1]}"


def _what(facts: Facts) -> str:
    tokens = sum(split.tokens for split in facts.splits)
    lengths = " or ".join(f"{length:,}" for length in facts.target_tokens)
    summary = (
        f"{sum(split.sequences for split in facts.splits):,} sequences of {lengths} tokens ({tokens:,} in all), tokenized with "
        f"{_code(facts.tokenizer)} of {facts.vocabulary:,} entries."
    )
    methods_of = {
        layout: [name for name, method_layout in facts.methods.items() if method_layout == layout] for layout in _MADE
    }
    made = [_paragraph(layout, methods, facts) for layout, methods in methods_of.items() if methods]
    return "\n\n".join([summary, *made])


def _paragraph(layout: Layout, methods: Sequence[str], facts: Facts) -> str:
    if len(methods) < len(facts.methods):
        return f"Those of {_named(methods)} are {_MADE[layout]}."
    by = "" if layout == Layout.EXTENDED else f", put together by {_methods(methods)}"
    return f"Each is {_MADE[layout]}{by}."


def _methods(methods: Collection[str]) -> str:
    return f"the method{'s' if len(methods) > 1 else ''} {_named(methods)}"


def _named(methods: Collection[str]) -> str:
    return " and ".join(_code(method) for method in methods)


def _loading(facts: Facts, laid: Laid) -> str:
    """Return Python that reads the first split of a format."""
    first = laid.splits[0]
    below = first.files.removeprefix(f"{laid.folder}/").removesuffix("/")
    place = "folder" if below in (".", "") else f"f{f'{{folder}}/{below}'!r}"
    known = {
        "place": place,
        "split": repr(first.name),
        "tokens": max(facts.target_tokens),
        "vocabulary": facts.vocabulary,
        "uint": "uint16" if facts.vocabulary <= 1 << 16 else "uint32",
        "eos": facts.eos,
    }
    package, rows, shown = (piece.format(**known) for piece in laid.format.snippet)
    folder = "/".join(filter(None, ("/path/to/this/folder", laid.folder)))
    return f'{package}\n\nfolder = "{folder}"\nrows = {rows}\nprint({shown})'


def _splits(laid: Laid) -> str:
    rows = [
        (
            split.name,
            "all of this folder" if split.files == "." else _code(split.files),
            *(f"{count:,}" for count in (split.rows, split.sequences, split.documents, split.tokens)),
            percent(fill(split.tokens, rows=split.rows, room=laid.room)),
            f"{split.bytes / 1e6:,.1f} MB",
        )
        for split in laid.splits
    ]
    headings = ("split", "files", "rows", "sequences", "documents in them", "tokens", "filled", "size")
    return f"Format: {laid.format.layout}. A row has room for {laid.room:,} tokens.\n\n{_table(headings, rows)}"


def _left_out(facts: Facts) -> str:
    left_out, of = facts.left_out
    return (
        f"{left_out:,} of {of:,} sequences stand in neither split, because they share a chunk with validation."
        if left_out
        else ""
    )


def _columns(made: Format) -> str:
    if not made.columns:
        return "Token ids alone, one synthesised document after the other."
    return _table(("column", "meaning"), [(_code(name), _MEANINGS.get(name, "")) for name in made.columns])


def _sources(facts: Facts) -> str:
    counted = any(source.tokens is not None for source in facts.sources)
    rows = [
        (
            _line(source.name),
            _code(_without_secrets(source.path)),
            _line(source.licence) or "not given",
            *([f"{source.tokens:,}" if source.tokens is not None else ""] if counted else []),
        )
        for source in facts.sources
    ]
    headings = ("source", "files", "licence, as given", *(["tokens"] if counted else []))
    return (
        f"{_table(headings, rows)}\n\nThe texts stay under the licences of their sources, and a sequence may hold texts of all "
        "of them."
    )


def _statistics(facts: Facts) -> str:
    if not facts.statistics:
        return ""
    introduction = "Of all its sequences, whatever split they are in."
    return f"## Statistics of the whole run\n\n{introduction}\n\n{_table(('', ''), list(facts.statistics.items()))}"


def _warnings(facts: Facts) -> str:
    """Return what looks poor; nothing where nothing does."""
    lines = "\n".join(f"- {_line(warning)}" for warning in facts.warnings)
    return f"## Look before you train\n\n{lines}" if lines else ""


def _made(facts: Facts) -> str:
    return (
        f"With nextlong {facts.version}, {_methods(facts.methods)}; see {NEXTLONG.title} "
        f"(arXiv {NEXTLONG.arxiv}). The same recipe, files and version give the "
        "same bytes. Whether such sequences train a model better, and what was measured: docs/results.md of nextlong."
    )


def _cited(facts: Facts) -> str:
    return "## Cite\n\n" + _fenced("\n\n".join(one.bibtex() for one in facts.citations), "bibtex")


def _mixed(facts: Facts) -> str:
    """Return what each run of a mix gives; nothing for one run alone."""
    rows = [(name, f"{sequences:,}", f"{tokens:,}") for name, sequences, tokens in facts.runs]
    introduction = "Mixed of these runs, whose recipes stand below in this order:"
    return f"{introduction}\n\n{_table(('run', 'sequences', 'tokens'), rows)}" if rows else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(_line(cell).replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines)


def _line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    """Return text as inline code, whatever backticks it holds."""
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{ticks}{space}{_line(text)}{space}{ticks}"


def _fenced(text: str, language: str) -> str:
    """Return a fenced block whose fence is longer than any that the text holds."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _without_secrets(text: str) -> str:
    """Return text whose URLs have lost the user and password before their host."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1", text)
