"""A tiny Llama with a tokenizer, on disk, data of every benchmark, made up, and a server on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.support.evaluation_data import bpe_tokenizer, write_data
from tests.support.written_results import SCORES, write_results


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a random Llama of 4,096 tokens; read-only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe_tokenizer(), bos_token="<bos>", eos_token="<eos>"
    )
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,  # sharp enough that the greedy choice is no tie
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    """A folder with every file that the tasks read, but HELMET's own; read-only."""
    return write_data(tmp_path_factory.mktemp("data"))


class Served:
    """What the server was asked, and how it fails: `fails(number of the request)` gives a status, or None."""

    def __init__(self):
        self.asked, self.headers, self.lock = [], [], threading.Lock()
        self.fails = lambda number: None
        self.answer = lambda body: {"choices": [{"text": f"<{body['prompt'][-5:]}>"}]}


@pytest.fixture
def served():
    state = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                state.asked.append({**body, "path": self.path})
                state.headers.append(dict(self.headers))
                status = state.fails(len(state.asked))
            if status == "drop":
                self.close_connection = True
                return
            content = json.dumps(
                {"error": {"message": "busy"}} if status else state.answer(body)
            ).encode()
            self.send_response(status or 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def two(tmp_path):
    return [
        write_results(tmp_path / "one", SCORES, label="first & best"),
        write_results(
            tmp_path / "two", {**SCORES, "RAG": 65.0, "Recall": 70.0}, label="second"
        ),
    ]
