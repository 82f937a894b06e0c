"""Compose: drafts and token counts → sequences of exactly T."""
