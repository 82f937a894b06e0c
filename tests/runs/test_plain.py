"""Short documents as a source of a mix: all of their text, in short rows, by the run's own tokenizer."""

import json

import pytest
from tokenizers import Tokenizer

import nextlong
from nextlong.cli.main import main
from nextlong.errors import RecipeError
from nextlong.runs import export as runs_export


@pytest.fixture
def short_documents(tmp_path):
    """A file of forty documents, none of them in the run's corpus."""
    path = tmp_path / "short ones.jsonl"
    texts = [
        f"Recipe {place}. Take {place} eggs and {place * 7} grams of flour, and stir them well.\n"
        for place in range(40)
    ]
    path.write_text("".join(json.dumps({"text": text * 3}) + "\n" for text in texts))
    return path


def test_a_mix_takes_short_documents_in_the_proportion_asked_for(own_run, short_documents):
    asked = ["export", str(own_run), str(short_documents), "--mix", "3,1", "--by", "tokens", "--short-tokens", "256"]
    assert main([*asked, "--set", "export.pack=2048", "--set", "workers=1"]) == 0
    short = nextlong.open(own_run.with_name("run-short-short-ones.jsonl"))
    long = nextlong.open(own_run)
    assert {len(sequence.input_ids) for sequence in short.sequences()} == {256}
    assert short.recipe.compose.method == "standard"
    (described,) = own_run.glob("*/mix.json")
    taken = {run["run"].rpartition("/")[2]: run["taken"]["train"] for run in json.loads(described.read_text())["runs"]}
    long_taken, short_taken = (counts["tokens"] for counts in taken.values())
    assert short_taken / (long_taken + short_taken) == pytest.approx(0.25, abs=0.05)
    tokenizer = Tokenizer.from_file(str(long.steps["tokenizer"].file(".tokenizer.json")))
    assert "grams of flour" in tokenizer.decode(next(iter(short.sequences())).input_ids.tolist())


def test_rows_are_no_longer_than_the_runs_unless_asked(own_run, short_documents):
    written = runs_export.export([own_run, short_documents], overrides=["export.pack=2048", "workers=1"])
    assert written.runs[1].recipe.compose.target_tokens == 2048


def test_tokens_of_short_rows_need_short_documents(own_run):
    with pytest.raises(
        RecipeError, match="--short-tokens without a file of short documents; name one after the first run"
    ):
        runs_export.export([own_run], short_tokens=256)
