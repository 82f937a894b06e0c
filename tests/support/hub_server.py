"""A server of the part of the Hugging Face Hub's HTTP interface that data sets use.

What huggingface_hub 2.4 calls to list, read and commit files of a data set, with
content over LFS (HF_HUB_DISABLE_XET=1; Xet has a protocol of its own).
"""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

# What the .gitattributes of a new data set sends to LFS.
LARGE = (".parquet", ".arrow", ".bin", ".mds", ".npy", ".zst")


@dataclass
class Hub:
    """The state of the server, which tests read and change."""

    url: str = ""
    # Of each data set, the content by path.
    repositories: dict = field(default_factory=dict)
    # Whether a token may write.
    tokens: dict = field(default_factory=dict)
    objects: dict = field(default_factory=dict)
    commits: list = field(default_factory=list)
    # Method and path of each request, in order.
    requests: list = field(default_factory=list)
    # Answers to give before the right ones: (start of "METHOD path", status).
    failures: list = field(default_factory=list)
    # Called before an object is stored, one at a time, with the number of those that
    # are; the object is lost unless it returns True.
    on_upload: object = lambda _: True
    lock: object = field(default_factory=threading.Lock)

    def environment(self, token=None):
        """Return environment variables for a process that uses this server."""
        variables = {
            "HF_ENDPOINT": self.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
        }
        return variables | ({"HF_TOKEN": token} if token else {})


def blob_id(content):
    """Return the id that git gives to a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer()

    def do_HEAD(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def do_PUT(self):
        self.answer()

    def answer(self):
        hub = self.server.hub
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        called = f"{self.command} {path}"
        hub.requests.append(called)
        for failure in hub.failures:
            start, status = failure
            if called.startswith(start):
                hub.failures.remove(failure)
                self.send(status, {"error": "the test wants this"})
                return
        if path.startswith("/storage/"):
            self.store(path.removeprefix("/storage/"), body)
        elif path == "/api/validate-yaml":
            self.send(200, {"errors": [], "warnings": []})
        elif path.startswith("/api/datasets/"):
            self.answer_api(path.removeprefix("/api/datasets/"), body)
        elif path.startswith("/datasets/"):
            self.answer_files(path.removeprefix("/datasets/"), body)
        else:
            self.refuse(404, "not part of this server")

    # What is allowed.

    def may(self, name, *, write):
        """Tell whether the request may read or write a data set; answer if not."""
        hub = self.server.hub
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if write and not token:
            self.refuse(401, "Invalid username or password.")
        elif token and token not in hub.tokens:
            self.refuse(401, "Invalid credentials in Authorization header")
        elif name not in hub.repositories:
            self.refuse(404, "Repository not found", code="RepoNotFound")
        elif write and not hub.tokens[token]:
            self.refuse(403, "you must use a write token")
        else:
            return True
        return False

    # The interface of the Hub.

    def answer_api(self, path, body):
        hub = self.server.hub
        owner, own_name, *rest = path.split("/")
        name = f"{owner}/{own_name}"
        what, *rest = rest or ["info"]
        writes = what in ("preupload", "commit") or rest == ["write"]
        if not self.may(name, write=writes):
            return
        files = hub.repositories[name]
        if what == "auth-check":
            self.send(200, {})
            return
        branch = rest[0] if rest else "main"
        if branch not in ("main", self.sha(name)):
            self.refuse(404, f"Invalid rev id: {branch}", code="RevisionNotFound")
        elif what in ("info", "revision"):
            siblings = [{"rfilename": file} for file in sorted(files)]
            self.send(
                200,
                {
                    "id": name,
                    "_id": "0",
                    "sha": self.sha(name),
                    "private": False,
                    "downloads": 0,
                    "likes": 0,
                    "tags": [],
                    "siblings": siblings,
                },
            )
        elif what == "tree":
            self.send_tree(files, "/".join(rest[1:]))
        elif what == "paths-info":
            asked = self.fields(body)["paths"]
            self.send(200, self.entries(files, set(asked)))
        elif what == "preupload":
            self.send(200, {"files": self.upload_modes(files, json.loads(body))})
        else:
            self.commit(name, files, body)

    def sha(self, name):
        state = [f"{file}{blob_id(content)}" for file, content in self.all_of(name)]
        return hashlib.sha1("".join(state).encode()).hexdigest()

    def all_of(self, name):
        return sorted(self.server.hub.repositories[name].items())

    def fields(self, body):
        if "json" in self.headers.get("Content-Type", ""):
            return json.loads(body)
        fields = {"paths": []}
        for part in body.decode().split("&"):
            key, _, value = part.partition("=")
            if key == "paths":
                fields["paths"].append(unquote(value))
        return fields

    def entries(self, files, wanted=None):
        """Return files and folders as the tree and paths-info endpoints list them."""
        folders = set()
        for file in files:
            folders |= {str(parent) for parent in PurePosixPath(file).parents}
        entries = []
        for folder in sorted(folders - {"."}):
            entries.append({"type": "directory", "path": folder, "oid": "0", "size": 0})
        for file, content in sorted(files.items()):
            entry = {"type": "file", "path": file, "size": len(content)}
            entry["oid"] = blob_id(content)
            if file.endswith(LARGE):
                entry["lfs"] = {
                    "oid": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 130,
                }
            entries.append(entry)
        return [one for one in entries if wanted is None or one["path"] in wanted]

    def send_tree(self, files, folder):
        is_recursive = "recursive=true" in urlsplit(self.path).query.lower()
        below = []
        for entry in self.entries(files):
            path = PurePosixPath(entry["path"])
            is_below = PurePosixPath(folder or ".") in path.parents
            is_direct = str(path.parent) == (folder or ".")
            if is_below and (is_recursive or is_direct):
                below.append(entry)
        if folder and not below:
            self.refuse(404, f"{folder} does not exist", code="EntryNotFound")
        else:
            self.send(200, below)

    def upload_modes(self, files, asked):
        modes = []
        for one in asked["files"]:
            path = one["path"]
            mode = {"path": path, "shouldIgnore": False}
            mode["uploadMode"] = "lfs" if path.endswith(LARGE) else "regular"
            if path in files:
                content = files[path]
                is_large = path.endswith(LARGE)
                digest = hashlib.sha256(content).hexdigest()
                mode["oid"] = digest if is_large else blob_id(content)
            modes.append(mode)
        return modes

    def commit(self, name, files, body):
        hub = self.server.hub
        header, *operations = [json.loads(line) for line in body.splitlines()]
        changed = dict(files)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "deletedFile":
                del changed[value["path"]]
            elif operation["key"] == "lfsFile":
                changed[value["path"]] = hub.objects[value["oid"]]
            else:
                changed[value["path"]] = base64.b64decode(value["content"])
        hub.repositories[name] = changed
        hub.commits.append((name, header["value"]["summary"], len(operations)))
        sha = self.sha(name)
        url = f"{hub.url}/datasets/{name}/commit/{sha}"
        self.send(200, {"success": True, "commitOid": sha, "commitUrl": url})

    def answer_files(self, path, body):
        hub = self.server.hub
        owner, own_name, *rest = path.split("/")
        if own_name.endswith(".git"):
            name = f"{owner}/{own_name.removesuffix('.git')}"
            if self.may(name, write=True):
                self.send_batch(json.loads(body))
            return
        name = f"{owner}/{own_name}"
        if not self.may(name, write=False):
            return
        content = hub.repositories[name].get("/".join(rest[2:]))
        if rest[0] != "resolve" or content is None:
            self.refuse(404, "Entry not found", code="EntryNotFound")
            return
        headers = {
            "X-Repo-Commit": self.sha(name),
            "ETag": f'"{blob_id(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        self.send_bytes(200, content, headers)

    # LFS.

    def send_batch(self, asked):
        hub = self.server.hub
        answers = []
        for one in asked["objects"]:
            answer = dict(one)
            if one["oid"] not in hub.objects:
                href = f"{hub.url}/storage/{one['oid']}"
                answer["actions"] = {"upload": {"href": href, "header": {}}}
            answers.append(answer)
        self.send(200, {"transfer": "basic", "objects": answers})

    def store(self, digest, body):
        hub = self.server.hub
        if hashlib.sha256(body).hexdigest() != digest:
            self.refuse(400, "another content")
            return
        with hub.lock:
            if hub.on_upload(len(hub.objects)):
                hub.objects[digest] = body
        self.send(200, {})

    # Answers.

    def refuse(self, status, message, *, code=None):
        headers = {"X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        self.send(status, {"error": message}, headers)

    def send(self, status, value, headers=None):
        content = json.dumps(value).encode()
        self.send_bytes(
            status, content, {"Content-Type": "application/json", **(headers or {})}
        )

    def send_bytes(self, status, content, headers):
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and status == 200:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = min(int(last or len(content) - 1), len(content) - 1)
            total = len(content)
            content = content[int(first) : end + 1]
            headers = headers | {"Content-Range": f"bytes {first}-{end}/{total}"}
            status = 206
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def served_hub(*repositories, tokens):
    """Yield a Hub with these empty data sets; `tokens` says which may write."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.hub = Hub(url=f"http://127.0.0.1:{server.server_port}", tokens=tokens)
    for name in repositories:
        server.hub.repositories[name] = {".gitattributes": b""}
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
