"""The image files of a folder, and what else lies there."""

from collections import Counter
from pathlib import Path

from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError, pluralize

_MOST_KINDS, _MOST_NAMES = 5, 3


class PassedOver:
    """What is not read, so that one line can say so: kinds with their numbers, and the first names."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.names: list[str] = []

    def __len__(self) -> int:
        return self.kinds.total()

    def add(self, kind: str, path: Path) -> None:
        """A file and what it is, in the singular."""
        self.kinds[kind] += 1
        if len(self.names) < _MOST_NAMES:
            self.names.append(path.name)

    def add_file(self, path: Path) -> None:
        """Whatever is neither an image nor a folder."""
        if path.is_file():
            self.add(f"{path.suffix} file" if path.suffix else "file without an ending", path)
        elif path.is_symlink():
            self.add("dangling link", path)
        else:
            self.add("pipe or device", path)

    def add_beside(self, folder: Path) -> None:
        """The files in a folder that should hold sub-folders alone."""
        for entry in sorted(folder.iterdir()):
            if is_image(entry):
                self.add("image beside the class folders", entry)
            else:
                self.add_other(entry)

    def add_other(self, entry: Path) -> None:
        """Count what is not read: files other than images, and hidden images or folders with images.

        macOS writes `._NAME` beside every file on some disks; these are no images.
        """
        if not entry.name.startswith("."):
            if not entry.is_dir():
                self.add_file(entry)
        elif _is_hidden_image(entry):
            self.add("hidden image", entry)
        elif entry.is_dir() and any(is_image(inner) or _is_hidden_image(inner) for inner in _inside(entry)):
            self.add("hidden folder of images", entry)

    def notes(self) -> tuple[str, ...]:
        """At most one line."""
        if not self.kinds:
            return ()
        kinds = [pluralize(number, kind, _plural(kind)) for kind, number in self.kinds.most_common(_MOST_KINDS)]
        others = len(self) - sum(number for _, number in self.kinds.most_common(_MOST_KINDS))
        more = [pluralize(others, "other")] if others else []
        names = ", ".join(self.names) + (", …" if len(self) > len(self.names) else "")
        return (f"passed over {', '.join(kinds + more)} ({names})",)


def _plural(kind: str) -> str:
    first, *rest = kind.split(" ", 1)
    if kind.startswith("."):
        return f"{kind}s"
    if first == "hidden":
        return f"hidden {_plural(rest[0])}"
    return {"dangling": "dangling links", "pipe": "pipes or devices"}.get(first, " ".join([f"{first}s", *rest]))


def is_image(path: Path) -> bool:
    """Whether a path is a file that is read, by its ending; hidden ones are not."""
    return path.name.lower().endswith(ENDINGS) and not path.name.startswith(".") and path.is_file()


def _is_hidden_image(path: Path) -> bool:
    name = path.name
    return name.startswith(".") and not name.startswith("._") and name.lower().endswith(ENDINGS) and path.is_file()


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def walk(folder: Path, passed_over: PassedOver, above: frozenset[Path] = frozenset()) -> list[Path]:
    """The image files of a folder and its sub-folders; `above` are the real folders on the way here."""
    found = []
    for entry in sorted(folder.iterdir()):
        if is_image(entry):
            found.append(entry)
        else:
            passed_over.add_other(entry)
    above = above | {folder.resolve()}
    for name in sub_folders(folder, above):
        found += walk(folder / name, passed_over, above)
    return found


def no_folder(path: Path | str) -> str:
    """What to say where a folder of images was asked for, and is not there."""
    is_file = Path(path).exists()
    if is_file and Path(path).suffix == ".npz":
        return f"{path}: is a file; `capsella train images-efficient --data npz --data.path {path}` reads it"
    return (
        f"{path}: is a file; name the folder that has one sub-folder a class" if is_file else f"{path}: no such folder"
    )


def sub_folders(folder: Path, above: frozenset[Path] = frozenset()) -> list[str]:
    """Names of the sub-folders, hidden ones and links that lead back aside."""
    if not folder.is_dir():
        raise CapsellaError(no_folder(folder))
    here = folder.resolve()

    def leads_back(entry: Path) -> bool:
        real = entry.resolve()
        return real in above or here.is_relative_to(real)

    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and not leads_back(entry)
    )


def spread(number: int, most: int) -> list[int]:
    """At most `most` of so many rows, spread evenly.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    step = max(1.0, number / most)
    return [int(step * k) for k in range(int(number / step))]
