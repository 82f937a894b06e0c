"""Damage: alter the files of a finished run, their hashes in order, so that only what they say can give it away."""

import json
import os
import re
import signal

import numpy as np
import pyarrow as pa
import xxhash

from nextlong.schemas import ROW_MASK, SHARD_BITS
from nextlong.verify.checks import CHECKS, _guarded, verify
from nextlong.verify.run_files import StoredRun
from tests.support.exported_runs import change_json, folder_of, record_of


def outcomes(run, *names, sample=100, seed=0):
    """Return the outcome of each check of these groups, without the hashes; of none, all that `verify` says."""
    if not names:
        return _named(
            {
                outcome.check: outcome
                for outcome in verify(run, sample=sample, seed=seed)
            }
        )
    artefacts = StoredRun(run, sample=sample, seed=seed)
    checked = [_guarded(artefacts, name, CHECKS[name]) for name in names]
    return _named(
        {outcome.check: outcome for of_group in checked for outcome in of_group}
    )


def _named(found):
    """Return what was found, which whatever the damage never says an internal id."""
    for name, outcome in found.items():
        for example in (
            outcome.examples if name != "manifests" else ()
        ):  # a fingerprint may have no letter
            assert not re.search(r"(?<![\w.-])[1-9]\d{9,}(?!\w)|⟦", example), example
    return found


def chunk_name(run, chunk):
    """Return a chunk as a person is told of it."""
    chunks = read_rows(files(run, "chunk", ".chunks.arrow")[chunk >> SHARD_BITS])
    doc_rows = [row["doc_row"] for row in chunks]
    doc_row = doc_rows[chunk & ROW_MASK]
    return f"{document_name(run, doc_row, shard=chunk >> SHARD_BITS)} · chunk {(chunk & ROW_MASK) - doc_rows.index(doc_row) + 1}"


def document_name(run, row, *, shard=0):
    return read_rows(files(run, "ingest", ".documents.arrow")[shard])[row]["source_id"]


def breaches(run, *names, **options):
    """Return what each check that found a breach says first."""
    found = outcomes(run, *names, **options)
    return {
        check: outcome.examples[0]
        for check, outcome in found.items()
        if outcome.breaches
    }


def files(run, step, suffix):
    return sorted(
        path for path in folder_of(run, step).iterdir() if path.name.endswith(suffix)
    )


def rehash(path):
    """Write the file's size and hash into its manifest, so that only what it says can give the damage away."""
    manifest = json.loads((path.parent / "manifest.json").read_text())
    (part,) = (part for part in manifest["parts"] if path.name in part["files"])
    raw = path.read_bytes()
    part["files"][path.name] |= {
        "bytes": len(raw),
        "xxh3": xxhash.xxh3_128_hexdigest(raw),
    }
    (path.parent / "manifest.json").write_text(json.dumps(manifest))


def read_batches(path):
    with pa.ipc.open_file(path.read_bytes()) as reader:
        return [
            reader.get_batch(number) for number in range(reader.num_record_batches)
        ], reader.schema


def read_rows(path):
    return [row for batch in read_batches(path)[0] for row in batch.to_pylist()]


def change_rows(path, change):
    """Rewrite an Arrow file: `change` gets all rows as dictionaries and alters them in place."""
    batches, schema = read_batches(path)
    rows = [row for batch in batches for row in batch.to_pylist()]
    change(rows)
    with pa.ipc.new_file(path, schema) as writer:
        for row in rows:
            writer.write_batch(pa.RecordBatch.from_pylist([row], schema=schema))
    rehash(path)


def change_array(path, change):
    values = np.load(path).copy()
    change(values)
    np.save(path, values)
    rehash(path)


def change_recipe(run, section, key, value):
    change_json(
        record_of(run), lambda record: record["recipe"][section].update({key: value})
    )


def first_sequence(run):
    return read_batches(files(run, "compose", ".sequences.arrow")[0])[0][0].to_pylist()[
        0
    ]


def change_sequence(run, change):
    """Alter the first sequence; `change` gets its lists."""
    change_rows(
        files(run, "compose", ".sequences.arrow")[0], lambda rows: change(rows[0])
    )


def spans_of(row, role):
    return [span for span, own in enumerate(row["role"]) if own == role]


def end_process(*_):
    """End this process as a kill does."""
    os.kill(os.getpid(), signal.SIGKILL)
