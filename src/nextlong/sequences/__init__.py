"""Sequences: drafts → token ids → sequences of exactly T tokens.

The ids are exactly those of Hugging Face tokenizers.
"""
