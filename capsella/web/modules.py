"""The scripts of the page: plain ES modules, joined into one script without a build tool."""

import re
from pathlib import Path

PAGE = Path(__file__).parent / "page"  # holds the modules, a style sheet and a template
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:const|function|class|async function)\b)", re.M)


def joined_modules(entry: str = "main.js", folder: Path = PAGE) -> str:
    """Join a module and all that it imports, each after its own imports, into one script without import statements.

    Modules write `import { a } from "./b.js";`, export names, and do not import each other in a circle.
    """
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        for needed in _IMPORT.findall(text):
            if needed not in parts:
                add(needed)
        parts[name] = f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', text)).strip()}\n"

    add(entry)
    return "\n".join(parts.values())
