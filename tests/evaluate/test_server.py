"""A server with an OpenAI-compatible API, a real one on loopback: answered, failing half its requests, refusing, gone."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.answering_models import Oracle, answered, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer, word_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.server import ServerModel, UnansweredSamplesError
from nextlong.evaluate.task import Sample, TextTokenizer


@pytest.fixture(autouse=True)
def hardly_waiting(monkeypatch):
    monkeypatch.setattr("nextlong.client._FIRST_WAIT_S", 0.001)


def model(served, *, prompt_format="completion", thinking=0, **options):
    prompts = Prompts(TextTokenizer(bpe_tokenizer()), prompt_format, thinking)
    return ServerModel(ModelOptions("m", url=served.url, **options), prompts)


def samples(count):
    return [
        Sample(f"prompt {number:05}", ("x",), 7, stop="\n") for number in range(count)
    ]


def test_answers_come_in_order(served):
    assert answered(model(served), samples(20)) == [
        f"<{number:05}>" for number in range(20)
    ]
    one = next(body for body in served.asked if body["prompt"].endswith("00003"))
    assert one == {
        "model": "m",
        "prompt": "prompt 00003",
        "max_tokens": 7,
        "temperature": 0,
        "stop": ["\n"],
        "path": "/v1/completions",
    }


def test_a_server_that_fails_half_its_requests_is_asked_again(served):
    served.fails = lambda number: (503, None, "drop", None)[number % 4]
    assert answered(model(served, concurrency=3, max_attempts=30), samples(30)) == [
        f"<{number:05}>" for number in range(30)
    ]
    assert len(served.asked) > 45


def test_messages_are_put_into_the_servers_template(served):
    served.answer = lambda body: {"choices": [{"message": {"content": "B\nand more"}}]}
    chat = model(served, prompt_format="messages")
    assert answered(chat, [Sample("ask", ("x",), 7, stop="\n")]) == ["B"]
    assert served.asked[0]["path"] == "/v1/chat/completions"
    assert served.asked[0]["messages"] == [{"role": "user", "content": "ask"}]
    assert chat.prompts.overhead > 0
    turns = (("user", "a"), ("assistant", "b"), ("user", "c"))
    answered(chat, [Sample("User: a …", ("x",), 7, turns=turns)])
    assert [one["role"] for one in served.asked[1]["messages"]] == [
        "user",
        "assistant",
        "user",
    ]


def test_an_answer_that_is_begun_is_refused_where_the_server_has_the_template(served):
    with pytest.raises(EvaluateError, match="'Answer:'.+--prompt-format chat"):
        answered(
            model(served, prompt_format="messages"),
            [Sample("ask", ("x",), 7, " Answer:")],
        )
    assert not served.asked


def test_an_answer_without_content_is_an_error_and_no_zero(served):
    served.answer = lambda body: {
        "choices": [{"message": {"content": None}, "finish_reason": "length"}]
    }
    with pytest.raises(EvaluateError, match=r"finish_reason length.+--thinking"):
        answered(model(served, prompt_format="messages"), [Sample("ask", ("x",), 7)])


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (
            {
                "message": {"content": "", "reasoning_content": "hmm"},
                "finish_reason": "length",
            },
            "finish_reason length.+--thinking",
        ),
        (
            {"message": {"content": "A"}, "finish_reason": "abort"},
            "finish_reason abort.+run the same command again",
        ),
        (
            {"message": {"content": "A"}, "finish_reason": "content_filter"},
            "finish_reason content_filter.+filter off",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error_and_no_score(served, choice, told):
    served.answer = lambda body: {"choices": [choice]}
    asking = model(served, prompt_format="messages")
    with pytest.raises(UnansweredSamplesError, match=told):
        answered(asking, [Sample("ask", ("x",), 7)])


def test_an_empty_answer_of_a_model_that_stopped_is_an_answer(served):
    choice = {"message": {"content": ""}, "finish_reason": "stop"}
    served.answer = lambda body: {"choices": [choice]}
    asking = model(served, prompt_format="messages")
    assert answered(asking, [Sample("ask", ("x",), 7)]) == [""]


@pytest.mark.parametrize("prompt_format", ["completion", "messages"])
@pytest.mark.parametrize(("missing", "is_cut"), [(1, False), (20, True), (None, False)])
def test_a_server_that_cuts_prompts_is_an_error(served, prompt_format, missing, is_cut):
    """One that counts hardly any tokens leaves out what it has cached."""
    asking = model(served, prompt_format=prompt_format)
    prompt = Sample("Harbour and tide " * 200, ("x",), 7)
    tokens = len(asking.prompts.tokenizer.encode(prompt.text))
    choice = (
        {"text": "A"}
        if prompt_format == "completion"
        else {"message": {"content": "A"}}
    )
    read = 9 if missing is None else tokens + 1 - missing
    served.answer = lambda body: {"choices": [choice], "usage": {"prompt_tokens": read}}
    if is_cut:
        with pytest.raises(EvaluateError, match="it cuts prompts") as error:
            answered(asking, [prompt])
        assert not isinstance(error.value, UnansweredSamplesError)
    else:
        assert answered(asking, [prompt]) == ["A"]


def received(asking, asked):
    """Return the numbers that were answered before an error, and the error."""
    numbers = []
    try:
        for number, _, _ in asking.answers(enumerate(asked)):
            numbers.append(number)
    except EvaluateError as error:
        return sorted(numbers), error
    return sorted(numbers), None


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_request_that_is_refused_costs_no_other_its_answer(served, concurrency):
    served.fails = lambda number: 400 if "00005" in served.asked[-1]["prompt"] else None
    numbers, error = received(model(served, concurrency=concurrency), samples(12))
    assert numbers == [0, 1, 2, 3, 4, *range(6, 12)]
    assert isinstance(error, UnansweredSamplesError)
    assert "HTTP 400" in str(error)


def test_a_server_that_refuses_the_key_is_asked_no_more_but_its_answers_are_kept(
    served,
):
    served.fails = lambda number: 401 if number > 6 else None
    numbers, error = received(model(served, concurrency=3), samples(200))
    assert len(numbers) == 6
    assert not isinstance(error, UnansweredSamplesError)
    assert len(served.asked) <= 9


def test_a_server_that_answers_nothing_is_not_asked_every_sample(served):
    served.fails = lambda number: 400
    numbers, error = received(model(served, concurrency=3), samples(200))
    assert not numbers
    assert not isinstance(error, UnansweredSamplesError)
    assert len(served.asked) < 15


def test_the_next_sample_is_sent_while_a_slow_one_is_awaited(served):
    """A batch that waits for its slowest request would leave a server idle."""
    slow = threading.Event()

    def answer(body):
        if "00000" in body["prompt"]:
            assert slow.wait(30)
        elif "00019" in body["prompt"]:
            slow.set()
        return {"choices": [{"text": "x"}]}

    served.answer = answer
    numbers, error = received(model(served, concurrency=2), samples(20))
    assert (numbers, error) == (list(range(20)), None)


def test_answers_are_on_the_disk_before_the_run_ends_in_an_error(served, tmp_path):
    oracle = Oracle(word_tokenizer())
    served.answer = lambda body: {"choices": [{"text": oracle.read(body["prompt"])}]}
    served.fails = lambda number: 400 if number == 3 else None
    asking = ServerModel(ModelOptions("m", url=served.url), oracle.prompts)
    what = asked(tmp_path / "r", "json_kv", "vt", samples=6)
    with pytest.raises(EvaluateError, match="^1 of 2 not measured"):
        evaluated(asking, what)
    found = evaluated(asking, what)
    assert len(served.asked) == 13
    assert [one.score for one in found.finished] == [100.0, 100.0]
    whole = evaluated(asking, replace(what, out=tmp_path / "whole"))
    for ours, theirs in zip(found.finished, whole.finished, strict=True):
        assert ours.values["samples"] == theirs.values["samples"]


def test_reasoning_gets_its_tokens_and_no_stop(served):
    served.answer = lambda body: {
        "choices": [{"message": {"content": "<think>A\nor B</think>\n\nB\nand more"}}]
    }
    chat = model(served, prompt_format="messages", thinking=500)
    sample = chat.prompts.asked(Sample("ask", ("x",), 7, stop="\n"))
    assert answered(chat, [sample]) == ["B\nand more"]
    assert served.asked[0]["max_tokens"] == 507
    assert served.asked[0]["chat_template_kwargs"] == {
        "enable_thinking": True,
        "thinking": True,
    }
    assert "stop" not in served.asked[0]


def test_the_key_comes_from_the_environment(served, monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc")
    answered(model(served, api_key_env="MY_KEY"), samples(1))
    assert served.headers[0]["Authorization"] == "Bearer abc"


def test_a_server_that_is_gone_is_told(served):
    served.fails = lambda number: 503
    with pytest.raises(EvaluateError, match="HTTP 503") as error:
        answered(model(served, max_attempts=3), samples(2))
    assert error.value.where == f"--url {served.url}, model m"
    assert "--concurrency" in error.value.fix


def test_a_refusal_is_not_tried_again(served):
    served.fails = lambda number: 404
    with pytest.raises(EvaluateError, match="HTTP 404"):
        answered(model(served), samples(1))
    assert len(served.asked) == 1


def test_another_kind_of_answer_is_told(served):
    served.answer = lambda body: {"data": []}
    with pytest.raises(EvaluateError, match="data") as error:
        answered(model(served), samples(1))
    assert error.value.where.startswith(f"--url {served.url}")


def test_what_is_no_url_is_refused():
    with pytest.raises(EvaluateError, match="give http://HOST:PORT/v1"):
        model(SimpleNamespace(url="localhost:8000"))


def test_a_whole_run_over_a_server(served, tmp_path):
    oracle = Oracle(word_tokenizer())
    served.answer = lambda body: {"choices": [{"text": oracle.read(body["prompt"])}]}
    served.fails = lambda number: 429 if number % 2 else None
    asking = ServerModel(
        ModelOptions("m", url=served.url, max_attempts=20), oracle.prompts
    )
    found = evaluated(asking, asked(tmp_path / "r", "json_kv", samples=6))
    assert found.score("json_kv", 8192).value == 100.0


def test_another_tokenizer_is_another_model(served):
    options = ModelOptions("m", url=served.url)
    one, other = (
        ServerModel(options, Prompts(TextTokenizer(made()))).identity()
        for made in (bpe_tokenizer, word_tokenizer)
    )
    assert {key for key in one if one[key] != other[key]} == {"tokenizer"}
    assert (
        ServerModel(options, Prompts(TextTokenizer(bpe_tokenizer()))).identity() == one
    )
