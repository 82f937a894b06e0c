"""Search: vectors → candidates; which documents are drawn."""
