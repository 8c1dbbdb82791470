"""`python -m tests.stress [PART…]`: try to break the package; see docs/reference/reliability.md."""

import argparse
import importlib
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import torch

from tests.stress.ground import Tally

# Part → its share of the time.
PARTS = {"files": 3, "kills": 5}


def main() -> int:
    """Run some parts, and say what was found; exit 1 where anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all, {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("STRESS_MINUTES") or 10))
    parser.add_argument("--seed", type=int, default=None, help="of the draws; default: a new one, which is printed")
    parser.add_argument("--json", type=Path, help="write the counts and findings to this file")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"unknown part {unknown.pop()!r}; known: {', '.join(PARTS)}")
    parts = given.parts or list(PARTS)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ends a part early, with what it counted
    report = {}
    for part in parts:
        seconds = 60 * given.minutes * PARTS[part] / sum(PARTS[one] for one in parts)
        print(f"{part}: about {seconds / 60:.1f} minutes, --seed {seed}", flush=True)
        tally = Tally(seed, seconds)
        with tempfile.TemporaryDirectory(prefix="stress-") as folder:
            try:
                importlib.import_module(f"tests.stress.{part}").campaign(tally, Path(folder))
            except KeyboardInterrupt:
                tally.measured["stopped"] = "before its time was up"
        report[part] = tally.to_dict()
        print(f"  {json.dumps(report[part]['counts'])} {json.dumps(report[part]['measured'])}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    found = sum(len(part["findings"]) for part in report.values())
    print(f"{found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
