"""Corpus: records → documents → chunks, without duplicates and evaluation texts."""
