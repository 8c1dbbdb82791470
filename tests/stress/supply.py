"""What the package is built on: licences, known vulnerabilities, hashes and workflows, by tools that others keep."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.stress.install import ROOT, environment
from tests.stress.tally import Tally

PERMISSIVE = (
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|HPND|MPL|Mozilla|Zlib|0BSD|Unlicense|CMU|Historical|LGPL|"
    r"Public Domain"
)
"""Licences under which a package may be used beside one under MIT; the library ones and MPL's bind their own files."""
READ_BY_HAND = {"axe-playwright-python"}
"""Packages whose metadata name no licence, and whose files hold one of these."""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def campaign(tally: Tally, folder: Path) -> None:
    """Each tool once."""
    python = environment(folder / "tools")
    run(python, "-m", "pip", "install", "--quiet", "pip-licenses", "pip-audit", "check-jsonschema")
    licences(tally, folder / "tools" / "bin")
    audit(tally, folder / "tools" / "bin")
    lock(tally)
    said = run(folder / "tools" / "bin" / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    tally.counts["workflows"] += len(WORKFLOWS)
    if said.returncode:
        tally.found(f"workflows: {said.stdout[-500:]}")


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(list(map(str, words)), capture_output=True, text=True)


def licences(tally: Tally, tools: Path) -> None:
    """Every package of this environment has one that allows its use here."""
    said = run(tools / "pip-licenses", "--python", sys.executable, "--format", "json", "--from", "mixed")
    packages = json.loads(said.stdout)
    tally.counts["licences"] += len(packages)
    for package in packages:
        if not re.search(PERMISSIVE, package["License"]) and package["Name"] not in READ_BY_HAND:
            tally.found(f"licence of {package['Name']} {package['Version']}: {package['License']}")


def audit(tally: Tally, tools: Path) -> None:
    """Known vulnerabilities of what constraints.txt pins; the data may be out of reach."""
    words = ["--no-deps", "--disable-pip", "--format", "json"]
    said = run(tools / "pip-audit", "--requirement", ROOT / "constraints.txt", *words)
    try:
        packages = json.loads(said.stdout)["dependencies"]
    except ValueError:
        tally.measured["pip-audit"] = f"its data cannot be reached: {said.stderr.strip().splitlines()[-1][:200]}"
        return
    known = [package for package in packages if "skip_reason" not in package]
    tally.counts["audited"] += len(known)
    if not known:
        tally.measured["pip-audit"] = f"its data cannot be reached: {packages[0]['skip_reason'][:100]}"
    for package in known:
        for one in package["vulns"]:
            tally.found(f"{package['name']} {package['version']}: {one['id']}, mended in {one['fix_versions']}")


def lock(tally: Tally) -> None:
    """constraints-hashes.txt pins what constraints.txt does, each with hashes."""
    pins, locked = (pinned((ROOT / name).read_text()) for name in ("constraints.txt", "constraints-hashes.txt"))
    tally.counts["locked"] += len(locked)
    if pins != locked:
        tally.found(f"constraints-hashes.txt differs from constraints.txt: {sorted(pins ^ locked)}; make lock mends it")


def pinned(text: str) -> set[tuple[str, str]]:
    """Names, as registries write them, and versions."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {(re.sub(r"[-_.]+", "-", name).lower(), number) for name, number in found}
