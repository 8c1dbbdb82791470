"""Serving the page: on this machine alone unless asked, with nothing fetched, sent out, or left behind."""

import ipaddress
import os
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from capsella.errors import CapsellaError
from capsella.explorer.style import CSS, HEAD
from capsella.explorer.subject import Subject
from capsella.explorer.uploads import MOST_BYTES

INSTALL = 'the explorer needs Gradio, which is not installed: pip install "capsella[explore]"'
USER = "capsella"
LEAST_PASSWORD = 8
# Before Gradio is imported: it reads them once.
QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_SHARE": "False",
    "GRADIO_SSR_MODE": "False",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


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


def check_port(host: str, port: int) -> None:
    """Nobody else listens there.

    Raises:
        ValueError: no number of a port.
        CapsellaError: the port is taken, or `host` is no address of this machine.
    """
    if not 0 < port < 65536:
        raise ValueError(f"port: must be in 1…65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CapsellaError(f"--host {host} --port {port}: cannot be listened on ({error.strerror})") from error


def check_gradio() -> None:
    """Gradio can be imported.

    Raises:
        CapsellaError: it is not installed; says how to install it.
    """
    os.environ.update(QUIET)
    try:
        import gradio  # noqa: F401
    except ModuleNotFoundError as error:
        raise CapsellaError(INSTALL) from error


def serve(
    subjects: Sequence[Subject],
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    password: str | None = None,
    browser: bool = False,
    console: Console | None = None,
) -> None:
    """Serve the page about `subjects` until interrupted; on other hosts than this one to whoever has the password.

    Uploads and saved sweeps live in a temporary folder, which goes when the server does.

    Raises:
        ValueError: no subjects, no number of a port.
        CapsellaError: as `check_host`, `check_port` and `check_gradio`.
    """
    check_host(host, password)
    check_port(host, port)
    console = console or Console(highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="capsella-explore-", ignore_cleanup_errors=True)
        folder = stack.enter_context(temporary)
        os.environ["GRADIO_TEMP_DIR"] = folder
        tempfile.tempdir = folder
        stack.callback(setattr, tempfile, "tempdir", None)
        check_gradio()
        from capsella.explorer.page import build_page

        page = build_page(subjects)
        page.launch(**_options(host, port, password, browser))
        stack.callback(page.close, verbose=False)
        shown = f"[{host}]" if ":" in host else host
        console.print(f"explore {subjects[0].name} at http://{shown}:{port}", soft_wrap=True, markup=False)
        if not is_loopback(host):
            console.print(f"sign in as {USER}, with the password in CAPSELLA_PASSWORD", soft_wrap=True, markup=False)
        console.print("Ctrl-C ends it")
        page.block_thread()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ended by the system as by Ctrl-C: the temporary folder goes."""
    raise KeyboardInterrupt


def _options(host: str, port: int, password: str | None, browser: bool) -> dict[str, Any]:
    """What Gradio is told."""
    import gradio as gr

    theme = gr.themes.Default(font=[gr.themes.Font("sans-serif")], font_mono=[gr.themes.Font("monospace")])
    off = dict.fromkeys(("share", "ssr_mode", "run_history", "enable_monitoring"), False)
    auth = None if is_loopback(host) else (USER, password or "")
    where = {"server_name": host, "server_port": port, "auth": auth, "inbrowser": browser}
    look = {"theme": theme, "css": CSS, "head": HEAD, "footer_links": []}
    return {**where, **look, **off, "prevent_thread_lock": True, "quiet": True, "max_file_size": MOST_BYTES}
