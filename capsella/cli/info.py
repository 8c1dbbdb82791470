"""`capsella info`."""

from dataclasses import dataclass

from capsella.cli.flags import parse


@dataclass(frozen=True)
class Info:
    """Show versions, hardware, routing backend and precision on this machine."""


def run(arguments: list[str]) -> None:
    """Print a table."""
    parse(Info, arguments, "info")

    from rich.table import Table

    from capsella import _native
    from capsella.cli.screen import show
    from capsella.data import data_root
    from capsella.environment import environment
    from capsella.routing import ROUTINGS
    from capsella.training.resolve import choose_precision

    if _native.UNAVAILABLE is not None:
        backend = f"auto → eager: {_native.UNAVAILABLE}"
    else:
        fused = ", ".join(sorted(name for name, routing in ROUTINGS.items() if "native" in routing.fused))
        kernels = f"{_native.kernels.instruction_set()} kernels"
        backend = f"auto → native ({kernels}) for float32 on the CPU with {fused} routing; otherwise eager"
    table = Table.grid(padding=(0, 2))
    for key, value in {
        **environment(),
        "data": data_root(),
        "routings": ", ".join(sorted(ROUTINGS)),
        "backend": backend,
        "precision": "auto → {}: {}".format(*choose_precision("auto")),
    }.items():
        table.add_row(key, str(value))
    show(table)
