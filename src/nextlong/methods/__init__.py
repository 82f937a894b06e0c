"""Methods: decide which documents make up a sequence, in which order."""
