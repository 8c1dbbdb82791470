"""The conventions that a program can check: imports, docstrings, sizes, paths. Each test lists every offender."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import capsella

PACKAGE = Path(capsella.__file__).parent
ROOT = PACKAGE.parent
# Each part may import itself and those before it.
PARTS = [
    *("version", "errors", "files", "types", "_native", "routing", "layers", "losses", "models", "data", "training"),
    *("evaluation", "explain", "export", "grid", "papers", "compare", "explorer", "cli"),
]
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 300, 40

SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in SOURCES.items()}


def part_of(module: str) -> str:
    """`capsella.routing.dynamic` → `routing`."""
    return module.split(".")[1]


def imported_parts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and part of every import of this package, wherever it stands."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = [f"capsella.{alias.name}" for alias in node.names] if node.module == "capsella" else [node.module]
        yield from ((node.lineno, part_of(name)) for name in names if name.startswith("capsella."))


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Qualified name and node of every class, function and method that is not local to a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node, prefix + node.name + ".")


def is_kernel(name: str) -> bool:
    return Path(name).stem in {"native", "triton_kernels"}


def test_imports_go_downward() -> None:
    upward = []
    for name, tree in TREES.items():
        part = Path(name).relative_to("capsella").with_suffix("").parts[0]
        if part in ("__init__", "__main__"):
            continue
        assert part in PARTS, f"{part} has no place in the order of parts"
        below = PARTS[: PARTS.index(part) + 1]
        upward += [f"{name}:{line} imports {other}" for line, other in imported_parts(tree) if other not in below]
    assert not upward


def test_imports_are_seen() -> None:
    source = "import capsella.cli\nfrom capsella import data\ndef f():\n    from capsella.layers.primary import x\n"
    assert list(imported_parts(ast.parse(source))) == [(1, "cli"), (2, "data"), (4, "layers")]


def test_public_names_have_docstrings() -> None:
    bare = [
        f"{file}: {name}"
        for file, tree in TREES.items()
        for name, node in definitions(tree)
        if not any(part.startswith("_") for part in name.split(".")) and not ast.get_docstring(node)
    ]
    assert not bare


def test_files_are_short() -> None:
    lengths = {name: len(text.splitlines()) for name, text in SOURCES.items()}
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}


def test_functions_fit_on_a_screen() -> None:
    lengths = {
        f"{file}: {name}": node.end_lineno - node.lineno + 1
        for file, tree in TREES.items()
        for name, node in definitions(tree)
        if not isinstance(node, ast.ClassDef) and not is_kernel(file)
    }
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION}


def test_no_absolute_paths() -> None:
    """A path of one machine means nothing on another."""
    folders = [ROOT / name for name in ("capsella", "csrc", "tests", "docs", "benchmarks", "results", ".ci")]
    texts = {".py", ".md", ".json", ".toml", ".txt", ".cpp", ".h", ".sh"}
    files = [path for folder in folders for path in folder.rglob("*")] + list(ROOT.glob("*"))
    files = [path for path in files if path.is_file() and (path.suffix in texts or path.name in ("Makefile", "run"))]
    assert Path(__file__) in files
    pattern = re.compile(r"(?<![\w.~\-])/(?:home|root|work|tmp|mnt|media|opt|Users|var)/\S*")
    found = {str(path.relative_to(ROOT)): pattern.findall(path.read_text(encoding="utf-8")) for path in files}
    assert not {name: paths for name, paths in found.items() if paths}


def test_the_guards_against_known_mistakes_exist() -> None:
    guards = re.findall(r"`(\S+\.py)::(test_\w+)`", (PACKAGE / "routing" / "README.md").read_text(encoding="utf-8"))
    assert len(guards) >= 10
    missing = [f"{file}::{name}" for file, name in guards if f"def {name}(" not in (ROOT / "tests" / file).read_text()]
    assert not missing
