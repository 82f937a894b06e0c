"""Near-duplicates: shingles, their weights, and the rule that compares texts."""
