"""A server with an OpenAI-compatible API, a real one on loopback: answered, failing half its requests, refusing, gone."""

from types import SimpleNamespace

import pytest
from tests.support.answering_models import Oracle, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer, word_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import ServerModel
from nextlong.evaluate.prompts import ModelOptions, Prompts
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
    assert list(model(served).answers(samples(20))) == [
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
    assert list(model(served, concurrency=3, max_attempts=30).answers(samples(30))) == [
        f"<{number:05}>" for number in range(30)
    ]
    assert len(served.asked) > 45


def test_messages_are_put_into_the_servers_template(served):
    served.answer = lambda body: {"choices": [{"message": {"content": "B\nand more"}}]}
    chat = model(served, prompt_format="messages")
    assert list(chat.answers([Sample("ask", ("x",), 7, stop="\n")])) == ["B"]
    assert served.asked[0]["path"] == "/v1/chat/completions"
    assert served.asked[0]["messages"] == [{"role": "user", "content": "ask"}]
    assert chat.prompts.overhead > 0
    turns = (("user", "a"), ("assistant", "b"), ("user", "c"))
    list(chat.answers([Sample("User: a …", ("x",), 7, turns=turns)]))
    assert [one["role"] for one in served.asked[1]["messages"]] == [
        "user",
        "assistant",
        "user",
    ]


def test_an_answer_that_is_begun_is_refused_where_the_server_has_the_template(served):
    with pytest.raises(EvaluateError, match="'Answer:'.+--prompt-format chat"):
        list(
            model(served, prompt_format="messages").answers(
                [Sample("ask", ("x",), 7, " Answer:")]
            )
        )
    assert not served.asked


def test_an_answer_without_content_is_an_error_and_no_zero(served):
    served.answer = lambda body: {
        "choices": [{"message": {"content": None}, "finish_reason": "length"}]
    }
    with pytest.raises(EvaluateError, match=r"finish_reason length.+--thinking"):
        list(
            model(served, prompt_format="messages").answers([Sample("ask", ("x",), 7)])
        )


def test_reasoning_gets_its_tokens_and_no_stop(served):
    served.answer = lambda body: {
        "choices": [{"message": {"content": "<think>A\nor B</think>\n\nB\nand more"}}]
    }
    chat = model(served, prompt_format="messages", thinking=500)
    sample = chat.prompts.asked(Sample("ask", ("x",), 7, stop="\n"))
    assert list(chat.answers([sample])) == ["B\nand more"]
    assert served.asked[0]["max_tokens"] == 507
    assert served.asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "stop" not in served.asked[0]


def test_the_key_comes_from_the_environment(served, monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc")
    list(model(served, api_key_env="MY_KEY").answers(samples(1)))
    assert served.headers[0]["Authorization"] == "Bearer abc"


def test_a_server_that_is_gone_is_told(served):
    served.fails = lambda number: 503
    with pytest.raises(EvaluateError, match="HTTP 503") as error:
        list(model(served, max_attempts=3).answers(samples(2)))
    assert error.value.where == f"--url {served.url}, model m"
    assert "--concurrency" in error.value.fix


def test_a_refusal_is_not_tried_again(served):
    served.fails = lambda number: 404
    with pytest.raises(EvaluateError, match="HTTP 404"):
        list(model(served).answers(samples(1)))
    assert len(served.asked) == 1


def test_another_kind_of_answer_is_told(served):
    served.answer = lambda body: {"data": []}
    with pytest.raises(EvaluateError, match="data") as error:
        list(model(served).answers(samples(1)))
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
