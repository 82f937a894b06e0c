"""A server with an OpenAI-compatible API: vLLM, SGLang, llama.cpp, or OpenAI's own.

    POST {url}/completions        {"model", "prompt", "max_tokens", "temperature": 0, "stop"}          → choices[0].text
    POST {url}/chat/completions   {"model", "messages", "max_tokens", "temperature": 0, "stop"}        → choices[0].message.content

A chat model is asked by the first as well, its template applied here (`prompts.py`), so that it reads what the same model on this
machine would; by the second only with the format `messages`, which leaves the template to the server and refuses begun answers.

Several requests are under way at a time. What fails in passing (no connection, 408, 429, 5xx) is tried again after growing waits.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.task import Sample
from nextlong.text import Json

_LONGEST_WAIT_S: Final = 30.0
_PASSING: Final = (408, 429)


class ServerModel:
    """A model behind an OpenAI-compatible server; the tokenizer and its template are the user's."""

    def __init__(self, options: ModelOptions, prompts: Prompts) -> None:
        self.options, self.prompts, self.context = options, prompts, options.context
        self.engine = f"server {options.url}"

    def identity(self) -> Json:
        """Return name, place and tokenizer, and how it is prompted. Which weights the server holds, it alone knows."""
        named = {"kind": "server", "name": self.options.name, "url": self.options.url, "context": self.context}
        return {**named, **self.prompts.identity()}

    def batch(self, length: int) -> int:
        """Return how many requests make a batch: a few rounds of those that are sent concurrently."""
        return self.options.concurrency * (4 if length <= 16_384 else 1)

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Yield the answers in order, greedy, cut at the sample's limits. Raises EvaluateError when the server gives up."""
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            asked = [pool.submit(self._answer, sample) for sample in samples]
            try:
                for one in asked:
                    yield one.result()
            # After an error, requests that have not been sent are not worth sending.
            finally:
                for one in asked:
                    one.cancel()

    def _answer(self, sample: Sample) -> str:
        prompts = self.prompts
        body: Json = {"model": self.options.name, "max_tokens": prompts.budget(sample), "temperature": 0}
        if (stop := prompts.stop(sample)) is not None:
            body["stop"] = [stop]
        if prompts.format == "messages":
            place = "/chat/completions"
            body["messages"] = prompts.messages(sample)
            if sample.answer_prefix:
                raise EvaluateError(
                    f"--prompt-format messages: the task begins the model's answer ({sample.answer_prefix.strip()!r:.60}), and a "
                    "server's own template cannot; give --prompt-format chat with --tokenizer FOLDER, or leave the task out"
                )
            if prompts.thinking:
                body["chat_template_kwargs"] = {"enable_thinking": True}
        else:
            place = "/completions"
            is_cut = sample.input_ids is not None and prompts.format == "completion"
            body["prompt"] = prompts.ids(sample) if is_cut else prompts.text(sample)
        received = self._post(place, json.dumps(body).encode())
        try:
            choice = json.loads(received)["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
        except (ValueError, KeyError, TypeError, IndexError):
            raise self._error(f"answered with no completion: {received[:200].decode('utf-8', 'replace')!r}") from None
        if not isinstance(text, str):
            reason = f" (finish_reason {choice['finish_reason']})" if choice.get("finish_reason") else ""
            raise self._error(
                f"answered without content{reason}: a model that reasons needs --thinking with more tokens than it takes"
            )
        return prompts.answer(text, sample)

    def _post(self, place: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.options.api_key_env):
            headers["Authorization"] = f"Bearer {key}"
        trouble = ""
        for attempt in range(self.options.max_attempts):
            if attempt:
                time.sleep(self._wait_s(attempt))
            try:
                request = urllib.request.Request(str(self.options.url).rstrip("/") + place, body, headers)
                with urllib.request.urlopen(request, timeout=self.options.timeout_s) as answer:
                    received: bytes = answer.read()
                    return received
            except urllib.error.HTTPError as error:
                with error:
                    trouble = f"HTTP {error.code}: {_message(error)}"
                if error.code not in _PASSING and error.code < 500:
                    raise self._error(f"refused with {trouble}") from None
            except (OSError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                trouble = f"{type(cause).__name__}: {cause}"
        raise self._error(
            f"did not answer in {self.options.max_attempts} attempts, the last with {trouble}; finished answers are kept: fix the "
            "server and run the same command again, or lower --concurrency"
        )

    def _wait_s(self, attempt: int) -> float:
        # Half to all of it at random, so that threads do not come back all at once.
        return min(self.options.first_wait_s * 2.0 ** (attempt - 1), _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)

    def _error(self, what: str) -> EvaluateError:
        return EvaluateError(f"--url {self.options.url}, model {self.options.name}: the server {what}")


def _message(error: urllib.error.HTTPError) -> str:
    """Return what a server says about an error: the message of its JSON, else the text, else the reason."""
    try:
        text = error.read().decode("utf-8", "replace")
        reply = json.loads(text)
    except (OSError, http.client.HTTPException):
        return error.reason
    except ValueError:
        return " ".join(text.split())[:300] or error.reason
    reply = reply.get("error", reply) if isinstance(reply, dict) else reply
    return str(reply.get("message", reply) if isinstance(reply, dict) else reply)[:300]
