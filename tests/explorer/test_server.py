import socket
import sys

import pytest

from capsella.errors import CapsellaError
from capsella.explorer.server import check_gradio, check_host, check_port, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_this_machine_needs_no_password(host):
    assert is_loopback(host)
    check_host(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
@pytest.mark.parametrize(
    ("password", "text"), [(None, "needs a password"), ("", "needs a password"), ("short", "at least 8 characters")]
)
def test_others_need_one(host, password, text):
    with pytest.raises(CapsellaError, match=text):
        check_host(host, password)
    check_host(host, "long enough")


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CapsellaError, match=f"--port {port}: cannot be listened on"):
            check_port("127.0.0.1", port)
    with pytest.raises(ValueError, match=r"port: must be in 1…65535, got 70000"):
        check_port("127.0.0.1", 70000)


def test_without_gradio_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(CapsellaError, match=r'not installed: pip install "capsella\[explore\]"'):
        check_gradio()
