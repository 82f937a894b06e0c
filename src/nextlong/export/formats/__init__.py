"""Formats: resolved sequences → what trainers read.

One file a format; each takes an iterable of `Resolved` blocks.
"""
