"""The small corpus with other documents: its rows, a source of changed ones, and what `verify` says of their run."""

import json

from nextlong.verify.checks import verify


def rows_of(corpus):
    """Return the rows of a folder of JSON lines."""
    return [
        json.loads(line)
        for path in sorted(corpus.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def write_source(folder, rows):
    """Write rows as the only file of a folder; return the override that makes it the source."""
    folder.mkdir()
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"ingest.sources=[{{path: {folder}, name: small}}]"


def breaches(run_dir):
    """Return the first example of each check that found a breach."""
    return {
        outcome.check: outcome.examples[0]
        for outcome in verify(run_dir)
        if outcome.breaches
    }
