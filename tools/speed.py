"""The committed measurements of speed as one page, docs/reference/speed.md.

`python -m tools.speed` prints the page; `python -m tools.speed add NAME FILE` adds what `make bench` measured.
"""

import json
import sys
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError
from tools.results import RESULTS, markdown_row

SPEED = RESULTS / "speed.json"

HEADER = """# Speed

Generated from `results/speed.json` by `make results`; `make bench` measures on your machine. Medians of interleaved
calls. *Ours*: the fused kernels. *Plain PyTorch*: all votes in memory, as in public implementations; it was written
here, and no public implementation was timed. *Eager*: our own PyTorch backend. Memory is the peak of a training step
above the loaded process. Machines, other batch sizes and backends are in the JSON. At a batch size of one, gains are
smaller.

| what | direction | batch | ours, ms | plain PyTorch, ms | × as long | eager, × as long | MiB, ours | MiB, plain |
|---|---|---:|---:|---:|---:|---:|---:|---:|
"""
WHERE = """
## Where the time goes

A vote of matrix capsules has 16 numbers. Making one takes 8 operations, an M-step 6, an E-step 4: small products and
sums, not large matrix products, so peak speed cannot be reached. Shares of a profile of EM routing (first capsule
convolution, batch size 8, all parents compete, one thread):

| part | forward, % | backward, % |
|---|---:|---:|
| votes, made again in every iteration | 38 | 24 |
| sums of the M-step | 28 | 2 |
| distances of the E-step | 10 | 6 |
| gradients of poses and weights | – | 28 |
| gradients of couplings, means and variances | – | 21 |
| other | 24 | 19 |

Convolutions of CapsNet are oneDNN's, except for 9×9 kernels in float32 training, which are computed by spectra of
tiles. Efficient-CapsNet is trained by Winograd kernels for 3×3 convolutions; otherwise its time is that of four
convolutions of oneDNN.

## Votes in bfloat16

`EMRouting(votes="bfloat16")` rounds poses and weights before they are multiplied; sums and gradients stay float32. A
training in `bf16-mixed` does so on processors with AVX512-BF16. Elsewhere a forward pass takes 0.86 to 0.90 of the
time, a backward pass 0.96 to 1.00. No loss was seen on digits: 2.35 ± 0.19 % with float32 and 2.31 ± 0.14 % with
bfloat16 votes (three seeds).
"""
# What is measured, for readers who do not know the benchmarks' names.
WHAT = {
    "em-conv1-all": "EM routing, first capsule convolution, all parents compete",
    "em-conv1-types": "EM routing, first capsule convolution, types compete",
    "em-conv2-all": "EM routing, second capsule convolution, all parents compete",
    "em-conv2-types": "EM routing, second capsule convolution, types compete",
    "em-classes": "EM routing, class capsules",
    "variational-conv1": "variational Bayes routing, first capsule convolution",
    "heinsen-conv1": "Heinsen routing, first capsule convolution",
    "dynamic-dense": "dynamic routing, CapsNet's digit capsules",
    "dynamic-tied": "dynamic routing, CAPSNET 1's class capsules (tied weights)",
    "dynamic-conv": "dynamic routing, CAPSNET 2's capsule convolution",
    "capsnet": "CapsNet, whole network",
    "matrix-capsnet": "matrix CapsNet, whole network",
    "matrix-capsnet-small": "small matrix CapsNet, whole network",
    "inverted-attention-conv1": "inverted attention, capsule convolution",
    "self-attention-conv1": "self-attention, capsule convolution",
    "self-conv1": "self-routing, capsule convolution",
}
FUSED = ("native", "triton")


def markdown(path: Path = SPEED) -> str:
    """Return the page of results/speed.json.

    Raises:
        CapsellaError: the file is damaged or lacks a field.
    """
    try:
        measurements = json.loads(path.read_text(encoding="utf-8"))
        return HEADER + _summary([values["cases"] for values in measurements.values()]) + WHERE
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(f"{path} is no file of measurements: {error!r}") from error


def add(name: str, measured: Path, path: Path = SPEED) -> None:
    """Add what `python -m benchmarks --json` wrote, without what the page does not show."""
    values = json.loads(measured.read_text(encoding="utf-8"))
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    shown = ("case", "op", "batch", "training", "memory_mib")
    known[name] = {
        "environment": {key: values["environment"][key] for key in ("threads", "cpu", "gpu", "torch", "commit")},
        "device": values["device"],
        "cases": [
            {key: case[key] for key in shown if key in case}
            | {"timings": {backend: {"median": timing["median"]} for backend, timing in case["timings"].items()}}
            for case in values["cases"]
        ],
    }
    text = json.dumps({key: known[key] for key in sorted(known)}, ensure_ascii=False)
    path.write_text(text.replace('{"case": ', '\n  {"case": ') + "\n", encoding="utf-8")


def _summary(measurements: list[list[dict[str, Any]]]) -> str:
    """Return one row per operator and direction: the largest batch that has both a fused and a plain time.

    Where several measurements have it, it is from the one with the most cases, so that most rows are of one machine.
    """
    largest: dict[tuple[str, bool], dict[str, Any]] = {}
    for cases in sorted(measurements, key=lambda cases: -len(cases)):
        for case in cases:
            if not {"plain", _fused(case)} <= set(case["timings"]):
                continue
            key = (case["op"], case["training"])
            if key not in largest or case["batch"] > largest[key]["batch"]:
                largest[key] = case
    order = sorted(largest, key=lambda key: (list(WHAT).index(key[0]) if key[0] in WHAT else len(WHAT), key))
    return "".join(_summary_row(largest[key]) for key in order)


def _summary_row(case: dict[str, Any]) -> str:
    fused = str(_fused(case))
    plain, ours = (case["timings"][name]["median"] for name in ("plain", fused))
    return markdown_row(
        WHAT.get(case["op"], case["op"]),
        "forward, backward" if case["training"] else "forward",
        str(case["batch"]),
        _milliseconds(ours),
        _milliseconds(plain),
        f"{plain / ours:.3g}",
        f"{case['timings']['eager']['median'] / ours:.3g}" if "eager" in case["timings"] else "–",
        *(f"{case['memory_mib'][name]:,.0f}" if name in case["memory_mib"] else "–" for name in (fused, "plain")),
    )


def _fused(case: dict[str, Any]) -> str | None:
    """Return the backend of our kernels among those timed, if it is."""
    return next((name for name in FUSED if name in case["timings"]), None)


def _milliseconds(seconds: float) -> str:
    number = 1e3 * seconds
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def main() -> None:
    """Print the page, or add a file: `add NAME FILE`."""
    if len(sys.argv) == 4 and sys.argv[1] == "add":
        add(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.stdout.write(markdown())


if __name__ == "__main__":
    main()
