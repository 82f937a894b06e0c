"""The words of refusals and warnings about the tokenizer and composing."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import tokenizers
from tokenizers import models

from nextlong.errors import TokenizerError
from nextlong.sequences.fit import compose
from nextlong.sequences.tokenizer import lossy_tokenizer, special_id


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"bos": [0], "eos": [9], "target_tokens": 1},
            "target_tokens=1 leaves no room beside 1 tokens of bos and 1 of eos; "
            "raise it",
        ),
        (
            {"fit": "papper"},
            "fit='papper' is not known; it must be one of 'exact', 'paper'",
        ),
    ],
)
def test_compose_refuses_an_argument(changed, message):
    with pytest.raises(ValueError, match="target_tokens|fit") as error:
        compose([[1]], [[[2, 3]]], **({"target_tokens": 3} | changed))
    assert str(error.value) == message


def test_an_unknown_special_token_names_the_nearest():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.add_special_tokens(["<|end_of_text|>"])
    with pytest.raises(TokenizerError) as caught:
        special_id(tokenizer, "<|end_of_txt|>", key="tokenizer.eos")
    assert str(caught.value).startswith(
        "tokenizer.eos='<|end_of_txt|>' is not in the tokenizer; use one of its tokens, such as EOS; "
        "its closest special tokens: <|end_of_text|>"
    )


def test_an_unknown_special_token_of_a_tokenizer_without_any():
    with pytest.raises(TokenizerError, match="it has no special tokens"):
        special_id(tokenizers.Tokenizer(models.BPE()), "</s>", key="tokenizer.eos")


LOAD_FROM_HUB = """
import sys
from nextlong import recipe
from nextlong.errors import TokenizerError
from nextlong.sequences.tokenizer import load_tokenizer
try:
    print(load_tokenizer(recipe.Tokenizer(source="some/model", revision="v1")).get_vocab_size())
except TokenizerError as error:
    print(error)
"""


def load_from_hub(tmp_path, **environment):
    # A process of its own: huggingface_hub reads its settings once, when it is
    # imported.
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", LOAD_FROM_HUB],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_hub_offline(tmp_path):
    message = load_from_hub(tmp_path, HF_HUB_OFFLINE="1")
    assert message.startswith(
        "tokenizer.source='some/model' is not a local path, and could not be downloaded from the Hugging Face Hub"
    )
    assert message.endswith(
        "log in with `hf auth login` if it is gated, or give a local tokenizer.json"
    )
    assert "'v1'" in message


class GatedHub(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *args):
        pass


def test_hub_gated(tmp_path):
    server = HTTPServer(("127.0.0.1", 0), GatedHub)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    try:
        message = load_from_hub(
            tmp_path,
            HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
            no_proxy="127.0.0.1",
        )
    finally:
        server.shutdown()
        server.server_close()
    assert message.startswith(
        "tokenizer.source='some/model' is not a local path, and could not be downloaded from the Hugging Face Hub"
    )
    assert "hf auth login" in message


def test_the_warning_says_the_share_and_a_cure():
    assert lossy_tokenizer(0.0) == ""
    assert lossy_tokenizer(0.0496).startswith("loses 5.0% of the text's characters")
    assert lossy_tokenizer(0.0496).endswith(
        "use a byte-level tokenizer, which is lossless"
    )
