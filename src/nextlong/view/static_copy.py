"""Static copy: the viewer's pages of one variant as files that any web host serves, or that open from disk.

In:  an opened run, an empty folder, how many sequences. Out: `index.html` (the list), a page a sequence with its texts, the
documents that these are about, and what was filtered out. Lists are sorted and filtered by the page's own script.
"""

from __future__ import annotations

from pathlib import Path

from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.picture import pieces
from nextlong.runs.run import Run
from nextlong.view import pages
from nextlong.view.pages import Site
from nextlong.view.sequences import Query
from nextlong.view.variants import Variants


def export(run: Run, folder: Path, *, first: int) -> int:
    """Write the copy with the `first` sequences (0: all); return the number of pages. Raises NextlongError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NextlongError(f"{folder} is not an empty folder; choose another one for --export")
    variants = Variants(run)
    name, count = variants.first, min(first, len(run)) if first else len(run)
    variant = variants.get(name)
    leads = [pieces.lead_document(variant.sequence(number).spans) for number in range(count)]
    made = {f"sequence-{number}.html" for number in range(count)} | {
        f"document-{lead}.html" for lead in leads if lead >= 0
    }
    site = Site(frozenset({"sequences.html", "filtered.html", *made}))
    with store.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        shown = pages.sequence_list(site, variants, name, Query(), sort="", first=0, columns=(), most=count)
        _write(folder, "sequences.html", shown)
        _write(folder, "filtered.html", pages.filtered_out(site, variants, name, "", first=0))
        for number in range(count):
            _write(folder, f"sequence-{number}.html", pages.sequence(site, variants, name, number))
        for lead in sorted({lead for lead in leads if lead >= 0}):
            _write(folder, f"document-{lead}.html", pages.document(site, variants, name, lead))
        _write(folder, "index.html", shown)  # last: a copy without it is not complete
    return len(site.held or ()) + 1


def _write(folder: Path, name: str, text: str) -> None:
    store.write_text(folder / name, text)
