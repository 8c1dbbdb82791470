"""Results as tables and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

import threadpoolctl
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Parity, Result
from capsella.environment import environment

COLUMNS = ("median ms", "min–max", "images/s", "× plain", "× eager", "MiB")
WORST = 3  # tensors to name for a contender that is wrong


def print_parity(result: Result, console: Console) -> None:
    """Print a line for every fused contender, and the tensors that differ most."""
    for name, rows in result.parity.items():
        wrong = sorted(result.wrong.get(name, []), key=lambda row: -_order(row.error))
        worst = max(rows, key=lambda row: _order(row.error))
        text = f"{result.case.name}: {name} "
        text += f"[bold red]is wrong[/] in {len(wrong)} of {len(rows)} tensors:" if wrong else "[green]agrees[/]"
        console.print(text + ("" if wrong else f", at most {worst.error:.1e} off ({worst.tensor})"), soft_wrap=True)
        for row in wrong[:WORST]:
            line = f"  {row.tensor} is {row.error:.1e} off, eager float32 {row.eager_error:.1e}"
            console.print(line, markup=False, soft_wrap=True)
    for name, why in result.unavailable.items():
        console.print(f"{result.case.name}: {name} not available: {why}", markup=False, soft_wrap=True)


def print_measured(result: Result, console: Console) -> None:
    """Print a table of the contenders of a case. × plain, × eager: times as fast."""
    table = Table("", *COLUMNS, title=result.case.name, title_justify="left")
    for column in table.columns:
        column.no_wrap, column.justify = True, "right"
    for name, timing in result.timings.items():
        ratios = [result.ratio(name, other) for other in ("plain", "eager")]
        mib = result.memory_mib.get(name)
        table.add_row(
            name,
            f"{1e3 * timing.median:.2f}",
            f"{1e3 * timing.shortest:.2f}–{1e3 * timing.longest:.2f}",
            f"{result.case.batch / timing.median:.1f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            "" if mib is None else f"{mib:.0f}",
        )
    console.print(table)


def document(results: Sequence[Result], device: torch.device, repeats: int) -> dict[str, Any]:
    """Return all of it with the environment, ready for JSON. Times are in seconds."""
    runtimes = {info["filepath"].rpartition("/")[2] for info in threadpoolctl.threadpool_info()}
    return {
        "environment": environment(),
        "thread_pools": sorted(runtimes),
        "device": str(device),
        "repeats": repeats,
        "cases": [_entry(result) for result in results],
    }


def _entry(result: Result) -> dict[str, Any]:
    case = result.case
    return {
        "case": case.name,
        "op": case.op.name,
        "batch": case.batch,
        "training": case.training,
        "wrong": sorted(result.wrong),
        "unavailable": result.unavailable,
        "timings": {name: timing._asdict() for name, timing in result.timings.items()},
        "memory_mib": result.memory_mib,
        "parity": {name: [_parity_row(row) for row in rows] for name, rows in result.parity.items()},
    }


def _parity_row(row: Parity) -> dict[str, Any]:
    errors = {key: getattr(row, key) for key in ("error", "eager_error")}
    finite = {key: value if math.isfinite(value) else None for key, value in errors.items()}  # JSON has no NaN
    return {"tensor": row.tensor, **finite, "agrees": row.agrees}


def _order(error: float) -> float:
    """Take not-a-number for the largest error."""
    return math.inf if math.isnan(error) else error
