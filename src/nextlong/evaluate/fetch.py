"""Fetch: the files that some tasks read, into the folder of `--data`.

In:  tasks and lengths. Out: the files, each downloaded from its publisher's place, and
a table of what is there, what was fetched, and what must be fetched by hand, with the
exact command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from rich.console import Console

from nextlong.download import RemoteFile, download, download_members, etag_of
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import ARCHIVED, ELSEWHERE, HUB, DataFiles, HubFile
from nextlong.evaluate.task import Measurement
from nextlong.report import tables
from nextlong.text import Json, first_sentence

# HELMET's data; its folder `data` is `helmet` here.
_ARCHIVE: Final = HubFile("princeton-nlp/HELMET", "data.tar.gz")
_IN_ARCHIVE: Final = "data/"
_SHA256_DIGITS: Final = 64
_HUB_URL: Final = "https://huggingface.co"
_UNKNOWN: Final = "see the task's documentation"
_GB: Final = 1e9
# Called with the number of bytes that were read.
_Advance = Callable[[int], None]
_T = TypeVar("_T")


class FetchedFile(NamedTuple):
    """What became of a file.

    state: have, fetched, by hand or failed
    note: where it was fetched from, the command to run, or why it failed
    """

    name: str
    state: str
    note: str = ""
    sha256: str | None = None

    def as_json(self) -> Json:
        values: Json = {"file": self.name, "state": self.state, "note": self.note}
        return {**values, "sha256": self.sha256}


def files_of(tasks: Iterable[Measurement], lengths: Sequence[int]) -> list[str]:
    """Return every file that tasks read at some lengths, each once."""
    names: list[str] = []
    for task in tasks:
        for length in lengths:
            names += task.needs(length)
            names += task.optional(length)
            # The benchmark's own samples, which take the place of generated ones.
            published = task.published(length)
            if published is not None:
                names.append(published)
    return list(dict.fromkeys(names))


def fetch(names: Sequence[str], out: Path, console: Console) -> list[FetchedFile]:
    """Fetch what a folder lacks; return what became of each file.

    A file that cannot be fetched does not keep the others from it.
    """
    with store.explained(out):
        out.mkdir(parents=True, exist_ok=True)
    folder = DataFiles(out)
    fetched: dict[str, FetchedFile] = {}
    archived = []
    for name in names:
        if folder.has(folder.source(name)):
            fetched[name] = FetchedFile(name, "have")
        elif name in HUB or (name in ELSEWHERE and ELSEWHERE[name].url):
            fetched[name] = _one_file(name, out, console)
        elif name in ELSEWHERE:
            fetched[name] = _by_hand(name, out)
        elif name.startswith(ARCHIVED):
            archived.append(name)
        else:
            fetched[name] = FetchedFile(name, "by hand", _UNKNOWN)
    if archived:
        fetched |= _from_archive(archived, out, console)
    return [fetched[name] for name in names]


def show(files: Sequence[FetchedFile], console: Console) -> None:
    """Print the table, and below it the commands of what is fetched by hand."""
    rows = []
    for file in files:
        note = "" if file.state == "by hand" else file.note
        rows.append((file.name, file.state, note))
    tables.show_in_blocks(["file", "state", "from"], rows, console, names=1)
    by_hand = [file for file in files if file.state == "by hand"]
    if by_hand:
        tables.show_title("To be fetched by hand", console)
        for file in by_hand:
            console.print(file.name, style="bold", highlight=False)
            console.print(f"  {file.note}", soft_wrap=True, highlight=False)


def check_failures(files: Sequence[FetchedFile], out: Path) -> None:
    """Raise EvaluateError if a file could not be fetched."""
    failed = [file for file in files if file.state == "failed"]
    if failed:
        first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise EvaluateError(
            where=out / first.name,
            problem=f"it cannot be downloaded: {first.note}{more}",
            fix="run the same command again to resume, or put your copy there",
        )


def _remote(file: HubFile) -> RemoteFile:
    """Return where the hub has a file, with the hash that it names."""
    endpoint = os.environ.get("HF_ENDPOINT", _HUB_URL)
    url = f"{endpoint}/datasets/{file.repo}/resolve/{file.revision}/{file.path}"
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    etag = etag_of(url, headers)
    # The ETag of a file in Git LFS is its SHA-256, of any other file a shorter hash.
    published = etag if len(etag) == _SHA256_DIGITS else None
    return RemoteFile(
        url=url, version=etag, sha256=file.sha256 or published, headers=headers
    )


def _by_hand(name: str, out: Path) -> FetchedFile:
    path = (out / name).absolute()
    command = ELSEWHERE[name].command.format(
        path=shlex.quote(str(path)), folder=shlex.quote(str(path.parent))
    )
    return FetchedFile(name, "by hand", command)


def _one_file(name: str, out: Path, console: Console) -> FetchedFile:
    """Download one file; return its failure as its state."""
    in_hub = HUB.get(name)
    source = in_hub.repo if in_hub else ELSEWHERE[name].url

    def get(advance: _Advance) -> str:
        remote = _remote(in_hub) if in_hub else RemoteFile(source)
        return download(remote, out / name, advance=advance)

    try:
        sha256 = _with_progress(name, get, console)
    except OSError as error:
        return FetchedFile(name, "failed", _reason(error))
    return FetchedFile(name, "fetched", source, sha256)


def _from_archive(
    names: Sequence[str], out: Path, console: Console
) -> Mapping[str, FetchedFile]:
    """Fetch members of HELMET's archive, of which nothing else is written."""
    member_of = {name: name.replace(ARCHIVED, _IN_ARCHIVE, 1) for name in names}
    paths = {member: out / name for name, member in member_of.items()}

    def get(advance: _Advance) -> dict[str, str]:
        return download_members(_remote(_ARCHIVE), paths, folder=out, advance=advance)

    source = f"{_ARCHIVE.path} of {_ARCHIVE.repo}"
    try:
        digests = _with_progress(source, get, console)
    except OSError as error:
        return {name: FetchedFile(name, "failed", _reason(error)) for name in names}
    files = {}
    for name, member in member_of.items():
        if member in digests:
            files[name] = FetchedFile(name, "fetched", source, digests[member])
        else:
            files[name] = FetchedFile(name, "failed", f"{source} has no {member}")
    return files


def _reason(error: OSError) -> str:
    """Return why a download failed; urllib wraps the reason of a connection."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, OSError):
        error = reason
    return first_sentence(error)


def _with_progress(name: str, get: Callable[[_Advance], _T], console: Console) -> _T:
    """Call `get` with a function that shows the bytes that were read."""
    total = 0
    with console.status(f"fetching {name}") as status:

        def advance(size: int) -> None:
            nonlocal total
            total += size
            status.update(f"fetching {name}: {total / _GB:.2f} GB")

        return get(advance)
