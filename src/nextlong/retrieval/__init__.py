"""Retrieval: chunks → vectors → index → candidates; and which texts are near-duplicates."""
