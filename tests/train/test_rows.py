"""Rows know their documents, whatever they come from (runs, Parquet, conversations), and each step reads its own."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.runs.export import export

pytestmark = pytest.mark.heavy


def rows_for(run, attention, **data):
    from nextlong.train.recipe import Data
    from nextlong.train.sources import rows_of

    keys = {"validation": 0.0, "runs": (str(run),), **data}
    return replace(
        rows_of(Data(**keys), split="train", tokenizer=None), attention=attention
    )


def document_starts(sequence):
    """Return where the documents of a concatenation begin, by the spans of the opened run."""
    spans = [span for span in sequence.spans if span.role == "document"]
    new = [
        span.token_start
        for before, span in pairwise(spans)
        if before.group != span.group
    ]
    return [0, *new]


def test_documents_of_a_concatenation(standard_run):
    rows = rows_for(standard_run, "document")
    for number, sequence in enumerate(nextlong.open(standard_run).sequences()):
        row = rows[number]
        starts = document_starts(sequence)
        assert row.bounds.tolist() == [*starts, 2048]
        assert (row.labels == -100).nonzero().flatten().tolist() == starts
        assert row.position_ids[row.bounds[:-1].long()].tolist() == [0] * len(starts)
        assert (row.input_ids.numpy() == sequence.input_ids).all()


@pytest.mark.parametrize("attention", ["sequence", "document"])
def test_an_extended_sequence_is_one_document(shared_run, attention):
    assert rows_for(shared_run, attention)[0].bounds.tolist() == [0, 2048]


def test_packed_rows_by_sequence_and_whole(shared_run):
    assert rows_for(shared_run, "sequence", pack=3 * 2048)[0].bounds.tolist() == [
        0,
        2048,
        4096,
        6144,
    ]
    whole = rows_for(shared_run, "row", pack=3 * 2048)[0]
    assert whole.bounds.tolist() == [0, 6144]
    assert whole.position_ids.tolist() == list(range(6144))


@given(
    rows=st.integers(4, 60),
    per_step=st.sampled_from([2, 4]),
    at_once=st.sampled_from([1, 2]),
    seed=st.integers(0, 5),
    steps=st.integers(1, 30),
)
def test_micro_batches_share_the_rows_of_a_step_and_an_epoch_reads_none_twice(
    rows, per_step, at_once, seed, steps
):
    from types import SimpleNamespace

    from nextlong.train.prepare import Prepared
    from nextlong.train.recipe import Training

    def read(step, micro_batch_rows=1):
        recipe = SimpleNamespace(
            seed=seed, training=Training(micro_batch_rows=micro_batch_rows)
        )
        ready = SimpleNamespace(
            recipe=recipe,
            rows=range(rows),
            rows_per_step=per_step,
            steps_per_epoch=rows // per_step,
        )
        return Prepared.micro_batches(ready, step).flatten().tolist()

    assert all(read(step, at_once) == read(step) for step in range(steps))
    epoch = [row for step in range(rows // per_step) for row in read(step)]
    assert len(set(epoch)) == len(epoch)


def test_parquet_gives_the_rows_of_the_run(shared_run, standard_run):
    for run in (shared_run, standard_run):
        files = tuple(str(path) for path in nextlong.open(run).exported("parquet"))
        straight, exported = (
            rows_for(run, "document"),
            rows_for(run, "document", runs=(), parquet=files),
        )
        assert len(straight) == len(exported)
        for number in range(len(straight)):
            one, other = straight[number], exported[number]
            assert (one.input_ids == other.input_ids).all()
            assert one.bounds.tolist() == other.bounds.tolist()
            for column in ("role", "first", "last", "sequence"):
                assert (one.spans[column] == other.spans[column]).all()


def test_train_and_validation_of_parquet_share_nothing(shared_run):
    from nextlong.train.recipe import Data
    from nextlong.train.sources import rows_of

    data = Data(
        parquet=tuple(
            str(path) for path in nextlong.open(shared_run).exported("parquet")
        ),
        validation=0.4,
    )
    train, validation = (
        rows_of(data, split=split, tokenizer=None) for split in ("train", "validation")
    )
    first, second = (
        {part.read(row)[0].tobytes() for row in range(len(part))}
        for part in (train, validation)
    )
    assert not first & second
    assert len(first | second) == 12


def written(path, rows, *, role="document"):
    """A Parquet file of rows of these lengths, one span each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    spans = [
        [
            {
                "doc_id": "a",
                "chunk_id": 0,
                "role": role,
                "token_start": 0,
                "token_end": length,
            }
        ]
        for length in rows
    ]
    pq.write_table(
        pa.table({"input_ids": [[7] * length for length in rows], "spans": spans}), path
    )
    return str(path)


def test_parquet_that_cannot_be_trained_on(tmp_path):
    (tmp_path / "no.parquet").write_text("id,text")
    with pytest.raises(RecipeError) as error:
        rows_for("", "row", runs=(), parquet=(str(tmp_path / "no.parquet"),))
    assert error.value.where.endswith("no.parquet")
    with pytest.raises(RecipeError) as error:
        rows_for(
            "", "row", runs=(), parquet=(written(tmp_path / "mixed.parquet", [4, 6]),)
        )
    assert error.value.where == "data.parquet"
    assert "4 and 6" in error.value.problem
    other = rows_for(
        "",
        "row",
        runs=(),
        parquet=(written(tmp_path / "other.parquet", [4, 4], role="title"),),
    )
    with pytest.raises(RecipeError) as error:
        other[0]
    assert error.value.where.endswith("other.parquet")
    assert "'title'" in error.value.problem


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"input_ids": ["a", "b"]},
            "input_ids holds string",
        ),
        (
            {"input_ids": [[1, 2], None]},
            "row 1 of row group 0: it holds no",
        ),
        ({"input_ids": [[1], []]}, "row 1 of row group 0: it holds no"),
        (
            {"input_ids": [[1, 2, 3]], "seq_lengths": [[1, 1]]},
            "row 0 of row group 0: .* 2 tokens, not 3",
        ),
    ],
)
def test_rows_of_parquet_without_tokens_are_named(columns, told, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(RecipeError, match=rf"rows\.parquet.* {told}"):
        rows_for("", "row", runs=(), parquet=(str(tmp_path / "rows.parquet"),))[0]


def parquet_of(folder, **columns):
    """A Parquet file of these columns, each a list of lists of integers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return (str(folder / "rows.parquet"),)


@pytest.mark.parametrize(
    "marks",
    [
        {"attention_mask": [[1, 1, 1, 0, 0]]},
        {"attention_mask": [[True, True, True, False, False]]},
        {"labels": [[5, 6, 7, -100, -100]]},
        {"attention_mask": [[1, 1, 1, 0, 0]], "labels": [[5, 6, 7, 0, 0]]},
        {"attention_mask": [[1, 1, 1, 1, 1]], "labels": [[-100, 6, 7, -100, -100]]},
    ],
)
def test_marked_padding_of_parquet_is_not_predicted(marks, tmp_path):
    files = parquet_of(tmp_path, input_ids=[[5, 6, 7, 0, 0]], **marks)
    row = rows_for("", "sequence", runs=(), parquet=files)[0]
    assert row.labels.tolist() == [-100, 6, 7, -100, -100]
    assert row.input_ids.tolist() == [5, 6, 7, 0, 0]


def test_labels_of_parquet_mask_tokens_of_packed_rows_with_spans(tmp_path):
    files = parquet_of(
        tmp_path,
        input_ids=[[5, 6, 7, 8]],
        seq_lengths=[[2, 2]],
        labels=[[5, 6, 7, -100]],
        attention_mask=[[1, 1, 1, 1]],
    )
    row = rows_for("", "sequence", runs=(), parquet=files)[0]
    assert row.labels.tolist() == [-100, 6, -100, -100]
    assert row.bounds.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"attention_mask": [[1] * 4, [0, 0, 1, 1]]}, "row 1 .* attention_mask 0 bef"),
        ({"attention_mask": [[1] * 4, [1, 0, 1, 1]]}, "row 1 .* attention_mask 0 bef"),
        ({"attention_mask": [[1] * 4, [1] * 3]}, "row 1 .* value of attention_mask"),
        ({"attention_mask": [[1] * 4, None]}, "row 1 .* value of attention_mask"),
        ({"labels": [[5] * 4, [5, None, 5, 5]]}, "row 1 .* value of labels"),
        ({"labels": [[5] * 4, [5, 5, 9, 5]]}, "row 1 .* label 9 for the id 5 at to"),
    ],
)
def test_marks_of_parquet_that_cannot_be_used_name_the_row(columns, told, tmp_path):
    files = parquet_of(tmp_path, input_ids=[[5] * 4] * 2, **columns)
    rows = rows_for("", "sequence", runs=(), parquet=files)
    with pytest.raises(RecipeError, match=told):
        rows[1]


@pytest.mark.parametrize("name", ["assistant_masks", "loss_mask", "position_ids"])
def test_marks_of_other_tools_in_parquet_are_refused(name, tmp_path):
    files = parquet_of(tmp_path, input_ids=[[5] * 4], **{name: [[0, 1, 0, 1]]})
    with pytest.raises(RecipeError, match=f"column {name}, which"):
        rows_for("", "sequence", runs=(), parquet=files)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("bad", "told"), [(-1, "the id -1"), (-100, "the id -100"), (None, "null")]
)
@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_negative_and_null_ids_of_parquet_name_row_and_token(
    bad, told, statistics, kind, tmp_path
):
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [[7] * 4 for _ in range(6)]
    ids[4][2] = bad
    columns = {
        "input_ids": pa.array(ids, getattr(pa, kind)(pa.int32())),
        "seq_lengths": [[2, 2]] * 6,
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table(columns), path, row_group_size=3, write_statistics=statistics
    )
    place = rf"row 1 of row group 1: it holds {told} at token 2"
    with pytest.raises(RecipeError, match=place):
        rows_for("", "row", runs=(), parquet=(str(path),))


def test_parquet_written_anew_with_as_many_bytes_has_another_fingerprint(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def fingerprint(token):
        pq.write_table(
            pa.table({"input_ids": [[token] * 4] * 2}), tmp_path / "rows.parquet"
        )
        rows = rows_for("", "row", runs=(), parquet=(str(tmp_path / "rows.parquet"),))
        return (tmp_path / "rows.parquet").stat().st_size, rows.fingerprint

    (size, one), (same_size, other), (_, again) = (
        fingerprint(7),
        fingerprint(8),
        fingerprint(7),
    )
    assert size == same_size
    assert one == again != other


def test_too_few_rows_for_a_side(tmp_path):
    rows = (written(tmp_path / "rows.parquet", [4, 4]),)
    with pytest.raises(CorpusError) as error:
        rows_for("", "row", runs=(), parquet=rows, validation=0.999999)
    assert error.value.where == "data.parquet"


def test_padded_documents_are_refused_with_the_cure(shared_run, tmp_path):
    from nextlong.train.recipe import Data
    from nextlong.train.sources import rows_of

    run_dir = shutil.copytree(shared_run, tmp_path / "run")
    export(
        [run_dir],
        formats=["parquet"],
        overrides=["export.pad_documents_to=6", "workers=1"],
    )
    data = Data(parquet=(str(run_dir / "data" / "parquet"),), validation=0.0)
    with pytest.raises(RecipeError) as error:
        rows_of(data, split="train", tokenizer=None)
    assert error.value.where.endswith("part-00000.parquet")
    assert "export.pad_documents_to" in error.value.fix


TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chat_tokenizer(shared_run):
    from transformers import PreTrainedTokenizerFast

    (path,) = shared_run.glob("*-tokenizer-*/*.tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def conversation(*turns):
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[place % 2], "content": text}
            for place, text in enumerate(turns)
        ]
    }


def chat_rows(path, tokenizer, **keys):
    from nextlong.train.recipe import Data
    from nextlong.train.sources import rows_of

    return rows_of(
        Data(chat=str(path), pack=80, validation=0.0, **keys),
        split="train",
        tokenizer=tokenizer,
    )


def test_only_answers_are_predicted(tmp_path, chat_tokenizer):
    path = tmp_path / "chat.jsonl"
    path.write_text(
        json.dumps(conversation("the sea", "a harbour", "the bread", "an oven")) + "\n"
    )
    row = chat_rows(path, chat_tokenizer)[0]
    predicted = chat_tokenizer.decode(
        row.input_ids[row.labels != -100], clean_up_tokenization_spaces=False
    )
    assert predicted.replace(" ", "") == "aharbour</s>anoven</s>"
    assert (
        chat_tokenizer.decode(row.input_ids)
        .replace(" ", "")
        .startswith("<user>thesea</s><assistant>aharbour</s>")
    )


def test_conversations_are_packed_whole_and_long_ones_dropped(tmp_path, chat_tokenizer):
    path = tmp_path / "chat.jsonl"
    said = [
        conversation("the sea", "a harbour"),
        conversation("the sea " * 60, "no"),
        conversation("the bread", "an oven"),
    ] * 3
    path.write_text("".join(json.dumps(one) + "\n" for one in said))
    rows = chat_rows(path, chat_tokenizer)
    assert rows.dropped == 3
    assert sum(len(rows.read(row)[1]) for row in range(len(rows))) == 6
    assert all(len(rows.read(row)[0]) <= 80 for row in range(len(rows)))
    assert all(np.sum(rows.read(row).is_target) for row in range(len(rows)))


def test_conversations_need_a_chat_template(tmp_path, chat_tokenizer):
    (tmp_path / "chat.jsonl").write_text(json.dumps(conversation("sea", "harbour")))
    chat_tokenizer.chat_template = None
    with pytest.raises(TokenizerError) as error:
        chat_rows(tmp_path / "chat.jsonl", chat_tokenizer)
    assert error.value.where == "data.chat"
