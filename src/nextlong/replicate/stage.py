"""Stage: a folder named by what is in it and what that depends on; finished once its last file is there.

`FOLDER/NAME-<fingerprint>/stage.json` is written last and holds what the stage depends on and what came of it. A
killed stage is begun again, or goes on where its own files say; another recipe makes other folders, and leaves these as
they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from nextlong.engine import store
from nextlong.plain_data import Json

RECORD: Final = "stage.json"


@dataclass(frozen=True)
class Stage:
    """A name below a folder, and everything that decides what it holds, as plain data."""

    above: Path
    name: str
    depends_on: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """The hash of what it depends on."""
        depends_on = json.dumps(self.depends_on, sort_keys=True, default=str)
        return hashlib.blake2b(depends_on.encode(), digest_size=6).hexdigest()

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.above / f"{self.name}-{self.fingerprint}"

    @property
    def is_finished(self) -> bool:
        """Whether it is there as a whole."""
        return (self.folder / RECORD).is_file()

    @property
    def record(self) -> Json:
        """What came of it. Raises RunError if it is not finished, or the file is damaged."""
        made: Json = store.read_json(self.folder / RECORD)["made"]
        return made

    def finish(self, made: Mapping[str, Any]) -> None:
        """Say that everything is there, and what came of it."""
        with store.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            plain = json.loads(json.dumps(self.depends_on, default=str))
            store.write_json(self.folder / RECORD, {"depends_on": plain, "made": dict(made)})
