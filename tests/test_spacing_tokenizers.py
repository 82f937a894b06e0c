"""Runs with tokenizers that put a space before a text: token ids, composing, cuts, exports and `verify`."""

import pytest
from tokenizers import Tokenizer

import nextlong
from nextlong import pipeline
from nextlong.verify import checks
from tests.support.spacing_tokenizers import MAKERS, made


def run_with(tmp_path, recipe_for, name, *overrides):
    """Run a recipe with one of the tokenizers; return its run directory."""
    made(name).save(str(tmp_path / "tokenizer.json"))
    run_dir = tmp_path / "run"
    source = f"tokenizer.source={tmp_path / 'tokenizer.json'}"
    pipeline.run(
        recipe_for(
            run_dir, source, "tokenizer.train=null", "tokenizer.eos=</s>", *overrides
        )
    )
    return run_dir


def outcomes(run_dir):
    return {outcome.check: outcome for outcome in checks.verify(run_dir)}


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_passes_verify(tmp_path, recipe_for, name):
    found = outcomes(run_with(tmp_path, recipe_for, name, "compose.position=random"))
    assert {check for check, outcome in found.items() if outcome.breaches} == set()
    decoded = found["decoded text"]
    is_restored = name.split("-")[0] in ("llama2", "mistral", "always")
    if is_restored:
        assert decoded.result == "pass"
        assert decoded.checked == found["token ids"].checked


@pytest.mark.parametrize("name", ["llama2-added", "mistral", "unigram-first"])
def test_a_whole_document_has_the_ids_of_its_text(tmp_path, recipe_for, name):
    run_dir = run_with(
        tmp_path,
        recipe_for,
        name,
        "compose.method=standard",
        "chunk.max_chars=10000",
        "compose.sequences=4",
    )
    run = nextlong.open(run_dir)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    compared = 0
    for sequence in run.sequences():
        # The last two spans are EOS and a document that may be cut.
        for span, text in zip(sequence.spans[:-2], sequence.texts, strict=False):
            ids = sequence.input_ids[span.token_start : span.token_end].tolist()
            chunk_id = span.chunk_id
            if chunk_id < 0 or run.corpus.text(chunk_id) != text:
                continue
            assert ids == tokenizer.encode(text, add_special_tokens=False).ids
            compared += 1
    assert compared > 4
