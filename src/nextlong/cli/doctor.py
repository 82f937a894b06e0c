"""The command `nextlong doctor`: what is installed, what hardware is used, and which command adds what is missing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from nextlong.report.tables import PipeConsole as Console

_BROKEN = 1


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    doctor = commands.add_parser(
        "doctor", help="what is installed, what hardware is used, what is missing for which feature"
    )
    doctor.add_argument("--json", action="store_true", help="everything, for tools")
    doctor.set_defaults(command=_doctor)


def _doctor(asked: argparse.Namespace) -> int:
    from nextlong.report import installation

    examined = installation.examine()
    if asked.json:
        print(json.dumps(asdict(examined), indent=1, ensure_ascii=False))
    else:
        installation.show(examined, Console())
    return 0 if examined.is_whole else _BROKEN
