"""Command line: run one command.

A user's mistake ends with one message and exit code 2. A command imports what it needs
only when it runs, so that `nextlong --help` answers at once.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import nextlong
from nextlong.cli import evaluate_options
from nextlong.cli.argument_types import add_verbose, amount, count, words
from nextlong.errors import NextlongError, PluginError
from nextlong.export.mixture import MIXTURES, ORDERS
from nextlong.plugins import FORMATS, fault_of

_Command: TypeAlias = Callable[..., argparse.ArgumentParser]
_Add: TypeAlias = Callable[..., argparse.Action]
_RUN_HELP: Final = "a run directory, or one of its variants: RUN@NAME"
_RUNS_HELP: Final = (
    "run directories or variants (RUN@NAME); RUN@*: all variants, or those that match"
)
# Exit codes; the last three are those of a shell for SIGINT, SIGPIPE and SIGTERM.
_USER_MISTAKE: Final = 2
_INTERRUPTED: Final = 130
_UNREAD: Final = 141
_TERMINATED: Final = 143
# The groups of `nextlong --help`, by their first command.
_FIRST_OF_GROUP: Final = {
    "demo": "make data",
    "peek": "look at it",
    "export": "export",
    "train": "train",
    "evaluate": "evaluate",
    "doctor": "installation",
}
_FIRST_DAY: Final = """\
the first day:
  nextlong demo                       try it on Python's own documentation
  nextlong init my.yaml docs.jsonl    write a recipe for your files
  nextlong run my.yaml                make the sequences
  nextlong verify RUN                 check them with an independent implementation
  nextlong report RUN                 see whether to train on them, and why
"""
# What --json prints, where it is not just what the command shows.
_JSON_HELP: Final = {
    "completion": "print the script within JSON",
    "demo": "print JSON, as run does",
    "gc": "print JSON; without --yes nothing is deleted",
    "peek": "print JSON: the list, or one sequence with its spans and texts",
    "report": "print JSON: the path of the report; stats --json prints the statistics",
    "view": "print the address as JSON",
}
# Nothing is lost if the output of these commands is cut.
_READ_ONLY = frozenset(
    {"compare", "completion", "doctor", "list", "peek", "plan", "stats"}
)
_RESUME = "run the same command again to resume"
_STEPS_KEPT = f"finished steps are kept, {_RESUME}"
# What is kept of a command that was stopped.
_KEPT = {
    "demo": _STEPS_KEPT,
    "export": _STEPS_KEPT,
    "refresh": _STEPS_KEPT,
    "run": _STEPS_KEPT,
    "sweep": _STEPS_KEPT,
    "evaluate run": f"finished samples are kept, {_RESUME}",
    "train": f"{_RESUME} from the last checkpoint, if there is one",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return its exit code."""
    top_parser = parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        top_parser.print_help()
        return _USER_MISTAKE
    args = top_parser.parse_args(arguments)
    # Imported only now: a command line that is wrong is refused without them.
    from nextlong.engine.executor import Terminated, sigterm_raises

    name = args.name_of_command
    if name == "evaluate":
        name = f"{name} {args.name_of_subcommand}"
    code: int | None = None
    try:
        with sigterm_raises():
            code = _function_of(args.command)(args)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader, for example `head`, has stopped reading.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if name not in _READ_ONLY:
            return _stopped("stopped, because the output was closed", name, _UNREAD)
    except KeyboardInterrupt as stop:
        if isinstance(stop, Terminated):
            return _stopped("stopped", name, _TERMINATED)
        print("\n", end="", file=sys.stderr)  # after the ^C of the terminal
        return _stopped("stopped", name, _INTERRUPTED)
    except Exception as error:
        return _mistake(error, is_verbose=args.verbose)
    return code or 0


def _stopped(message: str, name: str, code: int) -> int:
    """Say that a command was stopped, and what is kept; return the exit code."""
    kept = _KEPT.get(name)
    return _print_and_return(f"{message}; {kept}" if kept else message, code)


def _mistake(error: Exception, *, is_verbose: bool) -> int:
    """Say what the user can fix, and return the exit code; raise any other error."""
    shown = error if isinstance(error, NextlongError) else fault_of(error)
    if shown is None and isinstance(error, OSError | ValueError):
        mistake = _mistake_in_path(error)
        if mistake is not None:
            return _print_and_return(mistake, _USER_MISTAKE, label="error: ")
    if shown is None:
        raise error
    if is_verbose:
        # That of a worker came with the error.
        of_plugin = shown.traceback if isinstance(shown, PluginError) else ""
        sys.stderr.write(of_plugin or "".join(traceback.format_exception(error)))
    return _print_and_return(str(shown), _USER_MISTAKE, label="error: ")


def _function_of(command: str) -> Callable[[argparse.Namespace], int | None]:
    """Return the function of a command, given as `module:function`."""
    module, _, name = command.partition(":")
    function: Callable[[argparse.Namespace], int | None] = getattr(
        importlib.import_module(f"nextlong.cli.{module}"), name
    )
    return function


def _mistake_in_path(error: OSError | ValueError) -> str | None:
    """Return the message for a path that no file can have; None for another error."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the path {error.filename} is too long ({error.strerror}); shorten it"
    if "embedded null" in str(error):
        return (
            "a path in the recipe or on the command line contains a NUL character; "
            "remove it"
        )
    return None


def _print_and_return(message: str, code: int, *, label: str = "") -> int:
    from nextlong.report.tables import PipeConsole, say

    say(message, PipeConsole(stderr=True), label=label)
    return code


def completion(args: argparse.Namespace) -> None:
    """Print a completion script.

    It completes every argument that is a path with file names.
    """
    import shtab

    from nextlong.cli.common import present

    top_parser = parser()
    parsers = [top_parser]
    while parsers:
        for action in parsers.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif action.type is Path:
                # An attribute of shtab's own.
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(top_parser, shell=args.shell)
    present(args, {"shell": args.shell, "script": script}, lambda _: print(script))


class _GroupedHelp(argparse.RawDescriptionHelpFormatter):
    """The help of `nextlong`: the commands in groups, and those of the first day."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        # argparse forgets the indentation of the commands.
        self._action_max_length = len("completion") + 4

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        group = _FIRST_OF_GROUP.get(action.dest)
        return f"\n  {group}:\n{text}" if group else text


class _Parser(argparse.ArgumentParser):
    """The parser of all commands and of each.

    It reports unknown arguments itself, and FILEs may also follow options.
    """

    def parse_known_args(
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        parsed, unknown = super().parse_known_args(args, namespace)
        # argparse leaves FILEs behind an option over, because `*` took none before it.
        has_options = any(word.startswith("-") for word in unknown)
        if unknown and not has_options and hasattr(parsed, "sources"):
            parsed.sources = [*parsed.sources, *unknown]
            unknown = []
        if unknown:
            hint = ""
            if "--dry-run" in unknown and self.prog == "nextlong run":
                hint = "; nextlong plan is the dry run"
            elif "--name" in unknown and self.prog == "nextlong run":
                hint = "; --set name=NAME names the variant"
            elif "--set" in (args or ()):
                hint = "; --set takes KEY=VALUE"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        # argparse lists all choices; the nearest one says more.
        mistyped = re.match(
            r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message
        )
        if mistyped:
            name, choices = mistyped.groups()
            commands = re.findall(r"[\w-]+", choices)
            near = difflib.get_close_matches(name, commands, n=1)
            hint = f"{self.prog} --help lists all commands"
            if near:
                hint = f"did you mean {near[0]!r}?"
            message = f"unknown command {name!r}; {hint}"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top_parser = _Parser(
        prog="nextlong",
        description="Turn short documents into token-exact long sequences with hard\n"
        "negatives (NExtLong, arXiv 2501.12766).",
        epilog=_FIRST_DAY,
        formatter_class=_GroupedHelp,
    )
    top_parser.add_argument(
        "--version", action="version", version=f"nextlong {nextlong.__version__}"
    )
    commands = top_parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, dest="name_of_command"
    )

    def command(
        name: str, function: str, summary: str, **options: Any
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=summary, **{"description": f"{summary}.", **options}
        )
        sub.set_defaults(command=function)
        return sub

    # In the order of the groups.
    _add_recipes(command)
    _add_views(command)
    _add_export(command)
    _add_train(command)
    evaluate_options.add(command)
    _add_installation(command)
    for name, sub in commands.choices.items():
        # The commands of evaluate declare both themselves.
        if name == "evaluate":
            continue
        add_verbose(sub)
        # These print JSON instead of other outputs, or write it to a file.
        if name in ("compare", "sweep"):
            continue
        sub.add_argument(
            "--json", action="store_true", help=_JSON_HELP.get(name, "print JSON")
        )
    return top_parser


def _set(add: _Add, *, example: str = "compose.target_tokens=65536") -> None:
    add(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"override a key of the recipe, e.g. {example}; may be repeated",
    )


def _add_recipes(command: _Command) -> None:
    add = command(
        "demo",
        "demo:run_demo",
        "Make long sequences from the documentation of your Python",
    ).add_argument
    add(
        "--dir",
        type=Path,
        default=Path("nextlong-demo"),
        help="output directory (default: nextlong-demo)",
    )

    add = command(
        "init", "init:init", "Write a commented recipe for your files"
    ).add_argument
    add("recipe", type=Path, metavar="RECIPE", help="the YAML file to write")
    add(
        "sources",
        nargs="*",
        default=[],
        metavar="FILE",
        help="files, folders, globs or URLs to read (default: the documents in the "
        "recipe's folder)",
    )
    add(
        "--tokenizer",
        metavar="NAME",
        help="a tokenizer.json, a folder or a hub name; a number trains a tokenizer",
    )
    add(
        "--full",
        action="store_true",
        help="also list every other key with its default, grouped by phase",
    )
    add("--force", action="store_true", help="overwrite an existing recipe")
    add(
        "--preset",
        metavar="NAME",
        help="copy a preset: quickstart, mixed-64k, paper-64k, paper-128k, paper-512k",
    )

    add = command(
        "plan",
        "run:plan",
        "Show the steps of a recipe, and their time, disk space and memory",
    ).add_argument
    add("recipe", type=Path, nargs="?", metavar="RECIPE", help="a recipe (YAML)")
    _set(add)
    add("--preset", metavar="NAME", help="plan one of the presets of nextlong init")
    add(
        "--workers",
        type=count,
        metavar="N",
        help="also estimate for N worker processes per node",
    )
    add(
        "--nodes",
        type=count,
        default=1,
        metavar="N",
        help="also estimate for N machines like this one",
    )
    add(
        "--gpus",
        type=count,
        default=0,
        metavar="M",
        help="also estimate for M GPUs per node",
    )
    add(
        "--gpu-tflops",
        type=amount,
        metavar="X",
        help="TFLOP/s of a GPU on a transformer (default: 120)",
    )
    add(
        "--chunks",
        type=amount,
        metavar="N",
        help="estimate for a corpus of N chunks, such as 1e8",
    )

    add = command("run", "run:run", "Run or resume a recipe").add_argument
    add("recipe", type=Path, metavar="RECIPE", help="a recipe (YAML)")
    _set(add)
    add(
        "--accept-changed-inputs",
        dest="changed_inputs",
        action="store_const",
        const="accept",
        help="accept input files that have changed, and read them again",
    )
    add(
        "--before", metavar="STEP", help="run all steps that STEP depends on, then stop"
    )
    add(
        "--only-step",
        metavar="STEP",
        help="run only tasks of this step, in parallel with other jobs",
    )
    add(
        "--tasks",
        metavar="K/N",
        help="with --only-step: every Nth task, from the Kth on (default: 1/1)",
    )

    add = command(
        "refresh",
        "run:refresh",
        "Score the texts of a run again by a checkpoint, as a new variant",
    ).add_argument
    add("run", type=Path, metavar="RUN", help=_RUN_HELP)
    add(
        "--model",
        required=True,
        metavar="CKPT",
        help="causal model: a folder, a name on the hub or a .gguf file",
    )
    _set(add, example="entropy.distractors=1")

    add = command(
        "sweep",
        "run:sweep",
        "Run a recipe over a grid of values; shared steps run once",
    ).add_argument
    add("recipe", type=Path, metavar="RECIPE", help="a recipe (YAML)")
    _set(add)
    add(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2,…",
        help="values of a key, e.g. chunk.max_chars=512,1024; repeat it to run every "
        "combination",
    )
    add("--csv", type=Path, metavar="FILE", help="write one row per variant")
    add(
        "--json",
        type=Path,
        nargs="?",
        const=Path("-"),
        metavar="FILE",
        help="write JSON to FILE, or print it",
    )


def _add_views(command: _Command) -> None:
    add = command(
        "peek", "inspect:peek", "List the sequences of a run, or show one"
    ).add_argument
    add("run", type=Path, metavar="RUN", help=_RUN_HELP)
    add("number", type=int, nargs="?", help="the sequence to show, counted from 0")
    add(
        "--first",
        type=int,
        default=100,
        metavar="N",
        help="sequences to list, 0 for all (default: 100)",
    )
    add("--text", action="store_true", help="print the text of the sequence")
    add(
        "--svg",
        type=Path,
        metavar="FILE",
        help="draw the sequence, before and after, as .svg or .png",
    )

    add = command(
        "stats",
        "inspect:stats",
        "Print the statistics of a run, with data-quality warnings",
    ).add_argument
    add("run", type=Path, metavar="RUN", help=_RUN_HELP)
    add("--all", action="store_true", help="print all of them, not only one screen")
    add(
        "--dependence",
        metavar="MODEL",
        help="measure instead how much a causal model (folder, name on the hub, .gguf "
        "file) needs the earlier meta-chunks, or documents, of every sequence",
    )

    add = command(
        "report", "inspect:report", "Write an HTML report on one or more runs"
    ).add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help=_RUNS_HELP)
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: RUN/report.html, or ./report.html for several "
        "run directories)",
    )

    add = command(
        "view",
        "inspect:view",
        "Browse, search and mark the sequences and documents of a run",
    ).add_argument
    add("run", type=Path, metavar="RUN", help=_RUN_HELP)
    add(
        "--port",
        type=int,
        default=0,
        metavar="N",
        help="port on 127.0.0.1 (default: any free port)",
    )
    add(
        "--no-browser", action="store_true", help="do not open the address in a browser"
    )
    add(
        "--export",
        type=Path,
        metavar="FOLDER",
        help="write a static copy for any web host, and serve nothing",
    )
    add(
        "--first",
        type=int,
        default=100,
        metavar="N",
        help="sequences in the static copy, 0 for all (default: 100)",
    )

    sub = command(
        "compare", "inspect:compare", "Compare runs and variants side by side"
    )
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=_RUNS_HELP)
    add = sub.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print JSON")
    add("--csv", action="store_true", help="print CSV, one row per run")
    add(
        "--svg",
        type=Path,
        metavar="FILE",
        help="draw one document as each of the runs lays it out",
    )

    summary = (
        "Verify a run or a delivered export with an independent implementation; exit "
        "code 1 if a check fails"
    )
    add = command("verify", "inspect:verify", summary).add_argument
    add(
        "run",
        metavar="RUN-or-FOLDER",
        help="a run, or the destination of `export --into`: a folder or a URL such as "
        "s3://bucket/prefix",
    )
    add(
        "--run",
        dest="made_by",
        type=Path,
        metavar="RUN",
        help="for a folder or URL: the run that its rows must come from",
    )
    add(
        "--sample",
        default="100",
        metavar="N",
        help="how many meta-chunks to search again and vectors to encode again "
        "(default: 100); all: every one, and tokenize every chunk with the "
        "reference tokenizer (otherwise a sample in large runs)",
    )
    add("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="processes that check in parallel (default: one per processor)",
    )

    add = command(
        "list",
        "inspect:list_command",
        "List the variants of a run: settings, size and age",
    ).add_argument
    add("run", type=Path, metavar="RUN", help="a run directory")

    sub = command(
        "gc",
        "inspect:gc_command",
        "Clean up: delete files that no variant needs, after confirmation",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    add = sub.add_mutually_exclusive_group().add_argument
    add(
        "--keep",
        nargs="+",
        default=[],
        metavar="NAME",
        help="delete all variants but these",
    )
    add("--drop", nargs="+", default=[], metavar="NAME", help="delete these variants")
    sub.add_argument("--yes", action="store_true", help="delete without confirmation")


def _add_export(command: _Command) -> None:
    add = command(
        "export",
        "run:export",
        "Write finished runs in other formats, packed, split or mixed",
    ).add_argument
    add(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="runs or variants, several as a mix; files of short documents may follow "
        "the first",
    )
    add(
        "--to",
        type=words,
        default=[],
        metavar="FORMAT,…",
        help=f"{', '.join(FORMATS.built_in)}, or a format of another package (default: "
        "the recipe's formats)",
    )
    _set(add, example="export.pack=524288")
    add(
        "--mix",
        type=words,
        default=[],
        metavar="W,W,…",
        help="proportions of several runs, e.g. 1,2; of other components by name, e.g. "
        f"8k-16k=1,16k-32k=2; or {', '.join(MIXTURES)} (default: use everything)",
    )
    add(
        "--by",
        choices=("sequences", "tokens"),
        help="unit of --mix and --temperature (default: sequences)",
    )
    add(
        "--components",
        metavar="NAME",
        help="what --mix gives proportions to: runs (default), lengths (buckets by "
        "powers of two), sources, or a metadata column such as language",
    )
    add(
        "--temperature",
        type=float,
        metavar="T",
        help="instead of --mix: a component of n has the weight n^T (1: as it is, 0: "
        "all equal)",
    )
    add(
        "--repeat",
        type=int,
        metavar="N",
        help="use each training sequence up to N times to meet the proportions "
        "(default: 1)",
    )
    add(
        "--order",
        choices=ORDERS,
        help="curriculum: shorter length buckets first (default: interleaved)",
    )
    add(
        "--short-tokens",
        type=int,
        metavar="N",
        help="tokens in a row of short documents (default: 8192, or the length of the "
        "run's sequences if it is less)",
    )
    add(
        "--into",
        metavar="DIR-or-URL",
        help="also copy the files to this folder or URL: s3://, gs://, "
        "hf://datasets/OWNER/NAME (export.push)",
    )
    add(
        "--replace",
        action="store_true",
        help="with --into: delete files of an earlier export there, and replace "
        "damaged files",
    )


def _add_train(command: _Command) -> None:
    usage = (
        "nextlong train RECIPE [--engine NAME] [--dry-run | --emit TRAINER DIR] "
        "[--set KEY=VALUE]…\n"
        "       nextlong train init RECIPE --data RUN [--model PATH] [--preset NAME] "
        "[--force]"
    )
    sub = command(
        "train",
        "train:train",
        "Train a model on the sequences of finished runs",
        usage=usage,
    )
    sub.add_argument(
        "words", nargs="+", metavar="RECIPE", help="a training recipe; or: init RECIPE"
    )
    _set(sub.add_argument, example="training.steps=50")
    sub.add_argument(
        "--engine",
        choices=("nextlong", "torchtitan", "trl"),
        help="nextlong: one device; torchtitan: several (default under torchrun, or if "
        "hardware.count is above 1); trl: fine-tuning on data.chat with TRL's "
        "SFTTrainer",
    )
    add = sub.add_mutually_exclusive_group().add_argument
    add(
        "--dry-run",
        action="store_true",
        help="print parameters, memory, FLOPs and hours without training",
    )
    add(
        "--emit",
        nargs=2,
        metavar=("TRAINER", "DIR"),
        help="write the config, data and launch script of axolotl, megatron, olmo, "
        "prolong or trl",
    )
    add = sub.add_argument_group("init").add_argument
    add(
        "--data",
        action="append",
        default=[],
        metavar="RUN",
        help="a run directory; repeat it for a mix",
    )
    add(
        "--chat",
        metavar="FILE",
        help="train on conversations instead of --data, for paper-sft",
    )
    add(
        "--model",
        metavar="PATH",
        help="a model folder or hub name, as for from_pretrained",
    )
    add(
        "--preset",
        metavar="NAME",
        help="paper-128k, paper-512k, paper-sft, authors-64k, authors-512k, or tiny (a "
        "model from scratch)",
    )
    add(
        "--out",
        metavar="DIR",
        help="output directory for checkpoints (default: beside the recipe)",
    )
    add("--force", action="store_true", help="overwrite an existing recipe")


def _add_installation(command: _Command) -> None:
    command(
        "doctor",
        "inspect:doctor",
        "Show packages and hardware, and list missing dependencies",
    )

    forms = 'bash: eval "$(nextlong completion bash)" in ~/.bashrc  ·  '
    forms += "zsh: nextlong completion zsh > _nextlong in a folder of $fpath  ·  "
    forms += "fish: nextlong completion fish > ~/.config/fish/completions/nextlong.fish"
    sub = command(
        "completion",
        "main:completion",
        "Print a shell completion script",
        description=forms,
    )
    sub.add_argument("shell", choices=("bash", "zsh", "fish"))
