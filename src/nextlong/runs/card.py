"""Export card: the facts that the data set card of an export tells, from the finished steps that made it.

In:  the recipe, the runs that the rows come from, the finished steps, and which splits lie where.
Out: `Facts` for `export/card.py`. A card is published, so of paths and URLs it tells the last name alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import xxhash
import yaml

from nextlong.artifacts.results import ShardResult, TokenizerResult
from nextlong.engine.step import Artifact, Artifacts
from nextlong.export import steps as export_steps
from nextlong.export.arrange import RowsResult
from nextlong.export.card import CardSource, Facts, Split, public_name
from nextlong.export.formats.base import format_of
from nextlong.export.publish import ExportFile
from nextlong.methods.base import NEXTLONG, Citation, method_of
from nextlong.methods.partition import describe_partition
from nextlong.recipe import MayBePath, Recipe, Section
from nextlong.recipe.keys import MayBePrivate
from nextlong.runs.run import Run
from nextlong.runs.stats import Stats
from nextlong.runs.tally import Spread
from nextlong.runs.warnings import of_rows
from nextlong.schemas import Layout
from nextlong.text import Json

_HUB_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_NOT_PUBLISHED: Final = "(not published)"


def facts(
    recipe: Recipe,
    runs: Sequence[Run],
    done: Artifacts,
    *,
    name: str,
    below: Mapping[str, str],
    stats: Stats | None,
) -> Facts:
    """Return what the card says of some splits of a format, whose files lie in the folders `below`."""
    rows = done["rows"].result(RowsResult)
    room = recipe.export.pack or max(run.recipe.sequence_tokens for run in runs)
    made = format_of(name, recipe.export.model_dump())
    splits = [
        Split(
            split,
            f"{folder}{made.reader_takes}" or ".",
            rows.splits[split].rows,
            rows.splits[split].sequences,
            rows.splits[split].documents,
            rows.splits[split].tokens,
            done[export_steps.step_name(name, split)].manifest["bytes"],
        )
        for split, folder in below.items()
    ]
    arranged = rows.left_out + sum(split.sequences for split in rows.splits.values())
    tokenizer = done["tokenizer"].result(TokenizerResult)
    citations = [getattr(method_of(run.recipe), "citation", None) for run in runs]
    statistics = card_numbers(stats) if stats else {}
    if tokenizer.lost_share:
        statistics["text lost by the tokenizer"] = f"{tokenizer.lost_share:.1%} of the characters"
    # The papers of the methods do not partition the documents.
    if partitions := dict.fromkeys(filter(None, (describe_partition(run.steps) for run in runs))):
        statistics["partitions"] = "; ".join(partitions)
    return Facts(
        name=Path(recipe.run_dir).name,
        format=made,
        splits=splits,
        room=room,
        left_out=(rows.left_out, arranged),
        methods={run.recipe.compose.method: method_of(run.recipe).layout for run in runs},
        target_tokens=sorted({run.recipe.sequence_tokens for run in runs}),
        tokenizer=_hub_name(recipe.tokenizer.source or "byte-level BPE trained on the corpus"),
        vocabulary=tokenizer.vocab_size,
        citations=list(dict.fromkeys([NEXTLONG, *(one for one in citations if isinstance(one, Citation))])),
        eos=tokenizer.eos_id,
        sources=list(
            dict.fromkeys(
                CardSource(source.name or public_name(source.path), public_name(source.path), source.license)
                for run in runs
                for source in run.recipe.ingest.sources
            )
        ),
        recipes=[public_recipe(recipe_made) for recipe_made in (recipe, *(run.recipe for run in runs[1:]))],
        runs=_shares(runs, rows, below),
        version=done["rows"].manifest["versions"].get("nextlong", "not installed as a package"),
        statistics=statistics,
        warnings=[
            warned.message
            for warned in (
                *(stats.warnings if stats else ()),
                *(one for split in below for one in of_rows(split, rows.splits[split], room=room)),
            )
        ],
    )


def public_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML, every key named, without what tells of the machine that it ran on."""
    plain = recipe.as_data()
    plain["run_dir"] = public_name(plain["run_dir"])
    del plain["name"]  # several variants may share an export
    for source in plain["ingest"]["sources"]:
        source["path"] = public_name(source["path"])
    plain["decontaminate"]["files"] = [public_name(file) for file in plain["decontaminate"]["files"]]
    plain["encoder"]["model"] = _model_name(plain["encoder"]["model"])
    if plain["tokenizer"]["source"] is not None:
        plain["tokenizer"]["source"] = _hub_name(plain["tokenizer"]["source"])
    _hide_places(plain, recipe)
    if plain["export"]["push"] is not None:
        plain["export"]["push"] = public_name(plain["export"]["push"])
    return yaml.safe_dump(plain, sort_keys=False, width=120)


def _hide_places(plain: Json, section: Section) -> None:
    """Put what may be published in the place of marked keys of a section, as plain data, and of the sections in it."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, Section):
            _hide_places(plain[key], value)
        elif any(isinstance(mark, MayBePath) for mark in field.metadata):
            plain[key] = _hub_name(value)
        elif any(isinstance(mark, MayBePrivate) for mark in field.metadata) and value != field.default:
            plain[key] = _NOT_PUBLISHED


def _hub_name(given: str) -> str:
    """Return a name on the hub as it is, of a path the last name."""
    is_hub_name = _HUB_NAME.fullmatch(given) is not None and not Path(given).exists()
    return given if is_hub_name else public_name(given)


def _model_name(model: str) -> str:
    """Return `encoder.model`, of a model that lies on this machine the last name."""
    kind, colon, name = model.partition(":")
    return f"{kind}{colon}{_hub_name(name)}" if colon else model


def _shares(runs: Sequence[Run], rows: RowsResult, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return the name of each run of a mix, and how many of its sequences and tokens are in the splits; none of one run alone."""
    if len(runs) == 1:
        return []
    taken = [rows.splits[name].of_runs for name in names]
    return [
        (
            Path(str(run)).name,
            sum(of_runs[number][0] for of_runs in taken),
            sum(of_runs[number][1] for of_runs in taken),
        )
        for number, run in enumerate(runs)
    ]


def delivered_record(
    recipe: Recipe,
    runs: Sequence[Run],
    done: Artifacts,
    *,
    name: str,
    below: Mapping[str, str],
    files: Sequence[ExportFile],
) -> str:
    """Return the record, as JSON, of one format whose splits lie in the folders `below`."""
    record = {
        "format": name,
        "nextlong": done["rows"].manifest["versions"].get("nextlong", "not installed as a package"),
        "runs": [
            {
                "name": run.path.name,
                "variant": run.variant.name,
                "steps": {step.name: step.fingerprint for step in export_steps.read_steps(run.steps)},
                "sequences": len(run),
                "target_tokens": run.recipe.sequence_tokens,
            }
            for run in runs
        ],
        "rows": done["rows"].manifest["fingerprint"],
        "splits": {
            split: _split(done[export_steps.step_name(name, split)], done["rows"], split) | {"folder": folder}
            for split, folder in below.items()
        },
        "settings": recipe.export.model_dump(mode="json", exclude={"push", "formats"}),
        "recipe": public_recipe(recipe),
        "files": {
            file.name: {"bytes": file.bytes, "xxh3": file.xxh3} for file in sorted(files, key=lambda file: file.name)
        },
    }
    # Without a newline at the end: whatever is cut off, it is JSON no more.
    return json.dumps(record | {"xxh3": fingerprint(record)}, indent=1, ensure_ascii=False)


def fingerprint(record: Mapping[str, Any]) -> str:
    """Return the hash of a record without its own `xxh3`, whatever its layout as JSON."""
    plain = {key: value for key, value in record.items() if key != "xxh3"}
    return xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def _split(step: Artifact, rows: Artifact, split: str) -> Json:
    """Return what one split holds; of a format that adds tokens, as it counted them itself."""
    arranged = rows.result(RowsResult).splits[split]
    counted = [shard.tokens for shard in step.results(ShardResult) if shard.tokens is not None]
    return {
        "step": step.manifest["fingerprint"],
        "config": step.manifest["config"],
        **arranged.model_dump(include={"rows", "sequences", "documents"}),
        "tokens": sum(counted) if counted else arranged.tokens,
    }


def card_numbers(stats: Stats) -> dict[str, str]:
    """Return label → value for the data card, without what there is nothing to count for."""
    is_extended = stats.layout == Layout.EXTENDED
    chunks = "chunks of the meta-document" if is_extended else "parts of a document"
    similar = "a negative to its meta-chunk" if is_extended else f"a document to {stats.scores}"
    numbers = {
        "sequences": f"{stats.sequences:,} of {stats.target_tokens:,} tokens",
        "documents": f"{stats.distinct_documents:,} of {stats.yields.documents:,} in the corpus",
        "documents in a sequence": _spread(stats.documents_per_sequence, "{:,.0f}"),
        "share of the meta-documents": f"{stats.meta_share:.1%} of the tokens" if stats.meta_share else "",
        f"tokens between consecutive {chunks}": _spread(stats.distance_tokens, "{:,.0f}"),
        f"cosine of {similar}": _spread(stats.similarity, "{:.3f}"),
        "uses of a chunk": f"{stats.reuse.mean:.2f} on average, {stats.reuse.max:,} at most" if stats.reuse.max else "",
        "negatives from the own document": ""
        if stats.own_document_negatives is None
        else f"{stats.own_document_negatives:,}",
        "chunks repeated in a sequence": f"{stats.repeated_chunks:,}",
        "characters per token": f"{stats.chars_per_token:.3f}" if stats.chars_per_token else "",
        "encoder": _model_name(stats.encoder) if stats.encoder else "",
        "search": stats.search or "",
        "shortlist": stats.shortlist or "",
    }
    return {label: value for label, value in numbers.items() if value}


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    mean, p10, p50, p90 = (form.format(value) for value in (spread.mean, spread.p10, spread.p50, spread.p90))
    return f"{mean} on average, median {p50}, {p10} to {p90} (p10 to p90)"
