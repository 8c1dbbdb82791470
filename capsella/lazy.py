"""Packages whose names are imported on first use, so that options and `--help` do not wait for PyTorch."""

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_imports(package: str, file: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package: it imports a name when it is first asked for.

    The names are those that `__init__.py` imports under `if TYPE_CHECKING:`, where type checkers and readers see them.
    No name may equal that of a submodule, which would hide it once imported.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes()[name]
        return getattr(import_module(module), original)

    return get
