"""Verify: is a finished run what it says it is?

In:  a run directory: run.json, manifests, and the files they name; or a folder that an export was put into.
Out: one `Outcome` a check.

    artefacts.py    reads the files, by code of its own    step.py  a folder and its manifest
    composed.py     one sequence: spans, and what the corpus says of their chunks
    files.py        hashes against manifests
    corpus.py       documents and the chunks that tile them
    tokens.py       token ids by the reference tokenizer
    sequences.py    spans, order, completeness, negatives, reuse
    near_copies.py  negatives that repeat what they should distract from   repeats.py  the rule      words.py  its words
    search.py       scores, and neighbours found again by brute force
    vectors.py      vectors encoded again
    arrangement.py  which sequences stand in which row, and the splits
    exports.py      exported rows against what expected.py makes again     export_readers.py  the files of each format
    besides.py      exports that a later one of the format has replaced    mixes.py  exports of several runs
    delivered.py    an export where it was put
    processes.py    checks side by side
    checks.py       all of them in order      outcome.py  what one found   show.py  a table, or JSON

Nothing here imports the steps, methods or formats that made the run, or a mistake of theirs would go unseen; a contract of
import-linter holds that. Only `embed.base` is shared, because a vector can be made again in no other way.
"""
