"""The pages: their code runs, their commands parse, their links lead somewhere, and the site has every public name."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import capsella
from docs.hooks import PAGES
from tests.trained import CLASSES, draw

PACKAGE = Path(capsella.__file__).parent
ROOT = PACKAGE.parent
DOCS = ROOT / "docs"
PAGES_AND_MORE = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", *PAGES.values()]
BLOCKS = [
    pytest.param(code, id=f"{path.relative_to(DOCS)}-{number}")
    for path in sorted(DOCS.rglob("*.md"))
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S))
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shell_commands(text: str) -> list[str]:
    """Every line of a page's shell blocks that calls capsella."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line.strip() for block in blocks for line in block.splitlines() if line.startswith("capsella ")]


@pytest.mark.parametrize("code", BLOCKS)
@pytest.mark.usefixtures("as_users_call")
def test_the_code_in_the_docs_runs(code: str) -> None:
    exec(compile(code, "docs", "exec"), {})


def test_the_code_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S):
        exec(compile(block, "README.md", "exec"), namespace)
    (shown,) = re.findall(r"^```text\n(.*?)^```", README, re.M | re.S)
    assert capsys.readouterr().out == shown


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Its shell lines are run without Jupyter; tiny images and one training per network stand for its half hour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = json.loads((DOCS / "tutorials" / "capsules-or-a-cnn.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    random = np.random.default_rng(0)
    for kind in CLASSES:
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number in range(30):
            draw(kind, random).save(tmp_path / "images" / kind / f"{number}.png")
    settings: dict[str, Any] = {"images": "images", "minutes": 1}
    assert {name for name in settings if f"{name} = " in cells[0]} == set(settings)
    for cell in cells[1:]:
        if cell.startswith("!"):
            fewer = " --folds 1 --seeds 1 --no-curve" if " compare " in cell else ""
            subprocess.run(cell[1:].format(**settings) + fewer, shell=True, check=True)
        else:
            exec(compile(cell, "notebook", "exec"), settings)
    assert "recommended: " in capsys.readouterr().out
    assert (tmp_path / "exported" / "predict.py").exists()


def test_the_readme_is_short_and_the_citation_is_of_this_version() -> None:
    assert len(re.sub(r"^```.*?^```", "", README, flags=re.M | re.S).split()) <= 700
    version = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {capsella.__version__}\n" in version


def test_pages_are_short() -> None:
    """At most 150 lines; the generated page of results grows."""
    lines = {page.relative_to(DOCS).as_posix(): len(page.read_text().splitlines()) for page in DOCS.rglob("*.md")}
    long = [name for name, number in lines.items() if number > 150]
    assert set(long) <= {"reference/results.md"}


def test_what_the_dockerfile_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed


def test_commands_of_the_pages_are_understood(understood: Callable[[str], bool]) -> None:
    commands = {line for page in [*DOCS.rglob("*.md"), ROOT / "README.md"] for line in shell_commands(page.read_text())}
    if importlib.util.find_spec("ray") is None:  # an extra that the fast suite does not install
        commands = {line for line in commands if "--on " not in line}
    assert len(commands) > 100
    assert [line for line in sorted(commands) if not understood(line)] == []
    wrong = ["capsella trian demo", "capsella train demo --colour red", "capsella predict run"]
    assert [line for line in wrong if understood(line)] == []


def test_links_lead_somewhere() -> None:
    missing = []
    for page in PAGES_AND_MORE:
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
        missing += [f"{page.relative_to(ROOT)}: {link}" for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_command_is_on_its_page() -> None:
    from capsella.cli.main import COMMANDS

    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `capsella ([a-z-]+)", page, re.M)) == set(COMMANDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly; proxies that nobody answers stand for having no network."""
    folder = tmp_path_factory.mktemp("site")
    nobody = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | nobody, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_anchors_lead_somewhere(site: Path) -> None:
    """Of the pages; those of the API are made by a tool."""
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in pages.items()}
    links = [
        (page.relative_to(site).as_posix(), link, anchor)
        for page, text in pages.items()
        if "api" not in page.parts
        for link, anchor in re.findall(r'href="([^"#:]*)#([^"]+)"', text)
    ]
    assert len(links) > 500
    targets = [(site / page).parent / link if link else site / page for page, link, _ in links]
    missing = [
        link
        for link, target in zip(links, targets, strict=True)
        if unquote(link[2]) not in anchors.get(target.resolve(), {})
    ]
    assert not missing


def public_names() -> list[tuple[str, str]]:
    """Package and name of all that a package's `__init__.py` imports."""
    found = []
    for path in sorted(PACKAGE.glob("*/__init__.py")):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("capsella."):
                names = [alias.asname or alias.name for alias in node.names]
                found += [(package, name) for name in names if not name.startswith("_")]
    return found


@pytest.mark.slow
def test_the_site_has_every_public_name(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.glob("reference/api/*.html")]
    anchors = {anchor for page in pages for anchor in re.findall(r'id="(capsella[\w.]*)"', page)}
    missing = []
    for package, name in public_names():
        thing = getattr(importlib.import_module(package), name)
        if isinstance(thing, ModuleType):  # imported for what it registers
            continue
        # A function that has its module's name stands under the module.
        if not {f"{package}.{name}", f"{getattr(thing, '__module__', package)}.{name}"} & anchors:
            missing.append(f"{package}.{name}")
    assert not missing


@pytest.mark.slow
def test_the_site_needs_no_other_machine(site: Path) -> None:
    pattern = re.compile(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="?(?:https?:)?//[^">]*')
    loaded = {found for path in site.rglob("*.html") for found in pattern.findall(path.read_text(encoding="utf-8"))}
    assert not loaded
    assert (site / "search" / "search_index.js").is_file()
