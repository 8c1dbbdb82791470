"""Downloads that break off."""

import socket
import threading

import pytest

from capsella.data.download import find_or_download
from capsella.errors import CapsellaError


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"no HTTP\r\n\r\n"])
def test_a_broken_answer_is_an_error_and_leaves_no_file(tmp_path, monkeypatch, answer):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(CapsellaError, match="set/a"):
            find_or_download("set/a.bin", [f"http://127.0.0.1:{server.getsockname()[1]}/a.bin"])
    assert not list(tmp_path.rglob("*a.bin*"))
