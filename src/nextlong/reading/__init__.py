"""Inputs: the user's files → records, on any file system; what a run remembers of them."""
