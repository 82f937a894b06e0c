"""Write the table of docs/performance.md from the latest results of `gpu.py`.

    python bench/gpu_table.py docs/performance/gpu-*.json --page docs/performance.md

The table replaces what stands between the two markers of the page. Without results the
page says that no GPU has been measured. A figure that is missing is a dash, and one
that could not be measured says why.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

Json = dict[str, Any]
BEGIN: Final = "<!-- written by bench/gpu_table.py -->"
END: Final = "<!-- end of what bench/gpu_table.py writes -->"
NONE: Final = "No GPU has been measured yet. `bench/gpu.md` describes how to."


class Row(NamedTuple):
    """A row: part and figure (`a.b` is `b` in `a`), what it is, its format, its goal."""

    part: str
    figure: str
    title: str
    shown_as: str
    goal: str = ""


ROWS: Final = (
    Row("machine", "bf16_tflops", "bf16 product of 8,192 × 8,192, TFLOP/s", "{:.0f}"),
    Row("machine", "copy_gb_per_s", "copy on the device, GB/s", "{:,.0f}"),
    Row(
        "attention",
        "varlen_error.output",
        "packed attention in bf16 against float32: output",
        "{:.2%}",
        "≤ 1 %",
    ),
    Row("attention", "varlen_error.queries", "the same: gradient of queries", "{:.2%}"),
    Row("attention", "varlen_error.keys", "the same: gradient of keys", "{:.2%}"),
    Row(
        "attention",
        "packed_32_varlen.tflops",
        "32 documents of 4,096 tokens, one call (varlen), TFLOP/s",
        "{:.0f}",
    ),
    Row(
        "attention",
        "packed_32_sdpa.tflops",
        "the same, one call per document (sdpa)",
        "{:.0f}",
    ),
    Row(
        "attention",
        "one_auto.tflops",
        "one document of 131,072 tokens, TFLOP/s",
        "{:.0f}",
    ),
    Row("attention", "one_flash.tflops", "the same, flash", "{:.0f}"),
    Row("attention", "one_cudnn.tflops", "the same, cuDNN", "{:.0f}"),
    Row("start_check", "auto", "check before training, `auto`", "{}"),
    Row("start_check", "varlen", "check before training, `varlen`", "{}"),
    Row("training", "tokens_per_s", "1B Llama at 131,072 tokens, tokens/s", "{:,.0f}"),
    Row("training", "mfu", "the same: MFU", "{:.1%}", "≥ 45 %"),
    Row("training", "peak_gb", "the same: peak memory, GB", "{:.1f}"),
    Row(
        "training",
        "peak_over_dry_run",
        "the same: peak over the dry run's",
        "{:.2f}",
        "0.9 to 1.1",
    ),
    Row(
        "training",
        "compiled.graphs",
        "compiled graphs for 12 numbers of documents",
        "{}",
        "1",
    ),
    Row("training", "compiled.speedup", "speedup by compiling", "{:.2f}"),
    Row(
        "search",
        "agreement.equal",
        "exact search, 1,048,576 × 1,024, k = 1,088: queries with the CPU's ids (of 128)",
        "{}",
        "128",
    ),
    Row("search", "speed.queries_per_s", "the same: queries/s", "{:,.0f}"),
    Row(
        "search",
        "speed.share_of_products",
        "the same: share of matrix products",
        "{:.0%}",
    ),
    Row(
        "search", "speed.share_of_reading", "the same: share of reading once", "{:.0%}"
    ),
    Row(
        "encoder",
        "minilm_vectors.least_cosine",
        "encoder of MiniLM's shape, bf16 against float32: least cosine",
        "{:.4f}",
        "≥ 0.999",
    ),
    Row("encoder", "minilm_speed.chunks_per_s", "the same: chunks/s", "{:,.0f}"),
    Row(
        "encoder",
        "large_vectors.least_cosine",
        "encoder of 24 layers × 1,024: least cosine",
        "{:.4f}",
        "≥ 0.999",
    ),
    Row("encoder", "large_speed.chunks_per_s", "the same: chunks/s", "{:,.0f}"),
    Row(
        "encoder",
        "large_speed.device_waiting",
        "the same: share of the time in which the GPU waits",
        "{:.1%}",
        "≤ 5 %",
    ),
    Row(
        "evaluation",
        "exact_float32.equal",
        "evaluation at 32K, float32: answers of a batch equal to those alone (of 4)",
        "{}",
        "4",
    ),
    Row(
        "evaluation",
        "fast_bfloat16.one_by_one_seconds",
        "evaluation at 32K, bf16, 4 prompts one by one, seconds",
        "{:.1f}",
    ),
    Row(
        "evaluation",
        "fast_bfloat16.batch_seconds",
        "the same, as a batch, seconds",
        "{:.1f}",
    ),
    Row(
        "head",
        "1_blocks.error",
        "error of the output head's gradient, 1 block",
        "{:.2%}",
        "≤ 0.25 %",
    ),
    Row("head", "64_blocks.error", "the same, 64 blocks (128K)", "{:.2%}", "≤ 0.25 %"),
    Row(
        "head", "256_blocks.error", "the same, 256 blocks (512K)", "{:.2%}", "≤ 0.25 %"
    ),
)


def shown(row: Row, results: Json) -> str:
    """Return the figure of a row as text."""
    value: Any = results["parts"].get(row.part, {}).get("figures", {})
    for key in row.figure.split("."):
        if isinstance(value, dict) and "failed" in value:
            break
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict) and "failed" in value:
        return f"failed: {value['failed']}".replace("|", "\\|")
    return "–" if value is None else row.shown_as.format(value)


def table(results: Json) -> str:
    """Return the Markdown of one result file."""
    packages = results["packages"]
    name = results["parts"].get("machine", {}).get("figures", {}).get("name")
    lines = [
        f"{name or results['device']}, {results['date']}, torch {packages['torch']}, "
        f"transformers {packages['transformers']}:",
        "",
        "| measurement | value | goal |",
        "|---|---:|---:|",
    ]
    lines += [f"| {row.title} | {shown(row, results)} | {row.goal} |" for row in ROWS]
    unfinished = {
        part: record["status"]
        for part, record in results["parts"].items()
        if record["status"] != "done"
    }
    if unfinished:
        told = "; ".join(f"{part}: {status}" for part, status in unfinished.items())
        lines += ["", f"Not finished: {told}."]
    return "\n".join(lines)


def with_table(page: str, content: str) -> str:
    """Return the page with its part between the markers replaced."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"the page lacks the lines {BEGIN} and {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{content}\n{END}", page)


def main() -> int:
    """Write the page; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    asked = parser.parse_args()
    measured = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(asked.results)
        if path.is_file()  # a pattern that the shell found nothing for
    ]
    if any(results["is_tiny"] for results in measured):
        parser.error("results of --tiny say nothing about a GPU")
    content = table(measured[-1]) if measured else NONE
    page = asked.page.read_text(encoding="utf-8")
    asked.page.write_text(with_table(page, content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
