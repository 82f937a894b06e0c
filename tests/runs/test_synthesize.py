"""From texts in memory to a run, in one call: of strings, dictionaries or rows, wherever it is called from."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, processors

import nextlong
from nextlong.errors import ArgumentError, CorpusError
from nextlong.runs import synthesize
from nextlong.sequences.tokenizer import train_bpe

TEXTS = [
    f"{subject} lifts the {thing} at dawn.\nWho waits for {subject} sees the {thing}.\nNo {thing} is like another.\n"
    f"After {subject} comes rest for every {thing}."
    for subject, thing in (
        ("The tide", "boat"),
        ("A baker", "loaf"),
        ("The moon", "shadow"),
        ("A judge", "veil"),
    )
]
SCRIPT = f"""
import nextlong
run = nextlong.synthesize({TEXTS!r}, seq_len=96, num_sequences=2)
print(len(run), [len(sequence.input_ids) for sequence in run.sequences()])
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(texts, **options):
    return nextlong.synthesize(
        texts, **({"seq_len": 96, "num_sequences": 2, "progress": False} | options)
    )


def test_strings_become_sequences_in_a_folder_of_their_own(tmp_path):
    run = made(TEXTS)
    assert [len(sequence.input_ids) for sequence in run.sequences()] == [96, 96]
    assert {span.source_id for span in run.sequence(0).spans if span.doc_id >= 0} <= {
        "0",
        "1",
        "2",
        "3",
    }
    assert run.path.parent.parent.resolve() == tmp_path / "nextlong-runs"
    again = made(TEXTS, seq_len=80)
    assert again.path == run.path
    assert again.recipe.compose.target_tokens == 80
    assert len(run) == 2
    assert made(TEXTS[:3]).path != run.path
    assert (
        made(TEXTS, folder="elsewhere")
        .path.resolve()
        .is_relative_to(tmp_path / "elsewhere")
    )


def test_dictionaries_keep_their_ids_and_any_iterable_will_do():
    run = made(
        ({"name": f"n{number}", "body": text} for number, text in enumerate(TEXTS)),
        text="body",
        id="name",
    )
    assert {span.source_id for span in run.sequence(0).spans if span.doc_id >= 0} <= {
        "n0",
        "n1",
        "n2",
        "n3",
    }


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (lambda n, text: {"url": f"https://a.org/{n}", "story": text}, None),
        (lambda n, text: {"text": text.split("\n"), "url": f"https://a.org/{n}"}, None),
        (lambda n, text: {"text": text.encode(), "url": f"https://a.org/{n}"}, None),
        (
            lambda n, text: {
                "url": f"https://a.org/{n}",
                "body_text": [{"text": line, "n": 1} for line in text.split("\n")],
            },
            None,
        ),
        (
            lambda n, text: {"url": f"https://a.org/{n}", "a": text[:9], "b": text[9:]},
            ["a", "b"],
        ),
    ],
)
def test_columns_are_chosen_and_read_as_by_init(row, text, recwarn):
    rows = [row(number, given) for number, given in enumerate(TEXTS)]
    run = made(rows, text=text)
    lines = (run.path.parent / "texts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["id"] for one in found] == [f"https://a.org/{n}" for n in range(4)]
    for one, given in zip(found, TEXTS, strict=True):
        assert "".join(one["text"].split()) == "".join(given.split())
    assert not recwarn.list


def test_the_column_of_the_text_is_never_that_of_the_ids():
    rows = [{"key": text, "number": n} for n, text in enumerate(TEXTS)]
    run = made(rows, text="key")
    lines = (run.path.parent / "texts.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["0", "1", "2", "3"]
    with pytest.raises(ArgumentError) as error:
        made(rows, text="key", id="key")
    assert (error.value.where, error.value.value) == ("id", "'key'")
    with pytest.raises(CorpusError) as error:
        made(rows, id="key")
    assert error.value.where == "texts"


COLUMNS = {"name": ["p", "q", None, "s"], "text": TEXTS}


def _sources(run):
    return {
        span.source_id
        for sequence in run.sequences()
        for span in sequence.spans
        if span.doc_id >= 0
    }


def test_an_arrow_table_gives_its_rows():
    run = made(pa.table(COLUMNS), id="name")
    assert _sources(run) == {"p", "q", "2", "s"}


@pytest.mark.heavy
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_gives_its_rows_and_a_column_of_it_its_strings(library):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame(COLUMNS)
    of_dictionaries = made(pa.table(COLUMNS).to_pylist(), id="name")
    assert made(frame, id="name").path == of_dictionaries.path
    assert made(frame["text"]).path == made(TEXTS).path
    if library == "pandas":
        # An index is no column of the user's.
        indexed = made(frame.set_index("name"))
        assert indexed.path == made(TEXTS).path


def test_a_table_that_is_none_is_refused():
    class Broken:
        columns = ("text",)

        def __arrow_c_stream__(self, schema=None):
            raise ValueError("no stream. At all")

    with pytest.raises(CorpusError) as error:
        made(Broken())
    assert error.value.where == "texts"


def test_columns_that_compete_are_a_warning():
    rows = [{"essay": text, "review": text[::-1]} for text in TEXTS]
    with pytest.warns(UserWarning, match="text='essay' .* review;"):
        made(rows)


def test_a_title_beside_the_text_is_named_with_the_way_to_join_it(capfd):
    rows = [{"title": f"Tide {n}", "body": text} for n, text in enumerate(TEXTS)]
    made(rows, progress=True)
    assert "text=['title', 'body']" in "".join(capfd.readouterr())


def test_a_tokenizer_may_be_an_object_or_a_file(tmp_path):
    tokenizer = train_bpe(TEXTS, vocab_size=400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    by_object, by_file = (
        made(TEXTS, tokenizer=tokenizer),
        made(TEXTS, tokenizer=tmp_path / "tokenizer.json"),
    )
    assert isinstance(by_object.tokenizer, Tokenizer)
    ids = [
        [sequence.input_ids.tolist() for sequence in run.sequences()]
        for run in (by_object, by_file)
    ]
    assert ids[0] == ids[1]


def with_bos(tokenizer):
    """Return a tokenizer that puts <s> before every text, as Llama 3's does, and has </s>."""
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def first_and_last(run):
    return {
        (int(sequence.input_ids[0]), int(sequence.input_ids[-1]))
        for sequence in run.sequences()
    }


def test_a_file_and_an_object_begin_and_end_alike(tmp_path):
    tokenizer = with_bos(train_bpe(TEXTS, vocab_size=400))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    # <|endoftext|> of the stand-in is found by its name before </s>.
    ends = {(tokenizer.token_to_id("<s>"), tokenizer.token_to_id("<|endoftext|>"))}
    for given in (tokenizer, tmp_path, tmp_path / "tokenizer.json"):
        assert first_and_last(made(TEXTS, tokenizer=given)) == ends
    plain = made(TEXTS, tokenizer=tmp_path, settings=["tokenizer.eos=null"])
    assert plain.recipe.tokenizer.eos is None


@pytest.mark.heavy
def test_an_object_of_transformers_has_the_ends_of_its_folder(tmp_path):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = with_bos(train_bpe(TEXTS, vocab_size=400))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    ends = {(tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>"))}
    for given in (loaded, tmp_path / "model"):
        assert first_and_last(made(TEXTS, tokenizer=given)) == ends


def test_the_trained_stand_in_ends_each_sequence_too():
    run = made(TEXTS)
    end = run.tokenizer.token_to_id("<|endoftext|>")
    assert {last for _, last in first_and_last(run)} == {end}


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan")])
def test_a_missing_id_is_no_id(missing):
    rows = [{"id": missing, "text": text} for text in TEXTS]
    run = made(rows)
    spans = [span for span in run.sequence(0).spans if span.doc_id >= 0]
    assert {span.source_id for span in spans} <= {"0", "1", "2", "3"}
    assert len({span.source_id for span in spans}) > 1


def test_a_tokenizer_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    tokenizer = train_bpe(TEXTS, vocab_size=400)
    with monkeypatch.context() as killed:
        killed.setattr("os.fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            synthesize._tokenizer(tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())
    path = synthesize._tokenizer(tokenizer, tmp_path)["source"]
    assert Tokenizer.from_file(path).get_vocab_size() == tokenizer.get_vocab_size()


def test_other_keys_are_settings():
    assert (
        made(
            TEXTS, settings=["compose.position=tail", "chunk.max_chars=70"]
        ).recipe.chunk.max_chars
        == 70
    )


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "texts: there are none; give"),
        ("one text", {}, "texts: it is one str; give"),
        (
            [3],
            {},
            r"texts\[0\]: it is 3; give",
        ),
        ([{"body": "x"}], {"text": "words"}, r"texts\[0\]: it has the keys body "),
        ([{"url": "https://a.org/b"}], {}, "no column looks like text"),
        ([{"text": 3}], {"text": "text"}, r"texts\[0\]: .*text is not a string"),
        (["a few words"], {}, "seq_len=96 is more than the corpus has"),
        (TEXTS, {"num_sequences": 0}, "num_sequences must be greater than 0 or 'all'"),
        (TEXTS, {"seq_len": "long"}, "nextlong.synthesize: seq_len must be"),
        (["", " "], {}, r"texts: all 2 texts are empty"),
        (
            TEXTS,
            {"settings": ["nonsense"]},
            r"settings: .*'nonsense', .*; write settings=\['mine.near_duplicates=0.9'\]",
        ),
        (TEXTS, {"settings": "nonsense"}, "settings: it has 'nonsense'"),
        (
            TEXTS,
            {"settings": ["compose.target_tokens=long"]},
            "compose.target_tokens must be",
        ),
        (
            TEXTS,
            {"tokenizer": 5},
            "tokenizer: it is of type int; give",
        ),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_call(texts, options, message):
    with pytest.raises(nextlong.NextlongError, match=message):
        made(texts, **options)


def test_fewer_sequences_than_asked_for_are_told():
    with pytest.warns(
        UserWarning, match=f"^{len(TEXTS)} sequences, fewer than num_sequences=1000 "
    ):
        assert len(made(TEXTS, num_sequences=1000)) == len(TEXTS)


def test_a_script_needs_no_guard_and_shows_progress(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "script.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 [96, 96]"
    assert "compose: done in " in done.stdout


@pytest.mark.heavy
def test_rows_are_a_data_set_of_datasets_or_torch():
    import datasets
    import torch

    from nextlong.torch import SequenceDataset

    run = made(
        datasets.Dataset.from_list(
            [
                {"text": text, "id": json.dumps(number)}
                for number, text in enumerate(TEXTS)
            ]
        )
    )
    rows = run.to_datasets()
    assert isinstance(rows, datasets.Dataset)
    batch = rows.with_format("torch")["input_ids"][:]
    assert batch.shape == (2, 96)
    assert torch.equal(batch[0], SequenceDataset(run)[0]["input_ids"])
