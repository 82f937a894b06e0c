"""The first recipe: which sources, under which names, and that it means the same from everywhere."""

import json
import os

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from nextlong.cli.starter import notes, starter
from nextlong.errors import CorpusError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def sources_of(folder, *asked):
    """Return name → path below the folder of the sources in a recipe for `asked`."""
    recipe = starter(type(folder)("my.yaml"), asked).recipe
    return {source.label: os.path.relpath(source.path, folder) for source in recipe.ingest.sources}


def test_it_finds_what_lies_beside_it(folder):
    touch(folder, "a.jsonl", "data/b.parquet", "data/c.jsonl.zst", "notes.txt", "tokenizer.json")
    assert sources_of(folder) == {"a": "a.jsonl", "c": "data/c.jsonl.zst", "b": "data/b.parquet"}
    recipe = starter(type(folder)("my.yaml")).recipe
    assert recipe.tokenizer.source == str(folder / "tokenizer.json")
    assert recipe.run_dir == str(folder / "runs/my")


def test_with_nothing_beside_it_there_is_a_place_to_put_files(folder):
    assert sources_of(folder) == {"data": "data/*.jsonl"}
    assert starter(type(folder)("my.yaml")).recipe.tokenizer.train == 32_000


def test_every_path_is_absolute(folder):
    touch(folder, "sub/a.jsonl")
    recipe = starter(type(folder)("sub/../sub/my.yaml")).recipe
    assert recipe.run_dir == str(folder / "sub/runs/my")
    assert [source.path for source in recipe.ingest.sources] == [str(folder / "sub/a.jsonl")]


def test_files_folders_and_globs_have_the_names_that_a_reader_expects(folder):
    touch(folder, "web/crawl.2024.jsonl.zst", "books/part-0.parquet", "books/part-1.parquet", "notes/a.md")
    assert sources_of(folder, "web/crawl.2024.jsonl.zst") == {"crawl.2024": "web/crawl.2024.jsonl.zst"}
    assert sources_of(folder, "books", "notes/") == {"books": "books", "notes": "notes"}
    assert sources_of(folder, "books/*.parquet", "**/a.md") == {"books": "books/*.parquet", folder.name: "**/a.md"}


def test_a_url_stays_as_it_is(folder):
    recipe = starter(folder / "my.yaml", ["s3://bucket/web/*.jsonl", "hf://datasets/owner/books"]).recipe
    assert [(source.label, source.path) for source in recipe.ingest.sources] == [
        ("web", "s3://bucket/web/*.jsonl"), ("books", "hf://datasets/owner/books"),
    ]  # fmt: skip


def test_equal_stems_are_told_apart_by_their_folders_and_formats(folder):
    touch(folder, "en/web.jsonl", "de/web.jsonl", "x/y.jsonl", "x/y.parquet")
    assert sources_of(folder, "en/web.jsonl", "de/web.jsonl", "en/web.jsonl") == {
        "en/web": "en/web.jsonl", "de/web": "de/web.jsonl",
    }  # fmt: skip
    assert list(sources_of(folder, "x/y.jsonl", "x/y.parquet")) == ["x/y.jsonl", "x/y.parquet"]


def test_many_files_of_a_folder_are_one_source(folder):
    shards = [f"web/part-{number}.jsonl" for number in range(9)]
    touch(folder, *shards, "a.jsonl")
    assert sources_of(folder, "a.jsonl", *shards) == {"a": "a.jsonl", "web": "web/*.jsonl"}
    assert len(sources_of(folder, *shards[1:])) == 8
    touch(folder, "web/more.jsonl")
    assert len(sources_of(folder, *shards)) == 9  # not all that the folder holds


def test_a_source_that_is_not_there_is_refused(folder):
    with pytest.raises(CorpusError, match=r"^FILE='.*/none/\*\.jsonl' matches no file; check the pattern"):
        starter(folder / "my.yaml", ["none/*.jsonl"])


def test_columns_are_found_and_defaults_stay_where_they_are_not(folder):
    (folder / "a.csv").write_text("doc_id,content\n1,a text\n2,another\n")
    touch(folder, "empty.jsonl")
    first, second = starter(folder / "my.yaml", ["a.csv", "empty.jsonl"]).recipe.ingest.sources
    assert (first.text, first.id) == ("content", "doc_id")
    assert (second.text, second.id) == ("text", "id")


def test_files_of_other_columns_are_sources_of_their_own(folder):
    for name, text in {"few/a.jsonl": "text", "few/b.jsonl": "body"}.items():
        touch(folder, name)
        (folder / name).write_text(f'{{"{text}": "a text"}}\n')
    few = starter(folder / "my.yaml", ["few"]).recipe.ingest.sources
    assert [(source.label, source.text) for source in few] == [("a", "text"), ("b", "body")]
    (folder / "few/c.csv").write_text("content\na text\n")
    for number in range(9):
        (folder / f"few/{number}.jsonl").write_text('{"text": "a text"}\n')
    (folder / "few/b.jsonl").unlink()
    many = starter(folder / "my.yaml", ["few"]).recipe.ingest.sources
    assert [(os.path.relpath(source.path, folder), source.text) for source in many] == [
        ("few/**/*.jsonl", "text"), ("few/**/*.csv", "content"),
    ]  # fmt: skip
    assert [source.label for source in many] == ["few/*.jsonl", "few/*.csv"]


@pytest.mark.parametrize("beside", [(), ("many/0.csv", "many/notes.txt", "many/README.txt")])
def test_no_file_of_many_is_left_out(folder, beside):
    touch(folder, *beside)
    for number in range(12):
        touch(folder, f"many/{number}.jsonl")
        (folder / f"many/{number}.jsonl").write_text(f'{{"{"body" if number == 3 else "text"}": "a text"}}\n')
    (source,) = starter(folder / "my.yaml", ["many"]).recipe.ingest.sources
    assert source.path == str(folder / "many")
    assert any("make them a source of their own" in note for note in notes_of(folder, "many"))


def notes_of(folder, *asked):
    """Return what is said of the sources of a recipe for `asked`, without the folder's name."""
    path = folder / "my.yaml"
    return [
        note.replace(f"{folder}/", "").replace(str(folder), ".") for note in notes(path, starter(path, asked), asked)
    ]


def test_what_was_found_and_what_not_is_said(folder):
    touch(folder, "in/empty.jsonl", "in/notes.txt", "in/old.doc", "beside.txt", "README.md", "tokenizer.json")
    (folder / "in/a.jsonl").write_text('{"id": "x", "text": "one"}\n{"id": "x", "text": "two"}\n')
    assert notes_of(folder, "in", "s3://bucket/x.jsonl") == [
        "in: text from 'text', ids from 'id', which repeat ('x' stands twice): make them unique, or name another column as id",
        "in: notes.txt: each file, or page, is a document",
        "in: in/empty.jsonl cannot be read: it holds no records; mend it, or leave it out",
        "x: not looked into; text from 'text' and ids from 'id' are guesses",
        "in: left out, for their names tell no known format: old.doc",
        "tokenizer: tokenizer.json was not read, so which token ends a text is not known; name it as tokenizer.eos",
    ]
    assert notes_of(folder)[-1:] == [
        ".: left out, for they may be no documents: beside.txt; to take them, name them behind the recipe"
    ]


@pytest.mark.parametrize(
    ("asked", "source", "train"),
    [
        ("32000", None, 32_000),
        ("32k", None, 32_768),
        ("gpt2", "gpt2", None),
        ("owner/model", "owner/model", None),
    ],
)
def test_the_tokenizer_that_was_asked_for(folder, asked, source, train):
    touch(folder, "tokenizer.json")
    tokenizer = starter(folder / "my.yaml", tokenizer=asked).recipe.tokenizer
    assert (tokenizer.source, tokenizer.train) == (source, train)


def test_a_tokenizer_that_is_a_file_is_named_absolutely(folder):
    touch(folder, "tok/tokenizer.json")
    assert starter(folder / "my.yaml", tokenizer="tok/tokenizer.json").recipe.tokenizer.source == str(
        folder / "tok/tokenizer.json"
    )


def test_sources_below_data_and_beside_the_recipe_are_found(folder):
    touch(
        folder,
        "data/en/deep/a.jsonl",
        "data/de/b.parquet",
        "books/c.jsonl",
        ".cache/d.jsonl",
        "src/x/e.jsonl",
        "data/f.csv",
    )
    assert sources_of(folder) == {"f": "data/f.csv", "books": "books", "de": "data/de", "en": "data/en"}


def test_the_end_of_text_of_the_tokenizer_is_set_and_said(folder):
    write_tokenizer(folder / "tokenizer.json", ["<|begin_of_text|>", "<|end_of_text|>"])
    (folder / "tokenizer_config.json").write_text(
        '{"add_bos_token": true, "bos_token": {"content": "<|begin_of_text|>"}}'
    )
    tokenizer = starter(folder / "my.yaml").recipe.tokenizer
    assert (tokenizer.bos, tokenizer.eos) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert notes_of(folder)[:2] == [
        "tokenizer: <|end_of_text|> ends each sequence (known by its name)",
        "tokenizer: <|begin_of_text|> begins each sequence (known by tokenizer_config.json)",
    ]
    write_tokenizer(folder / "tokenizer.json", [])
    assert starter(folder / "my.yaml").recipe.tokenizer.eos is None
    assert notes_of(folder)[0].startswith("tokenizer: no special token ends a text")
    assert starter(folder / "my.yaml", tokenizer="400").recipe.tokenizer.eos == "<|endoftext|>"


def test_lengths_and_numbers_are_proposed_from_the_documents(folder):
    text = " ".join(f"{word} of the {word}" for word in ("harbour", "tide", "anchor", "sail"))
    rows = [json.dumps({"id": n, "text": f"{text} {n} " * size}) for n, size in enumerate([4] * 300 + [90] * 100)]
    (folder / "a.jsonl").write_text("\n".join(rows))
    recipe, proposed = starter(folder / "my.yaml", ["a.jsonl"], tokenizer="400")
    assert recipe.chunk.max_chars == 2048
    assert recipe.compose.target_tokens == proposed.target_tokens
    assert 0.05 < proposed.target_tokens / proposed.tokens <= 0.1
    assert recipe.compose.sequences == proposed.sequences
    assert 1.5 < proposed.sequences * proposed.target_tokens / proposed.tokens <= 2
    (folder / "short.jsonl").write_text("\n".join(rows[:300] * 3))
    shorter, proposed = starter(folder / "my.yaml", ["short.jsonl"], tokenizer="400")
    assert proposed.documents == 300  # each three times
    assert shorter.chunk.max_chars == 64
    (folder / "long.jsonl").write_text("\n".join(rows[300:330]))
    long, proposed = starter(folder / "my.yaml", ["long.jsonl"], tokenizer="400")
    assert 4 <= long.compose.target_tokens * 30 / proposed.tokens < 8  # room for a document's negatives
    (folder / "few.jsonl").write_text(rows[0])
    assert starter(folder / "my.yaml", ["few.jsonl"], tokenizer="400").proposed is None


def write_tokenizer(path, special):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(["a text"], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    made.save(str(path))
