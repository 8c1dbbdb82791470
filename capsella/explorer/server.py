"""Serving the page: on this machine alone unless asked, with nothing fetched, sent out, or left behind."""

import ipaddress
import socket
import webbrowser
from collections.abc import Sequence

from rich.console import Console

from capsella.errors import ArgumentError, CapsellaError, check_installed
from capsella.explorer.subject import Subject

LEAST_PASSWORD = 8


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, password: str | None) -> None:
    """Other machines are let in only with a password.

    Raises:
        CapsellaError: `host` can be reached from elsewhere, and there is no password, or a short one.
    """
    if is_loopback(host):
        return
    if not password:
        raise CapsellaError(
            f"--host {host} lets other machines in, so it needs a password: set the environment variable "
            "CAPSELLA_PASSWORD"
        )
    if len(password) < LEAST_PASSWORD:
        raise CapsellaError(
            f"CAPSELLA_PASSWORD: must have at least {LEAST_PASSWORD} characters for --host {host}, got {len(password)}"
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ValueError: no number of a port.
        CapsellaError: the port is taken, or `host` is no address of this machine.
    """
    if not 0 < port < 65536:
        raise ArgumentError("port", "be in 1…65535", port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise CapsellaError(f"--host {host} --port {port}: cannot be listened on ({error.strerror})") from error


def check_port(host: str, port: int) -> None:
    """Nobody else listens there; raises as `listen`."""
    listen(host, port).close()


def check_starlette() -> None:
    """What serves the page can be imported.

    Raises:
        CapsellaError: it is not installed; says how to install it.
    """
    check_installed("the explorer", "explore", "starlette", "uvicorn")


def names_of_server(host: str, name: str | None) -> frozenset[str]:
    """Under which names browsers may ask: the host itself, names of this machine, and that of a proxy in front."""
    names = {host.lower()}
    if is_loopback(host):
        names |= {"localhost", "127.0.0.1", "::1"}
    else:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names | ({name.lower()} if name else set()))


def serve(
    subjects: Sequence[Subject],
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    password: str | None = None,
    name: str | None = None,
    browser: bool = False,
    console: Console | None = None,
) -> None:
    """Serve the page about `subjects` until interrupted; on other hosts than this one to whoever has the password.

    Args:
        subjects: the runs, the first in front.
        host, port: where to listen.
        password: on this machine, too, wherever one is given.
        name: under which a proxy shows this server.
        browser: open the page in this machine's.
        console: for the address.

    Raises:
        ValueError: no subjects, no number of a port.
        CapsellaError: as `check_host`, `check_port` and `check_starlette`.
    """
    check_host(host, password)
    check_starlette()
    import uvicorn

    from capsella.explorer.application import make_application

    application = make_application(subjects, names_of_server(host, name), password or None)
    with listen(host, port) as listening:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _announce(console or Console(highlight=False), subjects, address, password)
        if browser:
            _open_browser(address)  # which waits until the server answers
        config = uvicorn.Config(
            application, log_level="error", server_header=False, proxy_headers=False, timeout_graceful_shutdown=2
        )
        uvicorn.Server(config).run(sockets=[listening])


def _open_browser(address: str) -> None:
    """In a browser with windows, if there is one: one in the terminal would keep the server from answering it."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    in_terminal = type(browser) is webbrowser.GenericBrowser or getattr(browser, "background", True) is False
    if not in_terminal:
        browser.open(address)


def _announce(console: Console, subjects: Sequence[Subject], address: str, password: str | None) -> None:
    console.print(f"explore {' and '.join(one.name for one in subjects)} at {address}", soft_wrap=True, markup=False)
    if password:
        console.print("sign in as capsella, with the password in CAPSELLA_PASSWORD", soft_wrap=True, markup=False)
    console.print("Ctrl-C ends it")
