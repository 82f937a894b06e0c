"""Verify: check a finished run or a delivered export with an independent implementation.

In:  a run directory: run.json, manifests, and the files they name; or a delivered export. Out: one `Outcome` per check.

    checks.py          all checks in order, in one process or several; outcome.py: what one check found
    run_files.py       the files of a run, read independently
    files.py           every file against its hash, in a run or in an export outside its run
    corpus.py          documents, the chunks that tile them, and token ids by the reference tokenizer
    search.py          vectors encoded again, scores, and neighbours searched by brute force
    sequences.py       spans, order, completeness, negatives, reuse, cuts
    near_duplicates.py negatives that repeat their meta-document or each other
    exports.py         which sequences make up which row, the splits, and exported rows against rows that are composed again

Nothing here imports the steps, methods or composition that made the run, so that their mistakes are found; a contract of
import-linter enforces it. Shared are the encoders, since only they can make a vector again, and the readers of formats, of the
record and of CHUNKS and DOCUMENTS (docs/decisions/0019).
"""
