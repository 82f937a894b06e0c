"""Command line: demo · init · plan · run · list · gc · export · peek · view · stats · report · sweep · train …

Every mistake of the user ends with one message that names the place, the value and the cure, and exit code 2.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import nextlong
from nextlong.cli import completion, doctor, reports, share, sweep, variants
from nextlong.cli import evaluate as cli_evaluate
from nextlong.cli import export as cli_export
from nextlong.cli import plan as cli_plan
from nextlong.cli import replicate as cli_replicate
from nextlong.cli import report as cli_report
from nextlong.cli import train as cli_train
from nextlong.cli import verify as cli_verify
from nextlong.cli import view as cli_view
from nextlong.cli.asked import add_json, add_recipe, print_json, write
from nextlong.engine.interrupts import Terminated, held_back, sigterm_raises
from nextlong.errors import NextlongError
from nextlong.recipe import Recipe
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console

_USER_MISTAKE, _INTERRUPTED, _UNREAD, _TERMINATED = 2, 130, 141, 143
_ONLY_SHOW = frozenset({"compare", "doctor", "list", "peek", "plan", "stats"})  # what is not read of them is not missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return _USER_MISTAKE
    asked = parser.parse_args(arguments)
    error_console = Console(stderr=True)
    code: int | None = None
    try:
        with sigterm_raises():
            code = asked.command(asked)
            sys.stdout.flush()
    except NextlongError as error:
        tables.say(str(error), error_console, label="error: ")
        return _USER_MISTAKE
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        tables.say(
            "a path of the recipe or the command holds a NUL, which no file system takes; correct it",
            error_console,
            label="error: ",
        )
        return _USER_MISTAKE
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if asked.name_of_command not in _ONLY_SHOW:
            tables.say("stopped, because nobody reads what it prints; what is finished is kept", error_console)
            return _UNREAD
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        tables.say(
            f"{error.filename} is longer than a path can be ({error.strerror}); shorten it",
            error_console,
            label="error: ",
        )
        return _USER_MISTAKE
    except KeyboardInterrupt as stop:
        is_terminated = isinstance(stop, Terminated)
        error_console.print("" if is_terminated else "\n", end="")  # behind the terminal's ^C
        tables.say("stopped; what is finished is kept, the same command goes on from there", error_console)
        return _TERMINATED if is_terminated else _INTERRUPTED
    return code or 0


class _Parser(argparse.ArgumentParser):
    """The parser of all commands and of each, which tells itself what it does not know; FILEs may also stand behind options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Return what was asked; nothing is left over."""
        asked, left = super().parse_known_args(args, namespace)
        if left and hasattr(asked, "sources") and not any(word.startswith("-") for word in left):
            asked.sources, left = [*asked.sources, *left], []
        if left:
            hint = "; behind --set stands KEY=VALUE" if "--set" in (args or ()) else ""
            hint = "; nextlong plan says what a run would do" if "--dry-run" in left else hint
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return asked, left

    def error(self, message: str) -> NoReturn:
        """End with the message, and exit code 2."""
        mistyped = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if mistyped:
            near = difflib.get_close_matches(mistyped[1], re.findall(r"[\w-]+", mistyped[2]), n=1)
            message = f"{mistyped[1]!r} is no command; " + (
                f"did you mean {near[0]!r}?" if near else "nextlong --help lists them"
            )
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="nextlong", description="Short documents in, token-exact long sequences out (NExtLong, arXiv 2501.12766)."
    )
    parser.add_argument("--version", action="version", version=f"nextlong {nextlong.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="name_of_command")

    demo = commands.add_parser("demo", help="make long sequences from the documentation inside your Python")
    demo.add_argument(
        "--dir", type=Path, default=Path("nextlong-demo"), help="where to put it (default: nextlong-demo)"
    )
    add_json(demo, about="print JSON, as run does")
    demo.set_defaults(command=_demo)

    init = commands.add_parser("init", help="write a commented recipe")
    init.add_argument("recipe", type=Path)
    init.add_argument(
        "sources",
        nargs="*",
        metavar="FILE",
        help="what to read: files, folders, globs, URLs (default: what lies beside)",
    )
    init.add_argument("--tokenizer", metavar="NAME", help="a tokenizer.json, a folder, a hub name; a number: train one")
    init.add_argument("--full", action="store_true", help="write every key, not only the dozen that matter")
    init.add_argument("--force", action="store_true", help="overwrite the file if it is there")
    init.add_argument(
        "--preset", metavar="NAME", help="copy a recipe of the package: quickstart, paper-64k, paper-128k or paper-512k"
    )
    add_json(init)
    init.set_defaults(command=_init)

    for name, command, meaning in (
        ("plan", cli_plan.show, "what would run, what is done, and what it will take"),
        ("run", _run, "carry out a recipe; again: go on, or do nothing"),
    ):
        sub = commands.add_parser(name, help=meaning)
        add_recipe(sub, needed="a preset will do" if name == "plan" else "always")
        sub.set_defaults(command=command)
        add_json(sub)
        if name == "plan":
            cli_plan.add(sub)
        if name == "run":
            sub.add_argument("--name", help="of the variant that this makes, opened as RUN@NAME (the recipe's `name`)")
            sub.add_argument(
                "--accept-changed-inputs",
                action="store_true",
                help="accept input files that changed, and read them again",
            )
            share.add(sub)

    variants.add(commands)
    reports.add(commands)
    cli_report.add(commands)
    cli_view.add(commands)
    sweep.add(commands)
    cli_export.add(commands)
    cli_train.add(commands)
    cli_evaluate.add(commands)
    cli_replicate.add(commands)

    cli_verify.add(commands)
    doctor.add(commands)
    completion.add(commands, _parser)
    return parser


def _demo(asked: argparse.Namespace) -> None:
    from nextlong.cli import demo

    demo.run_demo(asked.dir, Console(stderr=asked.json), form="json" if asked.json else "text")


def _init(asked: argparse.Namespace) -> None:
    from nextlong.cli import starter
    from nextlong.recipe import presets, template

    starter.check_name(asked.recipe, is_forced=asked.force)
    recipe: Recipe | None = None
    started: starter.Started | None = None
    if asked.preset is None:
        commands = f"`nextlong plan {asked.recipe}` says what it will take, `nextlong run {asked.recipe}` does it."
        heading = f"A recipe of nextlong. {commands}\nA path that is not absolute counts from the folder that these are called in."
        started = starter.starter(asked.recipe, asked.sources, tokenizer=asked.tokenizer)
        recipe = started.recipe
        if asked.full:
            text = template.commented(recipe, heading=heading)
        else:
            heading += "\nEvery other key has its default: `nextlong init --full` writes all, with what they mean."
            text = template.short(recipe, heading=heading)
    elif asked.full or asked.tokenizer:
        option = "--full" if asked.full else "--tokenizer"
        raise NextlongError(f"--preset is copied as it is; leave out {option}, and change the copy")
    elif asked.sources:
        raise NextlongError("--preset has sources of its own; leave out the files, and change ingest.sources")
    else:
        text = presets.preset(asked.preset)
    write(asked.recipe, text)
    written = Recipe.load(asked.recipe) if recipe is None else recipe
    has_documents = recipe is None or bool(starter.finds(asked.recipe, asked.sources))
    notes = [] if started is None else list(starter.notes(asked.recipe, started, asked.sources))
    is_readable = not has_documents or started is None or starter.is_readable(started)
    if asked.json:
        print_json(starter.as_json(asked.recipe, written, has_documents=has_documents, notes=notes))
    else:
        for note in notes:
            tables.say(note, Console())
    if not is_readable:
        raise NextlongError(
            f"wrote {asked.recipe}, but `nextlong run` will refuse it: mend what cannot be read, or name the column of texts"
        )
    look = "look at ingest.sources and tokenizer"
    if not has_documents:
        look = "found no documents beside it: put the path of yours into ingest.sources"
    if not asked.json:
        tables.say(f"wrote {asked.recipe}; {look}, then: nextlong run {asked.recipe}", Console())


def _run(asked: argparse.Namespace) -> None:
    name = [f"name={json.dumps(asked.name)}"] if asked.name else []
    recipe = Recipe.load(asked.recipe, overrides=[*asked.overrides, *name])
    if share.is_asked(asked):
        share.run(recipe, asked, Console(stderr=asked.json))
        return
    from nextlong import workers

    with held_back():  # Python may report a Ctrl-C that cuts an import short as one that nobody handled
        # Also where all turns out to be done: it imports beside this process, which has half a second of imports before it.
        workers.start_server(recipe)
        from nextlong.cli.run import run_and_tell

    form: Literal["text", "json"] = "json" if asked.json else "text"
    run_and_tell(recipe, Console(), changed_inputs="accept" if asked.accept_changed_inputs else "refuse", form=form)


if __name__ == "__main__":
    sys.exit(main())
