"""Similarity: runs of words, one rule for near-copies and rarity."""
