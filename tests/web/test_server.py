"""The explorer's server: who is let in, its answers, and that whatever is wrong becomes one sentence."""

import base64
import json
import socket
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from capsella.errors import ArgumentError, CapsellaError
from capsella.models.inference import inference
from capsella.web import server
from capsella.web.arrays import KINDS
from capsella.web.served_run import explorer_page
from capsella.web.server import check_port, is_loopback

from .conftest import SIZE, Served, model, png

PATHS = ["/", "/api/runs/0/images/0", "/docs", "/nowhere"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:{port}", "", "192.168.0.9:{port}"])
def test_foreign_names_are_refused(served, host):
    """A page elsewhere could send a browser here under a name of its own (DNS rebinding)."""
    for path in PATHS:
        status, _, answer = served.ask(path, Host=host.format(port=served.port))
        assert status == 400
        assert "<html" not in str(answer)


def test_other_pages_start_no_work(served):
    for host in (f"127.0.0.1:{served.port}", "LOCALHOST"):
        own = {"Host": host, "Origin": served.url, "Sec_Fetch_Site": "same-origin"}
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


def test_other_hosts_get_a_new_token_each_time(capsnet, monkeypatch):
    tokens = []
    monkeypatch.setattr(server, "make_application", lambda served_runs, token: tokens.append(token))
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for host in ("127.0.0.1", "0.0.0.0", "0.0.0.0"):
        server.serve([capsnet], host=host, port=port)
    assert tokens[0] is None
    assert len({*tokens[1:]}) == 2
    assert all(len(token) > 20 for token in tokens[1:])


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CapsellaError, match=f"--port {port}"):
            check_port("127.0.0.1", port)
    with pytest.raises(ArgumentError, match="port"):
        check_port("127.0.0.1", 70000)
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.3.2.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.7", "example.org")))


def arrays(answer):
    content = zlib.decompress(base64.b64decode(answer["data"]))
    return {
        name.removeprefix("0/"): np.frombuffer(content, KINDS[kind], int(np.prod(shape)), start).reshape(shape)
        for name, (kind, shape, start) in answer["arrays"].items()
    }


def test_the_page_is_that_of_share_with_a_server_behind_it(served, capsnet, plain):
    status, headers, html = served.ask("/")
    assert status == 200
    assert "connect-src 'self'" in html
    assert headers["X-Content-Type-Options"] == "nosniff"
    facts = json.loads(html.partition('id="facts">')[2].partition("</script>")[0])
    assert [run["name"] for run in facts["runs"]] == ["my run", "plain"]
    assert facts["alike"]
    first, second = ([image["number"] for image in run["images"]] for run in facts["runs"])
    assert first == second
    tests = facts["server"]["tests"][0]
    assert len(tests["numbers"]) == len(tests["truth"]) == len(tests["right"]) == 24
    assert not [name for name in facts["arrays"] if "changed" in name]  # they are asked for
    assert '<script type="text/plain" id="data"></script>' in html
    kind, shape, start = facts["arrays"]["0/images"]
    content = explorer_page([capsnet, plain])[1]
    held = np.frombuffer(content, KINDS[kind], int(np.prod(shape)), start).reshape(shape)
    np.testing.assert_array_equal(held[0], capsnet.test.images[first[0]].numpy())
    assert served.ask("/api/arrays")[1]["Content-Type"] == "application/octet-stream"


def test_any_test_image_is_as_the_network_sees_it(served, capsnet):
    status, _, answer = served.ask("/api/runs/0/images/17")
    assert status == 200
    assert answer["image"]["number"] == 17
    assert answer["image"]["truth"] == [17 % 3]
    got = arrays(answer)
    np.testing.assert_array_equal(got["images"][0], capsnet.test.images[17].numpy())
    with inference(capsnet.model):
        capsules = capsnet.model.encode(capsnet.test.images[17:18].float() / 255)
    np.testing.assert_allclose(got["poses"][0], capsules.poses[0, 0, 0].numpy(), atol=1e-6)
    assert answer["image"]["predicted"] == int(capsules.activations.argmax())
    assert {"drawn", "evidence0", "entropy0", "points", "couplings"} <= set(got)


def test_a_cnn_sees_the_same_changes(capsnet):
    with_cnn = replace(capsnet, cnn=("plain cnn", model("sabour2017_cnn")))
    image = with_cnn.test.images[3:4]
    with Served([with_cnn]) as server:
        assert '"beside":"plain cnn"' in server.ask("/")[2]
        got = arrays(server.ask("/api/runs/0/changes?class=2", "POST", image.numpy().tobytes())[2])
    with inference(with_cnn.cnn[1]) as _, torch.no_grad():
        active = with_cnn.cnn[1](image.float() / 255).activations
    np.testing.assert_allclose(got["cnnActivations0"][0, 4], active[0].numpy(), atol=1e-5)
    with inference(with_cnn.model):
        capsules = with_cnn.model.encode(image.float() / 255)
    np.testing.assert_allclose(got["changedPoses0"][0, 4], capsules.poses[0, 0, 0, 2].numpy(), atol=1e-5)
    assert np.abs(got["changedPoses0"][0, 0] - got["changedPoses0"][0, 4]).max() > 1e-4


def test_an_uploaded_file_is_looked_at_and_what_was_done_is_said(served):
    _, _, answer = served.ask("/api/runs/0/files?name=photo.png", "POST", png(50, 40, 3))
    facts = answer["image"]
    assert (facts["number"], facts["truth"], facts["title"]) == (None, [], "photo.png")
    assert facts["said"][0] == "photo.png has 40×50 pixels: the middle was cut out and resized to the network's 17×17"
    assert arrays(answer)["images"].shape == (1, 1, SIZE, SIZE)


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "text"),
    [
        ("/api/runs/0/images/30", "GET", None, 400, "image: "),
        ("/api/runs/7/images/0", "GET", None, 404, ""),
        ("/..%2f..%2fpyproject.toml", "GET", None, 404, ""),
        ("/api/runs/0/files?name=a.png", "POST", b"no image", 400, "a.png: "),
        ("/api/runs/0/sketches", "POST", b"no image", 400, "drawing: "),
        ("/api/runs/0/changes?class=0", "POST", b"123", 400, "pixels: "),
        ("/api/runs/0/changes?class=9", "POST", bytes(289), 400, "class: "),
    ],
)
def test_a_wrong_question_gets_a_sentence(served, path, method, body, status, text):
    got, _, answer = served.ask(path, method, body)
    assert got == status
    assert list(answer) == ["error"]
    assert text in answer["error"]


def test_a_large_upload_is_not_even_read(served, monkeypatch):
    monkeypatch.setattr("capsella.web.server.MAX_BYTES", 1000)
    status, _, answer = served.ask("/api/runs/0/files?name=a.png", "POST", bytes(2000))
    assert (status, answer["error"]) == (400, "a.png: must be at most 0 MB")
    parts = iter([bytes(600), bytes(600)])  # sent in pieces, its size is not known before
    status, _, answer = served.ask("/api/runs/0/files?name=a.png", "POST", parts)
    assert (status, answer["error"]) == (400, "a.png: must be at most 0 MB")


def test_what_breaks_inside_stays_inside(capsnet, monkeypatch):
    def broken(*_):
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr("capsella.web.served_run.ServedRun.answer_image", broken)
    with Served([capsnet]) as server:
        status, _, answer = server.ask("/api/runs/0/images/0")
    assert status == 500
    assert answer["error"].startswith("Something went wrong in the server.")
