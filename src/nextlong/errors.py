"""Errors: everything that a user can mend, as one small tree.

Each message says what, where, which value, and what to do. The command line prints it without a traceback and exits
with 2. A bug of ours is an ordinary Python exception, traceback and all.
"""

from __future__ import annotations


class NextlongError(Exception):
    """Something that the user can mend; the root of the tree."""


class RecipeError(NextlongError):
    """The recipe asks for something that does not exist or cannot be."""


class CorpusError(NextlongError):
    """The documents, or what was computed from them, do not allow what was asked."""


class EncoderError(NextlongError):
    """An encoder could not be loaded, or returned vectors that cannot be right."""


class TokenizerError(NextlongError):
    """A tokenizer could not be loaded, or cannot be used as configured."""


class RunError(NextlongError):
    """The run directory is locked, unwritable, incomplete or altered."""


class PluginError(NextlongError):
    """A method or a format that another distribution brings cannot be loaded, or is none."""


class ExportError(NextlongError):
    """An export could not be written or published where it was asked for."""


class EvaluateError(NextlongError):
    """A model, a server, a data file or earlier results do not allow the evaluation that was asked for."""
