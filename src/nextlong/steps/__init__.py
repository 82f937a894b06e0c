"""Steps: how the stages become steps of a run: their tasks, and the recipe's keys that each depends on.

    corpus.py      files → documents → chunks
    candidates.py  chunks → vectors → candidates
    sequences.py   candidates → drafts → tokens → sequences → files

A step names the keys of the recipe that it depends on and nothing else of it: `compose.position` is not among those of
`draft`, so changing it keeps everything down to the tokens.
"""
