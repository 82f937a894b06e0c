"""Prompts: the same ids by every route, a template applied once, reasoning taken away."""

import hashlib
import shutil
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.evaluation_data import bpe_tokenizer, byte_tokenizer, word_tokenizer
from tokenizers import processors

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel, ServerModel, VllmModel
from nextlong.evaluate.prompts import ModelOptions, Prompts
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


def asked_of_vllm(monkeypatch, folder, samples, **options):
    """Ask vLLM's interface, answered by a stand-in, for vLLM has no wheel for CPUs; return what it was given, and the answers."""
    given = SimpleNamespace(load=None, prompts=None, limits=None)

    class LLM:
        def __init__(self, **load):
            given.load = load

        def generate(self, prompts, limits, *, use_tqdm):
            given.prompts, given.limits = prompts, limits
            return [
                SimpleNamespace(
                    outputs=[SimpleNamespace(text="<think>a\nb</think> B\nC")]
                )
                for _ in prompts
            ]

    parameters = ("temperature", "max_tokens", "stop")
    limits = lambda **given: SimpleNamespace(  # noqa: E731
        **{name: given[name] for name in parameters}
    )
    stand_in = SimpleNamespace(LLM=LLM, SamplingParams=limits, __version__="0")
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    model = VllmModel(
        ModelOptions(str(folder), engine="vllm", gpus=2, **options), longest=256
    )
    return model, given, list(model.answers(samples))


@pytest.mark.heavy
@pytest.mark.parametrize("prompt_format", ["completion", "chat"])
def test_every_route_reads_the_same_ids(
    prompt_format, chat_folder, served, monkeypatch
):
    """A server puts its BOS before a text, as vLLM and llama.cpp do."""
    local = HuggingFaceModel(
        ModelOptions(str(chat_folder), prompt_format=prompt_format)
    )
    prompts = Prompts.read(ModelOptions(str(chat_folder), prompt_format))
    remote = ServerModel(
        ModelOptions("m", url=served.url, prompt_format=prompt_format), prompts
    )
    samples = [QUESTION, TURNS, Sample("<bos>tide", ("x",), 5)]
    list(remote.answers(samples))
    sent = {body["prompt"] for body in served.asked}
    assert {body["path"] for body in served.asked} == {"/v1/completions"}
    ids = [local.prompts.ids(sample) for sample in samples]
    assert sorted(
        prompts.tokenizer.with_prefix(prompts.tokenizer.encode(text)) for text in sent
    ) == sorted(ids)
    assert {hashlib.sha256(text.encode()).hexdigest() for text in sent} == {
        local.prompts.hash_of(one) for one in samples
    }
    _, given, _ = asked_of_vllm(
        monkeypatch, chat_folder, samples, prompt_format=prompt_format
    )
    assert [one["prompt_token_ids"] for one in given.prompts] == ids
    assert given.load["tensor_parallel_size"] == 2
    assert given.load["enable_prefix_caching"] is True
    assert all(one.temperature == 0 and one.max_tokens == 5 for one in given.limits)


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
    chat_folder, monkeypatch
):
    prompts = Prompts.read(ModelOptions(str(chat_folder), "chat", 64))
    asked = prompts.under("begun answer").asked(QUESTION)
    assert prompts.text(asked) == "user: Harbour and tide<eos>assistant: "
    _, given, answers = asked_of_vllm(
        monkeypatch,
        chat_folder,
        [prompts.asked(Sample("a", ("x",), 5, stop="\n"))],
        prompt_format="chat",
        thinking=64,
    )
    assert answers == ["B\nC"]
    assert (
        given.limits[0].max_tokens,
        given.limits[0].stop,
        given.load["max_model_len"],
    ) == (69, None, 256 + 64 + 1)
    assert prompts.protocol()["thinking"] == 64


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


def test_a_cut_prompt_is_sent_as_ids(served):
    prompts = Prompts(TOKENIZER)
    cut = Sample("tide", ("x",), 5, input_ids=(7, 8, 9))
    served.answer = lambda body: {"choices": [{"text": "x"}]}
    list(ServerModel(ModelOptions("m", url=served.url), prompts).answers([cut]))
    assert served.asked[0]["prompt"] == prompts.ids(cut) == [0, 7, 8, 9]
    assert prompts.hash_of(cut) == hashlib.sha256(b"[0, 7, 8, 9]").hexdigest()


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
