"""Who is let in."""

import asyncio
import base64

import pytest

from capsella.explorer.guard import Guard

from .conftest import Served

PASSWORD = "long enough: ä"
PATHS = ["/", "/api/runs/0/images/0", "/docs", "/openapi.json", "/nowhere"]


def basic(word, user="capsella"):
    return "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "", "[", "192.168.0.9:{port}"]
)
@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_host_is_refused(served, host, path):
    status, _, answer = served.ask(path, Host=host.format(port=served.port))
    assert status in (400, 421)  # 400: the server library takes it for no name at all
    assert "<html" not in str(answer)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}", "localhost"]
)
def test_names_of_this_machine_are_let_in(served, host):
    assert served.ask("/api/runs/0/images/0", Host=host.format(port=served.port))[0] == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://127.0.0.1:1", "file://", ""],
)
def test_a_foreign_origin_is_refused(served, origin):
    for method, path in [("GET", "/api/runs/0/images/0"), ("POST", "/api/runs/0/files"), ("GET", "/")]:
        status, _, answer = served.ask(path, method, b"" if method == "POST" else None, Origin=origin)
        assert (status, answer["error"]) == (403, "This server answers its own page alone.")


def test_its_own_page_is_let_in(served):
    assert served.ask("/api/runs/0/images/0", Origin=served.url, Sec_Fetch_Site="same-origin")[0] == 200


def test_a_picture_on_another_page_starts_no_work(served):
    assert served.ask("/api/runs/0/images/0", Sec_Fetch_Site="cross-site")[0] == 403
    assert served.ask("/", Sec_Fetch_Site="cross-site")[0] == 200  # a link that someone follows


def test_a_proxy_has_a_name(capsnet):
    with Served([capsnet], name="Explore.Example.org") as server:
        assert server.ask("/", Host="explore.example.org")[0] == 200
        own = {"Origin": "https://explore.example.org", "Host": "explore.example.org"}
        assert server.ask("/api/runs/0/images/0", **own)[0] == 200
        assert server.ask("/", Host="other.example.org")[0] == 421


def test_websockets_are_closed():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(None, frozenset(), None)({"type": "websocket"}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
