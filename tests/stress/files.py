"""Damaged and hostile files: a sentence and exit 1, soon, in little memory, and never code from a file."""

import gzip
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import scipy.io
import torch
from PIL import Image

from capsella.cli import main
from capsella.data.sources.idx import _FILES as IDX
from capsella.errors import CapsellaError
from capsella.export import load_onnx
from tests.stress.ground import Ended, Tally, command, forked, fresh, import_all, learned, make_images, make_run
from tests.stress.mutations import BYTES, Mutation, odd_json, odd_table
from tests.trained import CLASSES

MOST_SECONDS, MOST_MEGABYTES = 2.0, 1024.0


class Kind(NamedTuple):
    """A kind of file. real: contents to mutate. name: in its folder. read: what reads it, given the file."""

    real: list[bytes]
    read: Callable[[Path], Callable[[], object]]
    name: str
    mutations: list[Mutation] = BYTES
    hostile: Sequence[tuple[str, bytes]] = ()


def campaign(tally: Tally, folder: Path) -> None:
    """Every kind in turn, until the time is up."""
    import_all()
    rng = random.Random(tally.seed)
    images = make_images(folder / "images")
    run = make_run(images, folder / "run")
    canary = folder / "canary"
    kinds = all_kinds(folder, images, run, canary)
    for name, kind in kinds.items():
        path = fresh(folder / "attempt") / kind.name
        path.write_bytes(kind.real[0])
        ended = learned(kind.read(path), 120, environment(folder))
        if ended.code:
            tally.found(f"{name}: not even unharmed: {ended.said[-300:]}")
    for name, kind in kinds.items():
        for what, content in kind.hostile:
            attempt(tally, folder, name, kind, content, f"{name}: {what}", canary)
    number = 0
    while tally.has_time:
        name = list(kinds)[number % len(kinds)]
        kind, seed = kinds[name], rng.randrange(10**9)
        one = random.Random(seed)
        mutation = one.choice(kind.mutations)
        content = mutation(one.choice(kind.real), one)
        attempt(tally, folder, name, kind, content, f"{name}: {mutation.__name__} of {seed}", canary)
        number += 1


def attempt(tally: Tally, folder: Path, name: str, kind: Kind, content: bytes, what: str, canary: Path) -> None:
    """Write the file, and have it read."""
    path = fresh(folder / "attempt") / kind.name
    path.write_bytes(content)
    ended = forked(kind.read(path), 120, environment(folder))
    tally.counts[name] += 1
    tally.counts["refused" if ended.code else "read all the same"] += 1
    tally.measured["longest, s"] = max(float(tally.measured.get("longest, s", 0)), round(ended.seconds, 2))
    tally.measured["most memory, MB"] = max(float(tally.measured.get("most memory, MB", 0)), round(ended.megabytes))
    if wrong := complaint(ended, canary):
        kept = folder / "kept"
        kept.mkdir(exist_ok=True)
        shutil.copy(path, kept / f"{len(tally.findings):03}-{kind.name}")
        tally.found(f"{what}: {wrong}")
    shutil.rmtree(canary, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """Data sets are looked for here."""
    return {"CAPSELLA_DATA": str(folder / "data")}


def complaint(ended: Ended, canary: Path) -> str | None:
    """Return what is wrong; None if nothing is."""
    if canary.exists():
        return "code from the file ran"
    if ended.complaint is None and ended.code and ended.seconds > MOST_SECONDS:
        return f"took {ended.seconds:.1f} s"
    if ended.complaint is None and ended.megabytes > MOST_MEGABYTES:
        return f"took {ended.megabytes:.0f} MB"
    return ended.complaint


def all_kinds(folder: Path, images: Path, run: Path, canary: Path) -> dict[str, Kind]:
    """Return every kind of file that the package reads."""
    image = sorted(images.rglob("*.png"))[0]
    evil = pickle.dumps(Evil(str(canary)))
    npz, split = npz_of(images), folder / "split.csv"
    assert forked(command("data", "split", images, "--out", split), 60).code == 0
    sheet = folder / "sheet.png"
    idx = idx_files(images)

    def with_run(name: str) -> Callable[[Path], Callable[[], object]]:
        def read(path: Path) -> Callable[[], object]:
            broken = path.parent / "run"
            shutil.copytree(run, broken, ignore=shutil.ignore_patterns("events"))
            shutil.copy(path, broken / name)
            return reader_of(name, broken, image)

        return read

    def with_idx(path: Path) -> Callable[[], object]:
        root = fresh(folder / "data" / "mnist")
        for name, content in idx.items():
            (root / name).write_bytes(content)
        shutil.copy(path, root / path.name)
        return command("data", "show", "mnist", "--out", sheet)

    def with_mat(path: Path) -> Callable[[], object]:
        shutil.copy(path, fresh(folder / "data" / "affnist") / "test.mat")
        fresh(folder / "data" / "mnist")
        for name, content in idx.items():
            (folder / "data" / "mnist" / name).write_bytes(content)
        return command("data", "show", "affnist", "--out", sheet)

    kinds = {
        f"{ending} image": Kind(
            [saved(image, ending)], lambda p: command("predict", run, p), f"a.{ending}", BYTES, bombs
        )
        for ending, bombs in (("png", png_bombs()), ("jpg", []), ("tiff", []), ("bmp", []), ("gif", []), ("webp", []))
    }
    kinds |= {
        "npz": Kind(
            [npz],
            lambda p: command("data", "show", p, "--out", sheet),
            "a.npz",
            BYTES,
            hostile_npz(evil, canary),
        ),
        "idx": Kind([idx[IDX["test"][0]]], with_idx, IDX["test"][0], BYTES, gzip_bombs()),
        "mat": Kind([mat_of(images)], with_mat, "test.mat"),
        "CSV of a split": Kind(
            [split.read_bytes()],
            lambda p: command("data", "split", images, "--split-file", p, "--out", p.with_name("o.csv")),
            "split.csv",
            [*BYTES, *[odd_table] * 10],
        ),
        "safetensors": Kind(
            [(run / "model.safetensors").read_bytes()],
            with_run("model.safetensors"),
            "model.safetensors",
            BYTES,
            hostile_safetensors(run),
        ),
        "checkpoint": Kind(
            [(run / "last.ckpt").read_bytes()],
            with_run("last.ckpt"),
            "last.ckpt",
            BYTES,
            [("a pickle", evil), ("pickle in torch's zip", torch_pickle(canary))],
        ),
        "ONNX": Kind([onnx_of(run, folder)], lambda p: lambda: read_onnx(p), "a.onnx"),
    }
    names = ["config.json", "model.json", "calibration.json", "test.json", "summary.json", "result.json"]
    for name in [*names, "metrics.csv", "ood_detector.safetensors"]:
        odd: dict[str, list[Mutation]] = {".json": [odd_json] * 20, ".csv": [odd_table] * 10}
        mutations = [*BYTES, *odd.get(Path(name).suffix, [])]
        kinds[name] = Kind([(run / name).read_bytes()], with_run(name), name, mutations)
    return kinds


def reader_of(name: str, run: Path, image: Path) -> Callable[[], object]:
    """A command that reads this file of a run."""
    if name == "last.ckpt":
        (run / "summary.json").unlink()  # as of a run that was interrupted
        return command("train", "--resume", run)
    if name in ("test.json", "summary.json", "metrics.csv", "result.json"):
        return lambda: read_report(run)
    return command("predict", run, image)


def read_report(run: Path) -> None:
    """Whatever reads what a run has reached."""
    for words in (["train", "--resume", str(run)], ["evaluate", str(run)]):
        try:
            main(words)
        except SystemExit as stop:
            if stop.code:
                raise


def read_onnx(path: Path) -> None:
    """Load an exported model as a program would, and print errors as the command line does."""
    try:
        load_onnx(path)(torch.zeros(1, 1, 20, 20))
    except (CapsellaError, ValueError, OSError) as error:
        print(f"error: {error}")
        raise SystemExit(1) from error


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def saved(image: Path, ending: str) -> bytes:
    out = io.BytesIO()
    with Image.open(image) as opened:
        opened.save(out, {"jpg": "JPEG"}.get(ending, ending.upper()))
    return out.getvalue()


def pixels_of(images: Path) -> tuple[np.ndarray, np.ndarray]:
    files = sorted(images.rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    return pixels, np.array([CLASSES.index(file.parent.name) for file in files])


def npz_of(images: Path) -> bytes:
    out = io.BytesIO()
    pixels, labels = pixels_of(images)
    np.savez_compressed(out, images=pixels, labels=labels)
    return out.getvalue()


def idx_files(images: Path) -> dict[str, bytes]:
    """MNIST's four files, with a few images of 28×28 pixels."""
    found = {}
    for of_images, of_labels in IDX.values():
        pixels = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
        found[of_images] = gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 40, 28, 28) + pixels.tobytes())
        found[of_labels] = gzip.compress(struct.pack(">HBBI", 0, 8, 1, 40) + bytes(k % 10 for k in range(40)))
    return found


def mat_of(images: Path) -> bytes:
    """Return a file like affNIST's: 40×40 pixels in columns."""
    out = io.BytesIO()
    data = {"image": np.zeros((1600, 20), np.uint8), "label_int": np.arange(20, dtype=np.uint8)[None] % 10}
    scipy.io.savemat(out, {"affNISTdata": data}, do_compression=True)
    return out.getvalue()


def onnx_of(run: Path, folder: Path) -> bytes:
    ended = forked(command("export", run, "--out", folder / "export"), 120)
    assert ended.code == 0, ended.said
    return (folder / "export" / "model.onnx").read_bytes()


def hostile_npz(evil: bytes, canary: Path) -> list[tuple[str, bytes]]:
    """Pickles, headers that are programs, and bombs."""
    header = "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"
    program = f"{{'descr': '|u1', 'fortran_order': False, 'shape': (__import__('os').mkdir({str(canary)!r}),), }}"
    huge = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 17, 17), }"
    many = "{'descr': '|u1', 'fortran_order': False, 'shape': (1100000, 1000), }"
    minus = "{'descr': '|u1', 'fortran_order': False, 'shape': (-5, 17, 17), }"
    cases = [
        ("a pickle", npy(header) + evil),
        ("a header that is a program", npy(program)),
        ("a huge shape", npy(huge)),
        ("a negative shape", npy(minus)),
        ("a long header", npy(header + " " * 60_000)),
        (
            "zeros without end",
            npy(many) + bytes(11 * 10**8),
        ),
    ]
    return [(what, zipped(content)) for what, content in cases] + [("a bare pickle", evil)]


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    labels = io.BytesIO()
    np.save(labels, np.zeros(3, np.int64))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", labels.getvalue())
    return out.getvalue()


def png_bombs() -> list[tuple[str, bytes]]:
    """Many pixels, or much text, in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(width: int, height: int, *more: bytes) -> bytes:
        size = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + size + b"".join(more) + chunk(b"IEND", b"")

    zeros = zlib.compress(bytes(10**8), 9)
    return [
        ("60000×60000 pixels", png(60_000, 60_000, chunk(b"IDAT", zeros))),
        ("2 billion rows", png(1, 2**31 - 1, chunk(b"IDAT", zeros))),
        (
            "text that unpacks",
            png(17, 17, chunk(b"zTXt", b"a\0\0" + zeros), chunk(b"IDAT", zlib.compress(bytes(18 * 17)))),
        ),
        ("a thousand texts", png(17, 17, *[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(60_000)))] * 1500)),
        ("no pixels", png(0, 0)),
    ]


def gzip_bombs() -> list[tuple[str, bytes]]:
    head = gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2_551_021, 28, 28))
    sizes = gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1))
    return [("2 GB of zeros", head + 200 * gzip.compress(bytes(10**7))), ("sizes beyond all", sizes)]


def hostile_safetensors(run: Path) -> list[tuple[str, bytes]]:
    real = (run / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", real[:8])[0]
    header = json.loads(real[8 : 8 + length])
    first = next(name for name in header if name != "__metadata__")
    huge = {**header, first: {**header[first], "shape": [2**40]}}
    text = json.dumps(huge).encode()
    nan = safetensors.torch.save({k: v * float("nan") for k, v in safetensors.torch.load(real).items()})
    return [
        ("a header of 2⁶³ bytes", struct.pack("<Q", 2**63) + real[8:]),
        ("a huge shape", struct.pack("<Q", len(text)) + text + real[8 + length :]),
        ("brackets without end", struct.pack("<Q", 100_000) + b"[" * 100_000),
        ("not a number", nan),
    ]


def torch_pickle(canary: Path) -> bytes:
    out = io.BytesIO()
    torch.save({"model": Evil(str(canary))}, out)
    return out.getvalue()
