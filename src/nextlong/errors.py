"""Errors: all mistakes that a user can fix, as one exception tree.

Each message says what happened, where, with which value, and how to fix it. The command line prints it without a traceback and
exits with code 2. A bug in nextlong is an ordinary Python exception with a traceback.
"""

from __future__ import annotations


class NextlongError(Exception):
    """A mistake that the user can fix; the base class of all others."""


class RecipeError(NextlongError):
    """The recipe is invalid or names something that does not exist."""


class ArgumentError(RecipeError, ValueError):
    """A function of the Python interface was called with an invalid argument."""


class CorpusError(NextlongError):
    """The documents cannot be read, or do not suffice for the request."""


class EncoderError(NextlongError):
    """An encoder could not be loaded, or returned invalid vectors."""


class TokenizerError(NextlongError):
    """A tokenizer could not be loaded, or cannot be used as configured."""


class RunError(NextlongError):
    """The run directory is locked, unwritable, incomplete or altered."""


class PluginError(NextlongError):
    """An extension from another distribution cannot be loaded, or is not valid."""


class ExportError(NextlongError):
    """An export could not be written or published at its destination."""


class EvaluateError(NextlongError):
    """A model, a server, a data file or earlier results prevent the evaluation."""
