"""The scripts of the page: plain ES modules, joined into one script without a build tool."""

import re
from pathlib import Path

from capsella.errors import ArgumentError

PAGE = Path(__file__).parent / "page"  # holds the modules, a style sheet and a template
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:const|function|class|async function)\b)", re.M)


def modules_in_order(entry: str, folder: Path = PAGE) -> list[str]:
    """Return the names of a module and of all that it imports, each after its own imports.

    Raises:
        ArgumentError: modules import each other in a circle.
    """
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ArgumentError("modules", "not import in a circle", " → ".join([*path, name]))
        if name not in order:
            for needed in _IMPORT.findall((folder / name).read_text(encoding="utf-8")):
                visit(needed, (*path, name))
            order.append(name)

    visit(entry, ())
    return order


def joined_modules(entry: str = "main.js", folder: Path = PAGE) -> str:
    """Join a module and all that it imports into one script without import statements.

    Raises:
        ArgumentError: a module imports or exports in a way that cannot be joined, or modules import in a circle.
    """
    parts = []
    for name in modules_in_order(entry, folder):
        text = _EXPORT.sub("", _IMPORT.sub("", (folder / name).read_text(encoding="utf-8")))
        if left := re.search(r"^(?:import|export)\b.*", text, re.M):
            raise ArgumentError(name, 'import as `import { a } from "./b.js";` and export names', left[0])
        parts.append(f"// {name}\n{text.strip()}\n")
    return "\n".join(parts)
