"""Results as a table for the eye and as JSON for the record."""

import math
from collections.abc import Sequence
from typing import Any

import threadpoolctl
from rich.console import Console
from rich.table import Table

from benchmarks.parity import Parity
from benchmarks.runner import Options, Result
from capsella.environment import environment

COLUMNS = ("median ms", "min–max", "images/s", "× plain", "× eager", "× compile", "MiB", "GFLOP/s", "× floor")
WORST = 3  # differing tensors that a refusal names


def print_parity(result: Result, console: Console) -> None:
    """One line for every contender that claims a speed-up."""
    for name, rows in result.parity.items():
        worst = max(rows, key=lambda row: _order(row.error))
        if name not in result.refused:
            console.print(
                f"{result.case.name}: {name} [green]agrees[/], at most {worst.error:.1e} off ({worst.tensor})"
            )
            continue
        red = sorted(result.refused[name], key=lambda row: -_order(row.error))
        console.print(
            f"{result.case.name}: {name} [bold red]refused[/], {len(red)} of {len(rows)} tensors are wrong:",
            soft_wrap=True,
        )
        for row in red[:WORST]:
            console.print(
                f"  {row.layer}: {row.tensor} is {row.error:.1e} off, eager float32 {row.eager_error:.1e}",
                markup=False,
                soft_wrap=True,
            )
    for name, why in result.unavailable.items():
        console.print(f"{result.case.name}: {name} not available: {why}", markup=False, soft_wrap=True)


def print_measured(result: Result, peak: float, console: Console) -> None:
    """A table of the contenders of a case, and the bars of those that claim a speed-up.

    × plain, eager, compile: times as fast. × floor: times as long as the machine's measured peak, in operations a
    second, would need for the operations of the algorithm.
    """
    rows = Table("", *COLUMNS, title=result.case.name, title_justify="left")
    for column in rows.columns:
        column.no_wrap, column.justify = True, "right"
    for name, timing in result.timings.items():
        ratios = [result.ratio(name, other) for other in ("plain", "eager", "compile")]
        mib, speed = result.memory_mib.get(name), result.flops / timing.median
        whole = name != "bare"  # which leaves out some of the counted operations
        rows.add_row(
            name,
            f"{1e3 * timing.median:.2f}",
            f"{1e3 * timing.shortest:.2f}–{1e3 * timing.longest:.2f}",
            f"{result.case.batch / timing.median:.1f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            "" if mib is None else f"{mib:.0f}",
            f"{speed / 1e9:.1f}" if whole else "",
            f"{peak / speed:.1f}" if whole else "",
        )
    console.print(rows)
    for name in result.parity:
        for row in result.verdicts(name):
            verdict = "[green]met[/]" if row.met else "[red]missed[/]"
            console.print(f"  {name}: {row.value:.3g} {row.what}, bar {row.bar:.3g}: {verdict}", soft_wrap=True)
    for name, images in result.largest_batch.items():
        console.print(f"  {name}: a batch of {images} images fits")


def print_summary(results: Sequence[Result], peak: float, console: Console) -> None:
    """One row a case: times in milliseconds, the ratio to plain PyTorch, and the share of the machine's peak."""
    table = Table(title="summary, ms", title_justify="left")
    table.add_column("")
    for heading in ("ours", "plain", "compile", "bare", "× plain", "% of peak"):
        table.add_column(heading, justify="right")
    for result in results:
        ours = next((name for name in result.parity if name in result.timings), None)
        times = [result.timings.get(name) for name in (ours or "", "plain", "compile", "bare")]
        ratio = None if ours is None else result.ratio(ours, "plain")
        table.add_row(
            result.case.name,
            *("" if timing is None else f"{1e3 * timing.median:.3g}" for timing in times),
            "" if ratio is None else f"{ratio:.1f}",
            "" if ours is None else f"{100 * result.flops / result.timings[ours].median / peak:.0f}",
        )
    console.print(table)


def document(results: Sequence[Result], peak: float, options: Options) -> dict[str, Any]:
    """All of it, JSON-ready, with what it was measured on. Times are seconds."""
    runtimes = {info["filepath"].rpartition("/")[2] for info in threadpoolctl.threadpool_info()}
    return {
        "environment": environment(),
        "thread_pools": sorted(runtimes),
        "device": str(options.device),
        "repeats": options.repeats,
        "peak_flops_per_second": peak,
        "cases": [_entry(result) for result in results],
    }


def _entry(result: Result) -> dict[str, Any]:
    return {
        "case": result.case.name,
        "op": result.case.op.name,
        "batch": result.case.batch,
        "training": result.case.training,
        "flops": result.flops,
        "refused": sorted(result.refused),
        "unavailable": result.unavailable,
        "timings": {name: timing._asdict() for name, timing in result.timings.items()},
        "memory_mib": result.memory_mib,
        "largest_batch": result.largest_batch,
        "bars": {
            name: [{**row._asdict(), "met": row.met} for row in result.verdicts(name)]
            for name in result.parity
            if name in result.timings
        },
        "parity": {name: [_parity_row(row) for row in rows] for name, rows in result.parity.items()},
    }


def _parity_row(row: Parity) -> dict[str, Any]:
    """JSON has no word for not-a-number: null."""
    errors = {key: getattr(row, key) for key in ("error", "eager_error")}
    finite = {key: value if math.isfinite(value) else None for key, value in errors.items()}
    return {"layer": row.layer, "tensor": row.tensor, **finite, "agrees": row.agrees}


def _order(error: float) -> float:
    """Not-a-number counts as the largest error."""
    return math.inf if math.isnan(error) else error
