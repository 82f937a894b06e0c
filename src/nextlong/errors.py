"""Errors: all mistakes that a user can fix, as one exception tree.

Each error takes where the mistake is, with which value, what is wrong and how to fix
it, and composes the sentence. The command line prints it without a traceback and exits
with code 2. A bug in nextlong is an ordinary Python exception with a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, overload


class NextlongError(Exception):
    """A mistake that the user can fix; the base class of all others.

    where: the key of the recipe, the option, the file or the run
    value: what stands there, as the user wrote it, if that says more than its place
    problem: what is wrong; with a value, a predicate of it ("is below 1"), without one,
        a clause of its own ("it has no column 'text'")
    fix: what the user can do

    The sentence is `where=value problem; fix` or `where: problem; fix`.
    """

    @overload
    def __init__(
        self,
        *,
        where: object,
        value: object | None = None,
        problem: str,
        fix: str,
    ) -> None: ...

    # Only for libraries that raise the error of a worker process again, from its type
    # and its sentence, as PyTorch's loaders do.
    @overload
    def __init__(self, sentence: str, /) -> None: ...

    def __init__(
        self,
        sentence: str = "",
        *,
        where: object = "",
        value: object | None = None,
        problem: str = "",
        fix: str = "",
    ) -> None:
        self.where = str(where)
        self.value = None if value is None else str(value)
        self.problem = problem
        self.fix = fix
        super().__init__(sentence or self._sentence())

    def _sentence(self) -> str:
        if self.value is None:
            return f"{self.where}: {self.problem}; {self.fix}"
        return f"{self.where}={self.value} {self.problem}; {self.fix}"

    def __reduce__(
        self,
    ) -> tuple[Callable[..., NextlongError], tuple[type[Self], str], dict[str, Any]]:
        """Pickle with all parts: an error travels from its worker process."""
        return _restored, (type(self), str(self)), dict(self.__dict__)


def _restored(kind: type[NextlongError], sentence: str) -> NextlongError:
    """Return an error of a kind; pickle sets its parts."""
    error = kind.__new__(kind)
    error.args = (sentence,)
    return error


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
    """An extension from another distribution cannot be loaded, or has failed.

    traceback: of its exception, if it raised one
    """

    traceback: str = ""


class ExportError(NextlongError):
    """An export could not be written or published at its destination."""


class EvaluateError(NextlongError):
    """A model, a server, a data file or earlier results prevent the evaluation."""
