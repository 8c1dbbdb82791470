"""Who is let in: only whoever uses an address of this server, comes from its own page, and knows the password."""

import asyncio
import base64
import binascii
import hmac
import time
from collections import defaultdict, deque
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

USER = "capsella"
MOST_WRONG = 5
"""Wrong passwords from one address within `WINDOW`, after which the right one is refused as well."""
WINDOW = 60.0  # seconds
_DELAY = 0.3  # seconds before a wrong password is answered
_MOST_REMEMBERED = 10_000  # addresses
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def refusal(status: int, sentence: str, **headers: str) -> JSONResponse:
    """An answer that is a sentence."""
    return JSONResponse({"error": sentence}, status, headers={**HEADERS, **headers})


def host_name(authority: str) -> str:
    """The name or address in "name:port", in lower case, without the brackets of IPv6; "" for what is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


class Guard:
    """Stands before an application and lets through, in this order: known addresses, own pages, the password.

    A page elsewhere can send a browser here under a name of its own (DNS rebinding), or ask in a reader's name; then
    the header Host has a foreign name, or Origin a foreign address.

    Args:
        names: under which this server is reached; the address at which a connection arrived is one more.
        password: of `USER`; None where everyone on this machine may look.
        clock: in seconds.
    """

    def __init__(
        self, app: ASGIApp, names: frozenset[str], password: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app, self.names, self.password, self.clock = app, names, password, clock
        self._wrong: defaultdict[str, deque[float]] = defaultdict(deque)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: there are none
            await send({"type": "websocket.close", "code": 1008})
            return
        asked = HTTPConnection(scope)
        answer = self._check_address(asked) or await self._check_password(asked)
        await (answer or self.app)(scope, receive, send)

    def _check_address(self, asked: HTTPConnection) -> JSONResponse | None:
        authority, origin = asked.headers.get("host", ""), asked.headers.get("origin")
        hosts = asked.headers.getlist("host")
        here = (asked.scope.get("server") or ("",))[0]
        if len(hosts) != 1 or host_name(authority) not in {*self.names, here}:
            return refusal(421, "This server does not go by that name. Use the address that capsella explore printed.")
        if origin is not None and not self._is_own(origin, authority):
            return refusal(403, "This server answers its own page alone.")
        if asked.scope["path"].startswith("/api/") and asked.headers.get("sec-fetch-site", "none") not in (
            "same-origin",
            "none",
        ):
            return refusal(403, "This server answers its own page alone.")
        return None

    def _is_own(self, origin: str, authority: str) -> bool:
        """Whether a page's address is this server's: the same as asked for, or that of a proxy by one of our names."""
        scheme, _, place = origin.partition("://")
        if scheme == "http" and place == authority:
            return True
        return scheme == "https" and host_name(place) in self.names

    async def _check_password(self, asked: HTTPConnection) -> JSONResponse | None:
        if self.password is None:
            return None
        address = asked.client.host if asked.client else ""
        if self._is_locked(address):
            return refusal(
                429, "Too many wrong passwords came from there. Wait a minute.", **{"Retry-After": str(int(WINDOW))}
            )
        sent = _sent_password(asked.headers.get("authorization", ""))
        if sent is not None and hmac.compare_digest(sent, f"{USER}:{self.password}".encode()):
            return None
        if sent is not None:
            self._wrong[address].append(self.clock())
            await asyncio.sleep(_DELAY)
        sentence = f"Sign in as {USER}, with the password of this server."
        return refusal(401, sentence, **{"WWW-Authenticate": 'Basic realm="capsella explore", charset="UTF-8"'})

    def _is_locked(self, address: str) -> bool:
        now = self.clock()
        if len(self._wrong) > _MOST_REMEMBERED:
            recent = {one: times for one, times in self._wrong.items() if times and now - times[-1] < WINDOW}
            latest = sorted(recent, key=lambda one: recent[one][-1])[-_MOST_REMEMBERED // 2 :]
            self._wrong = defaultdict(deque, {one: recent[one] for one in latest})
        times = self._wrong.get(address, deque())
        while times and now - times[0] >= WINDOW:
            times.popleft()
        return len(times) >= MOST_WRONG


def _sent_password(header: str) -> bytes | None:
    """What a Basic sign-in says, "user:password"; None where there is none."""
    kind, _, content = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return b""
