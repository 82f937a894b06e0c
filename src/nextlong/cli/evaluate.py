"""The command `nextlong evaluate`: its options, and what they ask of `nextlong.evaluate`.

nextlong evaluate MODEL --suite ruler,needle --lengths 8k..128k --data FOLDER --out RESULTS
nextlong evaluate report RESULTS… -o table.html
nextlong evaluate judge RESULTS… --judge MODEL --url URL
nextlong evaluate import HELMET-RESULT.json… --out RESULTS
nextlong evaluate data SUITE… --out FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nextlong.cli.asked import add_json
from nextlong.errors import EvaluateError
from nextlong.report.tables import PipeConsole as Console

if TYPE_CHECKING:
    from nextlong.evaluate.command import Settings
    from nextlong.evaluate.models.server import ServerOptions


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    sub = commands.add_parser(
        "evaluate",
        help="measure a model: RULER, HELMET, needles, LongBench v2, short text, attention, dependence; and report it",
        description="nextlong evaluate MODEL …  ·  nextlong evaluate report RESULTS… -o table.html  ·  "
        "nextlong evaluate import HELMET-RESULT.json… --out RESULTS",
    )
    sub.add_argument(
        "model",
        metavar="MODEL",
        help="a folder or hub name; with --url the server's name for it; or: report, judge, import, data",
    )
    sub.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="for report and judge: results; for import: HELMET's files; for data: suites",
    )
    _add_what(sub)
    _add_how(sub)
    _add_server(sub)
    sub.add_argument(
        "-o", "--output", type=Path, action="append", default=[], metavar="FILE", help="report: .html, .md, .tex, .json"
    )
    sub.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="report: write the figures there too, as SVG and PNG"
    )
    sub.add_argument(
        "--mixed",
        action="store_const",
        const="mixed",
        default="same",
        help="report: compare results with different n, seeds or protocols",
    )
    add_json(sub, about="print JSON: of --dry-run what would be measured, else the score of every task")
    sub.set_defaults(command=_evaluate)


def _add_what(sub: argparse.ArgumentParser) -> None:
    what = sub.add_argument_group("what is measured")
    what.add_argument(
        "--suite",
        type=_words,
        default=[],
        metavar="NAME,…",
        help="ruler, helmet, needle, nolima, babilong, mrcr, graphwalks, longbench-v2, short, attention … (default: ruler)",
    )
    what.add_argument("--tasks", type=_words, default=[], metavar="NAME,…", help="only these, e.g. niah_single_1,vt")
    what.add_argument(
        "--lengths", metavar="L,…", help="tokens, answer included (default: 8k..128k; longbench-v2: 128k)"
    )
    what.add_argument("--samples", type=int, metavar="N", help="the most a task (default: the benchmark's)")
    what.add_argument("--seed", type=int, default=42, help="of the samples (default: 42, RULER's and HELMET's)")
    what.add_argument("--data", type=Path, metavar="FOLDER", help="your copies of the benchmarks' files")
    what.add_argument(
        "--run", type=Path, metavar="RUN", help="dependency, mrcr-mined: the run whose sequences are read"
    )
    what.add_argument(
        "--trained-on", type=Path, metavar="RUN", help="the run that the model was trained on, for reports"
    )
    what.add_argument(
        "--out", type=Path, metavar="RESULTS", help="where results go (default: evaluation-MODEL); for data: the files"
    )
    what.add_argument("--label", metavar="NAME", help="what reports call the model")
    what.add_argument(
        "--dry-run", action="store_true", help="print what would be measured, what is missing, and the memory it takes"
    )


def _add_how(sub: argparse.ArgumentParser) -> None:
    how = sub.add_argument_group("how the model is asked")
    how.add_argument(
        "--prompt-format",
        choices=("completion", "chat", "messages"),
        default="completion",
        help="base model, chat model, or a server's own template (default: completion)",
    )
    how.add_argument(
        "--thinking",
        type=int,
        default=0,
        metavar="N",
        help="chat: let the model reason first, in N tokens beyond the length",
    )
    how.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="what runs it (default: transformers)",
    )
    how.add_argument("--gpus", type=int, default=1, metavar="N", help="vllm: split the model over N GPUs (default: 1)")
    how.add_argument(
        "--context", type=int, metavar="N", help="the most tokens (default: what the model's configuration says)"
    )
    how.add_argument("--device", default="auto", help="auto, cpu, cuda:1; sharded: over all GPUs (default: auto)")
    how.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        default="auto",
        help="of weights and cache (default: auto, as saved)",
    )
    how.add_argument("--attention", default="sdpa", help="transformers' name: sdpa, flash_attention_2 (default: sdpa)")
    how.add_argument("--chunk-tokens", type=int, default=2048, metavar="N", help="prefilled at a time (default: 2048)")
    how.add_argument(
        "--batch-tokens", type=int, default=16_384, metavar="N", help="answered together at most (default: 16384)"
    )
    how.add_argument("--revision", metavar="REV", help="of a model on the hub")


def _add_server(sub: argparse.ArgumentParser) -> None:
    server = sub.add_argument_group("a server with an OpenAI-compatible API")
    server.add_argument("--url", metavar="URL", help="e.g. http://localhost:8000/v1")
    server.add_argument("--judge", metavar="NAME", help="for judge: the server's name for the model that judges")
    server.add_argument(
        "--nli",
        metavar="NAME",
        help="for judge: an entailment model, which rates citations (HELMET: google/t5_xxl_true_nli_mixture)",
    )
    server.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json, a folder or a hub name (default: MODEL)")
    server.add_argument(
        "--api-key-env", default="OPENAI_API_KEY", metavar="VAR", help="the variable that holds the key"
    )
    server.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests at a time (default: 8)")
    server.add_argument("--max-attempts", type=int, default=8, metavar="N", help="of a request (default: 8)")


def _words(listed: str) -> list[str]:
    return [word.strip() for word in listed.split(",") if word.strip()]


def _evaluate(asked: argparse.Namespace) -> None:
    from nextlong.evaluate import command

    if asked.model not in ("report", "judge", "import", "data") and asked.files:
        raise EvaluateError(f"{asked.files[0]} stands behind the model; one model is evaluated at a time")
    for name in ("samples", "chunk_tokens", "batch_tokens", "concurrency", "max_attempts", "context", "gpus"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise EvaluateError(f"--{name.replace('_', '-')} {value} is below 1; give a positive number")
    console = Console(stderr=asked.json)
    form: Literal["text", "json"] = "json" if asked.json else "text"
    if asked.model == "report":
        command.report(
            asked.files,
            outputs=asked.output,
            figures=asked.figures,
            console=console,
            form=form,
            protocols=asked.mixed,
        )
    elif asked.model == "judge":
        command.judge(
            asked.files,
            name=asked.judge,
            server=_server(asked),
            nli=asked.nli,
            data=asked.data,
            console=console,
            form=form,
        )
    elif asked.model == "data":
        suites = [suite for listed in asked.files for suite in _words(str(listed))]
        command.data(suites, out=asked.out, console=console, form=form)
    elif asked.model == "import":
        command.import_helmet(asked.files, out=asked.out, label=asked.label, console=console, form=form)
    else:
        command.measure(_settings(asked), console=console, form=form)


def _settings(asked: argparse.Namespace) -> Settings:
    from nextlong.evaluate import command
    from nextlong.evaluate.lengths import parse_lengths
    from nextlong.evaluate.models.huggingface import LoadOptions

    load = LoadOptions(
        engine=asked.engine,
        gpus=asked.gpus,
        prompt_format=asked.prompt_format,
        thinking=asked.thinking,
        device=asked.device,
        dtype=asked.dtype,
        attention=asked.attention,
        chunk_tokens=asked.chunk_tokens,
        batch_tokens=asked.batch_tokens,
        revision=asked.revision,
    )
    return command.Settings(
        model=asked.model,
        suites=asked.suite or ([] if asked.tasks else ["ruler"]),
        tasks=asked.tasks,
        lengths=parse_lengths(asked.lengths or "8k..128k"),
        names_lengths=asked.lengths is not None,
        samples=asked.samples,
        seed=asked.seed,
        data=asked.data,
        run=asked.run,
        trained_on=asked.trained_on,
        out=asked.out or Path(f"evaluation-{Path(asked.model.rstrip('/')).name}"),
        label=asked.label,
        context=asked.context,
        tokenizer=asked.tokenizer,
        load=load,
        server=_server(asked),
        purpose="plan" if asked.dry_run else "measure",
    )


def _server(asked: argparse.Namespace) -> ServerOptions | None:
    from nextlong.evaluate.models.server import ServerOptions

    if not asked.url:
        return None
    return ServerOptions(
        url=asked.url,
        context=asked.context,
        prompt_format=asked.prompt_format,
        thinking=asked.thinking,
        api_key_env=asked.api_key_env,
        concurrency=asked.concurrency,
        max_attempts=asked.max_attempts,
    )
