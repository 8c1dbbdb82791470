import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCKS = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in sorted(DOCS.glob("*.md"))
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S))
]


@pytest.mark.parametrize("code", BLOCKS)
@pytest.mark.usefixtures("as_users_call")
def test_the_code_in_the_docs_runs(code: str) -> None:
    exec(compile(code, "docs", "exec"), {})


def test_links_lead_somewhere() -> None:
    for path in DOCS.glob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"
