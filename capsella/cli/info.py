"""`capsella info`."""

from dataclasses import dataclass

from capsella.cli.flags import parse


@dataclass(frozen=True)
class Info:
    """Print versions, hardware, routing backend and precision of this machine, and why they are chosen."""


def run(arguments: list[str]) -> None:
    """Print it."""
    parse(Info, arguments, "info")

    from rich.table import Table

    from capsella.cli.screen import show
    from capsella.data import data_root
    from capsella.environment import environment
    from capsella.routing import ROUTINGS
    from capsella.training.precision import choose_precision

    table = Table.grid(padding=(0, 2))
    for key, value in {**environment(), "data": str(data_root())}.items():
        table.add_row(key, str(value))
    table.add_row("routings", ", ".join(sorted(ROUTINGS)))
    table.add_row("backend", _backend())
    table.add_row("precision", str(choose_precision("auto")))
    show(table)


def _backend() -> str:
    from capsella import _native
    from capsella.routing import ROUTINGS

    if _native.UNAVAILABLE is not None:
        return f'auto → "eager": {_native.UNAVAILABLE}'
    fused = ", ".join(sorted(name for name, routing in ROUTINGS.items() if "native" in routing.fused))
    return (
        f'auto → "native" ({_native.kernels.instruction_set()} kernels) for float32 on the CPU in capsule layers with '
        f'{fused} routing, else "eager"; "reference" and "triton" (CUDA) only on request'
    )
