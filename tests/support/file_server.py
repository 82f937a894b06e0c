"""A server of files that honours ranges, closes connections early, and counts what it sends."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_STEP = 1 << 16


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.respond(with_body=False)

    def do_GET(self):
        self.respond(with_body=True)

    def respond(self, *, with_body):
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range") if self.server.ranges else None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if with_body:
            self.server.asked.append((self.path, start))
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if self.path in self.server.etags:
            self.send_header("ETag", f'"{self.server.etags[self.path]}"')
        self.end_headers()
        if with_body:
            self.send(content[start:])

    def send(self, content):
        drop_after = self.server.drop_after
        for first in range(0, len(content), _STEP):
            if drop_after is not None and first >= drop_after:
                return
            try:
                self.wfile.write(content[first : first + _STEP])
            except OSError:  # the client has gone
                return
            self.server.sent += min(_STEP, len(content) - first)
            self.server.pause.wait(self.server.delay_s)

    def log_message(self, *_):
        pass


@contextmanager
def served_files(files, *, ranges=True, etags=(), drop_after=None, delay_s=0.0):
    """Yield a server of `files` by path; each response breaks off after `drop_after` bytes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.files, server.ranges, server.etags = files, ranges, dict(etags)
    server.drop_after, server.delay_s = drop_after, delay_s
    server.asked, server.sent, server.pause = [], 0, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def requested(server, path):
    """Return the first byte of each request for a path, in order."""
    return [start for name, start in server.asked if name == path]
