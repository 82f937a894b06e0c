"""Write: finished runs as one HTML report that opens from disk, side by side.

Nothing comes from a network, every text of the corpus is escaped, and the one script is
named by its hash in the report's policy. Every number is one of `nextlong stats
--json`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import xxhash
from markupsafe import Markup

import nextlong
from nextlong.artifacts import variant_records
from nextlong.engine import store
from nextlong.engine.executor import one_thread
from nextlong.errors import NextlongError
from nextlong.picture import html
from nextlong.picture.pieces import RUNS
from nextlong.report import summary
from nextlong.report.page import cards, cells, explain, sequences
from nextlong.report.page.near_duplicates import near_duplicate_pairs
from nextlong.report.page.verdict import verdict
from nextlong.runs.exported import Exported
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import measure
from nextlong.runs.variants import CURRENT, HEAD_CHARS, VARIANTS_META
from nextlong.text import Json, counted

# Of the variants in the name of a page; a longer name is their number and a hash.
_LONGEST_NAME_BYTES: Final = 200
_EXAMPLES: Final = 3  # near-duplicates of a run


def leave(run: Run) -> str:
    """Write the report of a variant unless it is up to date; return its path."""
    path = place_of([run])
    is_current = False
    if path.is_file():
        # The head of a page names the data that it shows; the rest is not read.
        with path.open(encoding="utf-8", errors="replace") as file:
            is_current = identity([run]) in file.read(HEAD_CHARS)
    if not is_current:
        with store.explained(path):
            store.write_file(path, page([run]))
    return str(path)


def place_of(runs: Sequence[Run]) -> Path:
    """Return the path of the report of some variants.

    It is in their run directory, or in the working directory if they share none.
    """
    run_dir = runs[0].path
    if any(run.path != run_dir for run in runs):
        return Path("report.html")
    names = [run.variant.name for run in runs]
    if names == [variant_records.current(run_dir)]:
        return run_dir / CURRENT
    joined = "@".join(names)  # no variant has an @ in its name
    if len(joined.encode()) > _LONGEST_NAME_BYTES:
        digest = xxhash.xxh3_64_hexdigest(joined.encode())
        joined = f"{len(names)}@variants@{digest[:8]}"
    return run_dir / f"report-{joined}.html"


def identity(runs: Sequence[Run]) -> str:
    """Return a hash of the data that a report shows and of the version that drew it."""
    variants = []
    for run in runs:
        fingerprints = {
            name: done.manifest["fingerprint"] for name, done in run.steps.items()
        }
        variants.append((run.variant.name, fingerprints))
    sizes = [run.sequences_per_part for run in runs]
    text = json.dumps([nextlong.__version__, variants, sizes])
    return hashlib.sha256(text.encode()).hexdigest()


@one_thread()
def page(runs: Sequence[Run]) -> str:
    """Return the report of some runs.

    Raises NextlongError for more runs than there are colours.
    """
    if len(runs) > RUNS:
        raise NextlongError(
            where=f"{len(runs)} runs",
            problem=f"a report shows at most {RUNS}",
            fix="name fewer, or use nextlong compare",
        )
    all_stats = [measure(run).as_json() for run in runs]
    names = cells.labels(runs) if len(runs) > 1 else ["this run"]
    numbers = cells.Numbers(all_stats, names)
    first = all_stats[0]
    sequences_made = counted(first["sequences"], "long sequence")
    title = f"{sequences_made} of {first['setting']['target_tokens']:,} tokens"
    if len(runs) > 1:
        title = f"{len(runs)} data sets side by side"
    shown_runs = [
        _shown(run, run_stats, name)
        for run, run_stats, name in zip(runs, all_stats, names, strict=True)
    ]
    # The policy names both by their hashes, so they are put in unchanged.
    style = html.style()
    script = html.script()
    return html.render(
        "report/page/page.html",
        title=title,
        policy=_policy(style, script),
        # Our own files, which hold no text of a corpus.
        style=Markup(style),
        script=Markup(script),
        identity=identity(runs),
        variants_meta=VARIANTS_META,
        variants=" ".join(run.variant.name for run in runs),
        version=nextlong.__version__,
        is_extended=numbers.is_extended,
        openings=dict.fromkeys(map(explain.opening, all_stats)),
        runs=shown_runs,
        first=numbers.first(),
        settings=cards.Table("Settings and amounts", names, numbers.settings()),
        shown=sequences.shown(runs, names),
        **cards.sections(numbers),
        glossary=explain.glossary(all_stats),
        exact=json.dumps,
    )


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy that allows only this style and script."""
    return (
        f"default-src 'none'; style-src {_source_of(style)}; "
        f"script-src {_source_of(script)}; base-uri 'none'; form-action 'none'"
    )


def _source_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _shown(run: Run, run_stats: cells.RunStats, name: str) -> Json:
    """Return what the page says of one run."""
    decided = verdict(run_stats, is_stand_in=run.recipe.tokenizer.train is not None)
    # The command that builds the data again, with what the warnings propose.
    again = ""
    if decided.settings:
        command = ["nextlong", "run", str(run.variant.recipe_file)]
        for setting in decided.settings:
            command += ["--set", setting]
        again = shlex.join(command)
    return {
        "name": name,
        "named": shlex.quote(run_stats["run"]),
        "facts": explain.facts(run_stats, run),
        "verdict": decided,
        "again": again,
        "summary": summary.lines(Exported(run.recipe, [run], run.steps)),
        "examples": list(near_duplicate_pairs(run, limit=_EXAMPLES)),
    }
