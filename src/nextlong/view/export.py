"""Export: a static copy of the viewer's pages, for any web host.

In:  a run. Out: `index.html` (the list), a page for each sequence with its texts, their
meta-documents, and what was filtered out. There, the page's own script sorts and
filters lists.
"""

from __future__ import annotations

from pathlib import Path

from nextlong import schemas
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.picture import pieces
from nextlong.runs.run import Run
from nextlong.view import pages
from nextlong.view.documents import EVERY
from nextlong.view.pages import View
from nextlong.view.variants import Variants


def export(run: Run, folder: Path, *, first: int) -> tuple[int, int]:
    """Write a static copy of the `first` sequences (0: all).

    Return how many sequences and pages it has. Raises NextlongError.
    """
    is_file = folder.exists() and not folder.is_dir()
    if is_file or (folder.is_dir() and any(folder.iterdir())):
        raise NextlongError(
            where=f"--export {folder}",
            problem="it is not an empty folder",
            fix="choose another one",
        )
    count = len(run)
    if first:
        count = min(first, count)
    leads = set()
    for number in range(count):
        spans = run.sequence(number).spans
        leads.add(pieces.lead_document(spans))
    leads.discard(schemas.NO_CHUNK)
    names = [f"sequence-{number}.html" for number in range(count)]
    names += [f"document-{lead}.html" for lead in sorted(leads)]

    variants = Variants(run)
    exported = frozenset({"sequences.html", "filtered.html", *names})
    view = View(variants, variants.first, exported)
    with store.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        listed = pages.sequence_list(
            view,
            EVERY,
            sort="",
            first=0,
            columns=(),
            limit=count,
        )
        store.write_file(folder / "sequences.html", listed)
        filtered = pages.filtered_out(view, "", first=0)
        store.write_file(folder / "filtered.html", filtered)
        for number in range(count):
            page = pages.sequence(view, number)
            store.write_file(folder / f"sequence-{number}.html", page)
        for lead in leads:
            page = pages.document(view, lead)
            store.write_file(folder / f"document-{lead}.html", page)
        # Last: a copy without it is not complete.
        store.write_file(folder / "index.html", listed)
    return count, len(names) + 3
