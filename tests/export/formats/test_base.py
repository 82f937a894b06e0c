"""A format from another package, by an entry point: written, told on its card, opened, verified; and packages that are broken."""

import json
import shutil
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.exported_runs import record_of
from tests.support.random_rows import joined, options, random_blocks

import nextlong
from nextlong.cli.main import main
from nextlong.errors import PluginError
from nextlong.export.formats.base import (
    COLUMNS,
    format_of,
    rows_of,
    schema_of,
    to_table,
)
from nextlong.recipe import Recipe
from nextlong.runs import export as runs_export
from nextlong.verify.exports import check_exports
from nextlong.verify.run_files import StoredRun

MODULE = '''
"""Lines: the ids of a row in words, a line a row."""

from pathlib import Path

from nextlong.export.formats.base import Format, LoadingCode
from nextlong.artifacts.results import ShardResult


def write(out, rows, options):
    count = 0
    with Path(f"{out}.ids").open("w") as file:
        for block in rows:
            for start, stop in zip(block.token_offsets[:-1], block.token_offsets[1:]):
                file.write(" ".join(map(str, block.input_ids[start:stop].tolist())) + "\\n")
                count += 1
    return ShardResult(rows=count)


def close(folder, shards):
    (folder / "total").write_text(str(sum(shard.rows for shard in shards)))


def read(folder, files):
    for name in files:
        for line in (folder / name).read_text().splitlines():
            yield {"input_ids": [int(word) for word in line.split()]}


FORMAT = Format(
    name="lines",
    layout="lines",
    suffixes=(".ids",),
    write=write,
    close=close,
    read=read,
    reader_takes="*.ids",
    snippet=LoadingCode("from pathlib import Path", "[*Path(folder).glob('*.ids')]", "len(rows)"),
)
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that puts a package with an entry point of the format `lines` beside those that are installed."""

    def install(module, *, name="tiny_lines", target="FORMAT"):
        site = tmp_path / f"site-{name}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(module)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[nextlong.formats]\nlines = {name}:{target}\n"
        )
        monkeypatch.syspath_prepend(str(site))
        sys.modules.pop(name, None)

    yield install
    for name in ("tiny_lines", "other_lines"):
        sys.modules.pop(name, None)


def lines_outcome(run):
    return {outcome.check: outcome for outcome in check_exports(StoredRun(run))}[
        "lines rows"
    ]


def test_it_is_written_told_opened_and_verified(own_run, install):
    install(MODULE)
    runs_export.export([own_run], formats=["lines"], overrides=["export.pack=4096"])
    (path,) = nextlong.open(own_run).exported("lines")
    expected = [
        sequence.input_ids.tolist() for sequence in nextlong.open(own_run).sequences()
    ]
    rows = [
        [int(word) for word in line.split()] for line in path.read_text().splitlines()
    ]
    assert rows[0] == [*expected[0], *expected[1]]
    assert sum(map(len, rows)) == sum(map(len, expected))
    assert (path.parent / "total").read_text() == str(len(rows)) == "6"
    card = (own_run / "data" / "lines" / "README.md").read_text()
    assert "rows = [*Path(folder).glob('*.ids')]" in card
    assert "Format: lines." in card
    outcome = lines_outcome(own_run)
    assert (outcome.result, outcome.checked) == ("pass", 6)
    rows[3][7] += 1
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    assert (
        lines_outcome(own_run).examples[0].startswith("lines row 3: input_ids[7] is ")
    )


def test_without_a_reader_of_its_own_only_hashes_are_checked_and_verify_says_so(
    own_run, install
):
    install(MODULE.replace("    read=read,\n", ""))
    runs_export.export([own_run], formats=["lines"])
    outcome = lines_outcome(own_run)
    assert (outcome.result, outcome.checked) == ("skipped", 0)
    assert (
        outcome.skipped
        == "the format lines has no reader, or is not installed here: only hashes are checked"
    )


def test_a_reader_that_tells_of_what_rows_do_not_have_is_a_breach(own_run, install):
    install(MODULE.replace('yield {"input_ids"', 'yield {"colour": "red", "input_ids"'))
    runs_export.export([own_run], formats=["lines"])
    assert (
        "its reader returns the unexpected column 'colour'"
        in lines_outcome(own_run).examples[0]
    )


def test_what_it_wants_holds_in_recipes(install, own_run):
    install(
        MODULE.replace(
            '    layout="lines",\n',
            '    layout="lines",\n    extra_tokens=1,\n    no_packing="is a toy",\n',
        )
    )
    plain = json.loads(record_of(own_run).read_text())["recipe"]
    recipe = Recipe.from_dict(plain, overrides=["export.formats=lines"])
    assert recipe.sequence_tokens == recipe.compose.target_tokens + 1
    with pytest.raises(
        nextlong.NextlongError, match="pack is 4096 but lines is a toy; set it to null"
    ):
        Recipe.from_dict(plain, overrides=["export.formats=lines", "export.pack=4096"])


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            "import nothing_of_this_name\n",
            "nothing_of_this_name",
        ),
        ("FORMAT = 7\n", "but 7"),
        (
            "from types import SimpleNamespace\nFORMAT = SimpleNamespace(name='lines', keys=(), no_packing='')\n",
            "but namespace(",
        ),
        (MODULE.replace('name="lines"', 'name="rows"'), "'rows'"),
    ],
)
def test_a_broken_package_is_named_with_the_cure(
    own_run, install, capsys, module, told
):
    install(module)
    assert main(["export", str(own_run), "--to", "lines"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "error: format 'lines' of the distribution tiny_lines 1.0: " in said
    assert told in said
    assert "uninstall it" in said
    assert "Traceback" not in said


def test_two_packages_with_one_name_are_told_apart(install):
    install(MODULE)
    install(MODULE, name="other_lines")
    with pytest.raises(
        PluginError,
        match=r"provided by other_lines 1\.0 and tiny_lines 1\.0; uninstall all but one of them",
    ):
        format_of("lines")


def test_a_run_whose_format_is_gone_says_so_in_verify(
    own_run, install, monkeypatch, tmp_path
):
    install(MODULE)
    runs_export.export([own_run], formats=["lines"])
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "site-tiny_lines")
    sys.modules.pop("tiny_lines")
    assert lines_outcome(own_run).result == "skipped"


def test_a_format_that_is_called_as_a_step_is_refused(
    own_run, install, monkeypatch, tmp_path
):
    install(MODULE.replace('name="lines"', 'name="compose"'))
    info = (
        tmp_path / "site-tiny_lines" / "tiny_lines-1.0.dist-info" / "entry_points.txt"
    )
    info.write_text("[nextlong.formats]\ncompose = tiny_lines:FORMAT\n")
    before = record_of(own_run).read_bytes()
    with pytest.raises(
        nextlong.NextlongError,
        match="compose is also the name of a step of the run; rename the format",
    ):
        runs_export.export([own_run], formats=["compose"])
    assert record_of(own_run).read_bytes() == before


IGNORED = -100


def rows_with(block, columns=COLUMNS, **keys):
    """Return the rows of a block, through a table and back."""
    schema = schema_of(columns, keys)
    table = to_table(block, schema.names, options(**keys))
    assert table.schema.types == schema.types
    return [row for batch in table.to_batches() for row in rows_of(batch)]


@pytest.fixture
def block():
    return joined(random_blocks(3, rows=5, longest=40, per_row=2))


def test_columns_are_those_asked_for_of_the_types_that_were_promised(block):
    assert to_table(block, COLUMNS, options()).schema.types == schema_of(COLUMNS).types
    assert to_table(block, ("labels", "length"), options()).column_names == [
        "labels",
        "length",
    ]


def test_each_row_has_its_ids_and_the_lengths_of_its_documents(block):
    for row, (first, last) in zip(
        rows_with(block), pairwise(block.token_offsets), strict=True
    ):
        assert row["input_ids"].tolist() == block.input_ids[first:last].tolist()
        assert sum(row["seq_lengths"]) == row["length"] == len(row["input_ids"])
        assert row["spans"]["token_end"][-1] == row["length"]


def test_no_label_asks_what_a_document_begins_with(block):
    for row in rows_with(
        block, ("input_ids", "seq_lengths", "labels", "attention_mask")
    ):
        begins = np.cumsum([0, *row["seq_lengths"]])[:-1].tolist()
        expected = [
            IGNORED if place in begins else token
            for place, token in enumerate(row["input_ids"].tolist())
        ]
        assert row["labels"].tolist() == expected
        assert row["attention_mask"].tolist() == [1] * len(expected)


@given(
    seed=st.integers(0, 2**32),
    multiple=st.sampled_from([2, 4, 7, 16, 512]),
    eos_id=st.sampled_from([None, 9]),
)
def test_padding_moves_documents_apart_and_changes_nothing_in_them(
    seed, multiple, eos_id
):
    block = joined(random_blocks(seed, rows=8, longest=40, per_row=3))
    columns = (*COLUMNS, "seq_lengths_padded", "labels")
    padded = options(eos_id=eos_id, pad_documents_to=multiple)
    (batch,) = to_table(block, columns, padded).to_batches()
    for row, plain in zip(
        rows_of(batch), rows_with(block, (*COLUMNS, "labels")), strict=True
    ):
        assert row["seq_lengths"] == plain["seq_lengths"]
        assert all(
            room % multiple == 0 <= room - length < multiple
            for room, length in both_lengths(row)
        )
        assert (
            row["length"]
            == len(row["input_ids"])
            == len(row["labels"])
            == sum(row["seq_lengths_padded"])
        )
        true = np.concatenate(
            [
                [True] * length + [False] * (room - length)
                for room, length in both_lengths(row)
            ]
        )
        for name in ("input_ids", "labels"):
            assert row[name][true].tolist() == plain[name].tolist()
        assert set(row["input_ids"][~true].tolist()) <= {eos_id or 0}
        assert set(row["labels"][~true].tolist()) <= {IGNORED}
        for span in zip(
            *(spans[key] for spans in (row["spans"], plain["spans"]) for key in ENDS),
            strict=True,
        ):
            first, last, plain_first, plain_last = span
            assert (
                row["input_ids"][first:last].tolist()
                == plain["input_ids"][plain_first:plain_last].tolist()
            )
            assert true[first:last].all()
        others = row["spans"].keys() - {*ENDS, "score"}
        assert all(row["spans"][key] == plain["spans"][key] for key in others)


ENDS = ("token_start", "token_end")


def both_lengths(row):
    return list(zip(row["seq_lengths_padded"], row["seq_lengths"], strict=True))
