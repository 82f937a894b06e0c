"""Runs: a finished run: open it, measure it, export it."""
