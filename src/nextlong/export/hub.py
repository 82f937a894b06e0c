"""Commit export files to a data set repository of the Hugging Face Hub.

In:  `hf://datasets/OWNER/NAME[@BRANCH][/FOLDER]`; local files, and names of files that
a commit deletes.
Out: commits, whose files appear and disappear together.

The content of large files is uploaded before the commit that names it, and the Hub
keeps it by its hash. An interrupted upload is therefore never visible to readers, and
the next one sends only what has not arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from nextlong.errors import ExportError

PROTOCOL: Final = "hf"
_BUCKETS: Final = "buckets/"  # storage without commits
_DATASET: Final = re.compile(
    r"datasets/(?P<name>[^/@]+/[^/@]+)"
    r"(@(?P<branch>refs/\w+/[^/]+|[^/]+))?(/(?P<folder>.*))?"
)
_MAIN: Final = "main"
_TOKENS: Final = "https://huggingface.co/settings/tokens"
_LOG_IN: Final = (
    "run `hf auth login` with a token that may write, or set HF_TOKEN to it; make one "
    f"at {_TOKENS}"
)
# Answers that another attempt may change.
_PASSING: Final = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.PRECONDITION_FAILED,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A folder of a data set repository.

    name: owner and name of the data set; folder: "" for its root
    """

    url: str
    name: str
    branch: str
    folder: str

    def check_writable(self) -> None:
        """Ask the Hub whether the user may write; nothing is written.

        Raises ExportError with the fix.
        """
        from huggingface_hub import HfApi

        with self._explained():
            HfApi().auth_check(self.name, repo_type="dataset", write=True)

    def commit(
        self,
        additions: Mapping[str, Path | bytes],
        *,
        deletions: Iterable[str] = (),
        message: str,
    ) -> None:
        """Upload files, by name below the folder, and commit them with deletions.

        Raises ExportError for what another attempt would not change, else the
        exception of huggingface_hub.
        """
        from huggingface_hub import (
            CommitOperationAdd,
            CommitOperationDelete,
            HfApi,
        )

        operations = []
        for name in deletions:
            path = self._path(name)
            operations.append(CommitOperationDelete(path, is_folder=False))
        for name, content in additions.items():
            path = self._path(name)
            operations.append(CommitOperationAdd(path, content))
        with self._explained():
            HfApi().create_commit(
                self.name,
                operations,
                commit_message=message,
                repo_type="dataset",
                revision=self.branch,
            )

    def _path(self, name: str) -> str:
        # The root of the repository is "".
        return f"{self.folder}/{name}".lstrip("/")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise ExportError for exceptions that last; pass on the others."""
        try:
            yield
        except Exception as error:
            explained = self._explanation(error)
            if explained is None:
                raise
            problem, fix = explained
            raise ExportError(where=self.url, problem=problem, fix=fix) from None

    def _explanation(self, error: Exception) -> tuple[str, str] | None:
        """Return the problem and its fix; None for an error that may pass."""
        from huggingface_hub import get_token
        from huggingface_hub.errors import (
            OfflineModeIsEnabled,
            RevisionNotFoundError,
        )

        if isinstance(error, OfflineModeIsEnabled):
            return "the Hub is not contacted while HF_HUB_OFFLINE is set", "unset it"
        status, said = _answer(error)
        if status is None or status in _PASSING or status >= 500:
            return None
        if get_token() is None:
            return "the Hub needs an access token to write, and none is set", _LOG_IN
        if isinstance(error, RevisionNotFoundError):
            create = f"hf repos branch create {self.name} {self.branch}"
            return (
                f"the data set {self.name} has no branch {self.branch!r}",
                f"create it: {create} --repo-type dataset",
            )
        if status == HTTPStatus.UNAUTHORIZED:
            return "the Hub does not accept your access token (401)", _LOG_IN
        if status == HTTPStatus.FORBIDDEN:
            return (
                f"your access token may not write to the data set {self.name} (403)"
                f"{said}",
                "use a token with write permission, of an account that may write to "
                f"this data set: {_TOKENS}",
            )
        if status == HTTPStatus.NOT_FOUND:
            return (
                f"the Hub has no data set {self.name} that your access token may see "
                "(404)",
                f"create it: hf repos create {self.name} --repo-type dataset --private",
            )
        return f"the Hub refused the request ({status}){said}", "change what it names"


def repository_at(url: str) -> HubRepository | None:
    """Return the repository of an `hf://` URL; None for any other URL, and for buckets.

    Raises ExportError for repositories of models and Spaces. The Hub is not contacted.
    """
    protocol, separator, path = url.partition("://")
    if protocol != PROTOCOL or not separator or path.startswith(_BUCKETS):
        return None
    match = _DATASET.fullmatch(path)
    if match is None:
        raise ExportError(
            where=f"the destination {url!r}",
            problem="it names no data set of the Hugging Face Hub",
            fix="write hf://datasets/OWNER/NAME",
        )
    branch = match["branch"] or _MAIN
    folder = match["folder"] or ""
    return HubRepository(
        url=url,
        name=match["name"],
        branch=unquote(branch),
        folder=folder.strip("/"),
    )


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Return the status and the message of the response that led to an exception.

    huggingface_hub wraps the exceptions of its threads in others.
    """
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if response is not None:
            message = getattr(cause, "server_message", None) or ""
            words = str(message).split()
            return int(response.status_code), f": {' '.join(words)}"
        cause = cause.__cause__
    return None, ""
