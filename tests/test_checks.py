"""A run looks first: what cannot be is refused before its first step, and nothing else."""

import json
import random
import subprocess
import sys

import pytest

import nextlong
from nextlong import checks, pipeline
from nextlong.checks import NOT_PLANNED, Corpus, check, check_enough
from nextlong.cli.main import main
from nextlong.errors import CorpusError, EncoderError, ExportError
from nextlong.sequences.tokenizer import load_tokenizer, train_bpe
from tests.support.larger_cases import thorough


def checked(recipe, **options):
    check(recipe, Corpus(recipe), "before the lock", **options)


def test_every_check_is_in_the_list_in_the_order_of_the_file():
    written = [
        value
        for name, value in vars(checks).items()
        if name.startswith("check_")
        and getattr(value, "__module__", "") == checks.__name__
    ]
    assert [each.function for each in checks.CHECKS] == written


def test_the_files_are_listed_and_read_once_for_all_checks(
    recipe_for, tmp_path, monkeypatch
):
    calls = []

    def count_calls(module, name):
        real = getattr(module, name)

        def counted(*arguments, **options):
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    for module, name in (
        (checks.listing, "input_files"),
        (checks.listing, "recognise_inputs"),
        (checks, "look_at"),
    ):
        count_calls(module, name)
    recipe = recipe_for(tmp_path / "run", "compose.target_tokens=30000")
    corpus = Corpus(recipe)
    for when in ("before the lock", "in the run directory", "of documents"):
        check(recipe, corpus, when)
    assert calls == ["input_files", "recognise_inputs", "look_at"]


def test_what_a_run_would_miss_at_its_end_is_told_at_its_beginning(
    recipe_for, tmp_path, monkeypatch
):
    with pytest.raises(ExportError) as refused:
        checked(recipe_for(tmp_path / "run", "export.push=nosuch://a"))
    assert refused.value.where == "export.push='nosuch://a'"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    recipe = recipe_for(tmp_path / "run", "encoder.model='sentence-transformers:m'")
    with pytest.raises(EncoderError) as refused:
        checked(recipe)
    assert refused.value.where == "encoder.model"
    checked(recipe, skip=NOT_PLANNED)


@pytest.mark.parametrize("url", ["memory://there", "simplecache::memory://there"])
def test_a_destination_that_is_lost_when_the_process_ends(recipe_for, tmp_path, url):
    with pytest.raises(ExportError) as refused:
        checked(recipe_for(tmp_path / "run", f"export.push={url}"))
    assert refused.value.where == f"export.push='{url}'"


def test_the_splits_that_a_run_does_not_read_are_told(recipe_for, tmp_path):
    for split in ("train", "test"):
        (tmp_path / "ds" / split).mkdir(parents=True)
        (tmp_path / "ds" / split / "a.jsonl").write_text('{"text": "a text"}\n')
    sources = f"ingest.sources=[{{path: {tmp_path / 'ds'}, name: ds}}]"
    notes = []
    recipe = recipe_for(tmp_path / "run", sources)
    (files,) = Corpus(recipe, tell=notes.append).list_files()
    assert [file.name for file in files] == ["train/a.jsonl"]
    assert ["not read: test (1 file)" in note for note in notes] == [True]


HEAVY = ("torch", "transformers", "sentence_transformers", "ray")


def test_a_target_that_the_whole_corpus_lacks_is_refused_before_the_first_step(
    recipe_for, tmp_path, capsys
):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        recipe_for(tmp_path / "run", "compose.target_tokens=2000000").dump()
    )
    assert main(["run", str(recipe)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: compose.target_tokens=2,000,000 ")
    assert not list((tmp_path / "run").glob("[0-9]*"))


def test_what_can_be_made_is_not_refused(recipe_for, tmp_path):
    for tokens in (64, 2048, 30_000):
        recipe = recipe_for(tmp_path, f"compose.target_tokens={tokens}")
        check_enough(recipe, Corpus(recipe))


def test_a_chunk_that_may_stand_twice_makes_any_length(recipe_for, tmp_path):
    recipe = recipe_for(
        tmp_path, "compose.target_tokens=2000000", "compose.negatives=self-repeat"
    )
    check_enough(recipe, Corpus(recipe))
    recipe = recipe_for(
        tmp_path,
        "compose.target_tokens=2000000",
        "compose.negatives=self-repeat",
        "compose.method=knn",
    )
    with pytest.raises(CorpusError) as refused:
        check_enough(recipe, Corpus(recipe))
    assert refused.value.where == "compose.target_tokens"


def test_caps_count(recipe_for, tmp_path):
    recipe = recipe_for(
        tmp_path, "compose.target_tokens=4000", "ingest.sources.0.max_chars=8000"
    )
    with pytest.raises(CorpusError) as refused:
        check_enough(recipe, Corpus(recipe))
    assert refused.value.where == "compose.target_tokens"


def recipe_of(folder, texts, *overrides):
    """A recipe over texts, and how many tokens these have by its tokenizer, which knows bytes and little more."""
    tokenizer = train_bpe(texts[:1], vocab_size=300)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "c.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    plain = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(folder / "c.jsonl")}]},
        "encoder": {"lsa": {"dimensions": 16}},
        "tokenizer": {"source": str(folder / "tokenizer.json")},
        "compose": {"method": "standard", "sequences": 1},
    }
    tokens = sum(
        len(encoded.ids)
        for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)
    )
    return tokens, lambda asked: nextlong.Recipe.from_dict(
        plain, overrides=[*overrides, f"compose.target_tokens={int(asked)}"]
    )


def is_refused(recipe):
    try:
        check_enough(recipe, Corpus(recipe))
    except CorpusError as error:
        return error.where == "compose.target_tokens"
    return False


def test_separators_of_many_tokens_count(tmp_path):
    separator = "== next document =="
    tokens, asking = recipe_of(
        tmp_path,
        [f"entry {n} of a list" for n in range(800)],
        f"compose.separator={separator}",
    )
    tokens += 800 * len(
        load_tokenizer(asking(1000).tokenizer)
        .encode(separator, add_special_tokens=False)
        .ids
    )
    assert [is_refused(asking(share * tokens)) for share in (0.95, 0.99, 1.02)] == [
        False,
        False,
        True,
    ]
    pipeline.run(asking(0.95 * tokens))
    assert len(nextlong.open(tmp_path / "run")) == 1


@pytest.mark.parametrize("sets", [[], ["tokenizer={train: 300}"]])
@pytest.mark.parametrize("order", [1, *thorough(-1)])
def test_documents_dense_in_tokens_count_wherever_they_stand(tmp_path, sets, order):
    """A tokenizer of bytes takes one token a letter of English, and three a Chinese character."""
    draw = random.Random(1)
    english = [f"{n} " + "in the end " * 40 for n in range(100)]
    chinese = [
        "".join(chr(0x4E00 + draw.randrange(3000)) for _ in range(400))
        for _ in range(100)
    ]
    tokens, asking = recipe_of(tmp_path, [*english, *chinese][::order], *sets)
    assert not is_refused(asking(0.9 * tokens if not sets else 0.6 * tokens))
    assert is_refused(asking(1.3 * tokens))


def test_a_plan_of_a_preset_needs_no_heavy_package(small_corpus, tmp_path):
    """In a process that cannot import them; the sources and the tokenizer, which are far away, are replaced by near ones."""
    script = (
        "import sys\n"
        f"HEAVY = {HEAVY}\n"
        "sys.modules |= dict.fromkeys(HEAVY)\n"  # importing them fails, and looking for them finds none
        "from nextlong.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "assert not any(sys.modules[name] for name in HEAVY)\n"
        "sys.exit(code)\n"
    )
    some = (small_corpus / "0.jsonl").read_text().splitlines(keepends=True)[:20]
    (tmp_path / "c.jsonl").write_text("".join(some))
    sets = [
        f"ingest.sources={json.dumps([{'path': str(tmp_path / 'c.jsonl')}])}",
        "compose.target_tokens=2048",
    ]
    sets += [
        "tokenizer.source=null",
        "tokenizer.train=512",
        "tokenizer.bos=null",
        "tokenizer.eos=null",
        "chunk.max_chars=256",
        "executor=serial",
    ]
    options = [part for one in sets for part in ("--set", one)]
    done = subprocess.run(
        [sys.executable, "-c", script, "plan", "--preset", "paper-128k", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (embed,) = (line for line in done.stdout.splitlines() if line.startswith("embed "))
    assert "needs its package" in embed
    assert (
        "before `nextlong run`: encoder.model=sentence-transformers:jinaai/jina-embeddings-v3 needs the package"
        in done.stdout
    )


@pytest.mark.parametrize("arguments", [[], ["r.yaml", "--preset", "paper-128k"]])
def test_a_plan_is_of_a_recipe_or_of_a_preset(arguments, capsys):
    assert main(["plan", *arguments]) == 2
    assert "needs either a recipe or a preset" in capsys.readouterr().err
