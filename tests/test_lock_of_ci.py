"""constraints-hashes.txt pins what constraints.txt does; `make lock` writes it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pinned(name: str) -> set[tuple[str, str]]:
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {(re.sub(r"[-_.]+", "-", package).lower(), version) for package, version in found}


def test_the_lock_is_of_these_constraints() -> None:
    assert pinned("constraints-hashes.txt") == pinned("constraints.txt")
    text = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8")
    assert all("--hash=sha256:" in part for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:])
