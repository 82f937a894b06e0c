"""Command line: the parser of all commands, and exit codes.

A user's mistake ends with one message that names the place, the value and the fix, and exit code 2. What a command needs is
imported when it runs, so that `nextlong --help` answers at once.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import nextlong
from nextlong.cli import evaluate, export, inspect, replicate, run, train
from nextlong.cli.common import Commands, add_json, imported, print_json
from nextlong.errors import NextlongError

_USER_MISTAKE, _INTERRUPTED, _UNREAD, _TERMINATED = 2, 130, 141, 143
_READ_ONLY = frozenset({"compare", "doctor", "list", "peek", "plan", "stats"})  # nothing is lost if their output is cut


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return _USER_MISTAKE
    args = parser.parse_args(arguments)
    from nextlong.engine.process import Terminated, sigterm_raises

    code: int | None = None
    try:
        with sigterm_raises():
            code = args.command(args)
            sys.stdout.flush()
    except NextlongError as error:
        return _mistake(str(error))
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        return _mistake(
            "a path of the recipe or the command contains a NUL, which file systems do not accept; correct it"
        )
    except BrokenPipeError:  # the reader, for example `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if args.name_of_command not in _READ_ONLY:
            _tell("stopped, because the output was closed; finished steps are kept")
            return _UNREAD
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _mistake(f"{error.filename} is longer than a path can be ({error.strerror}); shorten it")
    except KeyboardInterrupt as stop:
        is_terminated = isinstance(stop, Terminated)
        print("" if is_terminated else "\n", end="", file=sys.stderr)  # after the ^C of the terminal
        _tell("stopped; finished steps are kept, run the same command again to resume")
        return _TERMINATED if is_terminated else _INTERRUPTED
    return code or 0


def _tell(message: str, *, label: str = "") -> None:
    from nextlong.report.tables import PipeConsole, say

    say(message, PipeConsole(stderr=True), label=label)


def _mistake(message: str) -> int:
    _tell(message, label="error: ")
    return _USER_MISTAKE


class _Parser(argparse.ArgumentParser):
    """The parser of all commands and of each; it reports unknown arguments itself, and FILEs may also follow options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Return the parsed arguments; nothing is left over."""
        parsed, left = super().parse_known_args(args, namespace)
        if left and hasattr(parsed, "sources") and not any(word.startswith("-") for word in left):
            parsed.sources, left = [*parsed.sources, *left], []
        if left:
            hint = "; --set takes KEY=VALUE" if "--set" in (args or ()) else ""
            hint = "; nextlong plan is the dry run" if "--dry-run" in left else hint
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Exit with the message and code 2."""
        mistyped = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if mistyped:
            near = difflib.get_close_matches(mistyped[1], re.findall(r"[\w-]+", mistyped[2]), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "nextlong --help lists all commands"
            message = f"unknown command {mistyped[1]!r}; {hint}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="nextlong",
        description="Turn short documents into token-exact long sequences with hard negatives (NExtLong, arXiv 2501.12766).",
    )
    parser.add_argument("--version", action="version", version=f"nextlong {nextlong.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="name_of_command")
    _add_demo_and_init(commands)
    run.add(commands)
    _add_variants(commands)
    inspect.add(commands)
    run.add_sweep(commands)
    export.add(commands)
    train.add(commands)
    evaluate.add(commands)
    replicate.add(commands)
    inspect.add_checks(commands)
    completion = commands.add_parser(
        "completion",
        help="Print a shell completion script",
        description='bash: eval "$(nextlong completion bash)" in ~/.bashrc  ·  '
        "zsh: nextlong completion zsh > _nextlong in a folder of $fpath  ·  "
        "fish: nextlong completion fish > ~/.config/fish/completions/nextlong.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    add_json(completion, about="print the script within JSON")
    completion.set_defaults(command=_completion)
    for listed in commands._choices_actions:
        command = commands.choices[listed.dest]
        command.description = command.description or f"{listed.help}."
    return parser


def _add_demo_and_init(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="Make long sequences from the documentation of your Python")
    demo.add_argument(
        "--dir", type=Path, default=Path("nextlong-demo"), help="output directory (default: nextlong-demo)"
    )
    add_json(demo, about="print JSON, as run does")
    demo.set_defaults(command=imported("demo:run_demo"))

    init = commands.add_parser("init", help="Write a commented recipe for your files")
    init.add_argument("recipe", type=Path, metavar="RECIPE", help="the YAML file to write")
    init.add_argument(
        "sources",
        nargs="*",
        metavar="FILE",
        help="files, folders, globs or URLs to read (default: the documents beside the recipe)",
    )
    init.add_argument(
        "--tokenizer", metavar="NAME", help="a tokenizer.json, a folder or a hub name; a number trains a tokenizer"
    )
    init.add_argument("--full", action="store_true", help="write every key, not only the most important ones")
    init.add_argument("--force", action="store_true", help="overwrite an existing recipe")
    init.add_argument("--preset", metavar="NAME", help="copy a preset: quickstart, paper-64k, paper-128k or paper-512k")
    add_json(init)
    init.set_defaults(command=imported("init:init"))


def _add_variants(commands: Commands) -> None:
    listing = commands.add_parser("list", help="List the variants of a run, their settings, size and age")
    listing.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    add_json(listing)
    listing.set_defaults(command=imported("variants:list_command"))

    cleaning = commands.add_parser("gc", help="Clean up: delete files that no variant needs, after confirmation")
    cleaning.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    which = cleaning.add_mutually_exclusive_group()
    which.add_argument("--keep", nargs="+", default=[], metavar="NAME", help="delete all variants but these")
    which.add_argument("--drop", nargs="+", default=[], metavar="NAME", help="delete these variants")
    cleaning.add_argument("--yes", action="store_true", help="delete without confirmation")
    add_json(cleaning, about="print JSON; without --yes nothing is deleted")
    cleaning.set_defaults(command=imported("variants:gc_command"))


def _completion(args: argparse.Namespace) -> None:
    import shtab

    parser = _parser()
    _complete_paths(parser, shtab.FILE)
    script = shtab.complete(parser, shell=args.shell)
    if args.json:
        print_json({"shell": args.shell, "script": script})
    else:
        print(script)


def _complete_paths(parser: argparse.ArgumentParser, files: Mapping[str, Any]) -> None:
    """Complete every argument that is a path with file names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _complete_paths(sub, files)
        elif action.type is Path:
            action.complete = files  # type: ignore[attr-defined] # shtab's own attribute


if __name__ == "__main__":
    sys.exit(main())
