"""Encoders: texts → unit vectors; one module each, of which only the one that the recipe names is imported."""
