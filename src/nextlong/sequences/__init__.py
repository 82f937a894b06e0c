"""Sequences: drafts → token ids, exactly those of Hugging Face tokenizers → sequences of exactly T tokens."""
