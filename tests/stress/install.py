"""Source and wheel in empty environments: with and without a compiler, oldest and newest of what is allowed.

PyTorch is the one of this environment in all of them: its oldest and newest releases have gigabytes of GPU libraries.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.stress.tally import Tally

ROOT = Path(__file__).parents[2]
TRY = ROOT / "tests" / "stress" / "installed.py"
TORCH = f"torch=={version('torch')}"
OTHERS = [f"3.{minor}" for minor in (11, 12, 13, 14) if minor != sys.version_info.minor]
"""Of the range in pyproject.toml; not all need be at hand."""


def campaign(tally: Tally, folder: Path) -> None:
    """Each environment in turn, the next only while there is time; an environment takes some minutes."""
    tools = environment(folder / "tools")
    call(tools, "pip", "install", "--quiet", "build", "uv")
    call(tools, "build", "--sdist", "--outdir", folder, ROOT)
    (source,) = folder.glob("*.tar.gz")
    pinned = ["--constraint", ROOT / "constraints.txt"]
    without = {"CAPSELLA_NATIVE": "0", "CXX": "none", "PATH": str(folder / "no compiler here")}
    attempt(tally, folder, "source without a compiler, as in constraints.txt", [source, *pinned], without)
    for release, python in others().items() if tally.has_time else ():
        attempt_other(tally, folder, tools, source, release, python)
    if tally.has_time:
        pins = lowest(tools, folder)
        attempt(tally, folder, "oldest of what is allowed, without kernels", [source, "--constraint", pins], without)
    if tally.has_time:
        attempt(tally, folder, "newest of what is allowed, without kernels", [source, "--upgrade"], without)
    if tally.has_time:
        call(tools, "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
        (wheel,) = folder.glob("*.whl")
        attempt(tally, folder, "wheel with kernels, as in constraints.txt", [wheel, *pinned], {}, "native")


def environment(folder: Path, python: str | Path = sys.executable) -> Path:
    """The Python of a new, empty environment."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def call(python: Path, *words: object, **environment: str) -> str:
    """`python -m WORDS…`; returns what it printed.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    call = [python, "-m", *map(str, words)]
    ended = subprocess.run(call, capture_output=True, text=True, env={**os.environ, **environment})
    if ended.returncode:
        raise RuntimeError(f"{' '.join(map(str, words[:3]))} …: {(ended.stdout + ended.stderr).strip()[-600:]}")
    return ended.stdout


def lowest(tools: Path, folder: Path) -> Path:
    """Pins of the lowest release of each dependency that pyproject.toml allows, PyTorch but for."""
    out = folder / "lowest.txt"
    words = ["--python", sys.executable, "--resolution", "lowest-direct", "--no-annotate", "--output-file", out]
    call(tools, "uv", "pip", "compile", "--quiet", *words, ROOT / "pyproject.toml")
    asked = set(re.findall(r'^    "([\w-]+)>=', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    pins = [line for line in out.read_text().splitlines() if line.partition("==")[0] in asked - {"torch"}]
    out.write_text("\n".join([*pins, TORCH]) + "\n")
    return out


def attempt(tally: Tally, folder: Path, what: str, words: list[object], changed: dict[str, str], *asked: str) -> None:
    """Install, check, run the README's Python and import every part."""
    place = folder / "environment"
    tally.counts["environments"] += 1
    try:
        python = environment(place)
        call(python, "pip", "install", "--quiet", "--no-compile", TORCH, *words, **changed)
        call(python, "pip", "check")
        ended = subprocess.run([python, TRY, *asked], capture_output=True, text=True, cwd=folder)
        if ended.returncode:
            raise RuntimeError((ended.stdout + ended.stderr).strip()[-800:])
        tally.measured[what] = ended.stdout.strip().splitlines()[-1]
    except RuntimeError as error:
        tally.found(f"{what}: {error}")
    shutil.rmtree(place, ignore_errors=True)


def others() -> dict[str, Path]:
    """The other Pythons that are at hand, by release: on the path, or beside this one, as pyenv keeps them."""
    found = {}
    for release in OTHERS:
        for python in (
            shutil.which(f"python{release}"),
            *Path(sys.base_prefix).parent.glob(f"{release}.*/bin/python3"),
        ):
            if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                found[release] = Path(python)
    return found


def attempt_other(tally: Tally, folder: Path, tools: Path, source: Path, release: str, python: Path) -> None:
    """Another Python finds releases of all dependencies, builds the package, and compiles every file of it.

    Nothing is imported: PyTorch for another Python has gigabytes of GPU libraries.
    """
    place, out = folder / "other", folder / f"resolved-{release}.txt"
    tally.counts["other Pythons"] += 1
    try:
        words = ["--python-version", release, "--no-annotate", "--output-file", out]
        call(tools, "uv", "pip", "compile", "--quiet", *words, ROOT / "pyproject.toml")
        mine = environment(place, python)
        call(mine, "pip", "install", "--quiet", "--no-deps", source, CAPSELLA_NATIVE="0")
        (package,) = place.glob("lib/python*/site-packages/capsella")
        call(mine, "compileall", "-q", "-f", package)
        packages = len(re.findall(r"^[\w.-]+==", out.read_text(), re.MULTILINE))
        tally.measured[f"Python {release}"] = f"finds {packages} packages, and compiles every file"
    except RuntimeError as error:
        tally.found(f"Python {release}: {error}")
    shutil.rmtree(place, ignore_errors=True)
