"""The page as one HTML file: its modules, its style, and what it shows, all inside."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from capsella.report.figures import printable

PAGE = Path(__file__).parent / "page"
"""The sources of the page: plain ES modules, a style sheet and a template. Nothing is built."""
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:const|function|class|async function)\b)", re.M)


def modules_in_order(entry: str, folder: Path = PAGE) -> list[str]:
    """The names of a module and of all that it imports, each after those that it needs itself.

    Raises:
        ValueError: modules import each other in a circle.
    """
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"page: modules must not import in a circle, got {' → '.join([*path, name])}")
        if name not in order:
            for needed in _IMPORT.findall((folder / name).read_text(encoding="utf-8")):
                visit(needed, (*path, name))
            order.append(name)

    visit(entry, ())
    return order


def joined_modules(entry: str = "main.js", folder: Path = PAGE) -> str:
    """A module and all that it imports as one script: imports are left out, and every name is there once.

    Raises:
        ValueError: a module imports or exports in a way that cannot be joined, or modules import in a circle.
    """
    parts = []
    for name in modules_in_order(entry, folder):
        text = _EXPORT.sub("", _IMPORT.sub("", (folder / name).read_text(encoding="utf-8")))
        if left := re.search(r"^(?:import|export)\b.*", text, re.M):
            raise ValueError(f'{name}: must import as `import {{ a }} from "./b.js";` and export names, got {left[0]}')
        parts.append(f"// {name}\n{text.strip()}\n")
    return "\n".join(parts)


def page_html(title: str, facts: Mapping[str, Any], data: str) -> str:
    """The file: `facts` become JSON, `data` is base64. Where `facts` have a "server", the page may
    ask it; where they have an "engine", it may run WebAssembly in a thread of its own.

    Raises:
        ValueError: a fact that is not finite, which JSON has no word for.
    """
    environment = Environment(
        loader=PackageLoader("capsella.share", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    json_text = json.dumps(facts, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template("page.html.jinja").render(
        title=printable(title),
        style=(PAGE / "style.css").read_text(encoding="utf-8"),
        script=joined_modules(),
        facts=printable(json_text),
        server="server" in facts,
        engine=facts.get("engine", False),
        data=data,
    )
