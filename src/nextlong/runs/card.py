"""Export card: the facts that the data set card of an export tells, from the finished steps that made it.

In:  the recipe, the runs that the rows come from, the finished steps, and which splits lie where.
Out: `Facts` for `export/card.py`. A card is published, so of paths and URLs it tells the last name alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from nextlong.citation import NEXTLONG, Citation
from nextlong.engine.step import Finished
from nextlong.export import steps as export_steps
from nextlong.export.card import Facts, Source, Split, public_name
from nextlong.export.formats.base import format_of
from nextlong.export.splits import RowsResult
from nextlong.methods.base import method_of
from nextlong.plain_data import Json
from nextlong.recipe import MayBePath, Recipe, Section
from nextlong.recipe.keys import MayBePrivate
from nextlong.results import TokenizerResult
from nextlong.runs.opened import Run
from nextlong.runs.row_warnings import of_rows

if TYPE_CHECKING:
    from nextlong.runs.statistics import Measured

_HUB_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_NOT_PUBLISHED: Final = "(not published)"


def facts(
    recipe: Recipe,
    runs: Sequence[Run],
    done: Finished,
    *,
    name: str,
    below: Mapping[str, str],
    measured: Measured,
) -> Facts:
    """Return what the card says of some splits of a format, whose files lie in the folders `below`."""
    rows = done["rows"].result(RowsResult)
    room = recipe.export.pack or max(run.recipe.sequence_tokens for run in runs)
    made = format_of(name)
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
    return Facts(
        name=Path(recipe.run_dir).name,
        format=made,
        splits=splits,
        room=room,
        left_out=(rows.left_out, arranged),
        methods={run.recipe.compose.method: method_of(run.recipe).layout for run in runs},
        target_tokens=sorted({run.recipe.sequence_tokens for run in runs}),
        tokenizer=_hub_name(recipe.tokenizer.source or "byte-level BPE trained on the corpus"),
        vocabulary=done["tokenizer"].result(TokenizerResult).vocab_size,
        citations=list(dict.fromkeys([NEXTLONG, *filter(None, map(_citation, runs))])),
        eos=done["tokenizer"].result(TokenizerResult).eos_id,
        sources=_sources(runs),
        recipes=[public_recipe(recipe_made) for recipe_made in (recipe, *(run.recipe for run in runs[1:]))],
        runs=_shares(runs, rows, below),
        version=done["rows"].manifest["versions"].get("nextlong", "not installed as a package"),
        statistics={
            label: _model_name(value) if label == "encoder" else value for label, value in measured.numbers.items()
        }
        | _lost_text(done),
        warnings=[
            warned.message
            for warned in (
                *measured.warnings,
                *(one for split in below for one in of_rows(split, rows.splits[split], room=room)),
            )
        ],
    )


def _citation(run: Run) -> Citation | None:
    citation = getattr(method_of(run.recipe), "citation", None)
    return citation if isinstance(citation, Citation) else None


def _lost_text(done: Finished) -> dict[str, str]:
    """Return the share of the text that its tokens do not say, where there is any."""
    share = done["tokenizer"].result(TokenizerResult).lost_share
    return {"text lost by the tokenizer": f"{share:.1%} of the characters"} if share else {}


def public_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML, every key named, without what tells of the machine that it ran on."""
    plain = recipe.as_data()
    plain["run_dir"] = public_name(plain["run_dir"])
    del plain["store"]
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


def _sources(runs: Sequence[Run]) -> list[Source]:
    """Return the sources of all runs, each once."""
    sources = [
        Source(source.name or public_name(source.path), public_name(source.path), source.license)
        for run in runs
        for source in run.recipe.ingest.sources
    ]
    return list(dict.fromkeys(sources))
