"""What `peek` prints, on a terminal and in a pipe, of a real run with awkward names and texts."""

import io
import json
import re
import shutil

import pytest
from rich.cells import cell_len
from rich.console import Console

import nextlong
from nextlong import pipeline
from nextlong.recipe import Recipe
from nextlong.report import peek
from nextlong.report.tables import PipeConsole

ESCAPE = "\x1b"
TEXTS = [
    "\n".join(
        f"[bold]Line[/] {n} of {k}: x[0] = '\t{n * k}' \x1b[31mred\x1b[0m\x00\x07"
        for k in range(n % 5 + 2)
    )
    + "\r\n"
    for n in range(30)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peek[x]")
    rows = [
        json.dumps({"id": f"[red]id\n{n}\x1b[2J", "text": text}) + "\n"
        for n, text in enumerate(TEXTS)
    ]
    (folder / "corpus.jsonl").write_text("".join(rows))
    recipe = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(folder / "corpus.jsonl")}]},
        "chunk": {"max_chars": 100},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 300},
        "compose": {"sequences": 3, "target_tokens": 400},
    }
    pipeline.run(Recipe.from_dict(recipe))
    return nextlong.open(folder / "run")


def printed(show, what, *, terminal=False, width=100):
    """Return what `show` prints; colours are as a terminal would get them."""
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=terminal,
        width=width,
        color_system="truecolor" if terminal else None,
    )
    show(what, console)
    return file.getvalue()


def test_the_list_has_one_line_a_sequence(run):
    title, heading, *rows = printed(peek.show_run, run).splitlines()
    assert title.strip() == f"3 sequences by nextlong in {run.path}"
    told = "# tokens chunks negatives meta share cosine documents meta-document"
    assert " ".join(heading.split()) == told
    assert [row.split()[:2] for row in rows] == [
        ["0", "400"],
        ["1", "400"],
        ["2", "400"],
    ]
    for row, sequence in zip(rows, run.sequences(), strict=True):
        metas = [span for span in sequence.spans if span.role == "meta"]
        negatives = [span for span in sequence.spans if span.role == "negative"]
        number = metas[0].source_id.removeprefix("[red]id\n").removesuffix("\x1b[2J")
        own = sum(span.token_end - span.token_start for span in metas)
        mean = sum(span.score for span in negatives) / len(negatives)
        documents = len({span.doc_id for span in metas + negatives})
        assert row.split()[2:] == [
            str(len(metas)), str(len(negatives)), f"{own / 400:.1%}", f"{mean:.3f}", str(documents), "[red]id", f"{number}[2J",
        ]  # fmt: skip


def test_the_list_ends_with_how_many_more_there_are(run):
    lines = printed(
        lambda what, console: peek.show_run(what, console, first=2), run
    ).splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == ["0", "1"]
    assert lines[-1] == "1 more; --first 0 shows all"
    everything = printed(
        lambda what, console: peek.show_run(what, console, first=0), run
    )
    assert everything == printed(peek.show_run, run)


def test_rows_come_as_they_are_read(run):
    class Reader(io.StringIO):
        """Leaves after the third line."""

        def write(self, text):
            if self.getvalue().count("\n") == 3:
                raise BrokenPipeError
            return super().write(text)

    reader = Reader()
    with pytest.raises(BrokenPipeError):
        peek.show_run(run, PipeConsole(file=reader))
    assert reader.getvalue().splitlines()[-1].split()[:2] == ["0", "400"]


def test_a_sequence_has_one_line_a_span(run):
    sequence = run.sequence(0)
    heading, columns, *rows = printed(peek.show_sequence, sequence).splitlines()
    assert heading == f"{sequence.id}  400 tokens"
    assert columns.split() == [
        "tokens",
        "length",
        "role",
        "cosine",
        "source",
        "characters",
        "text",
    ]
    assert len(rows) == len(sequence.spans)
    for row, span in zip(rows, sequence.spans, strict=True):
        assert row.split()[:3] == [
            f"{span.token_start}–{span.token_end}", str(span.token_end - span.token_start), span.role,
        ]  # fmt: skip
        assert (f" {span.score:.3f} " in row) == (span.role == "negative")
        assert (f"{span.char_start}–{span.char_end}" in row) == (span.doc_id >= 0)
    assert any("[bold]Line[/]" in row for row in rows)


def test_piped_text_is_the_text_to_the_character(run):
    for sequence in run.sequences():
        assert printed(peek.show_text, sequence) == sequence.text
    assert "\t" in sequence.text
    assert "\r\n" in sequence.text


@pytest.mark.parametrize("show", ["show_run", "show_sequence"])
def test_pipes_get_no_control_characters(run, show):
    what = run if show == "show_run" else run.sequence(0)
    out = printed(getattr(peek, show), what)
    assert set(out) & {chr(code) for code in range(32)} == {"\n"}


@pytest.mark.parametrize("show", ["show_run", "show_sequence", "show_text"])
def test_terminals_get_colours_and_no_control_characters_of_the_text(run, show):
    what = run if show == "show_run" else run.sequence(0)
    out = printed(getattr(peek, show), what, terminal=True, width=160)
    assert ESCAPE in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert set(plain) & {chr(code) for code in range(32)} <= {"\n", "\t"}
    assert "31mred" not in re.sub(r"\[31mred", "", plain)


def test_a_terminal_shows_the_sequence_as_a_strip(run):
    lines = printed(
        peek.show_sequence, run.sequence(0), terminal=True, width=160
    ).splitlines()
    cells = re.findall(r"\x1b\[([0-9;]+)m([█░]+)\x1b\[0m", lines[1])
    assert sum(len(marks) for _, marks in cells) == 96
    assert (
        len({style for style, _ in cells}) == len({marks[0] for _, marks in cells}) == 2
    )
    assert re.sub(r"\x1b\[[0-9;]*m", "", lines[2]).split() == [
        "█",
        "meta-chunk",
        "░",
        "negative",
    ]


def test_a_terminal_without_colours_says_in_words_what_each_part_of_the_text_is(run):
    sequence = run.sequence(0)
    file = io.StringIO()
    peek.show_text(
        sequence, Console(file=file, width=200, force_terminal=True, no_color=True)
    )
    assert "\x1b[3" not in file.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    said = [
        line
        for line in plain.splitlines()
        if line.startswith(("█ meta-chunk of ", "░ negative of "))
    ]
    spans = [span for span in sequence.spans if span.role in ("meta", "negative")]
    assert len(said) == len(spans)
    for line, span in zip(said, spans, strict=True):
        assert f"tokens {span.token_start:,}–{span.token_end:,}" in line
        assert (
            ("negative of" in line)
            == line.endswith(f", cosine {span.score:.3f}")
            == (span.role == "negative")
        )


def test_a_sequence_cut_before_its_first_meta_chunk_is_listed_all_the_same(
    run, tmp_path
):
    # Many negatives of 40 tokens and more before the first meta-chunk, and a cut at
    # 140.
    paper = {
        "fit": "paper",
        "position": "tail",
        "target_tokens": 140,
        "draft_factor": 20.0,
    }
    compose = run.recipe.compose.model_copy(update=paper)
    copy = shutil.copytree(run.path, tmp_path / "run")
    negatives_first = run.recipe.model_copy(
        update={"run_dir": str(copy), "compose": compose}
    )
    pipeline.run(negatives_first)
    opened = nextlong.open(tmp_path / "run")
    assert [span for span in opened.sequence(0).spans if span.role == "meta"] == []
    assert len(printed(peek.show_run, opened).splitlines()) == 2 + len(opened)


def test_on_a_narrow_terminal_names_of_documents_keep_their_room(run):
    file = io.StringIO()
    sequence = next(run.sequences())
    peek.show_sequence(
        sequence, Console(file=file, width=80, force_terminal=True, color_system=None)
    )
    *_, last = [
        line
        for line in file.getvalue().splitlines()
        if "–" in line and "negative" in line
    ]
    negative = [span for span in sequence.spans if span.role == "negative"][-1]
    assert f"{negative.token_start:,}–{negative.token_end:,}" in last
    assert f"{negative.score:.3f}" in last
    assert "[red]id 15[2J" in last  # whole, and harmless


@pytest.mark.parametrize("show", ["show_run", "show_sequence"])
def test_on_a_narrow_terminal_every_line_fits_and_the_end_of_the_id_stays(run, show):
    file = io.StringIO()
    console = Console(file=file, width=72, force_terminal=True, color_system=None)
    getattr(peek, show)(run if show == "show_run" else run.sequence(0), console)
    lines = file.getvalue().splitlines()[1:]
    assert max(map(cell_len, lines)) <= 72
    number = re.search(r"id\n(\d+)", run.sequence(0).spans[0].source_id)[1]
    assert any(f"{number}[2J" in line for line in lines)


def test_a_sequence_of_whole_documents_has_no_numbers_of_meta_chunks(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    compose = run.recipe.compose.model_copy(update={"method": "standard"})
    pipeline.run(
        run.recipe.model_copy(update={"run_dir": str(copy), "compose": compose})
    )
    opened = nextlong.open(copy)
    _, heading, row, *_ = printed(peek.show_run, opened).splitlines()
    assert heading.endswith("  first document")
    assert row.split()[:7] == [
        "0",
        "400",
        *("–" * 4),
        str(len({span.doc_id for span in opened.sequence(0).spans} - {-1})),
    ]
    legend = printed(
        peek.show_sequence, opened.sequence(0), terminal=True
    ).splitlines()[2]
    assert re.sub(r"\x1b\[[0-9;]*m", "", legend).split() == ["▒", "document"]


def test_a_pipe_gets_no_blanks_at_the_ends_of_lines(run):
    file = io.StringIO()
    peek.show_sequence(next(run.sequences()), Console(file=file))
    assert not [line for line in file.getvalue().splitlines() if line != line.rstrip()]
