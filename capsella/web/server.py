"""The server of `capsella explore`: the page of `capsella share` with Python behind it.

By default it listens on this machine only. On any other address, every path begins with a random token. The server
neither writes files nor connects to other machines.
"""

import asyncio
import ipaddress
import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from capsella.errors import CapsellaError, check_argument, check_installed
from capsella.web.served_run import ServedRun, explorer_page
from capsella.web.uploads import MAX_BYTES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_MAX_NAME = 100  # characters of a file name that messages show


def is_loopback(host: str) -> bool:
    """Return True if a server on `host` can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_starlette() -> None:
    """Raise `CapsellaError` if the packages that serve the page are not installed."""
    check_installed("the explorer", "explore", "starlette", "uvicorn")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host and port.

    Raises:
        ArgumentError: an invalid port. CapsellaError: the port is taken, or `host` is not an address of this machine.
    """
    check_argument(0 < port < 65536, "be in 1…65535", port=port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise CapsellaError(f"--host {host} --port {port}: cannot listen there ({error.strerror})") from error


def check_port(host: str, port: int) -> None:
    """Check that the port is free; raises what `listen` raises."""
    listen(host, port).close()


async def read_body(request: "Request", most: int, what: str) -> bytes:
    """Return the body of a request; `what` names it in errors.

    Raises:
        CapsellaError: it is larger than `most` bytes; reading stops there.
    """
    too_large = f"{what}: must be at most {most / 1e6:.0f} MB"
    if int(request.headers.get("content-length", "0")) > most:
        raise CapsellaError(too_large)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise CapsellaError(too_large)
        parts.append(part)
    return b"".join(parts)


def make_application(served_runs: Sequence[ServedRun], token: str | None = None) -> "ASGIApp":
    """Return the server's application.

    Args:
        served_runs: the runs.
        token: the first part of every path. Without one, only requests to names of this machine are answered, which
            prevents DNS rebinding by foreign pages.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import BaseRoute, Mount, Route

    page, arrays = explorer_page(served_runs)
    turn = asyncio.Lock()  # networks share the processor, so they answer one at a time

    def served_run_of(request: Request) -> ServedRun:
        number = request.path_params["run"]
        if number >= len(served_runs):
            raise HTTPException(404)
        return served_runs[number]

    async def answer(function: Callable[..., dict[str, Any]], *given: Any) -> JSONResponse:
        async with turn:
            found = await run_in_threadpool(function, *given)
        return JSONResponse(found, headers=HEADERS)

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers=HEADERS)

    async def hold(request: Request) -> Response:
        return Response(arrays, media_type="application/octet-stream", headers=HEADERS)

    async def image(request: Request) -> Response:
        return await answer(served_run_of(request).answer_image, request.path_params["number"])

    async def file(request: Request) -> Response:
        served_run, name = served_run_of(request), request.query_params.get("name", "")[-_MAX_NAME:] or "the file"
        return await answer(served_run.answer_file, await read_body(request, MAX_BYTES, name), name)

    async def sketch(request: Request) -> Response:
        return await answer(served_run_of(request).answer_sketch, await read_body(request, MAX_BYTES, "drawing"))

    async def changes(request: Request) -> Response:
        served_run, target = served_run_of(request), request.query_params.get("class", "")
        check_argument(target.isdecimal(), "be a whole number", **{"class": target})
        pixels = await read_body(request, MAX_BYTES, "the image")
        return await answer(served_run.answer_changes, pixels, int(target[:9]))

    run = "/api/runs/{run:int}"
    routes: list[BaseRoute] = [
        Route("/", show, methods=["GET"]),
        Route("/api/arrays", hold, methods=["GET"]),
        Route(run + "/images/{number:int}", image, methods=["GET"]),
        Route(run + "/files", file, methods=["POST"]),
        Route(run + "/sketches", sketch, methods=["POST"]),
        Route(run + "/changes", changes, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((CapsellaError, ValueError, HTTPException, Exception), _refuse)
    guards = [Middleware(_OwnPageOnly)]
    if token is None:
        guards.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL_NAMES), www_redirect=False))
    else:
        routes = [Mount(f"/{token}", routes=routes)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=guards)


class _OwnPageOnly:
    """Middleware that refuses requests from other pages, by the Sec-Fetch-Site header of browsers."""

    def __init__(self, app: "ASGIApp") -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import HTTPConnection

        if scope["type"] == "http" and "/api/" in scope["path"]:
            site = HTTPConnection(scope).headers.get("sec-fetch-site", "none")
            if site not in ("same-origin", "none"):
                await _message(403, "This server answers only its own page.")(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _message(status: int, sentence: str) -> "Response":
    from starlette.responses import JSONResponse

    return JSONResponse({"error": sentence}, status, headers=HEADERS)


async def _refuse(request: "Request", error: Exception) -> "Response":
    """Answer with one sentence; what an unforeseen error says stays in the server's window."""
    if isinstance(error, CapsellaError | ValueError):
        return _message(400, str(error))
    if status := getattr(error, "status_code", None):
        return _message(status, "There is nothing at this address.")
    return _message(500, "Something went wrong in the server. The window of capsella explore shows what.")


def serve(
    served_runs: Sequence[ServedRun],
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    browser: bool = False,
    console: Console | None = None,
) -> None:
    """Serve the page about `served_runs` until interrupted.

    Args:
        served_runs: the runs, the first in front.
        host, port: where to listen. Any other host than this machine gets a random token in the URL.
        browser: open the page in this machine's browser.
        console: prints the address.

    Raises:
        ArgumentError: no runs, or an invalid port.
        CapsellaError: what `listen` and `check_starlette` raise.
    """
    check_starlette()
    import uvicorn

    token = None if is_loopback(host) else secrets.token_urlsafe(16)
    application = make_application(served_runs, token)
    with listen(host, port) as listening:
        name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/{'' if token is None else f'{token}/'}"
        out, names = console or Console(highlight=False), " and ".join(served_run.name for served_run in served_runs)
        out.print(f"explore {names} at {address}", soft_wrap=True, markup=False)
        if token is not None:
            out.print("everybody with this address can see the images; each start creates a new one", soft_wrap=True)
        out.print("Ctrl-C ends it")
        if browser:
            _open_browser(address)  # the socket listens already, so the browser waits for the server's answer
        config = uvicorn.Config(
            application, log_level="error", server_header=False, proxy_headers=False, timeout_graceful_shutdown=2
        )
        uvicorn.Server(config).run(sockets=[listening])


def _open_browser(address: str) -> None:
    """Open a graphical browser, if there is one; a browser in the terminal would block the server."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    in_terminal = type(browser) is webbrowser.GenericBrowser or getattr(browser, "background", True) is False
    if not in_terminal:
        browser.open(address)
