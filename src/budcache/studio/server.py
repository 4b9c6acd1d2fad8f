"""The server: the page, the kept pictures and the reports, on this machine only unless there is a password."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.errors import PipelineError

if TYPE_CHECKING:
    from budcache.studio.studio import Studio

__all__ = ["Server", "check_host", "is_here"]

HERE = ("127.0.0.1", "localhost", "::1")
# Nothing is fetched from elsewhere, and a browser that is told so makes sure of it.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; connect-src 'self'; "
    "worker-src 'self' blob:; frame-ancestors 'self'"
)


def is_here(host: str) -> bool:
    """Whether only this machine can reach a server on a host."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host in HERE


def check_host(host: str, password: str | None) -> None:
    """Refuse to be reached by others without a password."""
    if not is_here(host) and not password:
        raise PipelineError(
            f"--host {host} lets others use the model and its files. Set a password, too: "
            "--password, or BUDCACHE_STUDIO_PASSWORD."
        )


class Server:
    """A server of a studio.

    Args:
        studio: what is behind the page.
        host: an address of this machine, or another one with a password.
        port: 0 takes a free one.
        password: what browsers are asked for; any user name will do.
    """

    def __init__(self, studio: Studio, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> None:
        import uvicorn

        check_host(host, password)
        self.studio, self.host = studio, host
        # Open pages would be waited for, so not for long; and what it says then is for its own developers.
        options: dict[str, Any] = {"log_level": "critical", "timeout_graceful_shutdown": 1}
        self._server = uvicorn.Server(uvicorn.Config(application(studio, host, password), host, port, **options))
        self._thread: threading.Thread | None = None

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until somebody interrupts it; `ready` is told the address."""
        try:
            self.start()
            ready(self.address)
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(0.5)
        finally:
            self.close()

    def start(self) -> None:
        """Serve in a thread, from when this returns."""
        self.studio.runner.start()
        self._thread = threading.Thread(target=self._server.run, name="budcache-studio-server", daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise PipelineError(
                    f"{self.host}:{self._server.config.port} cannot be listened on. Choose another --port, or --host."
                )
            time.sleep(0.02)

    @property
    def address(self) -> str:
        """Where the page is."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"

    def close(self) -> None:
        """End it; open pages are not waited for."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)
        self.studio.close()


def application(studio: Studio, host: str, password: str | None) -> Any:
    """The page and what it shows, behind a guard."""
    import gradio as gr
    from fastapi import FastAPI
    from starlette.responses import FileResponse, Response

    from budcache.studio.page import page
    from budcache.studio.rendering import head
    from budcache.studio.widgets import theme

    app: Any = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def kept(request: Any) -> Any:
        path = studio.album.path(request.path_params["key"], request.path_params["name"])
        return Response(status_code=404) if path is None else FileResponse(path, headers=FOR_EVER)

    def report(request: Any) -> Any:
        folder = studio.project.comparison(request.path_params["job"])
        path = folder / "comparison.html"
        return FileResponse(path) if path.is_file() else Response(status_code=404)

    app.add_route("/kept/{key}/{name}", kept)
    app.add_route("/comparisons/{job}/comparison.html", report)
    mounted = gr.mount_gradio_app(
        app,
        page(studio),
        path="/",
        server_name=host,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        show_error=True,
        max_file_size="20mb",
        allowed_paths=[str(Path(studio.project.path, name).absolute()) for name in ("ladders", "taken")],
        theme=theme(),
        head=head(),
    )
    return Guard(mounted, password or None, (*HERE, host) if is_here(host) else None)


FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # a picture's name says what it is of


class Guard:
    """Stands before the application: asks for the password, and refuses pages of others that would use this one."""

    def __init__(self, app: Any, password: str | None, hosts: tuple[str, ...] | None) -> None:
        self.app, self.password, self.hosts = app, password, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request through, or not."""
        from starlette.responses import PlainTextResponse

        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
            # Another site's name that was made to lead here: its pages could read everything.
            await PlainTextResponse("This studio is for this machine only.", 403)(scope, receive, send)
        elif scope.get("method") == "POST" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # A page of somebody else's that is open in this browser: it could start jobs without being answered.
            await PlainTextResponse("Only its own page can use this studio.", 403)(scope, receive, send)
        elif self.password is not None and not _knows(headers.get("authorization", ""), self.password):
            asks = {"WWW-Authenticate": 'Basic realm="budcache studio"'}
            await PlainTextResponse("The studio wants its password.", 401, asks)(scope, receive, send)
        else:
            await self.app(scope, receive, _with_policy(send) if scope["type"] == "http" else send)


def _host(header: str) -> str:
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _knows(header: str, password: str) -> bool:
    kind, _, coded = header.partition(" ")
    try:
        given = base64.b64decode(coded, validate=True).decode().partition(":")[2] if kind.lower() == "basic" else ""
    except (binascii.Error, UnicodeDecodeError):
        return False
    return secrets.compare_digest(given.encode(), password.encode())


def _with_policy(send: Any) -> Any:
    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            policy = (b"content-security-policy", POLICY.encode())
            message = {**message, "headers": [*message["headers"], policy, (b"referrer-policy", b"no-referrer")]}
        await send(message)

    return sent
