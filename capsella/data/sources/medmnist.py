"""MedMNIST sets of blood cells and of lungs, at 28, 64, 128 or 224 pixels (Yang et al. 2023, Scientific Data 10)."""

from dataclasses import replace

from capsella.data.download import find_or_download
from capsella.data.npz import read_npz
from capsella.data.options import NamedData
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits

_URL = "https://zenodo.org/records/10519652/files/"
_SIZES = (28, 64, 128, 224)
_MD5 = {
    "bloodmnist": {
        28: "7053d0359d879ad8a5505303e11de1dc",
        64: "2b94928a2ae4916078ca51e05b6b800b",
        128: "adace1e0ed228fccda1f39692059dd4c",
        224: "b718ff6835fcbdb22ba9eacccd7b2601",
    },
    "pneumoniamnist": {
        28: "28209eda62fecd6e6a2d98b1501bb15f",
        64: "8f4eceb4ccffa70c672198ea285246c6",
        128: "05b46931834c231683c68f40c47b2971",
        224: "d6a3c71de1b945ea11211b03746c1fe1",
    },
}
_CLASSES = {
    "bloodmnist": (
        *("basophil", "eosinophil", "erythroblast", "immature granulocyte"),
        *("lymphocyte", "monocyte", "neutrophil", "platelet"),
    ),
    "pneumoniamnist": ("normal", "pneumonia"),
}


def _file(name: str, size: int) -> str:
    return f"{name}.npz" if size == 28 else f"{name}_{size}.npz"


def _read(options: NamedData) -> SourceSplits:
    # The smallest of at least the size asked for, or else the largest.
    size = min((stored for stored in _SIZES if stored >= (options.size or 28)), default=_SIZES[-1])
    file = _file(options.name, size)
    path = find_or_download(f"medmnist/{file}", [_URL + file], f"md5:{_MD5[options.name][size]}")
    return replace(read_npz(path, options, _CLASSES[options.name]), name=options.name)


SOURCES = tuple(
    Source(
        name,
        _read,
        images,
        f"28, 64, 128 or 224 square×{channels}",
        len(_CLASSES[name]),
        tuple(f"medmnist/{_file(name, size)}" for size in _SIZES),
        f"{citation}; Yang et al. 2023, Scientific Data 10",
        "downloaded on first use, at the size asked for",
        _SIZES[-1],
    )
    for name, images, channels, citation in (
        ("bloodmnist", "11,959 / 1,712 / 3,421", 3, "Acevedo et al. 2020, Data in Brief 30"),
        ("pneumoniamnist", "4,708 / 524 / 624", 1, "Kermany et al. 2018, Cell 172"),
    )
)
