"""Exported runs: what `verify` says of one, and its files altered."""

import json

import pyarrow.parquet as pq

from nextlong.runs import export as runs_export
from nextlong.verify.exports import check_exports
from nextlong.verify.run_files import StoredRun

SEQUENCES, TOKENS = 12, 512
SIZES = [
    f"compose.sequences={SEQUENCES}",
    f"compose.target_tokens={TOKENS}",
    "compose.min_meta_chunks=2",
]
EOD = "<|endoftext|>"
FORMATS = [
    "parquet",
    "arrow",
    "jsonl",
    "mds",
    "megatron",
    "axolotl",
    "prolong",
]  # of sequences of one length
OPTIONS = [f"export.megatron_eod='{EOD}'", "workers=1"]


def record_of(run):
    """Return the record of the variant that a run directory stands for."""
    return (
        run
        / "variants"
        / (json.loads((run / "run.json").read_text())["variant"] + ".json")
    )


def folder_of(run, step):
    return run / json.loads(record_of(run).read_text())["steps"][step]


def outcomes_of(run):
    return {outcome.check: outcome for outcome in check_exports(StoredRun(run))}


def breaches(run):
    """Return the examples of each check that found a breach."""
    return {
        check: outcome.examples
        for check, outcome in outcomes_of(run).items()
        if outcome.breaches
    }


def change_json(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def exported(runs, **options):
    """Export and return the finished steps."""
    return runs_export.export(runs, **options).done


def parquet_rows(folder):
    """Return the rows of the Parquet files in a folder."""
    return [
        row
        for path in sorted(folder.glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
