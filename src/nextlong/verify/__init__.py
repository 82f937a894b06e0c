"""Verify: check a finished run or a delivered export, by an independent implementation.

In:  a run directory (run.json, manifests, and the files they name), or a delivered
     export.
Out: one `CheckOutcome` per check.

    checks.py          all checks in order, in one process or several
    outcome.py         the result of a check
    run_files.py       read the files of a run
    reference.py       ids and texts by the reference tokenizer
    files.py           compare every file with its hash, in a run or in an export
    corpus.py          documents, the chunks that cover them, and their token ids
    search.py          encode vectors again, recompute scores, and search neighbours
    sequences.py       spans, order, completeness, negatives, reuse, cuts
    near_duplicates.py negatives that repeat their meta-document or each other
    exports.py         which sequences form which row, the splits, and exported rows

Nothing here imports the steps, methods or composition of a run, so that their mistakes
are found; a contract of import-linter enforces this. Shared are only the encoders,
because nothing else can compute a vector again, and the readers of formats, of the
record, and of CHUNKS and DOCUMENTS (docs/decisions/0019).
"""
