"""Input as it comes: each file gives the right answer, or exit code 2 with the place, the value and the cure."""

import json
import random
import re

import numpy as np
import pyarrow as pa
import pytest

import nextlong
from nextlong import schemas
from nextlong.artifacts.corpus_files import read_chunks
from nextlong.cli import main as cli_main
from nextlong.sequences.tokenizer import train_bpe
from tests.support.larger_cases import thorough

WORDS = [
    "tide",
    "harbour",
    "anchor",
    "sail",
    "current",
    "reef",
    "vessel",
    "captain",
    "lighthouse",
    "storm",
    "rope",
]
WEIRD = {
    "crlf": "First line.\r\n" * 40 + "last without end",
    "old mac": "one\rtwo\r" * 60,
    "nul": "a\x00b \x00\x00\n" * 60,
    "control": "\x1b[31mred\x1b[0m \x07\x7f\x85\u2028\u2029 end\n" * 20,
    "emoji": "👩‍👩‍👧 👍🏽 ❤️ 🇫🇷 " * 60,
    "one emoji": "👨‍👩‍👧‍👦" * 80,
    "right to left": "שלום עולם. مرحبا بالعالم، كيف حالك؟ \u202eabc\u202c " * 20,
    "marks": "e\u0301\u0327a\u0308" * 200,
    "only marks": "\u0301" * 700,
    "no blanks": "日本語のとても長い文章です" * 60,
    "thai": "ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ" * 30,
    "byte order mark": "\ufeffText\ufeff and more\n" * 30,
    "replacement": "\ufffd\ufffd?\n" * 80,
    "newlines": "\n" * 600 + "y",
    "blanks": " " * 600 + "x",
    "outside the first plane": "𝒜𝓁𝓅𝒽𝒶 𐍈 𠜎 " * 60,
    "special token": "<|endoftext|> and <s> " * 40,
    "one letter": "a",
}


def ordinary(count=60):
    """Documents of 2 to 10 lines."""
    draw = random.Random(7)
    return [
        "\n".join(" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(n % 9 + 2))
        for n in range(count)
    ]


def jsonl(rows):
    return "".join(
        json.dumps(row if isinstance(row, dict) else {"text": row}) + "\n"
        for row in rows
    ).encode()


class Bench:
    """Writes a corpus and a recipe, and runs commands as a user does."""

    def __init__(self, folder, capfd):
        self.folder = folder
        self.run_dir = folder / "run"
        self._capfd = capfd

    def recipe(self, content, **changed):
        """Write the corpus and a recipe for it; keys of `changed` have __ for dots."""
        (self.folder / "corpus.jsonl").write_bytes(content)
        recipe = {
            "run_dir": str(self.run_dir),
            "executor": "serial",
            "ingest": {"sources": [{"path": str(self.folder / "corpus.jsonl")}]},
            "chunk": {"max_chars": 200},
            "encoder": {"lsa": {"dimensions": 8}},
            "tokenizer": {"train": 300},
            "compose": {"target_tokens": 512, "sequences": 3},
        }
        for dotted, value in changed.items():
            *sections, key = dotted.split("__")
            node = recipe
            for section in sections:
                node = node[section]
            node[key] = value
        (self.folder / "recipe.yaml").write_text(json.dumps(recipe))

    def call(self, *arguments):
        self._capfd.readouterr()
        code = cli_main.main([str(argument) for argument in arguments])
        out, err = self._capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def run(self, content, *sets, **changed):
        self.recipe(content, **changed)
        return self.again(*sets)

    def again(self, *sets):
        options = [option for one in sets for option in ("--set", one)]
        return self.call("run", self.folder / "recipe.yaml", *options)

    def refusal(self, content, *sets, **changed):
        """Run what must be refused; returns the message."""
        code, _, err = self.run(content, *sets, **changed)
        assert code == 2
        assert err.startswith("error: ")
        assert err.endswith("\n")
        return err.removeprefix("error: ").removesuffix("\n")

    def opened(self, out=""):
        """Open the run, or the variant that a run with --set said it made."""
        variant = re.search(r"^variant: .*? opened as (\S+),", out, re.MULTILINE)
        return nextlong.open(variant[1] if variant else self.run_dir)


@pytest.fixture
def bench(tmp_path, capfd):
    return Bench(tmp_path, capfd)


def rebuilt(run):
    """Return each document that was kept, by its id, put together from its chunks."""
    texts = {}
    for shard, (documents, chunks) in enumerate(
        zip(run.corpus.documents, run.corpus.chunks, strict=True)
    ):
        rows = read_chunks(chunks)["doc_row"]
        with pa.ipc.open_file(pa.memory_map(str(documents))) as reader:
            names = reader.read_all().column("source_id").to_pylist()
        for row in np.unique(rows).tolist():
            texts[names[row]] = "".join(
                run.corpus.texts(schemas.pack_ids(shard, np.flatnonzero(rows == row)))
            )
    return texts


# corpora


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n  \n", b"\xef\xbb\xbf"],
    ids=["empty", "blank lines", "byte order mark"],
)
def test_a_file_without_a_record(bench, content):
    message = bench.refusal(content)
    assert message.startswith("ingest.sources: ")
    assert "is empty;" in message


def test_binary_junk(bench):
    message = bench.refusal(random.Random(0).randbytes(20_000))
    assert "corpus.jsonl:1: invalid UTF-8" in message
    assert "rejects.arrow;" in message


def test_a_missing_text_column(bench):
    message = bench.refusal(jsonl({"txt": text} for text in ordinary()))
    assert message.startswith(f"{bench.folder}/corpus.jsonl: ")
    assert message.endswith(" 'txt'?")


def test_one_document_has_no_negatives(bench):
    text = "\n".join(ordinary())
    message = bench.refusal(jsonl([text]), compose__target_tokens=10_600)
    assert message.startswith(
        "compose.target_tokens=10,600 is too short for every document with negatives between all of its chunks"
    )
    assert (
        "1 dropped: too little room for compose.min_gap_tokens of negatives between its chunks, such as corpus.jsonl:1"
        in message
    )
    code, _, err = bench.again("compose.target_tokens=40000")
    assert code == 2
    assert "compose.target_tokens=40,000 is more than the corpus has" in err


def test_copies_in_another_case_or_layout_are_one_document_and_of_one_chunk(bench):
    copies = ["A  b", "a b\n", "\ta\nB"]
    message = bench.refusal(
        jsonl(copies), "ingest.dedup=normalized", compose__target_tokens=3
    )
    assert message.startswith("compose.min_meta_chunks=2 ")
    assert "chunk.max_chars=200 " in message


def test_all_documents_are_one_and_the_same(bench):
    message = bench.refusal(jsonl([ordinary()[8]] * 30), compose__target_tokens=480)
    assert "(1 of 1 documents" in message
    assert "; 1 dropped: " in message


def test_a_corpus_too_small_for_the_target(bench):
    message = bench.refusal(jsonl(ordinary(5)), compose__target_tokens=590)
    assert message.startswith(
        "compose.target_tokens=590 but the longest sequence from this corpus has "
    )
    longest = int(
        message.partition("from this corpus has ")[2]
        .partition(" tokens")[0]
        .replace(",", "")
    )
    assert 100 < longest < 590
    code, out, _ = bench.again(f"compose.target_tokens={longest}")
    assert code == 0
    assert re.search(r"^encode: reused; ", out, re.MULTILINE)
    assert bench.opened(out).sequence(0).input_ids.shape == (longest,)


@pytest.fixture(scope="module")
def weird(tmp_path_factory):
    """A run over texts of every kind, a line that is none, and sixty documents with one id."""
    folder = tmp_path_factory.mktemp("weird")
    rows = [{"id": name, "text": text} for name, text in WEIRD.items()]
    same = [{"id": "same", "text": text} for text in ordinary()]
    Bench(folder, None).recipe(
        b'{"text": "lone \\ud800 x"}\n' + jsonl([*rows, *same]),
        ingest={
            "sources": [{"path": str(folder / "corpus.jsonl")}],
            "max_reject_share": 0.05,
            "shard_mb": 0.01,
        },
        compose__sequences="all",
        compose__target_tokens=2048,
        tokenizer__eos="<|endoftext|>",
    )
    assert cli_main.main(["run", str(folder / "recipe.yaml")]) == 0
    return folder


def test_texts_of_every_kind_lose_nothing(weird):
    texts = rebuilt(nextlong.open(weird / "run"))
    assert {name: texts[name] for name in WEIRD} == WEIRD


def test_texts_of_every_kind_become_sequences(weird, capfd):
    bench, run = Bench(weird, capfd), nextlong.open(weird / "run")
    seen = set()
    for sequence in run.sequences():
        assert len(sequence.input_ids) == 2048
        for span, text in zip(sequence.spans, sequence.texts, strict=True):
            if span.source_id in WEIRD:
                assert text == WEIRD[span.source_id][span.char_start : span.char_end]
                seen.add(span.source_id)
    assert len(seen) > 10
    for number in range(3):
        assert bench.call("peek", bench.run_dir, number)[0] == 0
        assert (
            bench.call("peek", bench.run_dir, number, "--text")[1]
            == run.sequence(number).text
        )


def test_ids_that_stand_twice_are_kept_apart(weird):
    same = [
        span
        for one in nextlong.open(weird / "run").sequences()
        for span in one.spans
        if span.source_id == "same"
    ]
    assert len({span.doc_id for span in same}) > 50


def test_rejects_within_the_share_are_told(weird, capfd):
    code, out, _ = Bench(weird, capfd).again()
    assert code == 0
    assert (
        f"documents: {60 + len(WEIRD)} kept of {61 + len(WEIRD)} (1 rejected)"
        in " ".join(out.split())
    )


@pytest.mark.parametrize(
    "line",
    [b'{"text": "lone \\ud800 x"}\n', b'{"text": "half', b'["a"]\n', b'{"text": 3}\n'],
)
def test_a_line_that_holds_no_text_is_counted(bench, line):
    content = line.rstrip(b"\n") + b"\n" + jsonl(ordinary())
    message = bench.refusal(content)
    assert message.startswith(
        "ingest.max_reject_share=0.01 is exceeded: 1 of 61 records (1.64%) were rejected: 1 ×"
    )
    assert ": corpus.jsonl:1: " in message
    assert "ingest.max_reject_share=0.02 " in message


@pytest.mark.parametrize("megabytes", [1, *thorough(50)])
def test_a_line_of_many_mb(bench, megabytes):
    line = "the tide is at nine and the gull sat on a rope " * (
        megabytes * 1_000_000 // 47 + 1
    )
    assert len(line) > megabytes * 1_000_000
    train_bpe([line[:500]], vocab_size=300).save(str(bench.folder / "tokenizer.json"))
    documents = [
        "\n".join(f"Line {n}.{k} of tide and gull." for k in range(120))
        for n in range(8)
    ]
    changed = {
        "tokenizer": {
            "source": str(bench.folder / "tokenizer.json"),
            "chars_per_token": 3.0,
        },
        "chunk__max_chars": 2048,
        "mine": {"near_duplicates": None},
        "encoder": {"lsa": {"dimensions": 4, "fit_chunks": 100, "max_terms": 100}},
    }
    most = megabytes * 800_000
    message = bench.refusal(
        jsonl([*documents, line]),
        f"ingest.max_document_chars={most}",
        compose__target_tokens=4096,
        **changed,
    )
    assert "1 of 9 records (11.11%) were rejected" in message
    assert f": corpus.jsonl:9: too long: {len(line):,}" in message
    code, out, _ = bench.again(f"ingest.max_document_chars={megabytes * 1_200_000}")
    assert code == 0
    assert "documents: 9 kept of 9\n" in out
    assert len(bench.opened(out)) == 3


# tokenizers and targets, on one corpus whose vectors are kept


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A finished run; what changes below its candidates takes no time."""
    folder = tmp_path_factory.mktemp("ready")
    Bench(folder, None).recipe(jsonl(ordinary()))
    assert cli_main.main(["run", str(folder / "recipe.yaml")]) == 0
    return folder


@pytest.fixture
def kept(ready, capfd):
    return Bench(ready, capfd)


def told(bench, *sets):
    code, _, err = bench.again(*sets)
    assert code == 2
    return err


@pytest.mark.parametrize(
    "content", ["{}", "", "no json", '{"model": {"type": "Word"}}', "[1, 2]"]
)
def test_a_tokenizer_file_that_is_none(kept, content):
    path = kept.folder / "none.json"
    path.write_text(content)
    err = told(kept, f"tokenizer={path}")
    assert err.startswith(f"error: tokenizer.source: {path} ")


def test_a_tokenizer_that_does_not_exist(kept):
    err = told(kept, f"tokenizer={kept.folder}/nowhere/tokenizer.json")
    assert f"points to {kept.folder}/nowhere/tokenizer.json" in err
    assert "a hub name" in err


def test_an_unknown_special_token_costs_nothing_but_the_message(kept):
    err = told(kept, "tokenizer.eos=</s>")
    cure = (
        "use one of its tokens, such as EOS; its closest special tokens: <|endoftext|>"
    )
    assert err == f"error: tokenizer.eos='</s>' is not in the tokenizer; {cure}\n"
    code, out, _ = kept.again("tokenizer.eos=<|endoftext|>")
    assert code == 0
    assert re.search(r"^search: reused; ", out, re.MULTILINE)
    assert kept.opened(out).sequence(0).spans[-1].role == "eos"


def test_a_target_too_small_for_any_document(kept):
    assert told(kept, "compose.target_tokens=4").startswith(
        "error: compose.target_tokens=4 "
    )


def test_a_target_below_the_special_tokens(kept):
    err = told(
        kept,
        "tokenizer.bos=<|endoftext|>",
        "tokenizer.eos=<|endoftext|>",
        "compose.target_tokens=2",
    )
    assert "recipe.yaml: compose.target_tokens=2 " in err
    assert "tokenizer.bos and tokenizer.eos" in err


def test_unknown_keys_and_wrong_values_are_all_told(kept):
    err = told(kept, "compose.targettokens=2", "chunk.max_chars=0")
    path = kept.folder / "recipe.yaml"
    wrong_value, unknown_key = err.splitlines()
    assert wrong_value.startswith(f"error: {path}: chunk.max_chars ")
    assert unknown_key.startswith(f"{path}: unknown key 'compose.targettokens'; ")


# places


def test_a_run_dir_that_cannot_be_written(kept):
    file = kept.folder / "corpus.jsonl"
    for run_dir in (f"{file}/below", str(file)):
        err = told(kept, f"run_dir={run_dir}")
        assert err.startswith(f"error: {run_dir}: ")
        assert "set run_dir" in err


def test_a_source_that_does_not_exist(kept):
    err = told(kept, "ingest.sources.0.path=nowhere/x.jsonl")
    assert err.startswith("error: ingest.sources[0].path='nowhere/x.jsonl' ")
    err = told(kept, "ingest.sources.0.path=nowhere/*.jsonl")
    assert err.startswith("error: ingest.sources[0].path='nowhere/*.jsonl' ")


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", ":1: not YAML: expected the node content"),
        (
            "- a\n",
            ": it is a YAML list, not a mapping of keys; `nextlong init` writes a recipe",
        ),
        ("", ": it is empty; `nextlong init` writes a recipe"),
        (None, ": it does not exist; `nextlong init "),
    ],
)
def test_a_recipe_that_is_none(bench, command, content, message):
    path = bench.folder / "r.yaml"
    if content is not None:
        path.write_text(content)
    code, out, err = bench.call(command, path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}{message}")


def test_peek_of_what_is_no_run(kept):
    code, _, err = kept.call("peek", kept.folder)
    assert code == 2
    assert err.startswith(
        f"error: {kept.folder}: it holds no finished run; name one of its subfolders: {kept.folder}"
    )
    assert (
        "is a file, not a run directory"
        in kept.call("peek", kept.folder / "corpus.jsonl")[2]
    )
    assert (
        "nowhere: it does not exist; name the run_dir"
        in kept.call("peek", kept.folder / "nowhere")[2]
    )


def test_a_sequence_that_does_not_exist(kept):
    code, _, err = kept.call("peek", kept.run_dir, 3)
    assert code == 2
    assert err.startswith("error: sequence 3: ")
    assert f"{kept.run_dir} has 3" in err
