"""The README as a package index shows it: its links lead to the repository.

An index has no `docs/` beside the page. The repository's address stands in
`[project.urls]` of pyproject.toml and nowhere else.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?://|#)([^)\s]+\))")


def with_absolute_links(text: str, repository: str) -> str:
    """Return Markdown whose relative links and pictures are absolute.

    Both are of the branch `main`; a picture has to be the file itself, not its page.
    """
    raw = repository.replace("github.com", "raw.githubusercontent.com")

    def absolute(link: re.Match[str]) -> str:
        opening, target = link.groups()
        is_picture = opening.startswith("!")
        base = f"{raw}/main" if is_picture else f"{repository}/blob/main"
        return f"{opening}{base}/{target}"

    return _RELATIVE_LINK.sub(absolute, text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets the readme of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the readme to the metadata of pyproject.toml."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, repository),
        }
