"""Plant one-line faults in a copy of the project, one at a time, and report which test catches each.

Usage: python -m tools.faults [--only WORD ...] [--slow]

A green suite says little if it would also be green without the code it tests. `faults.toml` lists mistakes that were
made before, here or in other people's code. Each is planted alone, the tests of its area run, and the first test that
fails is printed. Without `--slow` only the fast tests run, as in `make test`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Python in the copy must import the copy: an editable installation would lead it back here.
SITE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
"""


@dataclass(frozen=True)
class Fault:
    """A mistake of one line.

    Attributes:
        name: what goes wrong.
        file: relative to the root.
        before: text that stands exactly once in the file.
        after: what replaces it.
        tests: files or folders of tests, relative to the root, separated by spaces.
    """

    name: str
    file: str
    before: str
    after: str
    tests: str


def read_faults(words: list[str]) -> list[Fault]:
    """Return the faults whose name or file has one of these words, or all of them without words."""
    rows = tomllib.loads((ROOT / "tools" / "faults.toml").read_text(encoding="utf-8"))["fault"]
    faults = [Fault(**row) for row in rows]
    return [fault for fault in faults if not words or any(word in fault.name + fault.file for word in words)]


def copy_project(folder: Path) -> None:
    """Copy all tracked files and the compiled kernels."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file() and not name.startswith("results/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    from capsella import _native

    if _native.kernels is not None:
        shutil.copy(_native.kernels.__file__, folder / "capsella" / "_native")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")


def build_kernels(folder: Path) -> None:
    """Compile the copy's kernels for the best instruction set of this processor."""
    from capsella import _native

    build = folder / "build"
    words = ["cmake", "-S", folder, "-B", build, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    isa = f"-DCAPSELLA_INSTRUCTION_SETS={_native.kernels.instruction_set()}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in ([*words, isa], ["cmake", "--build", build]):
        subprocess.run(list(map(str, command)), check=True, capture_output=True, env={**os.environ, "PATH": path})
    shutil.copy(next(build.glob("kernels*")), folder / "capsella" / "_native")


def run_tests(folder: Path, tests: str, slow: bool) -> str | None:
    """Return the first test that fails in the copy, or None."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
    words += [] if slow else ["-m", "not slow"]
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{folder}"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (1, 2) or found is None:
        sys.exit(f"pytest did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def plant(fault: Fault, folder: Path, slow: bool) -> str | None:
    """Plant a fault in the copy, run its tests, and mend it. Returns the test that caught it, or None."""
    path = folder / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.before) != 1:
        sys.exit(f"{fault.file}: must hold the text once, got {text.count(fault.before)} times: {fault.before!r}")
    kernels = fault.file.startswith("csrc/")
    saved = [(file, file.read_bytes()) for file in (folder / "capsella" / "_native").glob("kernels*")]
    path.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    try:
        if kernels:
            build_kernels(folder)
        return run_tests(folder, fault.tests, slow)
    finally:
        path.write_text(text, encoding="utf-8")
        for file, content in saved if kernels else []:
            file.write_bytes(content)


def main() -> None:
    """Plant each fault and print a line for it; exit with 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="faults with this word in name or file")
    parser.add_argument("--slow", action="store_true", help="run slow tests, too")
    options = parser.parse_args()
    faults, missed = read_faults(options.only), 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "capsella"
        copy_project(folder)
        for number, fault in enumerate(faults, 1):
            begun = time.monotonic()
            caught = plant(fault, folder, options.slow)
            missed += caught is None
            seconds = time.monotonic() - begun
            print(f"{number}/{len(faults)}  {seconds:4.0f} s  {fault.name}: {caught or 'NOT CAUGHT'}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults were caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
