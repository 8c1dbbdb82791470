import socket
import webbrowser
from importlib.util import find_spec

import pytest

from capsella.errors import CapsellaError
from capsella.explorer import server
from capsella.explorer.server import check_port, check_starlette, names_of_server


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CapsellaError, match=f"--port {port}: cannot be listened on"):
            check_port("127.0.0.1", port)
    with pytest.raises(ValueError, match=r"port: must be in 1…65535, got 70000"):
        check_port("127.0.0.1", 70000)


@pytest.mark.parametrize("name", ["starlette", "uvicorn"])
def test_without_its_libraries_the_error_says_how_to_install_them(monkeypatch, name):
    monkeypatch.setattr("capsella.errors.find_spec", lambda asked: None if asked == name else find_spec(asked))
    with pytest.raises(CapsellaError, match=rf"the explorer needs {name}: pip install 'capsella\[explore\]'"):
        check_starlette()


def test_names_under_which_browsers_may_ask():
    assert names_of_server("127.0.0.1", None) == {"127.0.0.1", "localhost", "::1"}
    assert {"192.168.1.7", "lab.example", socket.gethostname().lower()} <= names_of_server("192.168.1.7", "Lab.example")


@pytest.mark.parametrize(
    ("browser", "opens"),
    [
        (webbrowser.GenericBrowser("w3m"), False),  # it would wait for the server, which waits for it
        (webbrowser.Elinks("elinks"), False),
        (webbrowser.BackgroundBrowser("gvfs-open"), True),
        (webbrowser.Chrome("chromium"), True),
    ],
)
def test_a_browser_of_the_terminal_is_not_opened(monkeypatch, browser, opens):
    opened = []
    monkeypatch.setattr(browser, "open", opened.append)
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    server._open_browser("http://127.0.0.1:8765")
    assert opened == (["http://127.0.0.1:8765"] if opens else [])
