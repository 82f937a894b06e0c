"""Verify: is a finished run what it says it is?

In:  a run directory: run.json, manifests, and the files they name; or a delivered export. Out: one `Outcome` per check.

    checks.py          all checks in order, in one process or several; outcome.py: what one check found
    run_files.py       the files of a run, read independently
    files.py           every file against its hash; delivered.py: an export outside its run
    corpus.py          documents and the chunks that tile them
    tokens.py          token ids and cuts by the reference tokenizer
    vectors.py         vectors encoded again; search.py: scores, and neighbours searched by brute force
    sequences.py       spans, order, completeness, negatives, reuse
    near_duplicates.py negatives that repeat their meta-document or each other, by the rule in repeats.py
    arrangement.py     which sequences make up which row, and the splits
    exports.py         exported rows against rows that are composed again

Nothing here imports the steps, methods or composition that made the run, or their mistakes would go unnoticed; a contract of
import-linter holds that. Shared are the encoders, because a vector cannot be made otherwise, and the readers of formats
(docs/decisions/0019).
"""
