"""A small hub on loopback: the few calls of the hub's API that huggingface_hub makes for us, kept in memory.

It runs in a thread of the test; clients are processes of their own, since `HF_ENDPOINT` is read at import.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Repo:
    """A repository: files by commit, commits by branch."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], message: str = "", branch: str = "main") -> str:
        before = self.commits.get(self.branches.get(branch, ""), {})
        sha = hashlib.sha1(repr((len(self.commits), sorted(files), message)).encode()).hexdigest()
        self.commits[sha] = {**before, **files}
        self.branches[branch] = sha
        self.messages.append(message)
        return sha

    def at(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


class Hub:
    """The hub: repositories and tokens, and what it was asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.users: dict[str, str] = {}  # by token
        self.asked: list[str] = []  # method and path
        self.stated: dict[str, dict[str, str]] = {}  # headers that lie, by repository
        self.extra: list[object] = []  # entries of listings that others put there
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def put(self, name: str, files: dict[str, bytes], private: bool = False) -> Repo:
        repo = self.repos.setdefault(name, Repo(private))
        repo.commit(files, "put")
        return repo

    def listing(self, wanted: list[str], user: str | None) -> list[object]:
        found: list[object] = []
        for name, repo in self.repos.items():
            card = _metadata(repo.commits[repo.branches["main"]].get("README.md", b"")) if repo.branches else {}
            tags = [*card.get("tags", []), *([f"base_model:{card['base_model']}"] if "base_model" in card else [])]
            if set(wanted) <= set(tags) and (not repo.private or name.split("/")[0] == user):
                found.append({"id": name, "tags": tags, "cardData": card, "private": repo.private, "likes": 0})
        return [*self.extra, *found]

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer()

            def do_HEAD(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else self._chunks()
                parts = urlsplit(self.path)
                hub.asked.append(f"{self.command} {parts.path}")
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                if token and token not in hub.users:
                    message = "Invalid credentials in Authorization header"
                    self._send(401, {"error": message}, {"X-Error-Message": message})
                    return
                user = hub.users.get(token)
                for method, pattern, act in ROUTES:
                    match = re.fullmatch(pattern, unquote(parts.path))
                    if match and self.command in method:
                        self._act(act, match, body, parse_qs(parts.query), user)
                        return
                self._send(404, {"error": f"no route {self.path}"})

            def _act(self, act, match, body, query, user) -> None:
                try:
                    self._send(*act(hub, match.groupdict(), body, query, user))
                except _Refused as refused:
                    self._send(*refused.args)

            def _chunks(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return b""
                found = b""
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            def _send(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        return Handler


class _Refused(Exception):
    pass


def _metadata(readme: bytes) -> dict:
    match = re.match(rb"---\n(.*?)\n---", readme, re.S)
    return yaml.safe_load(match[1]) if match else {}


def _seen(hub: Hub, name: str, user: str | None) -> Repo:
    repo = hub.repos.get(name)
    if repo is None or (repo.private and name.split("/")[0] != user):
        raise _Refused(404 if user else 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
    return repo


def _own(name: str, user: str | None) -> None:
    if user is None:
        raise _Refused(401, {"error": "log in"}, {"X-Error-Message": "Invalid username or password."})
    if name.split("/")[0] != user:
        raise _Refused(403, {"error": "Forbidden: you don't have the rights"})


def create(hub, found, body, query, user):
    wanted = json.loads(body)
    name = f"{wanted['organization']}/{wanted['name']}"
    _own(name, user)
    if name in hub.repos:
        return 409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"}
    private = wanted.get("visibility") == "private" or wanted.get("private") is True
    hub.repos[name] = Repo(private)
    hub.repos[name].commit({".gitattributes": b"*.bin filter=lfs\n"}, "initial commit")
    return 200, {"url": f"{hub.url}/{name}", "id": name, "name": name}


def validate(hub, found, body, query, user):
    _metadata(json.loads(body)["content"].encode())
    return 200, {"errors": [], "warnings": []}


def branch(hub, found, body, query, user):
    _own(found["repo"], user)
    repo = _seen(hub, found["repo"], user)
    if found["rev"] in repo.branches:
        return 409, {"error": "exists"}
    repo.branches[found["rev"]] = repo.branches["main"]
    return 200, {}


def preupload(hub, found, body, query, user):
    _own(found["repo"], user)
    files = json.loads(body)["files"]
    return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}


def commit(hub, found, body, query, user):
    _own(found["repo"], user)
    repo, files, message = _seen(hub, found["repo"], user), {}, ""
    if found["rev"] not in repo.branches:
        return 404, {"error": "Invalid rev"}, {"X-Error-Code": "RevisionNotFound"}
    for line in body.splitlines():
        entry = json.loads(line)
        if entry["key"] == "header":
            message = entry["value"]["summary"]
        else:
            assert entry["key"] == "file", "everything is a regular file"
            files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
    sha = repo.commit(files, message, found["rev"])
    return 200, {"success": True, "commitOid": sha, "commitUrl": f"{hub.url}/{found['repo']}/commit/{sha}"}


def resolve(hub, found, body, query, user):
    repo = _seen(hub, found["repo"], user)
    sha = repo.at(found["rev"])
    if sha is None:
        return 404, {"error": "Invalid rev"}, {"X-Error-Code": "RevisionNotFound"}
    content = repo.commits[sha].get(found["path"])
    if content is None:
        return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha}
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return 200, content, {"ETag": f'"{blob}"', "X-Repo-Commit": sha, **hub.stated.get(found["repo"], {})}


def info(hub, found, body, query, user):
    repo = _seen(hub, found["repo"], user)
    return 200, {"id": found["repo"], "sha": repo.branches["main"], "private": repo.private, "tags": []}


def models(hub, found, body, query, user):
    return 200, hub.listing(query.get("filter", []), user)


ROUTES = [
    ("POST", "/api/repos/create", create),
    ("POST", "/api/validate-yaml", validate),
    ("POST", rf"/api/models/{REPO}/branch/(?P<rev>.+)", branch),
    ("POST", rf"/api/models/{REPO}/preupload/(?P<rev>.+)", preupload),
    ("POST", rf"/api/models/{REPO}/commit/(?P<rev>.+)", commit),
    ("GET", "/api/models", models),
    ("GET", rf"/api/models/{REPO}", info),
    (("GET", "HEAD"), rf"/{REPO}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", resolve),
]
