"""Command line: run one command; a user's mistake ends with one message and exit code 2. What it needs is imported then."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nextlong.cli.arguments import parser
from nextlong.errors import NextlongError

_USER_MISTAKE, _INTERRUPTED, _UNREAD, _TERMINATED = 2, 130, 141, 143
_READ_ONLY = frozenset({"compare", "doctor", "list", "peek", "plan", "stats"})  # nothing is lost if their output is cut


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    everything = parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        everything.print_help()
        return _USER_MISTAKE
    args = everything.parse_args(arguments)
    from nextlong.engine.process import Terminated, sigterm_raises

    code: int | None = None
    try:
        with sigterm_raises():
            module, _, function = args.command.partition(":")
            code = getattr(importlib.import_module(f"nextlong.cli.{module}"), function)(args)
            sys.stdout.flush()
    except NextlongError as error:
        return _tell(str(error), _USER_MISTAKE, label="error: ")
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        message = "a path of the recipe or the command contains a NUL, which file systems do not accept; correct it"
        return _tell(message, _USER_MISTAKE, label="error: ")
    except BrokenPipeError:  # the reader, for example `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if args.name_of_command not in _READ_ONLY:
            return _tell("stopped, because the output was closed; finished steps are kept", _UNREAD)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        message = f"{error.filename} is longer than a path can be ({error.strerror}); shorten it"
        return _tell(message, _USER_MISTAKE, label="error: ")
    except KeyboardInterrupt as stop:
        is_terminated = isinstance(stop, Terminated)
        print("" if is_terminated else "\n", end="", file=sys.stderr)  # after the ^C of the terminal
        message = "stopped; finished steps are kept, run the same command again to resume"
        return _tell(message, _TERMINATED if is_terminated else _INTERRUPTED)
    return code or 0


def _tell(message: str, code: int, *, label: str = "") -> int:
    from nextlong.report.tables import PipeConsole, say

    say(message, PipeConsole(stderr=True), label=label)
    return code


def completion(args: argparse.Namespace) -> None:
    """Print a completion script, which completes every argument that is a path with file names."""
    import shtab

    from nextlong.cli.common import present

    left = [everything := parser()]
    while left:
        for action in left.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                left += action.choices.values()
            elif action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab's own attribute
    script = shtab.complete(everything, shell=args.shell)
    present(args, {"shell": args.shell, "script": script}, lambda _: print(script))


if __name__ == "__main__":
    sys.exit(main())
