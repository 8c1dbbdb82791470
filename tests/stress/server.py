"""The explorer under many clients, slow and broken ones, foreign names, wrong passwords and uploads at the limits."""

import base64
import concurrent.futures
import http.client
import io
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from tests.stress.ground import import_all, make_images, make_run, spawned
from tests.stress.tally import Tally

CLIENTS, MOST_MILLISECONDS = 50, 200
PASSWORD = "a long password"
PAUSE = 1.0
"""Seconds between the questions of one client: a hand on a dial, whose page asks once for where it stopped."""


def campaign(tally: Tally, folder: Path) -> None:
    """Most of the time the clients turn dials; the rest is trouble."""
    import_all()
    images = make_images(folder / "images")
    run = make_run(images, folder / "run")
    with served(run, folder, None) as (port, process):
        warm(port)
        trouble(tally, port)
        before = memory(process)
        samples = turn_dials(tally, port, process, 0.7 * tally.seconds)
        trouble(tally, port)
        if process.poll() is not None:
            tally.found(f"the server ended: {process.returncode}")
            return
        tally.measured["memory before and after, MB"] = f"{before:.0f} to {memory(process):.0f}"
        judge_memory(tally, samples)
    with served(run, folder, PASSWORD) as (port, _):
        wrong_passwords(tally, port)


@contextmanager
def served(run: Path, folder: Path, password: str | None) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`capsella explore` on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["explore", run, "--port", port, "--no-browser", "--images", 20]
    environment = {} if password is None else {"CAPSELLA_PASSWORD": password}
    process = spawned(words, folder / "said.txt", environment)
    try:
        for _ in range(1200):
            if process.poll() is not None or answers(port):
                break
            time.sleep(0.1)
        if not answers(port):
            raise RuntimeError((folder / "said.txt").read_text())
        yield port, process
    finally:
        process.terminate()
        process.wait(20)


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and answer; 0 where the connection broke."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def warm(port: int) -> None:
    for number in range(5):
        ask(port, f"/api/runs/0/images/{number}")


def turn_dials(
    tally: Tally, port: int, process: "subprocess.Popen[bytes]", seconds: float
) -> list[tuple[float, float]]:
    """All clients for so long; returns the server's memory by time."""
    end, samples = time.monotonic() + seconds, []

    def client(number: int) -> list[float]:
        rng, times = random.Random(f"{tally.seed} {number}"), []
        time.sleep(rng.uniform(0, PAUSE))
        while time.monotonic() < end:
            began = time.monotonic()
            status, _ = ask(port, f"/api/runs/0/images/{rng.randrange(5)}")
            times.append(1000 * (time.monotonic() - began))
            tally.counts[f"status {status}"] += 1
            time.sleep(rng.expovariate(1 / PAUSE))
        return times

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(CLIENTS)]
        while time.monotonic() < end:
            samples.append((time.monotonic(), memory(process)))
            time.sleep(1)
        times = [one for client in clients for one in client.result()]
    median = statistics.median(times)
    tally.counts["questions of 50 clients"] += len(times)
    tally.measured["median, ms"] = round(median, 1)
    tally.measured["95th percentile, ms"] = round(statistics.quantiles(times, n=20)[-1], 1)
    if median > MOST_MILLISECONDS:
        tally.found(f"median of {CLIENTS} clients {median:.0f} ms")
    if tally.counts["status 0"]:
        tally.found(f"{tally.counts['status 0']} connections broke")
    return samples


def memory(process: "subprocess.Popen[bytes]") -> float:
    return psutil.Process(process.pid).memory_info().rss / 2**20


def judge_memory(tally: Tally, samples: list[tuple[float, float]]) -> None:
    """The slope of the second half, when pools and caches are full."""
    late = samples[len(samples) // 2 :]
    times, sizes = np.array(late).T
    slope = 60 * float(np.polyfit(times - times[0], sizes, 1)[0])
    tally.measured["memory slope, MB a minute"] = round(slope, 2)
    if slope > 5:
        tally.found(f"memory grows by {slope:.1f} MB a minute")


def trouble(tally: Tally, port: int) -> None:
    """What must be refused, with the status that says so; afterwards the server answers as before."""
    page = f"http://127.0.0.1:{port}"
    wanted = {
        "a foreign Host": (421, ask(port, "/", Host="evil.example")),
        "a foreign Origin": (403, ask(port, "/api/runs/0/images/0", Origin="http://evil.example")),
        "Origin null": (403, ask(port, "/api/runs/0/images/0", Origin="null")),
        "its own page": (200, ask(port, "/api/runs/0/images/0", Origin=page)),
        "another site": (403, ask(port, "/api/runs/0/images/0", Sec_Fetch_Site="cross-site")),
        "no such run": (404, ask(port, "/api/runs/9/images/0")),
        "no such image": (400, ask(port, "/api/runs/0/images/99999999999999999999")),
        "a path upwards": (404, ask(port, "/../../etc/passwd")),
        "an encoded path upwards": (404, ask(port, "/%2e%2e/%2e%2e/etc/passwd")),
        "too many bytes": (400, ask(port, "/api/runs/0/files?name=a.png", "POST", bytes(20_000_001))),
        "as many bytes as allowed": (400, ask(port, "/api/runs/0/files?name=a.png", "POST", bytes(20_000_000))),
        "no image": (400, ask(port, "/api/runs/0/files?name=a.png", "POST", b"no image")),
        "nothing": (400, ask(port, "/api/runs/0/files?name=a.png", "POST", b"")),
        "the most pixels": (200, ask(port, "/api/runs/0/files?name=a.png", "POST", picture(5000, 8000))),
        "too many pixels": (400, ask(port, "/api/runs/0/files?name=a.png", "POST", picture(5001, 8000))),
        "brackets without end": (400, ask(port, "/api/runs/0/drawings", "POST", b"[" * 500_000)),
        "a question that is none": (400, ask(port, "/api/runs/0/drawings", "POST", b'{"pose": [1e999, null]}')),
        "a wrong size in the header": (
            400,
            raw(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n"),
        ),
        "no HTTP": (400, raw(port, os.urandom(2000).replace(b"\n", b"") + b"\r\n\r\n")),
        "a header of a megabyte": (400, raw(port, b"GET / HTTP/1.1\r\nX: " + b"a" * 10**6 + b"\r\n\r\n")),
    }
    for what, (status, (got, answer)) in wanted.items():
        tally.counts["troubles"] += 1
        if got != status and not (status == 400 and got in (0, 404, 413, 431)):
            tally.found(f"{what}: status {got} in place of {status}: {answer[:150]!r}")
        if b"Traceback" in answer or b"root:" in answer:
            tally.found(f"{what}: {answer[:200]!r}")
    half_open = [slow_client(port) for _ in range(100)]
    began = time.monotonic()
    status, _ = ask(port, "/api/runs/0/images/0")
    if status != 200 or time.monotonic() - began > 5:
        tally.found(f"beside 100 slow clients: status {status} after {time.monotonic() - began:.1f} s")
    for one in half_open:
        one.close()
    tally.counts["slow clients"] += len(half_open)


def slow_client(port: int) -> socket.socket:
    """Half a request, and no more."""
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(b"POST /api/runs/0/files?name=a.png HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nabc")
    return one


def raw(port: int, content: bytes) -> tuple[int, bytes]:
    """What the server answers to these bytes; it may close the connection without a word."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(content)
            answer = one.recv(4096)
    except OSError:
        return 0, b""
    return (int(answer[9:12]) if answer.startswith(b"HTTP/") else 0), answer


def picture(height: int, width: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint8)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def wrong_passwords(tally: Tally, port: int) -> None:
    """The right one is let in, a wrong one is not, and after five even the right one waits."""

    def signed(password: str) -> int:
        secret = base64.b64encode(f"capsella:{password}".encode()).decode()
        tally.counts["passwords"] += 1
        return ask(port, "/api/runs/0/images/0", Authorization=f"Basic {secret}")[0]

    seen = [ask(port, "/")[0], signed(PASSWORD), *[signed(f"wrong {number}") for number in range(5)], signed(PASSWORD)]
    if seen != [401, 200, 401, 401, 401, 401, 401, 429]:
        tally.found(f"passwords: {seen}")


if sys.platform != "linux":
    raise ImportError("the campaign measures memory as Linux does")
