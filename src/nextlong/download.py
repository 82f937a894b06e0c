"""Download: a file of the web, or some members of a remote .tar.gz.

What was received is kept beside the destination until the file is complete, so that a
download that broke off resumes with a range request. A gzip stream cannot be entered in
its middle: of an archive, the part that is kept is decompressed again, which is read
from the disk. The archive is read no further than its last member that is needed.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_BLOCK_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 60.0
# Failures in a row, without a byte between them, after which a download stops.
_MAX_FAILURES: Final = 5
_FIRST_WAIT_S: Final = 0.5


@dataclass(frozen=True)
class RemoteFile:
    """A file of the web.

    version: names its content, such as an ETag; a changed file is not resumed
    sha256: of the whole file; None where it is unknown
    """

    url: str
    version: str = ""
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def part(self, folder: Path) -> Path:
        """Return the file in which the received bytes are kept."""
        identity = hashlib.sha256(f"{self.url} {self.version}".encode())
        return folder / f".{identity.hexdigest()[:16]}.part"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""


def etag_of(url: str, headers: Mapping[str, str]) -> str:
    """Return the ETag that a server names; "" if it names none. Raises OSError.

    The Hugging Face Hub names it where it redirects to the file.
    """
    request = urllib.request.Request(url, headers=dict(headers), method="HEAD")
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            found = response.headers
    except urllib.error.HTTPError as error:
        if error.code >= http.client.BAD_REQUEST:
            raise
        found = error.headers
    etag = found.get("X-Linked-Etag") or found.get("ETag") or ""
    return etag.removeprefix("W/").strip('"')


class DamagedError(OSError):
    """A downloaded file is not the one that its publisher names."""


class _Received:
    """The bytes of a remote file in order: those that are kept, then those received."""

    def __init__(
        self, remote: RemoteFile, part: Path, advance: Callable[[int], None]
    ) -> None:
        self._remote = remote
        self._advance = advance
        self._file = part.open("a+b")
        self._file.seek(0)
        self._offset = 0
        self._total: int | None = None
        self._response: Any = None
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Return the next bytes; none at the end. Raises OSError."""
        block = self._file.read(size) or self._received(size)
        self._offset += len(block)
        self.digest.update(block)
        self._advance(len(block))
        return block

    def _received(self, size: int) -> bytes:
        failures = 0
        while True:
            try:
                if self._response is None:
                    self._response = self._opened()
                if self._offset == self._total:
                    return b""
                block: bytes = self._response.read(size)
                if not block and self._total is not None:
                    raise ConnectionError("the server closed the connection")
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                failures += 1
                if _is_final(error) or failures == _MAX_FAILURES:
                    raise
                time.sleep(_FIRST_WAIT_S * 2**failures)
                continue
            self._file.write(block)
            return block

    def _opened(self) -> Any:
        """Return the server's response from the offset on."""
        headers = {"User-Agent": "nextlong", **self._remote.headers}
        if self._offset:
            headers["Range"] = f"bytes={self._offset}-"
        request = urllib.request.Request(self._remote.url, headers=headers)
        try:
            response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            # No byte is left: the file was complete.
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                self._total = self._offset
                return error
            error.close()
            raise
        skipped = self._offset
        if response.status == http.client.PARTIAL_CONTENT:
            skipped = 0
        length = response.headers.get("Content-Length")
        if length is not None:
            self._total = int(length) + self._offset - skipped
        # A server without ranges sends the file from its start.
        while skipped:
            skipped -= len(response.read(min(skipped, _BLOCK_BYTES)))
        return response

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()
        self._response = None

    def close(self) -> None:
        self._disconnect()
        # Before the file is renamed, its bytes are on the disk.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _is_final(error: Exception) -> bool:
    """Return whether a server refused a request, which it will do again."""
    if not isinstance(error, urllib.error.HTTPError):
        return False
    return error.code < http.client.INTERNAL_SERVER_ERROR


def download(
    remote: RemoteFile, path: Path, *, advance: Callable[[int], None] = lambda _: None
) -> str:
    """Download a file and return its SHA-256; resume what broke off.

    Raises DamagedError if the hash is not the publisher's, OSError for other failures.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = remote.part(path.parent)
    with closing(_Received(remote, part, advance)) as received:
        while received.read(_BLOCK_BYTES):
            pass
    digest = received.digest.hexdigest()
    _check(remote, digest, part)
    part.replace(path)
    return digest


def download_members(
    remote: RemoteFile,
    paths: Mapping[str, Path],
    *,
    folder: Path,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, str]:
    """Download members of a .tar.gz to their paths; return the SHA-256 of each.

    One that the archive does not have is left out. What was received is kept in
    `folder` until all members are written. Raises OSError.
    """
    digests: dict[str, str] = {}
    part = remote.part(folder)
    with closing(_Received(remote, part, advance)) as received:
        try:
            stream: Any = received
            with tarfile.open(
                fileobj=stream, mode="r|gz", bufsize=_BLOCK_BYTES
            ) as archive:
                while len(digests) < len(paths) and (member := archive.next()):
                    name = member.name.removeprefix("./")
                    if name in paths and member.isfile():
                        content: Any = archive.extractfile(member)
                        digests[name] = _written(content, paths[name])
        except (tarfile.TarError, zlib.error) as error:
            part.unlink()
            raise DamagedError(f"the archive is damaged ({error})") from None
        if len(digests) < len(paths):
            while received.read(_BLOCK_BYTES):
                pass
            _check(remote, received.digest.hexdigest(), part)
    part.unlink()
    return digests


def _written(content: Any, path: Path) -> str:
    """Write a file, whole or not at all, and return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        shutil.copyfileobj(content, file, _BLOCK_BYTES)
        file.flush()
        os.fsync(file.fileno())
    with temporary.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    temporary.replace(path)
    return digest


def _check(remote: RemoteFile, digest: str, part: Path) -> None:
    if remote.sha256 is not None and digest != remote.sha256:
        part.unlink()
        raise DamagedError(
            f"it has the SHA-256 {digest}, not {remote.sha256}, so it is damaged or "
            "was changed"
        )
