"""What a worker of a cluster does: one network, part after part, each into a file of its own."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from capsella.data.decoding import Chunk
from capsella.data.reading import MOST_BYTES, decode
from capsella.errors import CapsellaError
from capsella.evaluation.prediction.certainty import Certainty
from capsella.evaluation.prediction.predict import Broken, Prediction, outcomes_of
from capsella.evaluation.prediction.tables import write_parquet
from capsella.evaluation.shards.parts import Part
from capsella.evaluation.shards.urls import Content, asked_again, is_url, opened, write
from capsella.models import ImageClassifier
from capsella.models.novelty.observe import only_as_needed
from capsella.models.packed import packed
from capsella.ray_cluster import Desk

COUNTS = ("rows", "broken", "unsure", "unknown")
"""What is counted of each part."""
_AT_ONCE = 16  # files that are fetched at a time: from elsewhere, most of the time goes by waiting


@dataclass(frozen=True)
class Work:
    """What all workers must know.

    load: gives the network. out: folder or URL. batch_size, classes, certainty: as for `predict_table`.
    """

    desk: Desk
    load: Callable[[], ImageClassifier]
    out: str
    batch_size: int
    classes: int
    certainty: Certainty


class Worker:
    """Predicts parts. Called by Ray Data with columns of `Part`'s fields; gives columns of `COUNTS`, and of errors."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.model: ImageClassifier | None = None

    def __call__(self, columns: dict[str, Any]) -> dict[str, list[Any]]:
        """Every part is in its file when this returns, once, however often it was begun."""
        parts = (
            Part(**dict(zip(columns, map(_plain, row), strict=True))) for row in zip(*columns.values(), strict=True)
        )
        rows = [self._row(part) for part in parts]
        return {name: [row[name] for row in rows] for name in (*COUNTS, "seconds", "error")}

    def _row(self, part: Part) -> dict[str, Any]:
        began, counts, error = time.monotonic(), dict.fromkeys(COUNTS, 0), ""
        try:
            if self.model is None:
                self.work.desk.sit_down()
                self.model = packed(only_as_needed(self.work.load(), self.work.certainty.watched))
            self._write(part, self.model, counts)
        except (CapsellaError, ValueError, OSError) as raised:
            error = str(raised) or type(raised).__name__
        except Exception as raised:  # else Ray Data would make pages of it
            error = f"{part.shard}: {type(raised).__name__}: {raised}"
        return {**counts, "seconds": time.monotonic() - began, "error": error}

    def _write(self, part: Part, model: ImageClassifier, counts: dict[str, int]) -> None:
        certainty, classes = self.work.certainty, model.classes

        def counted() -> Iterator[tuple[str, Prediction | Broken]]:
            for name, outcome in self._outcomes(part, model):
                counts["rows"] += 1
                if isinstance(outcome, Broken):
                    counts["broken"] += 1
                else:
                    counts["unsure"] += certainty.doubts(outcome)
                    counts["unknown"] += certainty.refuses(outcome)
                yield name, outcome

        def write_file(path: Path) -> None:
            write_parquet(counted(), classes, path, certainty, with_broken=True)

        write(f"{self.work.out}/{part.shard}", write_file)

    def _outcomes(self, part: Part, model: ImageClassifier) -> Iterator[tuple[str, Prediction | Broken]]:
        work, items = self.work, part.items()
        read = partial(_read, model=model)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while batch := list(islice(items, work.batch_size)):
                names = tuple(name for name, _ in batch)
                found = list(pool.map(read, batch))
                reasons = tuple(one if isinstance(one, str) else None for one in found)
                pixels = [one for one in found if not isinstance(one, str)]
                empty = np.empty((0, model.channels, *model.image_size), np.uint8)
                chunk = Chunk(names, reasons, np.stack(pixels) if pixels else empty)
                yield from zip(names, outcomes_of(model, chunk, work.classes, work.certainty.watched), strict=True)


def _plain(value: Any) -> Any:
    """Of NumPy's kinds of numbers, Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _read(item: tuple[str, Content | None], model: ImageClassifier) -> np.ndarray | str:
    """The pixels of an image, [c h w], or why it cannot be read."""
    name, content = item
    try:
        source = content or (_fetched(name) if is_url(name) else Path(name))
        pixels = decode(source, name, model.image_size, model.channels, model.value_range, model.cut)
    except (CapsellaError, OSError) as error:
        return (str(error) or type(error).__name__).removeprefix(f"{name}: ")
    except MemoryError:
        return "decoding it takes more memory than there is"
    return np.asarray(pixels)


def _fetched(url: str) -> Content:
    """A file from elsewhere; a store that does not answer is asked again."""

    def read() -> bytes:
        with opened(url) as file:
            found: bytes = file.read(MOST_BYTES + 1)
        return found

    try:
        content = asked_again(read)
    except FileNotFoundError:
        raise CapsellaError("no such file") from None
    if not content or len(content) > MOST_BYTES:
        raise CapsellaError("the file is empty" if not content else f"more than {MOST_BYTES:,} bytes; no more are read")
    return Content(content, url)
