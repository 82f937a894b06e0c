"""Quest: documents that answer the same query, by keyword."""
