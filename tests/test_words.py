"""Private terms that must not come back, with the field's term for each. Code and pages are searched."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Term that must not appear, as a regular expression → the term to use.
TERMS = {
    r"\bYardsticks?\b": "TestSetting",
    r"\bEntrants?\b": "BenchmarkRow",
    r"\bLeague\b": "RoutingBenchmark",
    r"\bby night\b": "budget medium",
    r"\beven couplings\b": "uniform couplings",
    r"\bsharp couplings\b": "peaked couplings",
    r"\bfamiliarise": "fit_ood_detector",
    r"--refuse\b": "--ood-false-positive-rate",
    r"\bsit_down\b": "apply",
    r"\bmade_of\b": "build",
    r"\bAgainRow\b": "ReevaluatedRow",
    r"\bStoppedTable\b": "MatchedErrorTable",
    r"\bown_microscope\b": "microscope_keep_prob",
    r"\bfor one in\b": "a loop variable that names what it is",
    r'"""(?:Of|What|Whether|How|As|That|Where) ': "a docstring that starts with a verb or with a noun and its article",
}


def test_private_terms_do_not_come_back() -> None:
    files = [*ROOT.glob("capsella/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}; use {better}"
        for path in files
        if path.name not in ("results.md", "speed.md")  # which take their words from results
        for term, better in TERMS.items()
        for match in re.finditer(term, path.read_text(encoding="utf-8"))
    ]
    assert not found
