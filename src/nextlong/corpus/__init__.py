"""Corpus: records → documents → chunks."""
