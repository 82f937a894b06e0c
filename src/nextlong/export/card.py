"""Card: the README.md of an export folder, as Hugging Face data set cards are written.

In:  plain facts about an export. Out: YAML front matter (made by PyYAML, so that any name survives) and Markdown from the template
card.md: how to load it, what it holds, where it comes from, how it was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import jinja2
import yaml

from nextlong.export.arrange import fill, percent
from nextlong.export.formats.base import Format
from nextlong.methods.base import NEXTLONG, Citation
from nextlong.schemas import Layout
from nextlong.text import Json

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


@dataclass(frozen=True, slots=True)
class CardSource:
    """Where documents came from: `licence` as the user gives it."""

    name: str
    path: str
    licence: str = ""


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
    """One format: its splits, the tokens that a row can hold, and its folder below the card's ("": the same folder)."""

    format: Format
    splits: Sequence[Split]
    room: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a card states. `statistics` are label → value in the order of the page; `recipes` are YAML, one a run.

    `left_out`: the number of sequences that are in no split because they share a chunk with validation, and of all.
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
    sources: Sequence[CardSource]
    recipes: Sequence[str]
    version: str
    left_out: tuple[int, int] = (0, 0)
    statistics: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()  # about data quality
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
    """Return the README.md of an export: card.md, filled in."""
    plain = front_matter(facts)
    # PyYAML loses characters such as U+0085 where it may write them unescaped.
    printable = json.dumps(plain, ensure_ascii=False).isprintable()
    matter = yaml.safe_dump(plain, sort_keys=False, allow_unicode=printable, width=120)
    # What enters is Markdown, not HTML, so nothing is escaped but what tables and code need.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "n": "{:,}".format,
        "line": _line,
        "cell": lambda text: _line(text).replace("|", r"\|"),
        "code": _code,
        "fenced": _fenced,
        "public": lambda text: re.sub(r"(\w+://)[^/@\s]+@", r"\1", text),  # without the user and password of a URL
        "loading": partial(_loading, facts),
        "filled": lambda split, room: percent(fill(split.tokens, rows=split.rows, room=room)),
        "bibtex": Citation.bibtex,
    }
    template = environment.from_string(Path(__file__).with_suffix(".md").read_text(encoding="utf-8"))
    return template.render(facts=facts, matter=matter, paper=NEXTLONG) + "\n"


def public_name(path: str) -> str:
    """Return the last name of a path or URL; what lies on the Hugging Face hub keeps its whole name."""
    if path.startswith("hf://"):
        return path
    without_query = path.partition("?")[0] if path.startswith(("http://", "https://")) else path
    return without_query.rstrip("/").rpartition("/")[2]


def front_matter(facts: Facts) -> Json:
    """Return the metadata by the keys of the hub's data set cards; none that nobody gave."""
    matter: Json = {"pretty_name": facts.name}
    matter |= _licence([source.licence.strip() for source in facts.sources])
    matter["task_categories"] = ["text-generation"]
    exponent = len(str(sum(split.rows for split in facts.splits))) - 4  # 3 digits: under 1K; 4: 1K to 10K
    if exponent < 0:
        size = f"n<{_SIZES[0]}"
    else:
        size = f"{_SIZES[exponent]}<n<{_SIZES[exponent + 1]}" if exponent < len(_SIZES) - 1 else f"n>{_SIZES[-1]}"
    matter["size_categories"] = [size]
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
