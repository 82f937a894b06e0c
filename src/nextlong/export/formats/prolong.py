"""ProLong: MDS as its trainer reads it."""

from __future__ import annotations

from dataclasses import replace

from nextlong.export.formats import mds

FORMAT = replace(mds.FORMAT, name="prolong")
