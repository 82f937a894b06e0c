"""Write: finished runs as one HTML report that opens from disk, side by side.

Nothing comes from a network, every text of the corpus is escaped, and the one script is named by its hash in the report's
policy. Every number is one of `nextlong stats --json`.
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
from nextlong.artifacts import record
from nextlong.engine import store
from nextlong.engine.executor import one_thread
from nextlong.errors import NextlongError
from nextlong.picture import html
from nextlong.picture.pieces import RUNS
from nextlong.report import summary
from nextlong.report.page import cards, sequences, words
from nextlong.runs.card import Exported
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import measure
from nextlong.runs.variants import CURRENT, HEAD_CHARS, VARIANTS_META
from nextlong.text import counted

_LONGEST_NAME_BYTES: Final = (
    200  # of the variants in the name of a page; else how many and a hash
)
_EXAMPLES: Final = 3  # near-duplicates of a run


def leave(run: Run) -> str:
    """Write the report of a variant unless it is up to date; return its path."""
    path = place_of([run])
    is_current = False
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            is_current = identity([run]) in file.read(HEAD_CHARS)
    if not is_current:
        with store.explained(path):
            store.write_file(path, page([run]))
    return str(path)


def place_of(runs: Sequence[Run]) -> Path:
    """Return the path of the report of some variants: in their run directory, or in the working directory if they share none."""
    run_dir = runs[0].path
    if any(run.path != run_dir for run in runs):
        return Path("report.html")
    names = [run.variant.name for run in runs]
    if names == [record.current(run_dir)]:
        return run_dir / CURRENT
    joined = "@".join(names)  # which no variant has in its name
    if len(joined.encode()) > _LONGEST_NAME_BYTES:
        joined = (
            f"{len(names)}@variants@{xxhash.xxh3_64_hexdigest(joined.encode())[:8]}"
        )
    return run_dir / f"report-{joined}.html"


def identity(runs: Sequence[Run]) -> str:
    """Return a hash of the data that a report shows and of the version that drew it."""
    steps = (
        {name: done.manifest["fingerprint"] for name, done in run.steps.items()}
        for run in runs
    )
    made = list(zip((run.variant.name for run in runs), steps, strict=True))
    text = json.dumps(
        [nextlong.__version__, made, [run.sequences_per_part for run in runs]]
    )
    return hashlib.sha256(text.encode()).hexdigest()


@one_thread()
def page(runs: Sequence[Run]) -> str:
    """Return the report of some runs. Raises NextlongError for more runs than there are colours."""
    if len(runs) > RUNS:
        raise NextlongError(
            f"a report shows at most {RUNS} runs, not {len(runs)}; name fewer, or use nextlong compare"
        )
    plain = [measure(run).as_json() for run in runs]
    names = words.labels(runs) if len(runs) > 1 else ["this run"]
    of = words.Numbers(plain, names)
    style, script = html.style(), html.script()
    of_style, of_script = (
        f"'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'"
        for own in (style, script)
    )
    policy = f"default-src 'none'; style-src {of_style}; script-src {of_script}; base-uri 'none'; form-action 'none'"
    title, shown_runs = (
        f"{counted(plain[0]['sequences'], 'long sequence')} of {plain[0]['setting']['target_tokens']:,} tokens",
        [],
    )
    for run, of_run, name in zip(runs, plain, names, strict=True):
        verdict = words.verdict(
            of_run, is_stand_in=run.recipe.tokenizer.train is not None
        )
        settings = "".join(
            f" --set {shlex.quote(setting)}" for setting in verdict.settings
        )
        shown = {
            "name": name,
            "named": shlex.quote(of_run["run"]),
            "facts": words.facts(of_run, run),
            "verdict": verdict,
            "again": f"nextlong run {shlex.quote(str(run.variant.recipe_file))}{settings}"
            if settings
            else "",
            "summary": summary.lines(Exported(run.recipe, [run], run.steps)),
            "examples": list(sequences.near_duplicate_pairs(run, most=_EXAMPLES)),
        }
        shown_runs.append(shown)
    return html.render(
        "report/page/page.html",
        title=f"{len(plain)} data sets side by side" if len(plain) > 1 else title,
        policy=policy,
        style=Markup(style),  # our own files, which hold no text of a corpus
        script=Markup(script),
        identity=identity(runs),
        variants_meta=VARIANTS_META,
        variants=" ".join(run.variant.name for run in runs),
        version=nextlong.__version__,
        is_extended=words.is_extended(plain),
        openings=dict.fromkeys(map(words.opening, plain)),
        runs=shown_runs,
        first=of.first(),
        settings=cards.Table("Settings and amounts", names, of.settings()),
        shown=sequences.shown(runs, names),
        **cards.sections(of),
        glossary=words.glossary(plain),
        exact=json.dumps,
    )
