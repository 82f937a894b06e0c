"""Card: the README.md of an export folder, as Hugging Face data set cards are written.

In:  what a recipe exported, and the folder of each split. Out: the card: YAML front
matter (made by PyYAML, so that any name survives) and Markdown from the template
card.md; and the record beside it. A card is published, so
it shows only the last part of paths and URLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
import xxhash

from nextlong.artifacts import variant_records
from nextlong.artifacts.results import TokenizerResult
from nextlong.engine import store
from nextlong.export.arrange import fill, percent
from nextlong.export.formats.base import Format, format_of
from nextlong.export.publish import ExportFile
from nextlong.methods.base import Citation, Method, Need, method_of
from nextlong.methods.partition import describe_partition
from nextlong.plugins import FORMATS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import NEGATIVES
from nextlong.recipe.text import as_yaml
from nextlong.runs import data_folder
from nextlong.runs.exported import Exported, fingerprints_of
from nextlong.runs.public_recipe import hub_name, public_model, public_recipe
from nextlong.runs.statistics.stats import DependenceStats, Setting, Stats, Tasks
from nextlong.runs.statistics.tally import Spread
from nextlong.schemas import Layout
from nextlong.text import Json, public_name

_SIZE_BOUNDS: Final = [
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
]
# The hub's words for how many rows a data set has: the first for up to three digits,
# and each other one for one digit more.
_SIZES: Final = (
    "n<1K",
    *(f"{low}<n<{high}" for low, high in pairwise(_SIZE_BOUNDS)),
    "n>1T",
)
_COUNTS: Final = ("rows", "sequences", "documents", "tokens")  # of a split

# Licenses that the hub knows, most of which are spelled as SPDX spells them; any other
# goes by `other` and its own name.
_HUB_NAMES: Final = (
    "afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsl-1.0 "
    "c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 "
    "cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 "
    "cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 "
    "cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 "
    "epl-2.0 etalab-2.0 eupl-1.1 gfdl gpl-2.0 gpl-3.0 isc lgpl-2.1 lgpl-3.0 mit "
    "mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 osl-3.0 pddl postgresql unlicense wtfpl "
    "zlib "
)
_HUB_LICENSES: Final = frozenset(_HUB_NAMES.split())
_HUB_SPELLINGS: Final = {
    "odc-by-1.0": "odc-by",
    "odbl-1.0": "odbl",
    "pddl-1.0": "pddl",
    "gfdl-1.3": "gfdl",
}


class Split(NamedTuple):
    """A part of the export.

    `files` is a path or glob below its folder; `documents`, each counted once, are
    those in it.
    """

    name: str
    files: str
    rows: int
    sequences: int
    documents: int
    tokens: int
    bytes: int


class Laid(NamedTuple):
    """One format: its splits, and the tokens that a row can hold.

    `folder` is its folder below the card's ("": the same folder).
    """

    format: Format
    splits: Sequence[Split]
    room: int
    folder: str = ""


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
    """Return the facts for the card of some splits of a format.

    The files of the splits are in the folders `below`. `statistics` are label → value
    in the order of the page; `recipes` are YAML, one per run; `left_out` are the
    sequences in no split because they share a chunk with validation, and all.
    """
    recipe = written.recipe
    runs = written.runs
    splits = _splits(written, name, below)
    laid = Laid(format_of(name, recipe.export.model_dump()), splits, written.room)
    # Several runs of a mix may share a method; each is named and cited once.
    methods = [method_of(run.recipe) for run in runs]
    layouts = {}
    citations = []
    for run, method in zip(runs, methods, strict=True):
        layouts[run.recipe.compose.method] = _layout(method, run.recipe)
        if method.citation is not None:
            citations.append(method.citation)
    tokenizer = written.done["tokenizer"].result(TokenizerResult)
    trained = "byte-level BPE trained on the corpus"
    left_out = written.rows.left_out
    sequences = sum(split.sequences for split in written.rows.splits.values())
    recipes = [recipe, *(run.recipe for run in runs[1:])]
    return {
        "name": Path(recipe.run_dir).name,
        "laid": [laid],
        "splits": splits,
        "left_out": (left_out, left_out + sequences),
        "methods": layouts,
        "target_tokens": sorted({run.recipe.sequence_tokens for run in runs}),
        "tokenizer": hub_name(recipe.tokenizer.source or trained),
        "vocabulary": tokenizer.vocab_size,
        "citations": list(dict.fromkeys(citations)),
        "eos": tokenizer.eos_id,
        "sources": _sources(written),
        "recipes": [public_recipe(of_run) for of_run in recipes],
        "runs": _mixed(written, below),
        "version": written.version,
        "statistics": _statistics(written, tokenizer),
        "warnings": _warnings(written, name),
    }


def _layout(method: Method[Any], recipe: Recipe) -> str:
    """Return the layout of a method's sequences, as the card describes it.

    Of extended ones: "hard" if their negatives are what a search found, "mixed" if some
    are.
    """
    is_extended = method.layout is Layout.EXTENDED
    if not is_extended or Need.CHUNK_NEIGHBOURS not in method.needs:
        return method.layout.value
    names = {"retrieved": "hard", "both": "mixed"}
    origin = NEGATIVES[recipe.compose.negatives].origin
    return names.get(origin, method.layout.value)


def _splits(written: Exported, name: str, below: Mapping[str, str]) -> list[Split]:
    """Return the splits of a format, whose files are in the folders `below`."""
    reader_takes = format_of(name, written.recipe.export.model_dump()).reader_takes
    splits = []
    for split, folder in below.items():
        arranged = written.rows.splits[split]
        splits.append(
            Split(
                name=split,
                files=f"{folder}{reader_takes}" or ".",
                rows=arranged.rows,
                sequences=arranged.sequences,
                documents=arranged.documents,
                tokens=written.tokens(name, split),
                bytes=written.step(name, split).manifest["bytes"],
            )
        )
    return splits


def _sources(written: Exported) -> list[tuple[str, str, str]]:
    """Return name, public path and license of each source of all runs."""
    sources = []
    for run in written.runs:
        for source in run.recipe.ingest.sources:
            path = public_name(source.path)
            sources.append((source.name or path, path, source.license))
    return list(dict.fromkeys(sources))


def _mixed(written: Exported, below: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """Return of each run of a mix its name, and its sequences and tokens in the splits.

    Of a mixture of other components, of each of these as well; nothing for one run.
    """
    splits = [written.rows.splits[split] for split in below]
    mixed = []
    if len(written.runs) > 1:
        for index, run in enumerate(written.runs):
            taken = [split.of_runs[index] for split in splits]
            sequences = sum(sequences for sequences, _ in taken)
            tokens = sum(tokens for _, tokens in taken)
            mixed.append((run.name, sequences, tokens))
    of_components: dict[str, tuple[int, int]] = {}
    for split in splits:
        for name, sequences, tokens in split.of_components:
            sequences_before, tokens_before = of_components.get(name, (0, 0))
            of_components[name] = (sequences_before + sequences, tokens_before + tokens)
    mixed += [(name, *counts) for name, counts in of_components.items()]
    return mixed


def _statistics(written: Exported, tokenizer: TokenizerResult) -> dict[str, str]:
    """Return label → value of what is known of the rows."""
    statistics = {} if written.stats is None else card_numbers(written.stats)
    if tokenizer.lost_share:
        lost = f"{tokenizer.lost_share:.1%} of the characters"
        statistics["text lost by the tokenizer"] = lost
    # The papers of the methods do not partition the documents.
    described = [describe_partition(run.steps) for run in written.runs]
    partitions = dict.fromkeys(text for text in described if text)
    if partitions:
        statistics["partitions"] = "; ".join(partitions)
    return statistics


def _warnings(written: Exported, name: str) -> list[str]:
    """Return what a reader of the card must know before training on the rows."""
    warnings = []
    if written.stats is not None:
        if written.stats.control:
            warnings.append(written.stats.control)
        warnings += [warning.message for warning in written.stats.warnings]
    warnings += [warning.message for warning in written.warnings(name)]
    return warnings


def card(facts: Json) -> str:
    """Return the README.md of an export: card.md, filled in."""
    matter = as_yaml(front_matter(facts))
    text = _template().render(facts=facts, matter=matter, fill=fill)
    return text + "\n"


@cache  # compiling it takes 30 times as long as filling it in
def _template() -> jinja2.Template:
    # What enters is Markdown, not HTML, so nothing is escaped but what tables and code
    # need.
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "n": "{:,}".format,
        "line": _line,
        "cell": _cell,
        "code": _code,
        "fenced": _fenced,
        # Without the user and password of a URL.
        "public": partial(re.sub, r"(\w+://)[^/@\s]+@", r"\1"),
        "loading": _loading,
        "percent": percent,
        "bibtex": Citation.bibtex,
    }
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return environment.from_string(text)


def front_matter(facts: Json) -> Json:
    """Return the metadata by the keys of the hub's cards, without unknown values."""
    matter: Json = {"pretty_name": facts["name"]}
    matter |= _license([source[2] for source in facts["sources"]])
    matter["task_categories"] = ["text-generation"]
    rows = sum(split.rows for split in facts["splits"])
    above_1k = max(len(str(rows)) - 3, 0)  # digits
    matter["size_categories"] = [_SIZES[min(above_1k, len(_SIZES) - 1)]]
    methods = [f"method:{method}" for method in facts["methods"]]
    matter["tags"] = ["long-context", "pretraining", "synthetic", "nextlong", *methods]
    # `datasets` reads all configurations of a card with one reader, so one format alone
    # is named.
    for laid in facts["laid"]:
        if laid.format.hub == "loads":
            matter["configs"] = [_config("default", laid.splits)]
            return matter
    # The hub would take the JSON files beside the data for it.
    matter["viewer"] = False
    return matter


def _license(licenses: Sequence[str]) -> Json:
    """Return what the sources' licenses agree on in the hub's words.

    `other` where they do not, nothing where nobody says.
    """
    distinct = set()
    for name in licenses:
        distinct.add(re.sub(r"-(only|or-later)$", "", name.strip().lower()))
    if distinct == {""}:
        return {}
    if len(distinct) > 1:
        return {"license": "other", "license_name": "several"}
    (name,) = distinct
    name = _HUB_SPELLINGS.get(name, name)
    if name in _HUB_LICENSES:
        return {"license": name}
    own_name = re.sub(r"[^a-z0-9.]+", "-", name).strip("-")
    return {"license": "other", "license_name": own_name or "own"}


def _config(name: str, splits: Sequence[Split], *, folder: str = "") -> Json:
    """Return a configuration of a card: which files hold which split."""
    data_files = [
        {"split": split.name, "path": f"{folder}{split.files}"} for split in splits
    ]
    return {"config_name": name, "data_files": data_files}


def _loading(laid: Laid, facts: Json) -> str:
    """Return Python that reads the first split of a format."""
    first = laid.splits[0]
    vocabulary = facts["vocabulary"]
    below = first.files.removeprefix(f"{laid.folder}/").removesuffix("/")
    path = "folder"
    if below not in (".", ""):
        path = f"f{f'{{folder}}/{below}'!r}"
    fields = {
        "split": repr(first.name),
        "tokens": max(facts["target_tokens"]),
        "eos": facts["eos"],
        "place": path,
        "vocabulary": vocabulary,
        "uint": "uint16" if vocabulary <= 1 << 16 else "uint32",
    }
    package, rows, shown = (piece.format(**fields) for piece in laid.format.snippet)
    folder = "/path/to/this/folder"
    if laid.folder:
        folder += f"/{laid.folder}"
    return f'{package}\n\nfolder = "{folder}"\nrows = {rows}\nprint({shown})'


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("|", r"\|")


def _ticks(text: str) -> str:
    """Return one backtick more than the longest row of backticks in a text."""
    return "`" + max(re.findall("`+", text), key=len, default="")


def _code(text: str) -> str:
    """Return text as inline code."""
    ticks = _ticks(text)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{_line(text)}{space}{ticks}"


def _fenced(text: str, language: str) -> str:
    # A fence must have more backticks than any row of them in the text.
    fence = max("```", _ticks(text), key=len)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def delivered_record(written: Exported, name: str, files: Sequence[ExportFile]) -> str:
    """Return the record, as JSON, of one format and its files."""
    splits = {}
    for split, folder in written.below.items():
        manifest = written.step(name, split).manifest
        arranged = written.rows.splits[split]
        splits[split] = {
            "step": manifest["fingerprint"],
            "config": manifest["config"],
            **arranged.model_dump(include={"rows", "sequences", "documents"}),
            "tokens": written.tokens(name, split),
            "folder": folder,
        }
    runs = []
    for run in written.runs:
        runs.append(
            {
                "name": run.path.name,
                "variant": run.variant.name,
                "steps": fingerprints_of(run),
                "sequences": len(run),
                "target_tokens": run.recipe.sequence_tokens,
            }
        )
    settings = written.recipe.export.model_dump(
        mode="json", exclude={"push", "formats"}
    )
    record = {
        "format": name,
        "nextlong": written.version,
        "runs": runs,
        "rows": written.done["rows"].manifest["fingerprint"],
        "splits": splits,
        "settings": settings,
        "recipe": public_recipe(written.recipe),
        "files": {
            file.name: {"bytes": file.bytes, "xxh3": file.xxh3}
            for file in sorted(files, key=attrgetter("name"))
        },
    }
    # The hash covers the record without the hash itself, in a compact layout. The file
    # ends without a newline, so that a truncated file is never valid JSON.
    compact = json.dumps(record, sort_keys=True, separators=(",", ":"))
    record["xxh3"] = xxhash.xxh3_128_hexdigest(compact.encode())
    return json.dumps(record, indent=1, ensure_ascii=False)


def _hard_share(setting: Setting) -> str:
    if setting.hard_share is None:
        return ""
    return f"about {setting.hard_share:.0%}; the others are random chunks"


def _tasks(tasks: Tasks | None) -> str:
    if tasks is None:
        return ""
    texts = [f"{count:,} texts of {kind}" for kind, count in tasks.texts.items()]
    return f"in {tasks.sequences:,} sequences: {', '.join(texts)}"


def _gain(measured: DependenceStats | None) -> str:
    if measured is None or measured.gain is None or measured.min_gain is None:
        return ""
    return (
        f"mean {measured.gain.mean:.2f} nats on the words that only these have, by "
        f"{measured.model}; kept {measured.kept:,} of {measured.sequences:,} sequences "
        f"above {measured.min_gain:g}"
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
        "share of hard negatives": _hard_share(setting),
        "gain of the earlier text": _gain(stats.dependence),
        "negatives from the own document": (
            f"{negatives.from_own_document:,}" if negatives else ""
        ),
        "chunks repeated in a sequence": f"{stats.chunks.repeated:,}",
        "tasks with known answers": _tasks(stats.tasks),
        "characters per token": (
            f"{tokens.chars_per_token:.3f}" if tokens.chars_per_token else ""
        ),
        "encoder": public_model(setting.encoder) if setting.encoder else "",
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
    """Write `data/README.md` if no variant has its data card there.

    So that `load_dataset(DATA, NAME)` works.
    """
    data = run_dir / variant_records.DATA
    if variant_records.current(run_dir) is not None or not data.is_dir():
        return
    variants = variant_records.variants(run_dir)
    laid_by_variant: dict[str, dict[str, Laid]] = {}
    preferred = []
    for variant in variants:
        laid = _laid_in(data / variant.name)
        laid_by_variant[variant.name] = {one.format.name: one for one in laid}
        preferred += variant.recipe["export"]["formats"]
    configs = _configs(laid_by_variant, preferred)
    load = ""
    if configs:
        name = configs[0]["config_name"]
        load = (
            f'; `datasets.load_dataset("{variant_records.DATA}", "{name}")` loads one'
        )
    rows = [
        f"| `{name}/` | {', '.join(laid)} |" for name, laid in laid_by_variant.items()
    ]
    matter = as_yaml({"configs": configs} if configs else {"viewer": False})
    text = (
        f"---\n{matter}---\n\n"
        f"# Variants of {run_dir.resolve().name}\n\n"
        f"Each variant has its rows and its data card in a folder of its own{load}.\n\n"
        "| variant | formats |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    with store.explained(data / data_folder.CARD):
        store.write_file(data / data_folder.CARD, text)


def _configs(
    laid_by_variant: Mapping[str, Mapping[str, Laid]], preferred: Sequence[str]
) -> list[Json]:
    """Return a configuration per variant, all of one format: the first preferred one.

    `datasets` reads all configurations of a card with one reader.
    """
    loadable = set()
    for laid in laid_by_variant.values():
        for name, one in laid.items():
            if one.format.hub == "loads":
                loadable.add(name)
    chosen = next((name for name in preferred if name in loadable), None)
    configs = []
    for name, laid in laid_by_variant.items():
        if chosen is not None and chosen in laid:
            configs.append(_config(name, laid[chosen].splits, folder=f"{name}/"))
    return configs


def _laid_in(folder: Path) -> list[Laid]:
    """Return the formats in `folder`, as their records describe them."""
    laid = []
    for below, record in data_folder.delivered_in(folder):
        # The format may be of a package that is no longer installed.
        if record["format"] not in FORMATS:
            continue
        first = next(iter(record["splits"].values()))
        made = format_of(record["format"], first["config"])
        splits = []
        for name, recorded in record["splits"].items():
            size = 0
            for file, entry in record["files"].items():
                if file != data_folder.CARD and file.startswith(recorded["folder"]):
                    size += entry["bytes"]
            splits.append(
                Split(
                    name=name,
                    files=f"{below.name}/{recorded['folder']}{made.reader_takes}",
                    bytes=size,
                    **{count: recorded[count] for count in _COUNTS},
                )
            )
        longest = max(run["target_tokens"] for run in record["runs"])
        room = record["settings"].get("pack") or longest
        laid.append(Laid(made, splits, room, below.name))
    return laid
