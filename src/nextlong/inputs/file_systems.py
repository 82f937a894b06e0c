"""File systems: a path or URL of the user's → the fsspec file system that holds it, and what to do where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import fsspec

from nextlong.errors import NextlongError

_EXTRAS: Final = {"s3": "nextlong[s3]", "s3a": "nextlong[s3]", "gs": "nextlong[gcs]", "gcs": "nextlong[gcs]"}
_PACKAGES: Final = {"hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "abfs": "adlfs", "az": "adlfs"}


def reach(path: str, *, where: str, error: type[NextlongError]) -> tuple[Any, str]:
    """Return the file system of a local path or URL, and the path within it.

    Raises `error`, which opens with `where` (say `ingest.sources[0].path='s3://…'`), if a package is missing or the URL
    is none that fsspec knows. Nothing is contacted.
    """
    protocol = fsspec.core.split_protocol(path)[0] or "file"
    try:
        fs, root = fsspec.core.url_to_fs(
            str(Path(path).expanduser()) if protocol == "file" and "://" not in path else path
        )
    except ImportError as missing:
        package = _EXTRAS.get(protocol) or _PACKAGES.get(protocol)
        cure = f"pip install '{package}'" if package else str(missing)
        raise error(f"{where} needs a package for {protocol}:// that is not installed; {cure}") from None
    except ValueError as unknown:
        raise error(f"{where}: {unknown}; use a local path or a URL that fsspec knows") from None
    return fs, root


def is_local(fs: Any) -> bool:
    """Whether a file system is that of this machine."""
    return "file" in protocols(fs)


def protocols(fs: Any) -> frozenset[str]:
    """Return the names that URLs of a file system begin with."""
    return frozenset(fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,))
