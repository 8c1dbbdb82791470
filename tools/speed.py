"""The committed measurements of speed as one page, docs/reference/speed.md.

`python -m tools.speed` prints the page; `python -m tools.speed add NAME FILE` adds what `make bench` measured.
"""

import json
import sys
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError, pluralize
from tools.results import RESULTS, markdown_row

SPEED = RESULTS / "speed.json"

HEADER = """# Speed

Generated from `results/speed.json` by `make results`; `make bench` measures on your machine (`benchmarks/`).
Medians of interleaved rounds, in milliseconds. *plain*: votes written out, sums by broadcasting, as public
implementations do; *eager*: our PyTorch backend; *fused*: native kernels on a CPU, Triton on a GPU; *bare*: the network
without its capsule layers. Memory: peak of a training step above the loaded process, in MiB. *bars*: the aims that were
set for a case before it was written, and whether it meets them. A commit with a + had changes beside it. A
kernel whose results differ from eager's in float64 by more than float32 allows is not timed.
"""
SUMMARY = """
## Summary

Forward, or forward and backward, at the largest batch measured. *Ours*: the fused kernels. *Plain PyTorch*: all votes
in memory, as public implementations do; it was written here, and no public implementation was timed. Ratios: how many
times as long plain PyTorch takes, and our own PyTorch backend (eager). GFLOP: the arithmetic of the algorithm
(`benchmarks/cases.py`). Share: of the speed that large float32 matrix products have on the same machine. Each row names
its section below, which has the machine, the batches, the memory and the other backends. At a batch of one, gains are
smaller, and sometimes there are none.

"""
WHERE = """
## Where the time goes

A vote of matrix capsules has 16 numbers. Making one number takes 8 operations, an M-step 6, an E-step 4. Three
iterations take 34, if each vote is made once. These operations are products of small matrices and sums over children.
No large matrix product is among them, so the peak cannot be reached.

EM routing of the first capsule convolution, batch 8, all parents compete, one thread, Intel Xeon at 2.8 GHz; shares of
the samples of a profile:

| part | forward, % | backward, % |
|---|---:|---:|
| votes | 38 | 24 |
| sums of the M-step, with a coupling's exponential | 28 | 2 |
| distances of the E-step | 10 | 6 |
| gradients of poses and weights, with the votes' gradients | – | 28 |
| gradients of couplings, means and variances | – | 21 |
| other | 24 | 19 |

- **Votes.** They are made again in each iteration. All votes of one image would take 21 MB. The weights of this layer
  take 0.6 MB, as much as the votes of one window. The two do not fit into a cache of 1.25 MB together.
- **Sums and distances.** Each number of a vote is loaded once from the second cache and then from the first. For each
  load there are two to three operations, and not two for each of 16 numbers as in a large matrix product.
- **Gradients of the weights.** Each window adds to all of them: two loads and a store for eight operations.
- **Convolutions and dense layers** of CapsNet are oneDNN's, but for the 9×9 kernels in a training in float32, which
  `LargeConv2d` takes to spectra. The column *bare* is their time.
- **Efficient-CapsNet** has no kernels of ours. Its time is that of four convolutions and their batch normalisation.

## Votes in bfloat16

`EMRouting(votes="bfloat16")`, or `--votes bfloat16`, rounds poses and weights to bfloat16 before they are multiplied.
Sums and gradients stay float32. The numbers are the same on every backend and machine, up to the order of sums. The
weights take half the memory. On processors with AVX512-BF16, one instruction makes two products and their sums.
There, a training in `bf16-mixed` takes these votes by itself, says so, and keeps it in its configuration. Nothing
else turns them on.

The instruction itself is not measured here. Without it, pairs are taken apart in registers: first capsule
convolution, batch 8, AVX-512, Intel Xeon at 2.8 GHz, one thread, median of 60 interleaved calls, time as a share of
that with float32 votes:

| competition | forward | backward |
|---|---:|---:|
| types | 0.90 | 1.00 |
| all parents | 0.86 | 0.96 |

No loss was seen: small matrix CapsNet, 20,000 digits of MNIST at 20×20, 6 epochs, far from convergence (`capsella
train images-matrix-capsnet --data mnist --size 20 --channels 1 --per-class 2000 --no-flip --shift 1 --epochs 6
--model-kwargs brightness=0.2 contrast=0.2 routing.votes=bfloat16`). Test errors in per cent, 10,000 images; the
difference of the three pairs is −0.04 ± 0.11:

| votes | seeds 0, 1, 2 | mean ± SD |
|---|---|---:|
| float32 | 2.22, 2.57, 2.26 | 2.35 ± 0.19 |
| bfloat16 | 2.30, 2.45, 2.17 | 2.31 ± 0.14 |
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
}
FUSED = ("native", "triton")
COLUMNS = (
    "op / batch / direction",
    *("plain", "eager", "compile", "fused", "bare"),
    *("fused × plain", "× eager", "× compile", "images/s"),
    *("MiB plain", "MiB fused"),
    "bars",
)


def markdown(path: Path = SPEED) -> str:
    """Return one summary, then a section per measurement in results/speed.json.

    Raises:
        CapsellaError: the file is damaged or lacks a field.
    """
    try:
        measurements = json.loads(path.read_text(encoding="utf-8"))
        sections = [_section(name, values) for name, values in measurements.items()]
        cases = [(name, values["peak_flops_per_second"], values["cases"]) for name, values in measurements.items()]
        return HEADER + _summary(cases) + WHERE + "".join(sections)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(f"{path} is no file of measurements: {error!r}") from error


def add(name: str, measured: Path, path: Path = SPEED) -> None:
    """Add what `python -m benchmarks --json` wrote, without what the page does not show."""
    values = json.loads(measured.read_text(encoding="utf-8"))
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    shown = ("case", "op", "batch", "training", "flops", "memory_mib", "bars")
    known[name] = {
        "environment": {key: values["environment"][key] for key in ("threads", "cpu", "gpu", "torch", "commit")},
        "device": values["device"],
        "peak_flops_per_second": values["peak_flops_per_second"],
        "cases": [
            {key: case[key] for key in shown if key in case}
            | {"timings": {backend: {"median": timing["median"]} for backend, timing in case["timings"].items()}}
            for case in values["cases"]
        ],
    }
    text = json.dumps({key: known[key] for key in sorted(known)}, ensure_ascii=False)
    path.write_text(text.replace('{"case": ', '\n  {"case": ') + "\n", encoding="utf-8")


def _summary(measurements: list[tuple[str, float, list[dict[str, Any]]]]) -> str:
    """One row an op and direction: the largest batch that has both a fused and a plain time.

    Where several files have it, it is from the one with the most cases: as many rows as can be are of one machine.
    """
    largest: dict[tuple[str, bool], tuple[str, float, dict[str, Any]]] = {}
    for section, peak, cases in sorted(measurements, key=lambda measurement: -len(measurement[2])):
        for case in cases:
            if not {"plain", _fused(case)} <= set(case["timings"]):
                continue
            key = (case["op"], case["training"])
            if key not in largest or case["batch"] > largest[key][2]["batch"]:
                largest[key] = section, peak, case
    times = "ours, ms", "plain PyTorch, ms", "ratio", "× eager"
    heads = ("what", "direction", "batch", *times, "GFLOP", "share, %", "section")
    order = sorted(largest, key=lambda key: (list(WHAT).index(key[0]) if key[0] in WHAT else len(WHAT), key))
    rows = "".join(_summary_row(*largest[key]) for key in order)
    return SUMMARY + markdown_row(*heads) + f"|---|---|{'---:|' * 7}---|\n" + rows if rows else ""


def _summary_row(section: str, peak: float, case: dict[str, Any]) -> str:
    plain, ours = (case["timings"][name]["median"] for name in ("plain", str(_fused(case))))
    return markdown_row(
        WHAT.get(case["op"], case["op"]),
        "forward, backward" if case["training"] else "forward",
        str(case["batch"]),
        _milliseconds(ours),
        _milliseconds(plain),
        f"{plain / ours:.3g}",
        f"{case['timings']['eager']['median'] / ours:.3g}" if "eager" in case["timings"] else "–",
        f"{case['flops'] / 1e9:.3g}",
        f"{100 * case['flops'] / ours / peak:.0f}",
        f"[{section}](#{section.replace('.', '')})",
    )


def _fused(case: dict[str, Any]) -> str | None:
    """Return the backend of our kernels among those timed, if it is."""
    return next((name for name in FUSED if name in case["timings"]), None)


def _section(name: str, values: dict[str, Any]) -> str:
    environment = values["environment"]
    threads = pluralize(environment["threads"], "thread")
    where = environment["gpu"] if values["device"] != "cpu" else f"{threads}, {environment['cpu']}"
    about = (
        f"{where}; torch {environment['torch']}, commit {environment['commit']}; measured peak of float32 matrix "
        f"products {values['peak_flops_per_second'] / 1e9:.0f} GFLOP/s."
    )
    head = markdown_row(*COLUMNS) + f"|---|{'---:|' * (len(COLUMNS) - 2)}---|\n"
    return f"\n## {name}\n\n{about}\n\n{head}" + "".join(_row(case) for case in values["cases"])


def _row(case: dict[str, Any]) -> str:
    times = {name: timing["median"] for name, timing in case["timings"].items()}
    memory = case["memory_mib"]
    fused = _fused(case)
    ours = None if fused is None else times[fused]
    ratios = [times[name] / ours if ours and name in times else None for name in ("plain", "eager", "compile")]
    return markdown_row(
        case["case"],
        *(_milliseconds(times.get(name)) for name in ("plain", "eager", "compile")),
        _milliseconds(ours),
        _milliseconds(times.get("bare")),
        *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
        "" if ours is None else _few_digits(case["batch"] / ours),
        *("" if name not in memory else f"{memory[name]:.0f}" for name in ("plain", str(fused))),
        "; ".join(_bar(bar) for bars in case.get("bars", {}).values() for bar in bars),
    )


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else _few_digits(1e3 * seconds)


def _few_digits(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def _bar(bar: dict[str, Any]) -> str:
    return f"{bar['value']:.3g} {bar['what']} ({'met' if bar['met'] else 'missed'}: {bar['bar']:.3g})"


def main() -> None:
    """Print the page, or add a file: `add NAME FILE`."""
    if len(sys.argv) == 4 and sys.argv[1] == "add":
        add(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.stdout.write(markdown())


if __name__ == "__main__":
    main()
