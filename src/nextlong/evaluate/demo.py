"""Demo: evaluate a tiny random Llama from end to end; takes less than a minute on 2 cores.

    python -m nextlong.evaluate.demo FOLDER

It shows what an evaluation writes; the scores of random weights mean nothing. The haystack is Python's built-in help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from rich.console import Console
from tokenizers import decoders, models, pre_tokenizers, trainers

from nextlong.engine import store
from nextlong.evaluate import required
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.plan import EvaluationSettings
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.report import show
from nextlong.evaluate.run import TaskProgress, evaluate, opened
from nextlong.evaluate.task import chosen

_CONTEXT = 16_384
_TASKS = ("niah_single_1", "needle", "attention")


def main(arguments: Sequence[str]) -> int:
    """Make the model and its data in a folder, measure it there, and write the report."""
    folder = Path(arguments[0] if arguments else "nextlong-evaluate-demo")
    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    text = _help_pages()
    (folder / "data" / "needle").mkdir(parents=True, exist_ok=True)
    store.write_text(folder / "data" / "needle" / "haystack.txt", text)
    if not (folder / "model" / "config.json").is_file():
        _save_model(folder / "model", _tokenizer(text))
    settings = EvaluationSettings(
        model=ModelOptions(str(folder / "model")),
        tasks=chosen([], _TASKS),
        lengths=[1024, 2048],
        out=folder / "results",
        samples=11,
        data=DataFiles(folder / "data"),
        label="random tiny Llama",
    )
    show.tables([evaluate(lambda: opened(settings), settings, progress=TaskProgress(console))], console)
    show.report([folder / "results"], outputs=[folder / "report.html"], figures=folder / "figures", console=console)
    return 0


def _help_pages() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _tokenizer(text: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def _save_model(folder: Path, tokenizer: tokenizers.Tokenizer) -> None:
    torch, transformers = required("torch"), required("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
    )
    required("transformers.utils.logging").disable_progress_bar()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
