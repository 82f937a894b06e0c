"""Retrieval: chunks → vectors → candidates, near-duplicates, and the sample of meta-documents."""
