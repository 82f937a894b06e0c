"""Server: a model behind an OpenAI-compatible API, which answers samples greedily.

In:  samples. Out: their answers, as soon as each is received.

A server (vLLM, SGLang, llama.cpp, or OpenAI's own) gets requests to /completions, also
for a chat model, whose template is applied here (`prompts.py`), so that it reads what
the same model on this machine would. The format `messages` uses /chat/completions,
which leaves the template to the server and refuses begun answers.

`concurrency` requests are always on their way. A request that fails costs no other its
answer: those on their way are awaited and yielded before an error is raised.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from nextlong.client import Client, UnansweredError, completion_in
from nextlong.errors import EvaluateError
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.task import Sample
from nextlong.text import Json

# What a server says of one request alone: another one may be answered.
_OF_ONE_REQUEST: Final = (400, 413, 422)
# After so many failures without an answer between, the others would fail as well.
_FAILURES_IN_A_ROW: Final = 8
# No context is this short: a server that counts fewer tokens leaves out cached ones.
_SHORTEST_CONTEXT: Final = 64
# Finish reasons of answers that the server broke off, with their cures.
_BROKEN_OFF: Final = {
    "abort": "run the same command again, which asks only what is missing",
    "error": "run the same command again, which asks only what is missing",
    "content_filter": "turn the server's content filter off, or leave the task out",
}


class UnansweredSamplesError(EvaluateError):
    """A request failed that says nothing of the others."""


def _is_useful(outcomes: Sequence[BaseException | None]) -> bool:
    """Return whether another request may be answered, by the outcomes of earlier ones.

    Not after an error that concerns all of them, nor after some failures in a row.
    """
    for outcome in outcomes:
        if not isinstance(outcome, UnansweredSamplesError | None):
            return False
    recent = outcomes[-_FAILURES_IN_A_ROW:]
    return len(recent) < _FAILURES_IN_A_ROW or None in recent


def _raise_last(outcomes: Sequence[BaseException | None]) -> None:
    """Raise the last failure, if there is one, with their number."""
    failures = [outcome for outcome in outcomes if outcome is not None]
    if not failures:
        return
    last = failures[-1]
    if not isinstance(last, EvaluateError):
        raise last
    problem = last.problem
    if len(failures) > 1:
        problem += f" ({len(failures)} requests failed)"
    kind = UnansweredSamplesError if _is_useful(outcomes) else EvaluateError
    raise kind(where=last.where, problem=problem, fix=last.fix)


class ServerModel:
    """A model on an OpenAI-compatible server, asked `concurrency` samples at a time.

    The user names the tokenizer and its template.
    """

    def __init__(self, options: ModelOptions, prompts: Prompts) -> None:
        self.options = options
        self.prompts = prompts
        self.context = options.context
        self.engine = f"server {options.url}"
        self._client = Client(
            options.api_key_env, options.max_attempts, options.timeout_s
        )

    def identity(self) -> Json:
        # Only the server knows which weights it holds.
        return {
            "kind": "server",
            "name": self.options.name,
            "url": self.options.url,
            "context": self.context,
            **self.prompts.identity(),
        }

    def answers(
        self,
        samples: Iterable[tuple[int, Sample]],
        *,
        done: Container[int] = (),
    ) -> Iterator[tuple[int, Sample, str]]:
        """Yield each sample with its answer when it is received.

        Raises at the end UnansweredSamplesError if some were not answered, and
        EvaluateError, after fewer samples, if the server answers none.
        """
        unasked = ((number, one) for number, one in samples if number not in done)
        outcomes: list[BaseException | None] = []  # None for an answer
        running: dict[Future[str], tuple[int, Sample]] = {}
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            while True:
                question = None
                if len(running) < self.options.concurrency and _is_useful(outcomes):
                    question = next(unasked, None)
                if question is not None:
                    future = pool.submit(self._answer, question[1])
                    running[future] = question
                if not running:
                    break
                # A sample may take seconds to make, so the answers received meanwhile
                # are yielded before the next.
                timeout_s = None if question is None else 0
                finished, _ = wait(running, timeout_s, FIRST_COMPLETED)
                for future in finished:
                    number, sample = running.pop(future)
                    outcomes.append(future.exception())
                    if outcomes[-1] is None:
                        yield number, sample, future.result()
        _raise_last(outcomes)

    def _answer(self, sample: Sample) -> str:
        endpoint, body = self._request(sample)
        url = str(self.options.url).rstrip("/") + endpoint
        try:
            received = self._client.post(url, body)
        except UnansweredError as error:
            if error.status is None:
                fix = (
                    "finished answers are kept: fix the server and run the same "
                    "command again, or lower --concurrency"
                )
            elif error.status in _OF_ONE_REQUEST:
                fix = (
                    "start the server with a longer context, or leave the length or "
                    "the task out (finished answers are kept)"
                )
            else:
                fix = "check the model's name and the API key (--api-key-env)"
                raise self._error(EvaluateError, str(error), fix) from None
            raise self._error(UnansweredSamplesError, str(error), fix) from None
        return self.prompts.answer(self._text_in(received, sample), sample)

    def _request(self, sample: Sample) -> tuple[str, Json]:
        """Return the endpoint and the body of a sample's request."""
        prompts = self.prompts
        body: Json = {
            "model": self.options.name,
            "max_tokens": prompts.budget(sample),
            "temperature": 0,
        }
        if sample.stop is not None:
            body["stop"] = [sample.stop]
        if prompts.format != "messages":
            # A server would put its BOS before the text of a template too.
            is_chat = prompts.format == "chat"
            sent = prompts.ids(sample) if is_chat else prompts.sent(sample)
            return "/completions", {**body, "prompt": sent}
        if sample.answer_prefix:
            raise EvaluateError(
                where="--prompt-format messages",
                problem="the task begins the model's answer "
                f"({sample.answer_prefix.strip()!r:.60}), and a server's own template "
                "cannot",
                fix="give --prompt-format chat with --tokenizer FOLDER, or leave the "
                "task out",
            )
        if prompts.thinking:
            body["chat_template_kwargs"] = prompts.template_options
        return "/chat/completions", {**body, "messages": prompts.sent(sample)}

    def _text_in(self, received: bytes, sample: Sample) -> str:
        """Return the completion in what a server answered."""
        try:
            completion = completion_in(received)
        except ValueError as error:
            raise self._error(
                EvaluateError,
                str(error),
                "give the URL of an OpenAI-compatible server, which ends in /v1",
            ) from None

        text = completion.text
        reason = completion.finish
        if text is None or (not text and completion.has_reasoned):
            problem = "answered without content"
            if reason:
                problem += f" (finish_reason {reason})"
            raise self._error(
                UnansweredSamplesError,
                problem,
                "a model that reasons needs --thinking with more tokens than it takes",
            )
        if reason in _BROKEN_OFF:
            raise self._error(
                UnansweredSamplesError,
                f"broke an answer off (finish_reason {reason})",
                _BROKEN_OFF[reason],
            )
        self._check_read(completion.tokens_read, sample)
        return text

    def _check_read(self, read: int | None, sample: Sample) -> None:
        """Raise where a server states that it read fewer tokens than it was sent."""
        if read is None or read < _SHORTEST_CONTEXT:
            return
        # Servers differ in whether they count a BOS.
        sent = self.prompts.least_tokens(sample) - len(self.prompts.tokenizer.prefix)
        if read < sent:
            raise self._error(
                EvaluateError,
                f"read {read:,} of the {sent:,} tokens of a prompt: it cuts prompts",
                "start it with a longer context, or name its own --tokenizer",
            )

    def _error(
        self, kind: type[EvaluateError], problem: str, fix: str
    ) -> EvaluateError:
        return kind(
            where=f"--url {self.options.url}, model {self.options.name}",
            problem=f"the server {problem}",
            fix=fix,
        )
