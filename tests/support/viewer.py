"""A viewer that runs beside a test, as the command starts it, at a port of its own."""

import re
import subprocess
import sys
from contextlib import contextmanager


class Address(str):
    """Where a viewer answers, and the header that holds its token."""

    headers: dict[str, str]


@contextmanager
def viewer(run):
    """Yield the address of `nextlong view RUN`, which ends with the context."""
    command = [sys.executable, "-m", "nextlong", "view", str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            found = re.match(
                r"serving .* at (http://127\.0\.0\.1:\d+)/\?token=(\S{32}) ", line
            )
            assert found, (
                line
            )  # what it writes to stderr is read only once it has ended
            address = Address(found[1])
            address.headers = {"Authorization": f"token {found[2]}"}
            yield address
        finally:
            process.terminate()
            process.wait(timeout=60)
