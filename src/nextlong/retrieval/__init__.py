"""Retrieval: chunks → vectors → candidates; near-duplicates, and what is sampled."""
