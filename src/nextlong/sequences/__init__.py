"""Tokens: text → ids, exactly the reference's."""
