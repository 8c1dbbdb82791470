"""What MkDocs does with a link that leads out of docs/, as it does on a page of the repository.

The pages link to files as they lie in the repository, so that they can be read there, too. In the site a picture or an
example is copied, some pages of other folders become pages of the site, and of a link to any other file, or to a
folder, the text stays.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# Pages that lie elsewhere in the repository, and their names in the site.
PAGES = {
    "changelog.md": ROOT / "CHANGELOG.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "security.md": ROOT / "SECURITY.md",
    "symbols.md": ROOT / "capsella" / "routing" / "README.md",
}
COPIED = {".png", ".py"}
LINK = re.compile(r'(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<link>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)|src="(?P<src>[^"]+)"')


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of PAGES and every file that a page links to and the site copies."""
    for name, path in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    pages = [*PAGES.values(), *DOCS.rglob("*.md")]
    for target in sorted({target for path in pages for target in _targets(path)}):
        if target.suffix in COPIED and DOCS not in target.parents:
            files.append(File.generated(config, target.relative_to(ROOT).as_posix(), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site needs them."""
    return site_links(markdown, PAGES.get(page.file.src_uri, DOCS / page.file.src_uri), page.file.src_uri)


def site_links(markdown: str, path: Path, name: str) -> str:
    """Return the text of the page at `path`, which the site has as `name`, with links that work in the site."""

    def replaced(found: re.Match[str]) -> str:
        link = found["link"] or found["src"]
        if ":" in link:
            return found[0]
        uri = _uri((path.parent / link).resolve())
        if uri is None:
            return found["text"]
        if found["src"]:
            # HTML is not MkDocs's to mend: without directory URLs a page lies where its source does.
            return f'src="{relpath(uri, Path(name).parent.as_posix())}"'
        where = relpath(uri, Path(name).parent.as_posix())
        return f"{found['image']}[{found['text']}]({where}{found['anchor'] or ''})"

    return LINK.sub(replaced, markdown)


def _uri(target: Path) -> str | None:
    """Where the site has a file of the repository, if it does."""
    for name, path in PAGES.items():
        if target == path:
            return name
    if target.is_dir():
        return None
    if DOCS in target.parents:
        return target.relative_to(DOCS).as_posix()
    return target.relative_to(ROOT).as_posix() if target.suffix in COPIED else None


def _targets(path: Path) -> Iterator[Path]:
    """Return the files of the repository to which the page at `path` links."""
    for found in LINK.finditer(path.read_text(encoding="utf-8")):
        link = found["link"] or found["src"]
        if ":" not in link and (target := (path.parent / link).resolve()).is_file():
            yield target
