"""Whatever stands in a recipe or a corpus: exit code 0, or 2 with a message that names the place; never a traceback."""

import copy
import json
import random

import pytest
from tests.support.larger_cases import thorough

from nextlong.cli.main import main
from nextlong.recipe import Recipe

VALUES = [
    None, True, -1, 0, 10**30, -(10**400), float("nan"), float("inf"), -1e308, 1e308, "", " ", "x\x00y", "\ud800", "é" * 5000,
    "0x10", "2001-01-01", [], [None], [[]], ["\ud800"], {}, {"a": 1}, {"": None}, {"\ud800": 1},
]  # fmt: skip


def keys_of(node, above=()):
    """Yield the path of every key and place of plain data."""
    inner = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in inner:
        yield (*above, key)
        yield from keys_of(value, (*above, key))


def put(node, path, value):
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value


@pytest.fixture
def plain(tmp_path):
    """Every key of a recipe, as plain data, whose only mistake is that its corpus is not there."""
    asked = {
        "run_dir": str(tmp_path / "run"),
        "ingest": {"sources": [{"path": str(tmp_path / "none.jsonl")}]},
        "tokenizer": {"train": 300},
    }
    return Recipe.from_dict(asked).model_dump(mode="json")


def wrong_values(place, turns):
    """Return a few values for the `place`-th key: as many keys in a row as there are turns get all of them."""
    return [
        value for number, value in enumerate(VALUES) if (number + place) % turns == 0
    ]


@pytest.mark.parametrize("turns", [len(VALUES), *thorough(5)])
def test_every_key_of_a_recipe_with_wrong_values(plain, tmp_path, capsys, turns):
    path = tmp_path / "r.json"
    tried = 0
    for place, key in enumerate(keys_of(plain)):
        for value in wrong_values(place, turns):
            changed = copy.deepcopy(plain)
            put(changed, key, value)
            path.write_text(json.dumps(changed), encoding="utf-8")
            code = main(["plan", str(path)])
            out, err = capsys.readouterr()
            assert (code, out) == (2, ""), (key, value)
            assert err.startswith("error: "), (key, value)
            assert "Traceback" not in err
            where = [str(part) for part in key if isinstance(part, str)]
            assert any(
                told in err
                for told in (
                    where[-1],
                    where[0],
                    "none.jsonl",
                    "shorten it",
                    "holds a NUL",
                )
            ), (
                key,
                value,
                err,
            )
            tried += 1
    assert tried > 80 * (len(VALUES) // turns)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "- a", "a", "1", "{", "a: [", "a: &x [*x]", "run_dir: !!python/object:os.system {}", "? [a]\n: b",
        "run_dir: run\nrun_dir: run", "\tx: 1", "run_dir: \"\\uD800\"", "a: 2001-99-99", "%YAML 9.9\n---\na: 1",
        "---\na: 1\n---\nb: 2",
        "a: *nowhere", "<<: 1", "\x01", "run_dir: x\n  y: z", "ingest: {sources: [{path: *a}]}", "{" * 1200,
    ],
)  # fmt: skip
def test_text_that_is_no_recipe(tmp_path, capsys, text):
    path = tmp_path / "r.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert main(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert str(path) in err


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\x00" * 100, b"run_dir: \xe9", b"\x80"])
def test_bytes_that_are_no_recipe(tmp_path, capsys, raw):
    path = tmp_path / "r.yaml"
    path.write_bytes(raw)
    assert main(["run", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


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


def documents(count=80):
    draw = random.Random(3)
    return [
        "\n".join(" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(n % 9 + 2))
        for n in range(count)
    ]


LINES = {
    "byte order mark": b"\xef\xbb\xbf",
    "carriage returns": b"\r\n\r\n",
    "broken": b'{"text": "x"\n',
    "an array": b'["text"]\n',
    "a number": b"1e999\n",
    "null": b"null\n",
    "deep": b'{"text": ' + b"[" * 5000 + b"\n",
    "nan": b'{"text": NaN}\n',
    "half a pair": b'{"text": "\\ud800"}\n',
    "not utf-8": b'{"text": "\xff"}\n',
    "huge number": b'{"text": "x", "id": 1' + b"0" * 5000 + b"}\n",
    "nul": b"\x00\n",
    "binary": random.Random(1).randbytes(3000) + b"\n",
}


def planned(tmp_path, capfd):
    """Return the exit code and standard error of a plan for the files of a folder."""
    asked = {
        "run_dir": str(tmp_path / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(tmp_path / "corpus")}],
            "max_reject_share": 0.9,
        },
        "chunk": {"max_chars": 200},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 300},
        "compose": {"method": "standard", "target_tokens": 256, "sequences": 1},
    }
    (tmp_path / "r.json").write_text(json.dumps(asked))
    code = main(["plan", str(tmp_path / "r.json")])
    return code, capfd.readouterr().err


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_no_documents(tmp_path, capfd, name):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "c.jsonl").write_bytes(LINES[name])
    code, err = planned(tmp_path, capfd)
    assert "Traceback" not in err
    assert (code, err[:7]) == (2, "error: ")


def test_lines_that_are_no_documents_among_good_ones(tmp_path, capfd):
    good = "".join(json.dumps({"text": text}) + "\n" for text in documents()).encode()
    (tmp_path / "corpus").mkdir()
    for name, line in LINES.items():
        (tmp_path / "corpus" / f"{name}.jsonl").write_bytes(line + good)
    assert planned(tmp_path, capfd) == (0, "")
