"""Check what a package index will show and a user will get of a wheel.

    python .ci/check_wheel.py WHEEL

Every file of the package and every preset is in it, and every link of its readme is
absolute. Ends with the first fault.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def main(wheel: Path) -> None:
    """Check a wheel against the files of the repository."""
    listed = ["git", "ls-files", "src/nextlong", "recipes"]
    tracked = subprocess.run(listed, capture_output=True, text=True, check=True)
    paths = tracked.stdout.splitlines()
    expected = {f"nextlong/{path.removeprefix('src/nextlong/')}" for path in paths}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        readme = archive.read(metadata).decode()
    missing = sorted(expected - names)
    if missing:
        sys.exit(f"{wheel}: it lacks {', '.join(missing)}")
    links = _LINK.findall(readme)
    relative = [link for link in links if not re.match("https?://|#", link)]
    if relative or not links:
        sys.exit(f"{wheel}: links of its readme are not absolute: {relative}")


main(Path(sys.argv[1]))
