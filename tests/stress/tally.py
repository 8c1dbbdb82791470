"""What a part of the campaign counts, and what it finds."""

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """counts: how often each kind of attempt was made. findings: what went wrong, with what it takes to see it again.
    measured: numbers worth a line in the report."""

    seed: int
    seconds: float
    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    measured: dict[str, float | str] = field(default_factory=dict)

    @property
    def has_time(self) -> bool:
        return time.monotonic() - self.began < self.seconds

    def found(self, what: str) -> None:
        print(f"  FOUND {what}", flush=True)
        self.findings.append(without_folders(what))

    def to_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.began, 1),
            "counts": dict(sorted(self.counts.items())),
            "measured": self.measured,
            "findings": self.findings,
        }


def without_folders(text: str) -> str:
    """A path of this machine means nothing on another: …/report.html in place of its absolute path."""
    return re.sub(r"(?<![\w.~\-:/])(-I|)(?:/[\w.+\-]+)+/", r"\1…/", text)


def added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The reports of two runs of a part as one: counts and seconds are sums; what both measured is the later's."""
    counts = Counter(before["counts"]) + Counter(now["counts"])
    return {
        "seed": f"{before['seed']}, {now['seed']}",
        "seconds": round(before["seconds"] + now["seconds"], 1),
        "counts": dict(sorted(counts.items())),
        "measured": before["measured"] | now["measured"],
        "findings": before["findings"] + now["findings"],
    }
