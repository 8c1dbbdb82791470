"""What README.md shows works: its Python runs, its commands parse, its links lead somewhere."""

import re
from pathlib import Path

import pytest

import capsella

PACKAGE = Path(capsella.__file__).parent
ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


# In blocks, and in the cells of tables.
COMMANDS = [
    *(line.strip() for block in blocks("sh") for line in block.splitlines() if line.startswith("capsella ")),
    *re.findall(r"\| `(capsella [^`]+)`", README),
]


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_the_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    assert blocks("python")
    for number, block in enumerate(blocks("python"), start=1):
        exec(compile(block, f"README.md, block {number}", "exec"), namespace)
    assert capsys.readouterr().out == "torch.Size([2, 1, 1, 5])\n"
    assert namespace["output"].activations.shape == (2, 5)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line, understood, capsys):
    assert understood(line), capsys.readouterr().err


@pytest.mark.parametrize("line", ["capsella trian demo", "capsella train demo --colour red", "capsella predict run"])
def test_a_wrong_command_is_not(line, understood):
    assert not understood(line)


def test_there_are_commands():
    assert {line.split()[1] for line in COMMANDS} >= {"train", "compare", "predict", "explore", "export", "table"}


def test_its_results_are_those_of_the_files():
    """Every row of the results: its command is that of a committed result, and its errors are that result's."""
    page = (ROOT / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
    table = README.partition("## Results")[2].partition("\n\n**")[0]
    rows = [line for line in table.splitlines() if line.endswith("` |")]
    assert len(rows) >= 6
    for row in rows:
        _, _, ours, _, _, command = (cell.strip() for cell in row.strip("|").split("|"))
        for error in re.sub(r"\(.*\)", "", ours).split(","):
            found = rf"\| {re.escape(error.strip())}( \([\w ]+\))? \|"  # with what the page says of it
            assert re.search(found, page), f"{error} of {command}"


def test_files_that_are_named_exist():
    named = {name for name in re.findall(r"`([\w./-]+\.(?:md|py|toml|txt))`", README) if "/" in name or name.isupper()}
    linked = {link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link}
    pictures = set(re.findall(r'src="([^"]+)"', README))
    assert linked
    assert pictures
    assert sorted(name for name in named | linked | pictures if not (ROOT / name).exists()) == []


def test_folders_of_the_tree_exist():
    tree = README.partition("## The tree")[2].partition("```text\n")[2].partition("```")[0]
    folders = re.findall(r"(?:^|\s{2,})(\w+)/(?= )", tree)
    assert len(folders) >= 18
    missing = [
        name for name in folders if not any((folder / name).is_dir() for folder in (ROOT, PACKAGE, ROOT / "docs"))
    ]
    assert not missing


def test_makefile_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    assert named
    assert named <= targets
