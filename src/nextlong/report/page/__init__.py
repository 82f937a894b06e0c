"""Page: runs as one self-contained HTML page, in words, pictures and numbers."""
