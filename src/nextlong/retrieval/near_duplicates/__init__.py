"""Similarity: runs of words, one rule for near-duplicates and rarity."""
