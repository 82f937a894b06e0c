"""Embed: chunks → vectors. An encoder a file; `base.load_encoder` imports only the one that the recipe names."""
