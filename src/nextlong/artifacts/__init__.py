"""Artifacts: read the files of finished steps: typed results, look-ups, rows, and the variants of a run directory."""
