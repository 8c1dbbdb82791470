"""Who is let in."""

import asyncio
import base64

import pytest

from capsella.explorer import guard
from capsella.explorer.guard import Guard, host_name

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


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_open_without_the_password(capsnet, monkeypatch, path):
    monkeypatch.setattr(guard, "_DELAY", 0)
    with Served([capsnet], PASSWORD) as server:
        for headers in ({}, {"Authorization": basic("wrong")}, {"Authorization": "Basic %%%"}, {"Authorization": "x"}):
            status, got, answer = server.ask(path, **headers)
            assert status == 401
            assert got["WWW-Authenticate"].startswith("Basic ")
            assert answer == {"error": "Sign in as capsella, with the password of this server."}
        assert server.ask(path, Authorization=basic(PASSWORD, "other"))[0] == 401
        assert server.ask(path, Authorization=basic(PASSWORD))[0] in (200, 404)


def answers_of(gate, password, address="10.0.0.1"):
    """The status with which the guard, or what is behind it, answers one request."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"here"), (b"authorization", basic(password).encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": headers,
        "client": (address, 1),
        "server": ("here", 1),
    }
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"]


def test_wrong_passwords_are_throttled(monkeypatch):
    monkeypatch.setattr(guard, "_DELAY", 0)
    now = [0.0]

    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    gate = Guard(inner, frozenset(), PASSWORD, lambda: now[0])
    assert [answers_of(gate, "wrong") for _ in range(5)] == [401] * 5
    assert answers_of(gate, PASSWORD) == 429  # else guessing would go on
    assert answers_of(gate, PASSWORD, "10.0.0.2") == 200
    now[0] = guard.WINDOW + 1
    assert answers_of(gate, PASSWORD) == 200
    monkeypatch.setattr(guard, "_MOST_REMEMBERED", 10)
    for number in range(40):
        now[0] += guard.WINDOW
        answers_of(gate, "wrong", f"10.0.1.{number}")
    assert len(gate._wrong) <= 12


def test_websockets_are_closed():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(None, frozenset(), None)({"type": "websocket"}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("authority", "name"), [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("", ""), ("[", ""), ("a", "a"), ("x@a:1", "a")]
)
def test_names_out_of_addresses(authority, name):
    assert host_name(authority) == name


def test_no_more_addresses_are_remembered_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(guard, "_MOST_REMEMBERED", 10)
    now = [0.0]
    one = Guard(None, frozenset(), PASSWORD, lambda: now[0])
    for number in range(40):
        now[0] += 0.1
        one._wrong[f"10.0.0.{number}"].append(now[0])
        one._is_locked("10.0.0.0")
        assert len(one._wrong) <= 11
    assert "10.0.0.39" in one._wrong
