"""`init`: which sources, columns, names and lengths, and what is reported of the files."""

import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from nextlong.cli import init
from nextlong.cli.columns import files_of, looks_into, source_notes
from nextlong.cli.common import first_few
from nextlong.cli.init import new_recipe, notes
from nextlong.cli.main import main
from nextlong.errors import CorpusError
from nextlong.reading import listing, pages
from nextlong.recipe import Source
from nextlong.runs.statistics.thresholds import THRESHOLDS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # A run refuses a tokenizer.json that has not the parts of one.
        (folder / name).write_text(
            '{"model": {"vocab": {}}}' if name.endswith("tokenizer.json") else ""
        )


def sources_of(folder, *asked):
    """Return name → path below the folder of the sources in a recipe for `asked`."""
    recipe = new_recipe(type(folder)("my.yaml"), asked).recipe
    return {
        source.label: os.path.relpath(source.path, folder)
        for source in recipe.ingest.sources
    }


def test_it_finds_what_lies_beside_it(folder):
    touch(
        folder,
        "a.jsonl",
        "data/b.parquet",
        "data/c.jsonl.zst",
        "notes.txt",
        "tokenizer.json",
    )
    assert sources_of(folder) == {
        "a": "a.jsonl",
        "c": "data/c.jsonl.zst",
        "b": "data/b.parquet",
    }
    recipe = new_recipe(type(folder)("my.yaml")).recipe
    assert recipe.tokenizer.source == str(folder / "tokenizer.json")
    assert recipe.run_dir == str(folder / "runs/my")


def test_with_nothing_beside_it_there_is_a_place_to_put_files(folder):
    assert sources_of(folder) == {"data": "data/*.jsonl"}
    assert new_recipe(type(folder)("my.yaml")).recipe.tokenizer.train == 32_000


def test_every_path_is_absolute(folder):
    touch(folder, "sub/a.jsonl")
    recipe = new_recipe(type(folder)("sub/../sub/my.yaml")).recipe
    assert recipe.run_dir == str(folder / "sub/runs/my")
    assert [source.path for source in recipe.ingest.sources] == [
        str(folder / "sub/a.jsonl")
    ]


def test_files_folders_and_globs_have_the_names_that_a_reader_expects(folder):
    touch(
        folder,
        "web/crawl.2024.jsonl.zst",
        "books/part-0.parquet",
        "books/part-1.parquet",
        "notes/a.md",
    )
    assert sources_of(folder, "web/crawl.2024.jsonl.zst") == {
        "crawl.2024": "web/crawl.2024.jsonl.zst"
    }
    assert sources_of(folder, "books", "notes/") == {"books": "books", "notes": "notes"}
    assert sources_of(folder, "books/*.parquet", "**/a.md") == {
        "books": "books/*.parquet",
        folder.name: "**/a.md",
    }


def test_a_url_stays_as_it_is(folder):
    recipe = new_recipe(
        folder / "my.yaml", ["s3://bucket/web/*.jsonl", "hf://datasets/owner/books"]
    ).recipe
    assert [(source.label, source.path) for source in recipe.ingest.sources] == [
        ("web", "s3://bucket/web/*.jsonl"), ("books", "hf://datasets/owner/books"),
    ]  # fmt: skip


def test_equal_stems_are_told_apart_by_their_folders_and_formats(folder):
    touch(folder, "en/web.jsonl", "de/web.jsonl", "x/y.jsonl", "x/y.parquet")
    assert sources_of(folder, "en/web.jsonl", "de/web.jsonl", "en/web.jsonl") == {
        "en/web": "en/web.jsonl", "de/web": "de/web.jsonl",
    }  # fmt: skip
    assert list(sources_of(folder, "x/y.jsonl", "x/y.parquet")) == [
        "x/y.jsonl",
        "x/y.parquet",
    ]


def test_many_files_of_a_folder_are_one_source(folder):
    shards = [f"web/part-{number}.jsonl" for number in range(9)]
    touch(folder, *shards, "a.jsonl")
    assert sources_of(folder, "a.jsonl", *shards) == {
        "a": "a.jsonl",
        "web": "web/*.jsonl",
    }
    assert len(sources_of(folder, *shards[1:])) == 8
    touch(folder, "web/more.jsonl")
    assert len(sources_of(folder, *shards)) == 9  # not all that the folder holds


def test_a_source_that_is_not_there_is_refused(folder):
    with pytest.raises(
        CorpusError,
        match=r"^FILE='.*/none/\*\.jsonl' matches",
    ):
        new_recipe(folder / "my.yaml", ["none/*.jsonl"])


def test_columns_are_found_and_defaults_stay_where_they_are_not(folder):
    (folder / "a.csv").write_text("doc_id,content\n1,a text\n2,another\n")
    touch(folder, "empty.jsonl")
    first, second = new_recipe(
        folder / "my.yaml", ["a.csv", "empty.jsonl"]
    ).recipe.ingest.sources
    assert (first.text, first.id) == ("content", "doc_id")
    assert (second.text, second.id) == ("text", "id")


def test_files_of_other_columns_are_sources_of_their_own(folder):
    for name, text in {"few/a.jsonl": "text", "few/b.jsonl": "body"}.items():
        touch(folder, name)
        (folder / name).write_text(f'{{"{text}": "a text"}}\n')
    few = new_recipe(folder / "my.yaml", ["few"]).recipe.ingest.sources
    assert [(source.label, source.text) for source in few] == [
        ("a", "text"),
        ("b", "body"),
    ]
    (folder / "few/c.csv").write_text("content\na text\n")
    for number in range(9):
        (folder / f"few/{number}.jsonl").write_text('{"text": "a text"}\n')
    (folder / "few/b.jsonl").unlink()
    many = new_recipe(folder / "my.yaml", ["few"]).recipe.ingest.sources
    assert [(os.path.relpath(source.path, folder), source.text) for source in many] == [
        ("few/**/*.jsonl", "text"), ("few/**/*.csv", "content"),
    ]  # fmt: skip
    assert [source.label for source in many] == ["few/*.jsonl", "few/*.csv"]


@pytest.mark.parametrize(
    "beside", [(), ("many/0.csv", "many/notes.txt", "many/README.txt")]
)
def test_no_file_of_many_is_left_out(folder, beside):
    touch(folder, *beside)
    for number in range(12):
        touch(folder, f"many/{number}.jsonl")
        (folder / f"many/{number}.jsonl").write_text(
            f'{{"{"body" if number == 11 else "text"}": "a text"}}\n'
        )
    (source,) = new_recipe(folder / "my.yaml", ["many"]).recipe.ingest.sources
    assert source.path == str(folder / "many")
    assert any(
        "make them a separate source" in note for note in notes_of(folder, "many")
    )


def notes_of(folder, *asked):
    """Return what is said of the sources of a recipe for `asked`, without the folder's name."""
    path = folder / "my.yaml"
    return [
        note.replace(f"{folder}/", "").replace(str(folder), ".")
        for note in notes(new_recipe(path, asked))
    ]


def test_what_was_found_and_what_not_is_said(folder):
    touch(
        folder,
        "in/empty.jsonl",
        "in/notes.txt",
        "in/old.doc",
        "beside.txt",
        "README.md",
        "tokenizer.json",
    )
    (folder / "in/a.jsonl").write_text(
        '{"id": "x", "text": "one"}\n{"id": "x", "text": "two"}\n'
    )
    assert notes_of(folder, "in", "s3://bucket/x.jsonl") == [
        "in: text column 'text', id column 'id' with duplicates ('x' occurs twice): make the ids unique, or name another column",
        "in: no records in empty.jsonl",
        "in: notes.txt: each file or page is one document",
        "x: remote, not read; text column 'text' and id column 'id' are guesses",
        "in: skipped, unsupported extension: old.doc",
        "tokenizer: tokenizer.json could not be read, so its end-of-text token is unknown; check its name, or set tokenizer.eos",
    ]
    assert notes_of(folder)[-1:] == [
        ".: not used, because they may not be documents, or are another split: beside.txt; to use them, give them as FILE arguments"
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
    tokenizer = new_recipe(folder / "my.yaml", tokenizer=asked).recipe.tokenizer
    assert (tokenizer.source, tokenizer.train) == (source, train)


def test_a_tokenizer_that_is_a_file_is_named_absolutely(folder):
    touch(folder, "tok/tokenizer.json")
    assert new_recipe(
        folder / "my.yaml", tokenizer="tok/tokenizer.json"
    ).recipe.tokenizer.source == str(folder / "tok/tokenizer.json")


def test_a_tokenizer_given_by_an_absolute_path_stays_absolute(folder):
    touch(folder, "project/a.jsonl", "elsewhere/tokenizer.json")
    text = "\n".join(json.dumps({"text": f"{n} tide " * 300}) for n in range(90))
    (folder / "project/a.jsonl").write_text(text)
    tokenizer = folder / "elsewhere/tokenizer.json"
    write_tokenizer(tokenizer, ["<|end_of_text|>"])
    made = folder / "project/my.yaml"
    command = ["init", str(made), "project/a.jsonl", "--tokenizer", str(tokenizer)]
    assert main(command) == 0
    assert f"source: {tokenizer}" in made.read_text()


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
    assert sources_of(folder) == {
        "f": "data/f.csv",
        "books": "books",
        "de": "data/de",
        "en": "data/en",
    }


def test_the_end_of_text_of_the_tokenizer_is_set_and_said(folder):
    write_tokenizer(folder / "tokenizer.json", ["<|begin_of_text|>", "<|end_of_text|>"])
    (folder / "tokenizer_config.json").write_text(
        '{"add_bos_token": true, "bos_token": {"content": "<|begin_of_text|>"}}'
    )
    tokenizer = new_recipe(folder / "my.yaml").recipe.tokenizer
    assert (tokenizer.bos, tokenizer.eos) == ("<|begin_of_text|>", "<|end_of_text|>")
    ends, begins, *_ = notes_of(folder)
    assert ends.startswith("tokenizer: <|end_of_text|> ends ")
    assert begins.startswith("tokenizer: <|begin_of_text|> begins ")
    assert begins.endswith("tokenizer_config.json)")
    write_tokenizer(folder / "tokenizer.json", [])
    assert new_recipe(folder / "my.yaml").recipe.tokenizer.eos is None
    assert notes_of(folder)[0].startswith("tokenizer: no end-of-text ")
    assert (
        new_recipe(folder / "my.yaml", tokenizer="400").recipe.tokenizer.eos
        == "<|endoftext|>"
    )


def test_lengths_and_numbers_are_proposed_from_the_documents(folder):
    text = " ".join(
        f"{word} of the {word}" for word in ("harbour", "tide", "anchor", "sail")
    )
    rows = [
        json.dumps({"id": n, "text": f"{text} {n} " * size})
        for n, size in enumerate([4] * 300 + [90] * 100)
    ]
    (folder / "a.jsonl").write_text("\n".join(rows))
    new = new_recipe(folder / "my.yaml", ["a.jsonl"], tokenizer="400")
    recipe, proposed = new.recipe, new.proposal
    assert recipe.chunk.max_chars == 2048
    assert recipe.compose.target_tokens == proposed.target_tokens
    # 400 documents in 700 chunks: a tenth of the documents are in 50 chunks or more,
    # which are 7 % of the tokens.
    assert 0.035 < proposed.target_tokens / proposed.tokens <= 0.07
    assert recipe.compose.sequences == proposed.sequences
    assert 1.5 < proposed.sequences * proposed.target_tokens / proposed.tokens <= 2
    (folder / "short.jsonl").write_text("\n".join(rows[:300] * 3))
    new = new_recipe(folder / "my.yaml", ["short.jsonl"], tokenizer="400")
    shorter, proposed = new.recipe, new.proposal
    assert proposed.documents == 300  # each three times
    assert shorter.chunk.max_chars == 64
    (folder / "long.jsonl").write_text("\n".join(rows[300:330]))
    new = new_recipe(folder / "my.yaml", ["long.jsonl"], tokenizer="400")
    long, proposed = new.recipe, new.proposal
    assert (
        2 <= long.compose.target_tokens * 30 / proposed.tokens < 4
    )  # room for a document's negatives
    # Where the documents are too few for this length, init says what a run would.
    told = notes_of(folder, "long.jsonl")
    assert any("of the corpus's 30 documents" in note for note in told)
    assert not any("of the corpus's" in note for note in notes_of(folder, "a.jsonl"))
    # A size of chunks that is not the default is said with its reason.
    told = notes_of(folder, "short.jsonl")
    assert any(note.startswith("chunk.max_chars: 64, so that ") for note in told)
    (folder / "few.jsonl").write_text(rows[0])
    assert (
        new_recipe(folder / "my.yaml", ["few.jsonl"], tokenizer="400").proposal is None
    )


def test_few_documents_that_can_be_extended_are_counted_with_the_key_to_change(folder):
    line = "A line about the tide, the harbour and the anchor of ship number {}.\n"
    sizes = [10] * 268 + [40] * 31 + [70]  # lines: one, two and three chunks
    rows = [
        json.dumps({"text": "".join(line.format(n * 7 + k) for k in range(size))})
        for n, size in enumerate(sizes)
    ]
    (folder / "a.jsonl").write_text("\n".join(rows))
    new = new_recipe(folder / "my.yaml", ["a.jsonl"], tokenizer="400")
    (told,) = [note for note in notes(new) if "min_meta_chunks" in note]
    assert "compose.min_meta_chunks=2 chunks" in told
    assert "chunk.max_chars: 128 " in told
    # Nothing is said where a third of the documents can be extended.
    (folder / "b.jsonl").write_text("\n".join(rows[-96:]))
    new = new_recipe(folder / "my.yaml", ["b.jsonl"], tokenizer="400")
    assert not any("min_meta_chunks" in note for note in notes(new))


def test_documents_of_two_chunks_are_left_to_longer_ones_and_the_price_is_said(folder):
    line = "A line about the tide, the harbour and the anchor of ship number {}.\n"
    sizes = [10] * 300 + [40] * 200 + [130] * 100  # lines: one, two and five chunks
    rows = [
        json.dumps({"text": "".join(line.format(n * 7 + k) for k in range(size))})
        for n, size in enumerate(sizes)
    ]
    (folder / "a.jsonl").write_text("\n".join(rows))
    new = new_recipe(folder / "my.yaml", ["a.jsonl"], tokenizer="400")
    assert new.recipe.compose.min_meta_chunks == 3
    least = new.proposal.min_chunks
    assert (round(least.documents), round(least.extendable)) == (100, 300)
    assert least.share == pytest.approx(0.2)
    assert least.share_of_all == pytest.approx((200 / 2 + 100 / 5) / 300)
    assert new.proposal.sequences <= 100
    assert any("100 of the 300 documents" in note for note in notes(new))
    # Nothing is proposed where longer documents are missing, or not needed.
    for kept in (rows[:500], rows[500:]):
        (folder / "b.jsonl").write_text("\n".join(kept))
        new = new_recipe(folder / "my.yaml", ["b.jsonl"], tokenizer="400")
        assert (new.recipe.compose.min_meta_chunks, new.proposal.min_chunks) == (
            2,
            None,
        )


def test_with_a_tokenizer_of_its_own_no_length_is_proposed_that_a_run_warns_of(
    folder, monkeypatch
):
    monkeypatch.setattr(init, "count_tokens", lambda recipe, samples: 1e9)
    (folder / "a.jsonl").write_text(
        "\n".join(
            json.dumps({"text": f"{n} tide and anchor " * 200}) for n in range(40)
        )
    )
    proposed = new_recipe(
        folder / "my.yaml", ["a.jsonl"], tokenizer="400"
    ).recipe.compose.target_tokens
    assert proposed == 16_384 < THRESHOLDS.stand_in_tokens
    write_tokenizer(folder / "tokenizer.json", [])
    assert (
        new_recipe(folder / "my.yaml", ["a.jsonl"]).recipe.compose.target_tokens
        == 131_072
    )


def write_tokenizer(path, special):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["a text"],
        trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet),
    )
    made.save(str(path))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, ""),
        (1, "a"),
        (3, "a, b, c"),
        (4, "a, b, c, d"),
        (5, "a, b, c and 2 more"),
        (7, "a, b, c and 4 more"),
    ],
)
def test_so_many_names_are_listed_that_none_is_hidden_for_nothing(count, said):
    assert first_few(list("abcdefg")[:count], max_names=3) == said


def of(path, **keys):
    return list(
        source_notes(Source(path=str(path), name="s", **keys), looks_into(str(path)))
    )


def test_what_is_far_away_is_a_guess():
    (note,) = of("s3://bucket/a.jsonl", text="body", id="key")
    assert note.startswith("s: remote, not read; ")
    assert "'body' and" in note
    assert note.endswith("'key' are guesses")


def test_columns_come_first_and_what_speaks_against_them_after(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"key": "a", "text": "one text of words"}\n{"key": "b", "text": "another text"}\n'
    )
    (tmp_path / "b.jsonl").write_text(
        '{"key": "c", "body": "a text of several words"}\n'
    )
    (tmp_path / "c.txt").write_text("a whole document\n")
    (tmp_path / "d.parquet").write_bytes(b"no parquet")
    first, *others = of(tmp_path, id="key")
    assert first == "s: text column 'text', id column 'key'"
    starts = ("s: c.txt: ", f"s: {tmp_path / 'd.parquet'} cannot", "s: b.jsonl: ")
    for note, start in zip(others, starts, strict=True):
        assert note.startswith(start)
    assert "in 'body';" in others[2]


def test_what_is_wrong_is_said_once_for_files_alike_with_the_cure_that_a_run_gives(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(pages.Pages, "extractor", "")
    for name in "abcdef":
        (tmp_path / f"{name}.html").write_text("<p>A page.</p>")
        (tmp_path / f"{name}.json").write_text('[\n{"text": "one"}]')
    (tmp_path / "a.csv").write_text(
        "id;text\n1;a text of several words, and of more than forty letters\n"
    )
    first, *others = of(tmp_path)
    assert first.endswith("column 'text' is a guess")
    pages_note, *problems = others
    assert pages_note.startswith("s: a.html, b.html, c.html and 3 more: ")
    files = [
        ("a.csv", "a.csv > NEW.csv"),
        ("a.html", "'nextlong[web]' (also b.html, c.html, d.html and 2 more)"),
        ("a.json", "a.json > a.jsonl (also b.json, c.json, d.json and 2 more)"),
    ]
    for problem, (name, end) in zip(problems, files, strict=True):
        assert problem.startswith(f"s: {tmp_path}/{name}: ")
        assert problem.endswith(end)


def test_pages_are_documents_as_they_are(tmp_path):
    (tmp_path / "a.html").write_text("<p>A page.</p>")
    (note,) = of(tmp_path)
    assert note.endswith("one document")


PROSE = "A text of several words, number {}."


def test_a_file_without_records_is_no_obstacle_beside_others(folder):
    texts = [PROSE.format(number) * 20 for number in range(60)]
    (folder / "in").mkdir()
    pq.write_table(pa.table({"text": texts}), "in/part-0.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), "in/part-1.parquet")
    assert main(["init", "my.yaml", "in", "--tokenizer", "400"]) == 0
    assert any("part-1.parquet" in note for note in notes_of(folder, "in"))


def test_files_that_a_run_refuses_are_refused_with_its_reason(folder):
    texts = [PROSE.format(number) * 20 for number in range(60)]
    (folder / "in").mkdir()
    pq.write_table(pa.table({"text": texts}), "in/part-0.parquet")
    pq.write_table(pa.table({"text": [1, 2]}), "in/part-1.parquet")
    assert main(["init", "my.yaml", "in", "--tokenizer", "400"]) == 2
    assert any(
        "part-1.parquet: column 'text'" in note for note in notes_of(folder, "in")
    )


def test_files_without_a_document_are_refused_with_the_reasons(folder):
    (folder / "a.jsonl").write_text('{"text": " ", "title": "A harbour"}\n' * 40)
    assert main(["init", "my.yaml", "a.jsonl", "--tokenizer", "400"]) == 2
    assert any("40 × empty" in note for note in notes_of(folder, "a.jsonl"))


@pytest.mark.parametrize(
    ("whole", "path"),
    [
        (
            {"version": "1", "data": [{"text": PROSE.format(n)} for n in range(9)]},
            "data",
        ),
        ({f"d{n}": {"text": PROSE.format(n)} for n in range(9)}, ".[]"),
    ],
)
def test_documents_in_one_record_are_told_with_the_command_that_parts_them(
    folder, whole, path
):
    (folder / "a.json").write_text(json.dumps(whole))
    (note,) = [one for one in notes_of(folder, "a.json") if "one record" in one]
    assert "jq" in note
    assert path in note


def test_one_record_per_file_of_a_folder_is_one_document_each(folder):
    for number in range(4):
        parts = [{"text": PROSE.format(part)} for part in range(number, number + 5)]
        touch(folder, f"in/{number}.json")
        (folder / f"in/{number}.json").write_text(json.dumps({"body_text": parts}))
    assert not any("one record" in note for note in notes_of(folder, "in"))


def test_ids_that_repeat_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "one text of words"}\n' * 2)
    (said,) = of(tmp_path / "a.jsonl")
    assert "duplicates ('x' occurs" in said
    (tmp_path / "b.jsonl").write_text(
        '{"text": "one text of words"}\n{"text": "another text of words"}\n'
    )
    (said,) = of(tmp_path / "b.jsonl")
    assert "no id column" in said


def test_plain_texts_have_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("a text\n")
    (note,) = of(tmp_path)
    assert note.endswith("one document")


def test_files_that_no_format_is_known_for_and_those_that_were_not_taken(tmp_path):
    for name in (
        "a.jsonl",
        "b.csv",
        ".hidden.csv",
        "README.md",
        "c.docx",
        "in/d.docx",
        "in/.git/e.docx",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    told = list(notes(new_recipe(tmp_path / "my.yaml", [str(tmp_path)])))
    (skipped,) = [note for note in told if "extension" in note]
    assert skipped.startswith(f"{tmp_path}: skipped")
    assert skipped.endswith(": c.docx, in/d.docx")


ROWS = [
    {
        "doc_id": "a1",
        "title": "One",
        "content": "A text that is longer than its title.",
        "meta": {"lang": "en"},
    },
    {"doc_id": "a2", "title": "Two", "content": "Another.", "meta": {"lang": "de"}},
]


def written(folder, kind):
    path = folder / f"a.{kind}"
    if kind.startswith("jsonl"):
        content = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "arrow":
        table = pa.Table.from_pylist(ROWS)
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    else:
        path.write_text(
            "doc_id,title,content\n"
            + "".join(f"{row['doc_id']},x,{row['content']}\n" for row in ROWS)
        )
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "arrow", "csv"])
def test_every_format_is_looked_into(tmp_path, kind):
    (look,) = looks_into(str(written(tmp_path, kind)))
    assert (look.text, look.id, look.suffix) == ("content", "doc_id", f".{kind}")


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1]\n", b"{", b"\n\n"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv", "jsonl.gz"])
def test_what_cannot_be_read_tells_nothing(tmp_path, kind, content):
    (tmp_path / f"a.{kind}").write_bytes(content)
    (look,) = looks_into(str(tmp_path / f"a.{kind}"))
    assert look.id is None
    assert look.text is None
    assert look.problem or kind == "csv"  # of which any text may be the heading


def test_files_of_each_kind_are_looked_into(tmp_path):
    for number in range(16):
        (tmp_path / f"{number:02}.jsonl").write_text('{"url": "u", "text": "t"}\n' * 2)
    written(tmp_path, "csv")
    (tmp_path / "a.txt").write_text("a document")
    looks = looks_into(str(tmp_path))
    assert [look.suffix for look in looks] == [".jsonl"] * 8 + [".csv", ".txt"]
    names = [look.file.name for look in looks[:8]]
    assert names == [f"{number:02}.jsonl" for number in range(0, 16, 2)]
    assert [look.text for look in looks[7:]] == ["text", "content", None]
    assert looks[0].columns.repeating == ("url", "u")
    assert not looks[-1].has_columns


def prose(count, **columns):
    """Return lines with a page of several sentences in each of the columns, times a number."""
    sentence = "The tide of page {} rises over the stones of the harbour. "
    rows = [
        {name: sentence.format(n) * times for name, times in columns.items()}
        for n in range(count)
    ]
    return "\n".join(map(json.dumps, rows))


def test_columns_that_compete_are_named_with_the_way_to_change_it(folder):
    (folder / "a.jsonl").write_text(prose(30, abstract=2, full=9))
    told = notes_of(folder, "a.jsonl")
    (note,) = [note for note in told if "preferred" in note]
    assert note.startswith("a: 'full' (")
    assert "'abstract' (" in note
    assert "text: abstract" in note
    assert "text: [abstract, full]" in note


@pytest.mark.parametrize("title", ["title", "Headline", "question", "subject"])
def test_a_title_beside_the_text_is_named_with_the_way_to_join_it(folder, title):
    rows = [json.loads(line) for line in prose(30, body=4).split("\n")]
    titled = [row | {title: f"Tide {n}"} for n, row in enumerate(rows)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, titled)))
    (note,) = [note for note in notes_of(folder, "a.jsonl") if "not used" in note]
    assert note.startswith(f"a: column {title!r}")
    assert f"text: [{title}, body]" in note


def test_no_title_is_named_that_says_nothing_or_stands_elsewhere(folder):
    rows = [json.loads(line) for line in prose(30, body=4).split("\n")]
    for row in rows:
        row |= {"title": "News", "heading": 3, "author": {"subject": str(row)[:30]}}
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert not [note for note in notes_of(folder, "a.jsonl") if "not used" in note]


def test_files_in_which_another_column_is_longer_are_one_source(folder):
    touch(folder, "in/a.jsonl", "in/b.jsonl", "in/c.jsonl")
    for name, longer in (("a", 9), ("b", 9), ("c", 3)):
        (folder / f"in/{name}.jsonl").write_text(prose(30, abstract=4, full=longer))
    (source,) = new_recipe(folder / "my.yaml", ["in"]).recipe.ingest.sources
    assert (source.path, source.text) == (str(folder / "in"), "full")


def test_the_split_of_a_data_set_is_written_and_the_others_are_told(folder):
    for split in ("train", "test"):
        path = folder / f"ds/data/{split}-00000-of-00001.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(prose(30, text=4))
    (source,) = new_recipe(folder / "my.yaml", ["ds"]).recipe.ingest.sources
    assert (source.path, source.split) == (str(folder / "ds"), "train")
    assert any("test (1 file)" in note for note in notes_of(folder, "ds"))


@pytest.mark.parametrize("place", [".", "data"])
def test_no_test_split_beside_a_recipe_becomes_a_source(folder, place):
    for name in ("train.jsonl", "test.jsonl", "dev/a.jsonl"):
        touch(folder, f"{place}/{name}")
        (folder / place / name).write_text(prose(30, text=4))
    assert sources_of(folder) == {"train": os.path.normpath(f"{place}/train.jsonl")}
    assert any("test.jsonl" in note for note in notes_of(folder))


def test_a_copy_of_a_data_set_beside_a_recipe_is_one_source(folder):
    touch(folder, "en/a.jsonl", "de/b.jsonl")
    (folder / "en/a.jsonl").write_text(prose(30, text=4))
    config = '{"config_name": "default", "data_files": "en/*"}'
    (folder / "README.md").write_text(f"---\nconfigs: [{config}]\n---\n")
    (source,) = new_recipe(folder / "my.yaml").recipe.ingest.sources
    assert (source.path, source.config, source.split) == (
        str(folder),
        "default",
        "train",
    )


def test_a_copy_of_a_data_set_in_a_folder_beside_a_recipe_is_a_source(folder):
    touch(folder, "hfset/README.md", "hfset/data/test-00000-of-00001.parquet")
    rows = pa.Table.from_pylist(list(map(json.loads, prose(30, text=4).split("\n"))))
    for split in ("train", "test"):
        pq.write_table(rows, folder / f"hfset/data/{split}-00000-of-00001.parquet")
    (source,) = new_recipe(folder / "my.yaml").recipe.ingest.sources
    assert (source.path, source.split) == (str(folder / "hfset"), "train")
    assert not [note for note in notes_of(folder) if "not used" in note]


def test_a_data_set_without_a_train_split_beside_a_recipe_is_named(folder):
    touch(folder, "a.jsonl", "hfset/README.md", "hfset/data/test-00000-of-00001.csv")
    (folder / "a.jsonl").write_text(prose(30, text=4))
    assert sources_of(folder) == {"a": "a.jsonl"}
    (note,) = [note for note in notes_of(folder) if "not used" in note]
    assert ": hfset; " in note


def test_each_folder_of_texts_beside_a_recipe_is_named_with_how_to_pass_it(folder):
    places = ["letters/1.txt", "a b/deep/2.md", "data/3/x.txt", "pages/en/4.html.gz"]
    touch(folder, *places)
    assert sources_of(folder) == {"data": "data/*.jsonl"}
    (note,) = [note for note in notes_of(folder) if "not used" in note]
    places = note.partition(": ")[2].partition("; ")[0]
    assert places.split(", ") == ["a b", "letters", "pages", "data/3"]
    assert note.endswith(" RECIPE 'a b'")


def test_no_documents_are_said_to_be_missing_beside_a_folder_of_them(folder, capsys):
    touch(folder, "letters/1.txt")
    assert main(["init", "my.yaml"]) == 0
    out = capsys.readouterr().out
    assert "letters" in out
    assert "documents were" not in out


def test_no_folder_is_named_that_others_write_or_that_is_used(folder):
    touch(
        folder,
        "used/a.jsonl",
        "used/b.txt",
        ".venv/x.txt",
        "env/pyvenv.cfg",
        "env/lib/x.txt",
        "runs/my/inputs.json",
        "runs/my/1-ingest/x.txt",
        "nextlong-runs/1a/texts.jsonl",
        "nextlong-demo/corpus.jsonl",
        "model/tokenizer.json",
        "model/vocab.txt",
        "images/x.png",
    )
    (folder / "used/a.jsonl").write_text(prose(30, text=4))
    assert sources_of(folder) == {"used": "used"}
    touch(folder, "used/tokenizer.json")
    assert sources_of(folder) == {"used": "used"}
    assert not [note for note in notes_of(folder) if "not used" in note]


def test_a_usual_name_that_holds_no_text_is_named(folder):
    rows = [
        json.loads(row) | {"text": n}
        for n, row in enumerate(prose(30, x=4).split("\n"))
    ]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = notes_of(folder, "a.jsonl")
    assert any("'text' cannot" in note and "numbers" in note for note in told)


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([{"text": f"https://example.org/{n}"} for n in range(90)], "text"),
        ([{"text": None if n < 25 else f"{n} tide " * 300} for n in range(90)], "ingest.max_reject_share=0.28"),
    ],
)  # fmt: skip
def test_files_that_a_run_should_not_read_are_refused_with_the_key(
    folder, capsys, rows, key
):
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code = main(["init", "my.yaml", "a.jsonl", "--tokenizer", "400"])
    assert code == 2
    assert key in capsys.readouterr().err


def test_rejected_records_are_named_with_their_reason(folder):
    rows = [
        json.dumps({"id": n, "text": f"{n} tide and anchor " * 60}) for n in range(200)
    ]
    rows[3], rows[7] = '{"text": "cut', '{"text": 5}'
    (folder / "a.jsonl").write_text("\n".join(rows))
    told = notes_of(folder, "a.jsonl")[-2]
    assert "rejected (1.0%): a.jsonl:4 (broken JSON: " in told
    assert "a.jsonl:8 (text " in told


def test_a_file_without_a_readable_line_says_which_and_why(folder):
    (folder / "a.jsonl").write_text('\n{"text": "cut"\n[1]\n')
    told = notes_of(folder, "a.jsonl")[1]
    assert "line 2: broken JSON: " in told
    assert "2 lines" in told


def test_a_tokenizer_to_train_is_said(folder):
    (folder / "a.jsonl").write_text('{"text": "one text of words"}\n')
    assert any(
        note.startswith("tokenizer: will be") and "(32,000 tokens)" in note
        for note in notes_of(folder)
    )


def test_an_encoding_is_noticed_where_the_head_of_a_file_is_ascii(folder):
    lines = ["A line of a letter.\n"] * 20_000 + ["Für Müller, naïve Café.\n"] * 20_000
    (folder / "letter.txt").write_bytes("".join(lines).encode("cp1252"))
    (source,) = new_recipe(folder / "my.yaml", ["letter.txt"]).recipe.ingest.sources
    assert source.encoding == "cp1252"


def test_a_large_folder_is_listed_a_few_times_only(folder, monkeypatch):
    touch(folder, "many/a.jsonl", "many/b.jsonl")
    for name in "ab":
        text = "\n".join(json.dumps({"text": f"{n} tide " * 300}) for n in range(90))
        (folder / f"many/{name}.jsonl").write_text(text)
    listed = []
    below = listing._below
    monkeypatch.setattr(
        listing, "_below", lambda fs, root: listed.append(root) or below(fs, root)
    )
    assert main(["init", "my.yaml", "many", "--tokenizer", "400"]) == 0
    assert len(listed) <= 4
    (folder / "many/c.jsonl").write_text("[1]")
    assert len(new_recipe(folder / "my.yaml", ["many"]).sources) == 1
    assert [file.name for file in files_of(str(folder / "many"))][-1] == "c.jsonl"
