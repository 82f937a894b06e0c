"""Retries: what a file system elsewhere refuses now and then is asked for again, after a pause that doubles.

A disk of this machine that fails is told at once. One across a network drops connections and says that it is busy; fsspec's file
systems retry some of that, each in its own way, so hours of reading end in the one error that they do not.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import fsspec

from nextlong.inputs import file_systems

_TRIES: Final = 6
_PAUSE_S: Final = 0.5  # before the second try, twice as long before each further one: 15 s in all
_FINAL: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

T = TypeVar("T")


def again(call: Callable[[], T], *, fs: Any) -> T:
    """Return what a call to a file system returns, tried again where that lies elsewhere and raises an OSError that may pass.

    The last error is raised.
    """
    for attempt in range(0 if file_systems.is_local(fs) else _TRIES - 1):
        try:
            return call()
        except _FINAL:
            raise
        except OSError:
            time.sleep(_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))  # so that workers do not come back all at once
    return call()


def open_binary(path: str) -> Any:
    """Open a file by its path or URL; one that lies elsewhere goes on where a read failed."""
    fs, within = fsspec.core.url_to_fs(path)
    return open(within, "rb") if file_systems.is_local(fs) else RetriedFile(fs, within)


class RetriedFile(io.RawIOBase):
    """A file on an fsspec file system, opened anew at the same place where a read fails."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._file: Any = None
        self._at = 0
        self._size: int = again(lambda: fs.info(path), fs=fs)["size"]

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set where the next read begins."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, or its beginning; return with how many bytes."""
        piece = again(lambda: self._read(len(buffer)), fs=self._fs)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _read(self, count: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._fs.open(self._path, "rb")
            if self._file.tell() != self._at:
                self._file.seek(self._at)
            piece: bytes = self._file.read(count)
        except OSError:
            self._forget()
            raise
        return piece

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # it failed already
                file.close()

    def close(self) -> None:
        """Close it."""
        self._forget()
        super().close()
