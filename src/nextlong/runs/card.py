"""Card: the README.md of an export folder, as Hugging Face data set cards are written, and the record beside it.

In:  the recipe, the runs that the rows come from, the finished steps, and the folder of each split.
Out: the card: YAML front matter (made by PyYAML, so that any name survives) and Markdown from the template card.md; and
`delivered_record`. A card is published, so it shows only the last part of paths and URLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import jinja2
import xxhash

from nextlong.artifacts import variant_records
from nextlong.artifacts.results import ShardResult, TokenizerResult
from nextlong.engine import store
from nextlong.engine.step import Artifact, Artifacts
from nextlong.export import steps as export_steps
from nextlong.export.arrange import RowsResult, fill, percent
from nextlong.export.formats.base import Format, format_of
from nextlong.export.publish import ExportFile
from nextlong.methods.base import NEXTLONG, Citation, method_of
from nextlong.methods.partition import describe_partition
from nextlong.plugins import FORMATS
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import MayBePath, MayBePrivate
from nextlong.recipe.text import as_yaml
from nextlong.runs import data_folder
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import read
from nextlong.runs.statistics.row_warnings import of_files, of_rows
from nextlong.runs.statistics.stats import DataWarning, Stats
from nextlong.runs.statistics.tally import Spread
from nextlong.text import Json, public_name

_MIX_NAME_CHARS: Final = 80  # a file name may have 255 bytes
_HUB_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SIZE_BOUNDS: Final = (
    "1K",
    "10K",
    "100K",
    "1M",
    "10M",
    "100M",
    "1B",
    "10B",
    "100B",
    "1T",
)
_SIZES: Final = (
    "n<1K",
    *(f"{least}<n<{most}" for least, most in pairwise(_SIZE_BOUNDS)),
    "n>1T",
)
_COUNTS: Final = ("rows", "sequences", "documents", "tokens")  # of a split

# Licences that the hub knows, most of which are spelled as SPDX spells them; any other goes by `other` and its own name.
_HUB_NAMES: Final = (
    "afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 "
    "cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 "
    "cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 "
    "cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 gfdl gpl-2.0 gpl-3.0 isc lgpl-2.1 lgpl-3.0 mit mpl-2.0 "
    "ms-pl ncsa odbl odc-by ofl-1.1 osl-3.0 pddl postgresql unlicense wtfpl zlib"
)
_HUB_LICENCES: Final = frozenset(_HUB_NAMES.split())
_HUB_SPELLINGS: Final = {
    "odc-by-1.0": "odc-by",
    "odbl-1.0": "odbl",
    "pddl-1.0": "pddl",
    "gfdl-1.3": "gfdl",
}


class Split(NamedTuple):
    """A part of the export: `files` is a path or glob below its folder; `documents`, each counted once, are those in it."""

    name: str
    files: str
    rows: int
    sequences: int
    documents: int
    tokens: int
    bytes: int


class Laid(NamedTuple):
    """One format: its splits, the tokens that a row can hold, and its folder below the card's ("": the same folder)."""

    format: Format
    splits: Sequence[Split]
    room: int
    folder: str = ""


@dataclass(frozen=True)
class Exported:
    """What a recipe exported: the runs that its rows come from, and the finished steps by name."""

    recipe: Recipe
    runs: Sequence[Run]
    done: Artifacts

    @property
    def folder(self) -> Path:
        """The folder of the formats' folders: `RUN/data`, or the folder of a variant or a mix in it."""
        if len(self.runs) == 1:
            return data_folder.folder_of(self.runs[0].variant)
        names = re.sub(r"[^\w.=,+-]+", "-", "+".join(run.name for run in self.runs))[
            :_MIX_NAME_CHARS
        ]
        mix = (
            f"{data_folder.MIX}{names}-{self.done['rows'].manifest['fingerprint'][:8]}"
        )
        return self.runs[0].path / variant_records.DATA / mix

    @property
    def room(self) -> int:
        """The tokens that a row can hold: those of the longest sequence where sequences are not packed."""
        return self.recipe.export.pack or max(
            run.recipe.sequence_tokens for run in self.runs
        )

    @property
    def version(self) -> str:
        """The version of nextlong that wrote the rows."""
        return str(
            self.done["rows"]
            .manifest["versions"]
            .get("nextlong", "not installed as a package")
        )

    @cached_property
    def rows(self) -> RowsResult:
        """The rows of each split."""
        return self.done["rows"].result(RowsResult)

    @cached_property
    def stats(self) -> Stats | None:
        """The statistics of the run; None for a mix."""
        return read(self.done) if len(self.runs) == 1 else None

    @property
    def below(self) -> dict[str, str]:
        """The folder of each split below that of its format: its own where there are several."""
        splits = export_steps.splits_of(self.recipe.export)
        return {split: f"{split}/" if len(splits) > 1 else "" for split in splits}

    def split_files(self, name: str) -> Mapping[str, str]:
        """Return the text of each file by which a format's folder names its splits."""
        describe_splits = format_of(name).describe_splits
        if len(self.below) == 1 or describe_splits is None:
            return {}
        return describe_splits(list(self.below))

    def step(self, name: str, split: str) -> Artifact:
        """Return the step that wrote one split of a format."""
        return self.done[export_steps.step_name(name, split)]

    def tokens(self, name: str, split: str) -> int:
        """Return the tokens in the files of a split, with those that the format adds."""
        shards = self.step(name, split).results(ShardResult)
        counted = [shard.tokens for shard in shards if shard.tokens is not None]
        return sum(counted) if counted else self.rows.splits[split].tokens

    def warnings(self, *formats: str) -> list[DataWarning]:
        """Return the warnings about the rows, and about the files of some formats."""
        lengths = {run.recipe.sequence_tokens for run in self.runs}
        splits = self.rows.splits
        warned = list(
            of_rows(
                splits,
                lengths=lengths,
                pack=self.recipe.export.pack,
                runs=[run.name for run in self.runs],
            )
        )
        for name in formats:
            for split, arranged in splits.items():
                added = self.tokens(name, split) - arranged.tokens
                warned += of_files(
                    name,
                    split=split,
                    added_tokens=added,
                    target_tokens=max(lengths),
                )
        return warned

    def files(self, name: str) -> list[ExportFile]:
        """Return the files of a format, all its splits, by their names in the folder of the format."""
        return [
            ExportFile(
                step.folder / file, f"{below}{file}", entry["bytes"], entry["xxh3"]
            )
            for split, below in self.below.items()
            for step in [self.step(name, split)]
            for part in step.manifest["parts"]
            for file, entry in part["files"].items()
        ]


def fingerprints_of(run: Run) -> dict[str, str]:
    """Return the fingerprint of each step that exports of a run read, by its name."""
    return {step.name: step.fingerprint for step in export_steps.read_steps(run.steps)}


def of_format(written: Exported, name: str) -> str:
    """Return the card of a format's folder."""
    return card(_facts(written, name, written.below))


def of_data(written: Exported) -> str:
    """Return the card of `data/`, with all its formats.

    Those of the run's recipe come first, whatever was written last.
    """
    facts, laid = _laid_formats(written, written.recipe.export.formats[:1])
    for other in _laid_in(written.folder):
        laid.setdefault(other.format.name, other)
    first = (name for name in written.runs[0].recipe.export.formats if name in laid)
    names = dict.fromkeys((*first, *laid))
    return card(facts | {"laid": [laid[name] for name in names]})


def of_formats(written: Exported) -> str:
    """Return the card of a folder that holds the formats of the recipe alone."""
    facts, laid = _laid_formats(written, written.recipe.export.formats)
    return card(facts | {"laid": list(laid.values())})


def _laid_formats(
    written: Exported, names: Sequence[str]
) -> tuple[Json, dict[str, Laid]]:
    """Return the facts of the first format, and each format in a folder of its name."""
    facts = []
    laid = {}
    for name in names:
        below = {split: f"{name}/{part}" for split, part in written.below.items()}
        facts.append(_facts(written, name, below))
        laid[name] = facts[-1]["laid"][0]._replace(folder=name)
    return facts[0], laid


def _facts(written: Exported, name: str, below: Mapping[str, str]) -> Json:
    """Return the facts for the card of some splits of a format, whose files are in the folders `below`.

    `statistics` are label → value in the order of the page; `recipes` are YAML, one a run; `left_out` are the sequences in no
    split because they share a chunk with validation, and all; `runs` of a mix: name, sequences and tokens of each.
    """
    recipe, runs, rows, stats = (
        written.recipe,
        written.runs,
        written.rows,
        written.stats,
    )
    made = format_of(name, recipe.export.model_dump())
    splits = []
    for split, folder in below.items():
        counts = rows.splits[split].model_dump(include=set(_COUNTS))
        counts["tokens"] = written.tokens(name, split)
        size = written.step(name, split).manifest["bytes"]
        splits.append(
            Split(split, f"{folder}{made.reader_takes}" or ".", **counts, bytes=size)
        )
    tokenizer, methods = (
        written.done["tokenizer"].result(TokenizerResult),
        [method_of(run.recipe) for run in runs],
    )
    statistics = card_numbers(stats) if stats else {}
    if tokenizer.lost_share:
        statistics["text lost by the tokenizer"] = (
            f"{tokenizer.lost_share:.1%} of the characters"
        )
    # The papers of the methods do not partition the documents.
    if partitions := dict.fromkeys(
        filter(None, (describe_partition(run.steps) for run in runs))
    ):
        statistics["partitions"] = "; ".join(partitions)
    warned = [
        *(stats.warnings if stats else ()),
        *written.warnings(name),
    ]
    sources = [
        (one.name, public_name(one.path), one.license)
        for run in runs
        for one in run.recipe.ingest.sources
    ]
    taken = [
        rows.splits[split].of_runs for split in below
    ]  # of each run of a mix, its sequences and tokens
    return {
        "name": Path(recipe.run_dir).name,
        "laid": [Laid(made, splits, written.room)],
        "splits": splits,
        "left_out": (
            rows.left_out,
            rows.left_out + sum(split.sequences for split in rows.splits.values()),
        ),
        "methods": {
            run.recipe.compose.method: method.layout
            for run, method in zip(runs, methods, strict=True)
        },
        "target_tokens": sorted({run.recipe.sequence_tokens for run in runs}),
        "tokenizer": _hub_name(
            recipe.tokenizer.source or "byte-level BPE trained on the corpus"
        ),
        "vocabulary": tokenizer.vocab_size,
        "citations": list(
            dict.fromkeys(
                [NEXTLONG, *(method.citation for method in methods if method.citation)]
            )
        ),
        "eos": tokenizer.eos_id,
        "sources": list(
            dict.fromkeys(
                (name or path, path, licence) for name, path, licence in sources
            )
        ),
        "recipes": [
            public_recipe(recipe_made)
            for recipe_made in (recipe, *(run.recipe for run in runs[1:]))
        ],
        "runs": [
            (run.name, *map(sum, zip(*of_splits, strict=True)))
            for run, *of_splits in zip(
                runs if len(runs) > 1 else (), *taken, strict=True
            )
        ],
        "version": written.version,
        "statistics": statistics,
        "warnings": [
            *filter(None, [stats.control if stats else ""]),
            *(warning.message for warning in warned),
        ],
    }


def card(facts: Json) -> str:
    """Return the README.md of an export: card.md, filled in."""
    return (
        _template().render(
            facts=facts, matter=as_yaml(front_matter(facts)), paper=NEXTLONG, fill=fill
        )
        + "\n"
    )


@cache  # compiling it takes 30 times as long as filling it in
def _template() -> jinja2.Template:
    # What enters is Markdown, not HTML, so nothing is escaped but what tables and code need.
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "n": "{:,}".format,
        "line": _line,
        "cell": lambda text: _line(text).replace("|", r"\|"),
        "code": _code,
        "fenced": _fenced,
        "public": partial(
            re.sub, r"(\w+://)[^/@\s]+@", r"\1"
        ),  # without the user and password of a URL
        "loading": _loading,
        "percent": percent,
        "bibtex": Citation.bibtex,
    }
    return environment.from_string(
        Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    )


def front_matter(facts: Json) -> Json:
    """Return the metadata by the keys of the hub's data set cards, without unknown values."""
    matter: Json = {"pretty_name": facts["name"]}
    # What the sources' licences agree on in the hub's words; `other` where they do not, nothing where nobody says.
    distinct = {
        re.sub(r"-(only|or-later)$", "", licence.strip().lower())
        for *_, licence in facts["sources"]
    }
    only = _HUB_SPELLINGS.get(min(distinct), min(distinct))
    if len(distinct) == 1 and only in _HUB_LICENCES:
        matter["license"] = only
    elif distinct != {""}:
        name = (
            re.sub(r"[^a-z0-9.]+", "-", only).strip("-")
            if len(distinct) == 1
            else "several"
        )
        matter |= {"license": "other", "license_name": name or "own"}
    matter["task_categories"] = ["text-generation"]
    digits = len(
        str(sum(split.rows for split in facts["splits"]))
    )  # 3: under 1K; 4: 1K to 10K
    matter["size_categories"] = [_SIZES[min(max(digits - 3, 0), len(_SIZES) - 1)]]
    methods = (f"method:{method}" for method in facts["methods"])
    matter["tags"] = ["long-context", "pretraining", "synthetic", "nextlong", *methods]
    # `datasets` reads all configurations of a card with one reader, so one format alone is named.
    if loadable := next(
        (laid for laid in facts["laid"] if laid.format.hub == "loads"), None
    ):
        data_files = [
            {"split": split.name, "path": split.files} for split in loadable.splits
        ]
        matter["configs"] = [{"config_name": "default", "data_files": data_files}]
    else:
        matter["viewer"] = (
            False  # the hub would take the JSON files beside the data for it
        )
    return matter


def _loading(laid: Laid, facts: Json) -> str:
    """Return Python that reads the first split of a format."""
    first, vocabulary = laid.splits[0], facts["vocabulary"]
    below = first.files.removeprefix(f"{laid.folder}/").removesuffix("/")
    place = "folder" if below in (".", "") else f"f{f'{{folder}}/{below}'!r}"
    known = {
        "split": repr(first.name),
        "tokens": max(facts["target_tokens"]),
        "eos": facts["eos"],
    }
    known |= {
        "place": place,
        "vocabulary": vocabulary,
        "uint": "uint16" if vocabulary <= 1 << 16 else "uint32",
    }
    package, rows, shown = (piece.format(**known) for piece in laid.format.snippet)
    folder = "/".join(filter(None, ("/path/to/this/folder", laid.folder)))
    return f'{package}\n\nfolder = "{folder}"\nrows = {rows}\nprint({shown})'


def _line(text: str) -> str:
    return " ".join(text.split())


def _ticks(text: str) -> str:
    """Return one backtick more than the longest row of backticks in a text."""
    return "`" + max(re.findall("`+", text), key=len, default="")


def _code(text: str) -> str:
    """Return text as inline code."""
    space = " " if "`" in text else ""
    return f"{_ticks(text)}{space}{_line(text)}{space}{_ticks(text)}"


def _fenced(text: str, language: str) -> str:
    fence = max("```", _ticks(text), key=len)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def public_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML with every key, without what reveals the machine that it ran on."""
    plain = recipe.as_data()
    plain["run_dir"] = public_name(plain["run_dir"])
    del plain["name"]  # several variants may share an export
    for source in plain["ingest"]["sources"]:
        source["path"] = public_name(source["path"])
    plain["decontaminate"]["files"] = [
        public_name(file) for file in plain["decontaminate"]["files"]
    ]
    _hide_places(plain, recipe)
    made_public = (
        ("ingest", "exclude", public_name),
        ("encoder", "model", _model_name),
        ("tokenizer", "source", _hub_name),
        ("export", "push", public_name),
    )
    for section, key, public in made_public:
        if plain[section][key] is not None:
            plain[section][key] = public(plain[section][key])
    return as_yaml(plain)


def _hide_places(plain: Json, section: Section) -> None:
    """Replace marked keys of a section, given as plain data, and of its subsections, by values that may be published."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, Section):
            _hide_places(plain[key], value)
        elif any(isinstance(mark, MayBePath) for mark in field.metadata):
            plain[key] = _hub_name(value)
        elif (
            any(isinstance(mark, MayBePrivate) for mark in field.metadata)
            and value != field.default
        ):
            plain[key] = "(not published)"


def _hub_name(given: str) -> str:
    """Return a hub name unchanged, and of a path its last part."""
    return (
        given
        if _HUB_NAME.fullmatch(given) and not Path(given).exists()
        else public_name(given)
    )


def _model_name(model: str) -> str:
    """Return `encoder.model`, reduced to the last part of its path if it is a local model."""
    kind, colon, name = model.partition(":")
    return f"{kind}{colon}{_hub_name(name)}" if colon else model


def delivered_record(written: Exported, name: str, files: Sequence[ExportFile]) -> str:
    """Return the record, as JSON, of one format and its files."""
    splits = {}
    for split, folder in written.below.items():
        step = written.step(name, split)
        arranged = written.rows.splits[split]
        splits[split] = {
            "step": step.manifest["fingerprint"],
            "config": step.manifest["config"],
            **arranged.model_dump(include={"rows", "sequences", "documents"}),
            "tokens": written.tokens(name, split),
            "folder": folder,
        }
    plain = {
        "format": name,
        "nextlong": written.version,
        "runs": [
            {
                "name": run.path.name,
                "variant": run.variant.name,
                "steps": fingerprints_of(run),
                "sequences": len(run),
                "target_tokens": run.recipe.sequence_tokens,
            }
            for run in written.runs
        ],
        "rows": written.done["rows"].manifest["fingerprint"],
        "splits": splits,
        "settings": written.recipe.export.model_dump(
            mode="json", exclude={"push", "formats"}
        ),
        "recipe": public_recipe(written.recipe),
        "files": {
            one.name: {"bytes": one.bytes, "xxh3": one.xxh3}
            for one in sorted(files, key=attrgetter("name"))
        },
    }
    # The hash covers the record without the hash itself, in a compact layout. The file ends without a newline, so that a
    # truncated file is never valid JSON.
    compact = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(
        plain | {"xxh3": xxhash.xxh3_128_hexdigest(compact)},
        indent=1,
        ensure_ascii=False,
    )


def card_numbers(stats: Stats) -> dict[str, str]:
    """Return label → value for the data card, without empty values."""
    setting = stats.setting
    chunks = "parts of a document"
    similar = f"a document to {setting.scores}"
    if setting.is_extended:
        chunks = "chunks of the meta-document"
        similar = "a negative to its meta-chunk"
    tokens = stats.tokens
    documents = stats.documents
    negatives = stats.negatives
    cosine = None if stats.similarity is None else stats.similarity.cosine
    numbers = {
        "sequences": f"{stats.sequences:,} of {setting.target_tokens:,} tokens",
        "documents": (
            f"{documents.distinct:,} of {stats.yields.documents:,} in the corpus"
        ),
        "documents in a sequence": _spread(documents.per_sequence, "{:,.0f}"),
        "share of the meta-documents": (
            f"{tokens.meta_share:.1%} of the tokens" if tokens.meta_share else ""
        ),
        **_meta_chunk_numbers(stats),
        f"tokens between consecutive {chunks}": _spread(
            stats.distance_tokens, "{:,.0f}"
        ),
        f"cosine of {similar}": _spread(cosine, "{:.3f}"),
        "uses of a chunk": _uses(stats),
        "negatives from the own document": (
            f"{negatives.from_own_document:,}" if negatives else ""
        ),
        "chunks repeated in a sequence": f"{stats.chunks.repeated:,}",
        "characters per token": (
            f"{tokens.chars_per_token:.3f}" if tokens.chars_per_token else ""
        ),
        "encoder": _model_name(setting.encoder) if setting.encoder else "",
        "search": setting.search or "",
        "shortlist": setting.shortlist or "",
    }
    return {label: value for label, value in numbers.items() if value}


def _meta_chunk_numbers(stats: Stats) -> dict[str, str]:
    """Return label → value for the meta-chunks; empty without any."""
    if stats.meta_chunks is None:
        return {}
    per_sequence = stats.meta_chunks.per_sequence
    after = stats.meta_chunks.after_last
    return {
        "meta-chunks of a sequence": _spread(per_sequence, "{:,.0f}"),
        "tokens after the last meta-chunk": f"{after.share:.1%}",
        "short last meta-chunks": (
            f"{after.short:,} of {per_sequence.count:,}, fewer than "
            f"{after.short_tokens} tokens"
        ),
    }


def _uses(stats: Stats) -> str:
    reuse = stats.chunks.reuse
    if not reuse.max:
        return ""
    return f"{reuse.mean:.2f} on average, {reuse.max:,} at most"


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    mean, p10, p50, p90 = (
        form.format(value)
        for value in (spread.mean, spread.p10, spread.p50, spread.p90)
    )
    return f"{mean} on average, median {p50}, {p10} to {p90} (p10 to p90)"


def write_index(run_dir: Path) -> None:
    """Write `data/README.md` if no variant has its data card there, so that `load_dataset(DATA, NAME)` works."""
    data = run_dir / variant_records.DATA
    if variant_records.current(run_dir) is not None or not data.is_dir():
        return
    variants = variant_records.variants(run_dir)
    laid = {
        variant.name: {one.format.name: one for one in _laid_in(data / variant.name)}
        for variant in variants
    }
    preferred = (
        name for variant in variants for name in variant.recipe["export"]["formats"]
    )
    # `datasets` reads all configurations of a card with one reader, so the configurations have one format.
    loadable = {
        name
        for of_variant in laid.values()
        for name, one in of_variant.items()
        if one.format.hub == "loads"
    }
    chosen = next((name for name in preferred if name in loadable), None)
    configs = []
    for name, of_variant in laid.items():
        if chosen in of_variant:
            files = [
                {"split": one.name, "path": f"{name}/{one.files}"}
                for one in of_variant[chosen].splits
            ]
            configs.append({"config_name": name, "data_files": files})
    rows = [
        f"| `{name}/` | {', '.join(of_variant)} |" for name, of_variant in laid.items()
    ]
    load = (
        f'; `datasets.load_dataset("{variant_records.DATA}", "{configs[0]["config_name"]}")` loads one'
        if configs
        else ""
    )
    text = (
        f"---\n{as_yaml({'configs': configs} if configs else {'viewer': False})}---\n\n"
        f"# Variants of {run_dir.resolve().name}\n\n"
        f"Each variant has its rows and its data card in a folder of its own{load}.\n\n"
        "| variant | formats |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    with store.explained(data / data_folder.CARD):
        store.write_file(data / data_folder.CARD, text)


def _laid_in(folder: Path) -> list[Laid]:
    """Return the formats in `folder`, as their records describe them."""
    laid = []
    for below, plain in data_folder.delivered_in(folder):
        if plain["format"] not in FORMATS:  # of a package that is no longer installed
            continue
        made = format_of(
            plain["format"], next(iter(plain["splits"].values()))["config"]
        )
        splits = []
        for name, recorded in plain["splits"].items():
            folder_of_split, counts = (
                recorded["folder"],
                {count: recorded[count] for count in _COUNTS},
            )
            files = {
                file: entry
                for file, entry in plain["files"].items()
                if file != data_folder.CARD
            }
            size = sum(
                entry["bytes"]
                for file, entry in files.items()
                if file.startswith(folder_of_split)
            )
            splits.append(
                Split(
                    name,
                    f"{below.name}/{folder_of_split}{made.reader_takes}",
                    **counts,
                    bytes=size,
                )
            )
        room = plain["settings"].get("pack") or max(
            run["target_tokens"] for run in plain["runs"]
        )
        laid.append(Laid(made, splits, room, below.name))
    return laid
