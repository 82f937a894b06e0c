"""File systems: find the fsspec file system of a path or URL, and read from remote ones with retries.

A local disk that fails is reported at once. A remote file system drops connections and reports that it is busy; fsspec's
implementations retry some of these errors, each in its own way, so hours of reading could end in the one error that they do not.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec
from fsspec import AbstractFileSystem

from nextlong.errors import NextlongError

_EXTRAS: Final = {"s3": "nextlong[s3]", "s3a": "nextlong[s3]", "gs": "nextlong[gcs]", "gcs": "nextlong[gcs]"}
_PACKAGES: Final = {"hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "abfs": "adlfs", "az": "adlfs"}
_TRIES: Final = 6
_PAUSE_S: Final = 0.5  # before the second try, twice as long before each further one: 15 s in all
_FINAL: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

_T = TypeVar("_T")


def reach(path: str, *, where: str, error: type[NextlongError]) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a local path or URL, and the path within it. Nothing is contacted.

    Raises `error`, whose message begins with `where` (e.g. `ingest.sources[0].path='s3://…'`), if a package is missing or
    fsspec does not know the protocol.
    """
    protocol = fsspec.core.split_protocol(path)[0] or "file"
    try:
        fs, root = fsspec.core.url_to_fs(
            str(Path(path).expanduser()) if protocol == "file" and "://" not in path else path
        )
    except ImportError as missing:
        package = _EXTRAS.get(protocol) or _PACKAGES.get(protocol)
        fix = f"pip install '{package}'" if package else str(missing)
        raise error(f"{where} needs a package for {protocol}:// that is not installed; {fix}") from None
    except ValueError as unknown:
        raise error(f"{where}: {unknown}; use a local path or a URL that fsspec knows") from None
    return fs, root


def protocols(fs: AbstractFileSystem) -> frozenset[str]:
    """Return the URL protocols of a file system."""
    return frozenset(fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,))


def is_local(fs: AbstractFileSystem) -> bool:
    """Return whether a file system is the one of this machine."""
    return "file" in protocols(fs)


def retried(call: Callable[[], _T], *, fs: AbstractFileSystem) -> _T:
    """Return the result of a call to a file system; retry OSErrors of a remote one, and raise the last of them."""
    for attempt in range(0 if is_local(fs) else _TRIES - 1):
        try:
            return call()
        except _FINAL:
            raise
        except OSError:
            # The random factor spreads the retries of many workers.
            time.sleep(_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
    return call()


def open_binary(path: str) -> Any:
    """Open a local path or URL for reading; reads of a remote file are retried."""
    fs, within = fsspec.core.url_to_fs(path)
    return open(within, "rb") if is_local(fs) else RetriedFile(fs, within)


class RetriedFile(io.RawIOBase):
    """A file on an fsspec file system; a failed read opens it again at the same position."""

    def __init__(self, fs: AbstractFileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        self._file: Any = None
        self._position = 0
        self._size: int = retried(lambda: fs.info(path), fs=fs)["size"]

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of a buffer; return the number of bytes."""
        block = retried(lambda: self._read(len(buffer)), fs=self._fs)
        buffer[: len(block)] = block
        self._position += len(block)
        return len(block)

    def _read(self, count: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._fs.open(self._path, "rb")
            if self._file.tell() != self._position:
                self._file.seek(self._position)
            block: bytes = self._file.read(count)
        except OSError:
            self._drop()
            raise
        return block

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # it failed already
                file.close()

    def close(self) -> None:
        """Close the file."""
        self._drop()
        super().close()
