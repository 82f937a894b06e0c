"""Download: the data files of some suites that are public on the Hugging Face hub, each checked by its SHA-256.

In:  names of suites. Out: the files in a folder that `--data` takes; a line for what must be fetched by hand, with its source.
A file that is there is not asked for again; what has another hash than its publisher names never gets its place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate.asked import is_there
from nextlong.evaluate.data import HUB, DataFiles, HubFile, origin
from nextlong.evaluate.extra import required
from nextlong.evaluate.task import Task
from nextlong.model_names import first_sentence
from nextlong.plain_data import Json
from nextlong.report import tables

_SHA256_DIGITS: Final = 64


def download(tasks: Sequence[Task], out: Path, console: Console) -> list[Json]:
    """Fetch what the tasks read into a folder; return a record of each file: fetched, there already, or to be fetched by hand."""
    names = dict.fromkeys(
        name for task in tasks for name in (*task.files, *(n for at in task.files_at.values() for n in at))
    )
    with store.explained(out):
        out.mkdir(parents=True, exist_ok=True)
    done: list[Json] = []
    for name in names:
        if is_there(name, DataFiles(out)):
            done.append({"file": name, "state": "there"})
        elif name in HUB:
            done.append(
                {"file": name, "state": "fetched", "sha256": _fetched(HUB[name], out / name), "from": HUB[name].repo}
            )
        else:
            done.append({"file": name, "state": "by hand", "from": origin(name)})
        from_where = f": {done[-1]['from']}" if "from" in done[-1] else ""
        tables.say(f"{done[-1]['state']:<8} {out / name}{from_where}", console)
    return done


def _fetched(file: HubFile, place: Path) -> str:
    """Fetch a file and return its SHA-256. Raises EvaluateError if it cannot be had, or is not what its publisher names."""
    hub = required("huggingface_hub")
    # Read now: the library reads it when it is imported.
    where = {"repo_type": "dataset", "revision": file.revision, "endpoint": os.environ.get("HF_ENDPOINT")}
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.parent, prefix=".fetching-") as temporary:
        try:
            etag = hub.get_hf_file_metadata(hub.hf_hub_url(file.repo, file.path, **where)).etag
            fetched = Path(hub.hf_hub_download(file.repo, file.path, local_dir=temporary, **where))
        except (OSError, ValueError) as error:  # the library's errors are both, and requests' are OSError
            raise EvaluateError(
                f"{file.path} of {file.repo} cannot be fetched ({first_sentence(error)}); try again, or put your copy at {place}"
            ) from None
        found = _sha256(fetched)
        named = file.sha256 or (etag if etag and len(etag) == _SHA256_DIGITS else None)
        if named is not None and found != named:
            raise EvaluateError(
                f"{file.path} of {file.repo} has the SHA-256 {found}, not {named}: it is damaged or was changed; try again"
            )
        fetched.replace(place)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
