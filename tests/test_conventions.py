"""Conventions that a program can check: imports, docstrings, paths. Each test lists every offender."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import capsella

PACKAGE = Path(capsella.__file__).parent
ROOT = PACKAGE.parent
# Each part may import itself and those before it.
PARTS = [
    *("version", "errors", "lazy", "files", "image_options", "types", "seeds", "progress", "plugins", "environment"),
    *("_native", "ray_cluster"),
    *("routing", "layers", "losses"),
    *("uncertainty", "models", "data", "uncertainty.fit", "training", "evaluation"),
    *("uncertainty.selective", "uncertainty.ood_evaluation", "report", "export", "bench"),
    *("experiments", "papers", "experiments.compare", "experiments.reproduce", "web", "cli"),
]

SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in SOURCES.items()}


def part_of(module: str) -> str:
    """`capsella.routing.dynamic` → `routing`. A package or module inside a part may have a place of its own."""
    part, *inner = module.split(".")[1:]
    return f"{part}.{inner[0]}" if inner and f"{part}.{inner[0]}" in PARTS else part


def imports(tree: ast.AST, for_types: bool = True) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything of this package that is imported, wherever it stands.

    for_types: also what type checkers alone import.
    """
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    unseen = set() if for_types else {inner for node in typing for inner in ast.walk(node)}
    for node in ast.walk(tree):
        names: list[str] = []
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name) for name in names if name.startswith("capsella."))


def module_of(file: str) -> str:
    """`capsella/data/__init__.py` → `capsella.data`."""
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    """The modules that each module imports when it is run; a name out of a module counts as the module."""
    modules = {module_of(file) for file in trees}
    found = {
        module_of(file): {name if name in modules else name.rpartition(".")[0] for _, name in imports(tree, False)}
        for file, tree in trees.items()
    }
    return {module: (names & modules) - {module} for module, names in found.items()}


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Qualified name and node of every class, function and method that is not local to a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node, prefix + node.name + ".")


def test_imports_go_downward() -> None:
    upward = []
    for file, tree in TREES.items():
        if file in ("capsella/__init__.py", "capsella/__main__.py"):
            continue
        part = part_of(module_of(file))
        assert part in PARTS, f"{part} has no place in the order of parts"
        below, own = PARTS[: PARTS.index(part) + 1], f"{module_of(file)}."  # a package names its modules
        names = [(line, name) for line, name in imports(tree) if not name.startswith(own)]
        upward += [f"{file}:{line} imports {name}" for line, name in names if part_of(name) not in below]
    assert not upward


def test_no_import_goes_in_a_circle() -> None:
    try:
        TopologicalSorter(imported_modules(TREES)).prepare()
    except CycleError as error:
        pytest.fail(f"each of these imports the one before it: {error.args[1]}")


def test_public_names_have_docstrings() -> None:
    bare = [
        f"{file}: {name}"
        for file, tree in TREES.items()
        for name, node in definitions(tree)
        if not any(part.startswith("_") for part in name.split(".")) and not ast.get_docstring(node)
    ]
    assert not bare


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


# Options that the command line reads. What they do with PyTorch, networks or images is imported inside functions.
WITHOUT_TORCH = [
    *("capsella.ray_cluster", "capsella.data.options", "capsella.losses.options"),
    "capsella.training.config",
]


def test_options_are_read_without_pytorch() -> None:
    """`capsella COMMAND --help` must answer at once, and PyTorch takes seconds to import."""
    program = "import sys, importlib\nfor name in sys.argv[1:]:\n  importlib.import_module(name)\n"
    program += "  print(name) if 'torch' in sys.modules else None"
    done = subprocess.run([sys.executable, "-c", program, *WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert not done.stdout.splitlines()[:1]  # the first that imports it
