"""The pages: their code runs, their commands parse, their links lead somewhere, and the site has every public name."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

import capsella
from docs.hooks import PAGES, site_links

PACKAGE = Path(capsella.__file__).parent
ROOT = PACKAGE.parent
DOCS = ROOT / "docs"
PAGES_AND_MORE = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", *PAGES.values()]
BLOCKS = [
    pytest.param(code, id=f"{path.relative_to(DOCS)}-{number}")
    for path in sorted(DOCS.rglob("*.md"))
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S))
]
COMMANDS = [
    pytest.param(line.strip(), id=f"{path.relative_to(DOCS)}: {line.strip()}")
    for path in sorted(DOCS.rglob("*.md"))
    for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    for line in block.splitlines()
    if line.startswith("capsella ")
]


@pytest.mark.parametrize("code", BLOCKS)
@pytest.mark.usefixtures("as_users_call")
def test_the_code_in_the_docs_runs(code: str) -> None:
    exec(compile(code, "docs", "exec"), {})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line: str, understood: Callable[[str], bool], capsys: pytest.CaptureFixture) -> None:
    assert understood(line), capsys.readouterr().err


def test_every_folder_has_pages() -> None:
    folders = {path.parent.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert folders == {".", "guide", "papers", "reference", "reference/api"}
    assert {name.partition("/")[0] for name in (param.id for param in BLOCKS)} >= {"guide", "papers"}


@pytest.mark.parametrize("path", PAGES_AND_MORE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


def cut_tables(text: str) -> list[str]:
    """First lines of tables without a head, which are shown as text: what stands above them cuts a table in two."""
    lines = ["", *text.splitlines(), ""]
    return [
        line
        for before, line, after in zip(lines, lines[1:], lines[2:], strict=False)
        if line.startswith("|") and not before.startswith("|") and not re.match(r"\|\s*:?-+:?\s*\|", after)
    ]


@pytest.mark.parametrize("path", PAGES_AND_MORE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tables_are_whole(path: Path) -> None:
    assert not cut_tables(path.read_text(encoding="utf-8"))


def test_cut_tables_are_seen() -> None:
    whole = "text\n\n| a | b |\n|---|---:|\n| 1 | 2 |\n"
    assert not cut_tables(whole)
    assert cut_tables(whole + "A sentence.\n| 3 | 4 |\n") == ["| 3 | 4 |"]


def test_entries_of_the_log() -> None:
    """Each has an ID in order of time, and says first what was asked, found and decided."""
    entries = re.split(r"^## ", (ROOT / "LOG.md").read_text(encoding="utf-8"), flags=re.M)[1:]
    for number, entry in zip(range(len(entries), 0, -1), entries, strict=True):
        head, _, rest = entry.partition("\n\n")
        assert re.fullmatch(rf"L{number:03} · \d{{4}}-\d\d-\d\d · \S.*", head)
        assert [line.partition(":")[0] for line in rest.splitlines()[:3]] == [
            "- **Question**",
            "- **Result**",
            "- **Decision**",
        ]


def test_cited_entries_and_files_of_the_log_exist() -> None:
    log = (ROOT / "LOG.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^## (L\d{3}) ", log, re.M))
    folders = [ROOT / name for name in ("capsella", "csrc", "docs", "benchmarks", "tools")]
    files = [ROOT / "LOG.md", *(path for folder in folders for path in folder.rglob("*"))]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in {".py", ".h", ".cpp", ".md"}]
    cited = {name for text in texts for name in re.findall(r"\bL\d{3}\b", text)}
    assert cited <= entries
    named = set(re.findall(r"`(results/[\w./-]+\.(?:json|csv))`", log))
    assert not [name for name in named if not (ROOT / name).is_file()]
    unnamed = [path.name for path in (ROOT / "results" / "log").iterdir() if path.stem[:4] not in entries]
    assert not unnamed


def test_every_command_is_on_its_page() -> None:
    from capsella.cli.main import VERBS

    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `capsella ([a-z-]+)", page, re.M)) == set(VERBS)


@pytest.mark.parametrize(
    ("link", "name", "expected"),
    [
        ("[a](export.md#b)", "guide/a.md", "[a](export.md#b)"),
        ("![a](../../results/figures/a.png)", "papers/a.md", "![a](../results/figures/a.png)"),
        ('<img src="../../results/figures/a.png">', "papers/a.md", '<img src="../results/figures/a.png">'),
        ("[log](../../LOG.md)", "guide/a.md", "[log](../log.md)"),
        ("[a](../../examples/onnx_inference.py)", "guide/a.md", "[a](../examples/onnx_inference.py)"),
        ("[`a`](../../capsella/routing/dynamic)", "guide/a.md", "`a`"),
        ("[a](https://example.org/a.md)", "guide/a.md", "[a](https://example.org/a.md)"),
    ],
)
def test_links_in_the_site(link: str, name: str, expected: str) -> None:
    assert site_links(f"x {link} y", DOCS / name, name) == f"x {expected} y"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly; proxies that nobody answers stand for having no network."""
    folder = tmp_path_factory.mktemp("site")
    nobody = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | nobody, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


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


def test_the_site_needs_no_other_machine(site: Path) -> None:
    pattern = re.compile(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="?(?:https?:)?//[^">]*')
    loaded = {found for path in site.rglob("*.html") for found in pattern.findall(path.read_text(encoding="utf-8"))}
    assert not loaded
    assert (site / "search" / "search_index.js").is_file()


def test_pictures_are_in_the_site(site: Path) -> None:
    missing = [
        f"{page.relative_to(site)}: {source}"
        for page in site.rglob("*.html")
        for source in re.findall(r'<img[^>]*src="([^"]+)"', page.read_text(encoding="utf-8"))
        if not source.startswith("data:") and not (page.parent / source).is_file()
    ]
    assert not missing
    assert list((site / "results" / "figures").glob("*.png"))
