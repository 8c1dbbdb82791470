"""Who is let in: names of this machine, the page itself, and elsewhere whoever has the token; and the port."""

import socket
from importlib.util import find_spec

import pytest

from capsella.errors import ArgumentError, CapsellaError
from capsella.web import server
from capsella.web.server import check_port, check_starlette, is_loopback

from .conftest import Served

PATHS = ["/", "/api/runs/0/images/0", "/docs", "/nowhere"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:{port}", "", "192.168.0.9:{port}"])
def test_foreign_names_are_refused(served, host):
    """A page elsewhere could send a browser here under a name of its own (DNS rebinding)."""
    for path in PATHS:
        status, _, answer = served.ask(path, Host=host.format(port=served.port))
        assert status == 400
        assert "<html" not in str(answer)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "localhost"])
def test_names_of_this_machine_are_let_in(served, host):
    assert served.ask("/api/runs/0/images/0", Host=host.format(port=served.port))[0] == 200


def test_other_pages_start_no_work(served):
    own = {"Origin": served.url, "Sec_Fetch_Site": "same-origin"}
    assert served.ask("/api/runs/0/images/0", **own)[0] == 200
    for site in ("cross-site", "same-site"):
        assert served.ask("/api/runs/0/images/0", Sec_Fetch_Site=site)[0] == 403
        assert served.ask("/api/runs/0/files", "POST", b"", Sec_Fetch_Site=site)[0] == 403
    assert served.ask("/", Sec_Fetch_Site="cross-site")[0] == 200  # a link that someone follows


def test_on_other_hosts_nothing_answers_without_the_token(capsnet):
    with Served([capsnet], "secret") as remote:
        for path in (*PATHS, "/wrong/", "/wrong/api/runs/0/images/0"):
            assert remote.ask(path, Host="lab.example")[0] == 404
        assert remote.ask("/secret/", Host="lab.example")[0] == 200
        assert remote.ask("/secret/api/runs/0/images/0", Host="lab.example")[0] == 200


def test_other_hosts_get_a_new_token_each_time(capsnet, monkeypatch, capsys):
    tokens = []
    monkeypatch.setattr(server, "make_application", lambda subjects, token: tokens.append(token))
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for host in ("127.0.0.1", "0.0.0.0", "0.0.0.0"):
        server.serve([capsnet], host=host, port=port)
    assert tokens[0] is None
    assert len({*tokens[1:]}) == 2
    assert all(len(token) > 20 and f"/{token}/" in "".join(capsys.readouterr().out.split()) for token in tokens[2:])


def test_only_loopback_addresses_need_no_token():
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.3.2.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.7", "example.org")))


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CapsellaError, match=f"--port {port}"):
            check_port("127.0.0.1", port)
    with pytest.raises(ArgumentError) as error:
        check_port("127.0.0.1", 70000)
    assert error.value.argument == "port"


def test_without_its_libraries_the_error_says_how_to_install_them(monkeypatch):
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: None if name == "uvicorn" else find_spec(name))
    with pytest.raises(CapsellaError, match=r"uvicorn: pip install 'capsella\[explore\]'"):
        check_starlette()
