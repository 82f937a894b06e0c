"""Demo: `python examples/evaluate_demo.py FOLDER` evaluates a tiny random Llama in less than a minute on 2 cores.

It shows what an evaluation writes; the scores of random weights mean nothing. The haystack is Python's built-in help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from rich.console import Console

from nextlong.engine import store
from nextlong.evaluate import report, required
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.progress import TaskProgress
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.registry import chosen
from nextlong.evaluate.run import evaluate, opened
from nextlong.evaluate.settings import EvaluationSettings
from nextlong.sequences.tokenizer import END_OF_TEXT, train_bpe


def main(arguments: Sequence[str]) -> int:
    """Make the model and its data in a folder, measure it there, and write the report."""
    folder = Path(arguments[0] if arguments else "nextlong-evaluate-demo")
    console = Console()
    text = "\n\n".join(topics[name] for name in sorted(topics))
    haystack = folder / "data" / "needle" / "haystack.txt"
    haystack.parent.mkdir(parents=True, exist_ok=True)
    store.write_file(haystack, text)
    if not (folder / "model" / "config.json").is_file():
        _write_model(folder / "model", text)
    settings = EvaluationSettings(
        tasks=chosen([], ("niah_single_1", "needle", "attention")),
        lengths=[1024, 2048],
        out=folder / "results",
        data=DataFiles(folder / "data"),
        model=ModelOptions(str(folder / "model")),
        samples=11,
        label="random tiny Llama",
    )
    results = [
        evaluate(lambda: opened(settings), settings, progress=TaskProgress(console))
    ]
    report.show(results, console)
    report.write(
        results,
        outputs=[folder / "report.html"],
        figures=folder / "figures",
        console=console,
    )
    return 0


def _write_model(folder: Path, text: str) -> None:
    """Write a tiny Llama with random weights, and a tokenizer trained on the text."""
    torch = required("torch")
    transformers = required("transformers")
    required("transformers.utils.logging").disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = train_bpe([text], vocab_size=4096)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16_384,
        bos_token_id=0,
        eos_token_id=0,
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT
    )
    fast.save_pretrained(folder)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
