"""Encoders: texts → unit vectors; one module each.

Only the one that the recipe names is imported.
"""
