"""Which token ends a document: what the files beside a tokenizer say, what it does itself, and what its tokens are called."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from nextlong.sequences.special_tokens import Ends, find_ends


def tokenizer(*special, before=(), behind=()):
    made = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(special))
    if before or behind:
        made.post_processor = processors.TemplateProcessing(
            single=" ".join([*before, "$A", *behind]),
            special_tokens=[(name, made.token_to_id(name)) for name in (*before, *behind)],
        )
    return made


@pytest.mark.parametrize("name", ["<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>"])
def test_a_token_that_is_called_an_end_is_one(name):
    assert find_ends(tokenizer("<pad>", name)) == Ends(eos=name, eos_said_by="its name")


def test_what_it_puts_around_a_text_counts():
    llama = tokenizer("<|begin_of_text|>", "<|end_of_text|>", before=["<|begin_of_text|>"])
    assert find_ends(llama) == Ends("<|begin_of_text|>", "<|end_of_text|>", "its post-processor", "its name")
    bert = tokenizer("[CLS]", "[SEP]", before=["[CLS]"], behind=["[SEP]"])
    assert find_ends(bert) == Ends("[CLS]", "[SEP]", "its post-processor", "its post-processor")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("tokenizer_config.json", {"eos_token": "<stop>"}),
        ("special_tokens_map.json", {"eos_token": {"content": "<stop>"}}),
        ("generation_config.json", {"eos_token_id": [1, 2]}),
        ("config.json", {"eos_token_id": 1}),
    ],
)
def test_the_files_beside_it_say_more_than_names(tmp_path, file, said):
    (tmp_path / file).write_text(json.dumps(said))
    assert find_ends(tokenizer("<stop>", "<|endoftext|>"), tmp_path) == Ends(eos="<stop>", eos_said_by=file)


def test_the_end_of_a_turn_is_no_end_of_a_document_where_there_is_another(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "bos_token": None}))
    assert find_ends(tokenizer("<|im_end|>", "<|endoftext|>"), tmp_path).eos == "<|endoftext|>"
    assert find_ends(tokenizer("<|im_end|>"), tmp_path).eos == "<|im_end|>"


def test_a_beginning_is_set_only_where_the_tokenizer_sets_it(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>", "add_bos_token": False}))
    assert find_ends(tokenizer("<|endoftext|>"), tmp_path).bos is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "add_bos_token": True}))
    assert find_ends(tokenizer("<s>", "</s>"), tmp_path) == Ends("<s>", "</s>", "tokenizer_config.json", "its name")


def test_none_of_a_tokenizer_without_special_tokens_nor_of_damaged_files(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    (tmp_path / "config.json").write_text("[]")
    assert find_ends(tokenizer(), tmp_path) == Ends()
