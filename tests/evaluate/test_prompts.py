"""Prompts: the same ids by every route, a template applied once, reasoning taken away."""

import shutil
from datetime import date
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.answering_models import answered
from tests.support.evaluation_data import bpe_tokenizer, byte_tokenizer, word_tokenizer
from tokenizers import processors

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.server import ServerModel
from nextlong.evaluate.task import Sample, TextTokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


QUESTION = Sample("Harbour and tide", ("x",), 5, answer_prefix=" Answer:")


TURNS = Sample(
    "User: a", ("x",), 5, turns=(("user", "a"), ("assistant", "b"), ("user", "c"))
)


@pytest.fixture(scope="module")
def chat_folder(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("prompt_format", ["completion", "chat"])
def test_every_route_reads_the_same_ids(prompt_format, chat_folder, served):
    """A server puts its BOS before a text, as vLLM and llama.cpp do, and takes ids as they are."""
    local = HuggingFaceModel(
        ModelOptions(str(chat_folder), prompt_format=prompt_format)
    )
    prompts = Prompts.read(ModelOptions(str(chat_folder), prompt_format))
    remote = ServerModel(
        ModelOptions("m", url=served.url, prompt_format=prompt_format), prompts
    )
    samples = [QUESTION, TURNS, Sample("<bos>tide", ("x",), 5)]
    served.answer = lambda body: {"choices": [{"text": "x"}]}
    answered(remote, samples)
    sent = [body["prompt"] for body in served.asked]
    assert {body["path"] for body in served.asked} == {"/v1/completions"}
    read = [
        prompts.tokenizer.with_prefix(prompts.tokenizer.encode(prompt))
        if prompt_format == "completion"
        else prompt
        for prompt in sent
    ]
    assert sorted(read) == sorted(local.prompts.ids(sample) for sample in samples)
    assert [prompts.hash_of(sample) for sample in samples] == [
        local.prompts.hash_of(sample) for sample in samples
    ]


@pytest.mark.heavy
def test_a_template_is_applied_once_and_counted(chat_folder):
    model = HuggingFaceModel(ModelOptions(str(chat_folder), prompt_format="chat"))
    shown = model.hub_tokenizer.decode(model.prompts.ids(QUESTION))
    assert shown == "<bos>user: Harbour and tide<eos>assistant: <think></think>Answer:"
    shown = model.hub_tokenizer.decode(model.prompts.ids(TURNS))
    assert (
        shown
        == "<bos>user: a<eos>assistant: b<eos>user: c<eos>assistant: <think></think>"
    )
    assert model.prompts.overhead == len(model.prompts.ids(Sample("a", (), 1))) - 2
    named = model.prompts.protocol()
    assert named["template"]
    assert named["format"] == "chat"
    assert model.engine.startswith("transformers ")


@pytest.mark.heavy
def test_a_model_that_reasons_is_told_so_and_its_answer_is_not_begun(
    chat_folder, served
):
    prompts = Prompts.read(ModelOptions(str(chat_folder), "chat", 64))
    asked = prompts.under("begun answer").asked(QUESTION)
    assert prompts.text(asked) == "<bos>user: Harbour and tide<eos>assistant: "
    served.answer = lambda body: {"choices": [{"text": "<think>a\nb</think> B\nC"}]}
    remote = ServerModel(ModelOptions("m", url=served.url), prompts)
    question = prompts.asked(Sample("a", ("x",), 5, stop="\n"))
    assert answered(remote, [question]) == ["B\nC"]
    assert served.asked[0]["max_tokens"] == 69
    assert "stop" not in served.asked[0]
    assert prompts.protocol()["thinking"] == 64


@pytest.mark.heavy
def test_an_answer_is_not_begun_inside_open_reasoning(chat_folder, tmp_path):
    folder = shutil.copytree(chat_folder, tmp_path / "reasoning")
    (folder / "chat_template.jinja").write_text(
        TEMPLATE.replace("<think></think>", "<think>\n")
    )
    with pytest.raises(EvaluateError, match="--thinking") as error:
        Prompts.read(ModelOptions(str(folder), "chat"))
    assert error.value.where == "--prompt-format chat"
    assert Prompts.read(ModelOptions(str(folder), "chat", 64)).thinking == 64


# The templates of ten families that people evaluate most, as trl installs them, with the
# tokens to reason in: R1's template opens the reasoning itself.
FAMILIES = {
    "llama3": 0,
    "llama3_2": 0,
    "qwen2_5": 0,
    "qwen3": 0,
    "gemma3": 0,
    "phi3_5": 0,
    "gptoss": 0,
    "deepseekv3": 64,
    "cohere2": 0,
    "glm4moe": 0,
}


@pytest.fixture(scope="module")
def family_template():
    """A function that returns the published template of a family."""
    folder = resources.files(pytest.importorskip("trl")) / "chat_templates"
    return lambda family: (folder / f"{family}.jinja").read_text()


@pytest.mark.heavy
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize(("family", "thinking"), FAMILIES.items())
def test_local_server_and_transformers_ids_are_equal_for_each_family(
    family, thinking, adds_bos, chat_folder, family_template, served, tmp_path
):
    from transformers import AutoTokenizer

    folder = shutil.copytree(chat_folder, tmp_path / "m")
    (folder / "chat_template.jinja").write_text(family_template(family))
    backend = TextTokenizer.read(folder).backend
    if not adds_bos:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.save(str(folder / "tokenizer.json"))
    today = date.today().strftime
    expected = (
        AutoTokenizer.from_pretrained(folder)
        .apply_chat_template(
            [{"role": "user", "content": "Harbour and tide"}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=bool(thinking),
        )
        .replace(today("%d %b %Y"), "26 Jul 2024")
        .replace(today("%Y-%m-%d"), "2024-07-26")
    )
    options = ModelOptions(str(folder), "chat", thinking)
    local = HuggingFaceModel(options).prompts
    question = Sample("Harbour and tide", ("x",), 5)
    ids = local.ids(question)
    assert ids == backend.encode(expected, add_special_tokens=False).ids
    served.answer = lambda body: {"choices": [{"text": "x"}]}
    remote = ServerModel(ModelOptions("m", url=served.url), Prompts.read(options))
    answered(remote, [question])
    assert served.asked[0]["prompt"] == ids


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("protocol", "read"),
    [
        ("begun answer", "<bos>user: a<eos>assistant: <think></think>Answer:"),
        ("template", "<bos>user: a<eos>assistant: <think></think>"),
        ("plain text", "<bos>a Answer:"),
    ],
)
def test_a_chat_model_is_asked_as_the_benchmark_asks_it(protocol, read, chat_folder):
    prompts = Prompts.read(ModelOptions(str(chat_folder), "chat")).under(protocol)
    sample = Sample("a", ("x",), 5, answer_prefix=" Answer:", stop="\n")
    asked = prompts.asked(sample)
    assert prompts.template.decode(prompts.ids(asked)) == read
    assert (asked.stop is None) == (protocol != "plain text")
    # A base model is asked in one way, whatever the benchmark says.
    base = Prompts(prompts.tokenizer).under(protocol)
    assert base.asked(sample) == sample


@pytest.mark.heavy
def test_chat_needs_a_template(tiny_model):
    for load in (HuggingFaceModel, Prompts.read):
        with pytest.raises(EvaluateError) as error:
            load(ModelOptions(str(tiny_model), "chat"))
        assert error.value.where == "--prompt-format chat"


def test_a_base_model_does_not_reason():
    with pytest.raises(EvaluateError, match="^--thinking:"):
        Prompts(TextTokenizer(bpe_tokenizer()), thinking=5)


@pytest.mark.parametrize(
    ("generated", "answer"),
    [
        ("<think>no</think>\n\nB\nC", "B"),
        ("no\nyes</think>B", "B"),
        ("<think>never ends\nB", ""),
        ("B\nC", "B"),
        ("<think>a</think><think>b</think>C", "C"),
    ],
)
def test_what_is_scored_stands_behind_the_reasoning(generated, answer):
    prompts = Prompts(TextTokenizer(bpe_tokenizer()), "messages", thinking=9)
    assert prompts.answer(generated, Sample("", (), 1, stop="\n")) == answer


@given(st.text(max_size=20), st.sampled_from(["\n", "a", None]))
def test_without_reasoning_an_answer_ends_at_its_first_stop(text, stop):
    answer = Prompts(TOKENIZER).answer(text, Sample("", (), 1, stop=stop))
    assert text.startswith(answer)
    assert stop is None or (
        stop not in answer and (answer == text or text[len(answer) :].startswith(stop))
    )


TOKENIZER = TextTokenizer(bpe_tokenizer())


def with_bos():
    backend = byte_tokenizer()
    backend.add_special_tokens(["<s>", "</s>"])
    start, end = backend.token_to_id("<s>"), backend.token_to_id("</s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="$A $B",
        special_tokens=[("<s>", start), ("</s>", end)],
    )
    return TextTokenizer(backend), start


def test_special_tokens_are_never_added_or_counted_and_bos_is_put_there_once():
    tokenizer, start = with_bos()
    ids = tokenizer.encode("tide")
    assert start not in ids
    assert tokenizer.count("tide") == len(ids) == len(tokenizer.boundaries("tide")) == 4
    assert tokenizer.prefix == (start,)
    assert (
        tokenizer.with_prefix(ids)
        == tokenizer.with_prefix(tokenizer.with_prefix(ids))
        == [start, *ids]
    )


def test_without_bos_nothing_is_put_before_a_text():
    tokenizer = TextTokenizer(byte_tokenizer())
    assert tokenizer.prefix == ()
    assert tokenizer.with_prefix([3, 4]) == [3, 4]


def test_long_texts_are_not_cut_whatever_the_file_says():
    backend = word_tokenizer()
    backend.enable_truncation(2)
    assert TextTokenizer(backend).count("one two three") == 3


def test_equal_tokenizers_have_one_hash():
    assert TextTokenizer(byte_tokenizer()).hash == TextTokenizer(byte_tokenizer()).hash
    assert TextTokenizer(byte_tokenizer()).hash != TextTokenizer(word_tokenizer()).hash


def test_it_is_read_from_a_file_or_its_folder(tmp_path):
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        assert TextTokenizer.read(source).count("a tide") == 2
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(EvaluateError) as error:
        TextTokenizer.read(tmp_path)
    assert error.value.where == f"--tokenizer {tmp_path}"
