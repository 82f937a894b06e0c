"""Artifacts: the files of finished steps: their typed results, look-ups, rows, and the variants of a run directory."""
