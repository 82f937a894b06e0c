import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.arrow_files import write_documents

from nextlong.artifacts.corpus_files import iter_chunk_texts, read_chunks
from nextlong.artifacts.results import ChunkResult
from nextlong.corpus.chunk import _chunk_shard, chunk_text

TEXTS = st.text(alphabet=st.sampled_from("ab.  \n\n\r\té日🎉\u0301\x00א"), max_size=120)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)


LENGTHS = ("slice", "paper")


OVERSIZES = ("split", "keep")


def cut(text, **options):
    return [text[start:end] for start, end in chunk_text(text, **options)]


# paragraphs of 3, 2 and 10 characters, and nothing behind the last newline
SHORT = "aaa\nbb\ncccccccccc\n"


@pytest.mark.parametrize(
    ("length", "oversize", "expected"),
    [
        ("slice", "split", [(0, 4), (4, 7), (7, 13), (13, 18)]),
        ("slice", "keep", [(0, 4), (4, 7), (7, 18)]),
        ("paper", "split", [(0, 7), (7, 13), (13, 18)]),
        ("paper", "keep", [(0, 7), (7, 18)]),
    ],
)
def test_cuts_by_hand(length, oversize, expected):
    assert chunk_text(SHORT, max_chars=6, length=length, oversize=oversize) == expected


def test_slice_counts_the_newline_and_paper_does_not():
    text = "abc\ndef\ng"
    assert cut(text, max_chars=8) == ["abc\ndef\n", "g"]
    assert cut(text, max_chars=7) == ["abc\n", "def\ng"]
    assert cut(text, max_chars=6, length="paper") == ["abc\ndef\n", "g"]
    assert cut(text, max_chars=7, length="paper") == ["abc\ndef\ng"]


def test_paper_closes_after_an_oversized_paragraph_even_before_an_empty_one():
    assert cut("aaaaaaa\n\nb", max_chars=5, length="paper", oversize="keep") == [
        "aaaaaaa\n",
        "\nb",
    ]


def test_slice_keeps_an_oversized_paragraph_with_its_newline():
    assert cut("aaaaaaa\n\nb", max_chars=5, oversize="keep") == ["aaaaaaa\n", "\nb"]
    assert cut("b\naaaaaaa", max_chars=5, oversize="keep") == ["b\n", "aaaaaaa"]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("oversize", OVERSIZES)
def test_what_fits_is_one_chunk_and_nothing_is_none(length, oversize):
    options = {"max_chars": 9, "length": length, "oversize": oversize}
    assert chunk_text("", **options) == []
    assert chunk_text("\n", **options) == [(0, 1)]
    assert chunk_text("ab\ncd\nefg", **options) == [(0, 9)]


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [
        ("One two. Three four five", 16, ["One two. ", "Three four five"]),
        ('He said "no." And left it', 20, ['He said "no." ', "And left it"]),
        ("Who? Me! No. Yes indeed", 16, ["Who? Me! No. ", "Yes indeed"]),
        ("no sentence here at all", 12, ["no sentence ", "here at all"]),
        (
            "今日は雨。明日は晴れるでしょう",
            8,
            ["今日は雨。", "明日は晴れるでし", "ょう"],
        ),
        ("एक दो। तीन चार पाँच", 12, ["एक दो। ", "तीन चार पाँच"]),
        ("version 3.14 is out now", 14, ["version 3.14 ", "is out now"]),
        # A sentence in the first half would leave a chunk below half of max_chars.
        ("One two. Three four five", 20, ["One two. Three four ", "five"]),
        ("Fig. aaaa bbbb cccc", 14, ["Fig. aaaa ", "bbbb cccc"]),
        ("as is seen in Fig. 3 of it", 20, ["as is seen in Fig. ", "3 of it"]),
        ("See the one. See Fig. 3", 22, ["See the one. ", "See Fig. 3"]),
        ("it was so. By J. Smith", 17, ["it was so. ", "By J. Smith"]),
        ("ในปี พ.ศ. 2540 มีคน", 12, ["ในปี พ.ศ. ", "2540 มีคน"]),
        ("他说：“好。”然后他走了很远", 10, ["他说：“好。”", "然后他走了很远"]),
        ("雨が降る，風が吹く空が暗い", 8, ["雨が降る，", "風が吹く空が暗い"]),
        ("مرحبا بك. كيف حالك اليوم", 16, ["مرحبا بك. ", "كيف حالك اليوم"]),
        ("aa https://example.org/a/b/c", 12, ["aa https://e", "xample.org/a", "/b/c"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
    ],
)
def test_oversized_paragraphs_are_cut_behind_sentences_then_words(
    text, max_chars, expected
):
    assert cut(text, max_chars=max_chars) == expected


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [
        ("abcde\u0301\u0327fg", 5, ["abcd", "e\u0301\u0327fg"]),
        ("कककककि", 5, ["कककक", "कि"]),
        ("xx👍🏽yy", 3, ["xx", "👍🏽y", "y"]),
        ("xx👨\u200d👩\u200d👧y", 6, ["xx", "👨\u200d👩\u200d👧y"]),
        ("xxx❤\ufe0fy", 4, ["xxx", "❤\ufe0fy"]),
        ("abc\r\nde", 4, ["abc", "\r\nde"]),
    ],
)
def test_a_cut_inside_a_word_keeps_together_what_shows_as_one(
    text, max_chars, expected
):
    assert cut(text, max_chars=max_chars) == expected


def test_a_long_run_of_marks_is_cut_all_the_same():
    chunks = cut("a" + "\u0301" * 400, max_chars=100)
    assert [len(chunk) for chunk in chunks] == [100, 100, 100, 100, 1]


@pytest.mark.parametrize("max_chars", [1, 2, 3])
def test_the_smallest_chunks_still_tile(max_chars):
    assert "".join(cut("e\u0301 \r\n👍🏽", max_chars=max_chars)) == "e\u0301 \r\n👍🏽"


def test_crlf_paragraphs_keep_their_line_ends():
    text = "abc\r\ndef\r\nghi\r\n"
    assert cut(text, max_chars=10) == ["abc\r\ndef\r\n", "ghi\r\n"]


def tiles(spans, text):
    return [0, *(end for _, end in spans)] == [
        *(start for start, _ in spans),
        len(text),
    ]


@given(text=st.one_of(TEXTS, ANY_TEXT), max_chars=st.integers(1, 40))
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("oversize", OVERSIZES)
def test_slices_rebuild_the_document(length, oversize, text, max_chars):
    spans = chunk_text(text, max_chars=max_chars, length=length, oversize=oversize)
    assert tiles(spans, text)
    assert all(start < end for start, end in spans)


@given(text=TEXTS, max_chars=st.integers(1, 40))
def test_split_slices_are_never_over_the_limit(text, max_chars):
    assert max(map(len, cut(text, max_chars=max_chars)), default=0) <= max_chars


@given(text=TEXTS, max_chars=st.integers(70, 90), repeated=st.integers(2, 9))
def test_a_cut_within_a_paragraph_leaves_at_least_half(text, max_chars, repeated):
    paragraph = (text.replace("\n", " ") + ". x") * repeated
    for chunk in cut(paragraph, max_chars=max_chars)[:-1]:
        assert len(chunk) >= max_chars / 2


@given(text=TEXTS, max_chars=st.integers(1, 40))
def test_a_kept_slice_over_the_limit_is_one_paragraph(text, max_chars):
    for chunk in cut(text, max_chars=max_chars, oversize="keep"):
        assert len(chunk) <= max_chars or "\n" not in chunk[:-1]


@given(text=TEXTS, max_chars=st.integers(1, 40))
@pytest.mark.parametrize("oversize", OVERSIZES)
def test_no_chunk_could_have_taken_the_next_paragraph_too(oversize, text, max_chars):
    for start, end in chunk_text(text, max_chars=max_chars, oversize=oversize):
        if end < len(text) and text[end - 1] == "\n":
            following, newline, _ = text[end:].partition("\n")
            assert end - start + len(following + newline) > max_chars


def paper_rule(text, granularity):
    """The rule as the paper's authors state it, paragraph by paragraph; returns the paragraphs of each chunk."""
    chunks, buffer, filled = [], [], 0
    for paragraph in text.split("\n"):
        if buffer and filled + len(paragraph) > granularity:
            chunks.append(buffer)
            buffer, filled = [], 0
        buffer.append(paragraph)
        filled += len(paragraph)
    chunks.append(buffer)
    return chunks


@given(
    text=st.text(alphabet=st.sampled_from("ab\n\n"), max_size=60),
    granularity=st.integers(1, 12),
)
def test_paper_mode_is_the_papers_rule(text, granularity):
    expected = [
        "\n".join(paragraphs) + "\n" for paragraphs in paper_rule(text, granularity)
    ]
    expected[-1] = expected[-1][:-1]  # the last newline is not in the text
    assert cut(text, max_chars=granularity, length="paper", oversize="keep") == [
        chunk for chunk in expected if chunk
    ]


@given(text=TEXTS, granularity=st.integers(1, 12))
def test_paper_mode_split_cuts_only_what_the_paper_keeps_oversized(text, granularity):
    kept = chunk_text(text, max_chars=granularity, length="paper", oversize="keep")
    split = chunk_text(text, max_chars=granularity, length="paper", oversize="split")
    assert {start for start, _ in kept} <= {start for start, _ in split}
    whole = [
        (start, end)
        for start, end in kept
        if len(text[start:end].replace("\n", "")) <= granularity
    ]
    assert set(whole) <= set(split)


@pytest.mark.parametrize(
    "line", ["word " * 10_000_000, "x" * 50_000_000], ids=["words", "unbroken"]
)
def test_a_line_of_50_mb(line):
    spans = chunk_text(line)
    assert tiles(spans, line)
    assert max(end - start for start, end in spans) <= 2048
    assert len(spans) < 25_000


@pytest.fixture
def shard(tmp_path):
    write_documents(
        tmp_path / "d.arrow", [["aa\nbb\ncc", "dropped"], ["🎉🎉\nמה", "e\n"]]
    )
    np.save(tmp_path / "keep.npy", np.array([True, False, True, True]))
    options = {"max_chars": 4, "length": "slice", "oversize": "split"}
    counts = _chunk_shard(
        tmp_path / "s",
        documents=tmp_path / "d.arrow",
        keep=tmp_path / "keep.npy",
        **options,
    )
    return tmp_path / "d.arrow", tmp_path / "s.chunks.arrow", counts


def test_chunk_shard_writes_offsets_of_the_kept_documents(shard):
    _, chunks, counts = shard
    assert {name: column.tolist() for name, column in read_chunks(chunks).items()} == {
        "doc_row": [0, 0, 0, 2, 2, 3],
        "start": [0, 3, 6, 0, 3, 0],
        "end": [3, 6, 8, 3, 5, 2],
        "separator": [False, False, True, False, True, False],
    }
    assert counts == ChunkResult(documents=3, chunks=6, chars=15)


def test_a_shard_of_which_nothing_is_kept(tmp_path):
    write_documents(tmp_path / "d.arrow", [["a"]])
    np.save(tmp_path / "keep.npy", np.array([False]))
    options = {"max_chars": 4, "length": "slice", "oversize": "split"}
    counts = _chunk_shard(
        tmp_path / "s",
        documents=tmp_path / "d.arrow",
        keep=tmp_path / "keep.npy",
        **options,
    )
    assert counts == ChunkResult(documents=0, chunks=0, chars=0)
    assert (
        list(iter_chunk_texts(tmp_path / "d.arrow", tmp_path / "s.chunks.arrow")) == []
    )


@pytest.mark.parametrize("max_chars", [0, -1])
def test_chunks_without_room_for_a_character_are_refused(max_chars):
    with pytest.raises(ValueError, match=f"max_chars={max_chars} is below 1"):
        chunk_text("abc", max_chars=max_chars)
