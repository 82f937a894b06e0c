"""Artifacts: read the files of finished steps.

They give typed results, look-ups, rows, and the variants of a run directory.
"""
