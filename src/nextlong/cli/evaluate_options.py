"""The options of `nextlong evaluate`: one subcommand per thing that a user wants done.

Kept free of what the subcommands import, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from nextlong.cli.argument_types import add_verbose, count, words

_Subcommand: TypeAlias = Callable[..., argparse.ArgumentParser]
_SUITES_HELP: Final = (
    "suites of tasks, separated by commas: ruler, helmet, needle, nolima, mrcr, short, "
    "attention, dependency and others listed in docs/evaluate"
)
_DEFAULT_SUITE: Final = "ruler"
_LENGTHS: Final = "8k..128k"
_SUMMARY: Final = "Evaluate a model on long-context benchmarks and report its scores"
_DESCRIPTION: Final = f"""{_SUMMARY}.

  nextlong evaluate data --suite ruler,needle --out data
  nextlong evaluate run MODEL --suite ruler,needle --data data --out results
  nextlong evaluate report results

The first command downloads the files of the benchmarks, the second asks the model,
the third prints its scores as tables."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command with its subcommands."""
    parser = command(
        "evaluate",
        "evaluate:run_command",
        _SUMMARY,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(
        title="commands",
        metavar="COMMAND",
        required=True,
        dest="name_of_subcommand",
    )

    def subcommand(
        name: str, summary: str, *, prints: str, **options: Any
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name, help=summary, **{"description": f"{summary}.", **options}
        )
        sub.set_defaults(command=f"evaluate:{name}_command")
        add_verbose(sub)
        sub.add_argument("--json", action="store_true", help=f"print JSON: {prints}")
        return sub

    _add_run(subcommand)
    _add_report(subcommand)
    _add_data(subcommand)
    _add_import(subcommand)
    _add_judge(subcommand)


def _add_run(subcommand: _Subcommand) -> None:
    sub = subcommand(
        "run",
        "Ask a model the questions of some benchmarks and score its answers",
        prints="the score of every task, or the plan with --dry-run",
        description="Ask a model the questions of some benchmarks, score its answers "
        "and save both. Run the same command again to resume after an interruption.",
    )
    sub.add_argument(
        "model",
        metavar="MODEL",
        help="the model: a folder written by save_pretrained, a name on the Hugging "
        "Face Hub, or, with --url, the name that the server uses",
    )
    _add_tasks(sub)
    _add_inference(sub)
    group = sub.add_argument_group(
        "server", "Ask a server with an OpenAI-compatible API instead of a local model."
    )
    group.add_argument(
        "--url",
        metavar="URL",
        help="URL of the server, such as http://localhost:8000/v1",
    )
    group.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="tokenizer of the model on the server, to measure lengths: a "
        "tokenizer.json, a folder or a name on the Hugging Face Hub (default: "
        "MODEL)",
    )
    _add_requests(group)


def _add_tasks(sub: argparse.ArgumentParser) -> None:
    add = sub.add_argument_group("tasks and data").add_argument
    add(
        "--suite",
        type=words,
        default=[],
        metavar="NAME,…",
        help=f"{_SUITES_HELP} (default: {_DEFAULT_SUITE})",
    )
    add(
        "--tasks",
        type=words,
        default=[],
        metavar="NAME,…",
        help="run only these tasks, such as niah_single_1,vt",
    )
    add(
        "--lengths",
        default=_LENGTHS,
        metavar="L,…",
        help="context lengths in tokens, including the answer: a list such as 8k,32k "
        "or a range of powers of two such as 8k..128k (default: 8k..128k)",
    )
    add(
        "--samples",
        type=count,
        metavar="N",
        help="ask at most N samples of each task (default: all of the benchmark's)",
    )
    add(
        "--seed",
        type=int,
        default=42,
        help="seed of generated samples (default: 42, as in RULER and HELMET)",
    )
    add(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with the benchmark files, as `nextlong evaluate data` downloads "
        "them",
    )
    add(
        "--run",
        type=Path,
        metavar="RUN",
        help="nextlong run whose sequences the suites dependency and mrcr-mined read",
    )
    add(
        "--trained-on",
        type=Path,
        metavar="RUN",
        help="nextlong run that the model was trained on; reports then plot scores "
        "against the similarity of its negatives",
    )
    add(
        "--out",
        type=Path,
        metavar="RESULTS",
        help="folder for answers and scores (default: evaluation-MODEL)",
    )
    add(
        "--shard",
        default="1/1",
        metavar="3/8",
        help="ask each eighth sample from the third on, one of eight processes that "
        "write into the same folder, each with another number and GPU",
    )
    add("--label", metavar="NAME", help="name of the model in reports (default: MODEL)")
    add(
        "--dry-run",
        action="store_true",
        help="list the tasks, the missing files and the required memory, and run "
        "nothing",
    )


def _add_inference(sub: argparse.ArgumentParser) -> None:
    add = sub.add_argument_group("model and inference").add_argument
    meaning = (
        "completion: plain text, for base models; chat: the model's chat template; "
        "messages: the chat template of the server, with --url (default: completion)"
    )
    formats = ("completion", "chat", "messages")
    add("--prompt-format", choices=formats, default=formats[0], help=meaning)
    add(
        "--thinking",
        type=int,
        default=0,
        metavar="N",
        help="with --prompt-format chat: let the model reason in up to N more tokens "
        "before its answer",
    )
    add(
        "--context",
        type=count,
        metavar="N",
        help="largest number of tokens to give the model (default: from its "
        "configuration)",
    )
    add(
        "--device",
        default="auto",
        metavar="NAME",
        help="where the model runs: cpu, a GPU such as cuda:1, sharded to split the "
        "layers over all GPUs, or auto for the first GPU if there is one "
        "(default: auto)",
    )
    dtypes = ("auto", "bfloat16", "float16", "float32")
    add(
        "--dtype",
        choices=dtypes,
        default=dtypes[0],
        help="data type of weights and cache (default: auto, as in the checkpoint)",
    )
    add(
        "--attention",
        metavar="NAME",
        help="attention implementation of transformers, such as eager or "
        "flash_attention_2 (default: sdpa, or eager for a model without it)",
    )
    add(
        "--chunk-tokens",
        type=count,
        default=2048,
        metavar="N",
        help="tokens of a prompt to read at once; fewer need less memory (default: "
        "2048)",
    )
    add(
        "--batch-tokens",
        type=count,
        default=16_384,
        metavar="N",
        help="largest number of tokens in a batch of short prompts (default: 16384)",
    )
    add(
        "--revision",
        metavar="REV",
        help="branch, tag or commit of a model on the Hugging Face Hub",
    )


def _add_requests(group: argparse._ActionsContainer) -> None:
    """Add the options of requests to a server."""
    add = group.add_argument
    variable = "OPENAI_API_KEY"
    add(
        "--api-key-env",
        default=variable,
        metavar="VAR",
        help=f"environment variable that holds the API key (default: {variable})",
    )
    add(
        "--concurrency",
        type=count,
        default=8,
        metavar="N",
        help="requests that are sent at the same time (default: 8)",
    )
    add(
        "--max-attempts",
        type=count,
        default=8,
        metavar="N",
        help="how often a request is tried before the command stops (default: 8)",
    )


def _add_report(subcommand: _Subcommand) -> None:
    sub = subcommand(
        "report",
        "Print or write tables and figures of one or more models",
        prints="the score of every task",
    )
    sub.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="result folders of `nextlong evaluate run` or `import`, one per model",
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="write the tables to FILE (.html, .md or .tex) instead of printing them; "
        "may be repeated",
    )
    sub.add_argument(
        "--figures",
        type=Path,
        metavar="FOLDER",
        help="write the figures to FOLDER, as SVG and PNG",
    )
    sub.add_argument(
        "--mixed",
        dest="protocols",
        action="store_const",
        const="mixed",
        default="same",
        help="compare results whose number of samples, seed or prompt format differ; "
        "no such score is marked as best",
    )


def _add_data(subcommand: _Subcommand) -> None:
    sub = subcommand(
        "data",
        "Download the benchmark files that some suites read",
        prints="the state of every file",
    )
    sub.add_argument(
        "--suite", type=words, required=True, metavar="NAME,…", help=_SUITES_HELP
    )
    sub.add_argument(
        "--lengths",
        default=_LENGTHS,
        metavar="L,…",
        help="fetch only what these context lengths need, such as 8k,32k (default: "
        "8k..128k)",
    )
    sub.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder for the files; give it to `nextlong evaluate run` as --data",
    )


def _add_import(subcommand: _Subcommand) -> None:
    sub = subcommand(
        "import",
        "Read result files of HELMET, lm-eval, LongBench v2 or BABILong",
        prints="the score of every task",
    )
    sub.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="result files of one model; docs/evaluate/import.md has their names",
    )
    sub.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="RESULTS",
        help="folder for the scores; give it to `nextlong evaluate report`",
    )
    sub.add_argument(
        "--label",
        metavar="NAME",
        help="name of the model in reports (default: the name in the files)",
    )


def _add_judge(subcommand: _Subcommand) -> None:
    sub = subcommand(
        "judge",
        "Score answers to NarrativeQA with another model, as HELMET does",
        prints="the score of every judged file",
    )
    sub.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="result folders of `nextlong evaluate run`",
    )
    sub.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="name of the judge model on the server",
    )
    sub.add_argument(
        "--url",
        required=True,
        metavar="URL",
        help="URL of an OpenAI-compatible API, such as http://localhost:8000/v1",
    )
    _add_requests(sub)
