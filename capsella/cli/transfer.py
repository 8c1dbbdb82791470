"""`capsella transfer`."""

from capsella.cli.on_cluster import parse
from capsella.cli.screen import console
from capsella.compare import TransferOptions, transfer
from capsella.ray_cluster import joined


def run(arguments: list[str]) -> None:
    """Train what is missing, test, and print the table."""
    options, place = parse(TransferOptions, arguments, "capsella transfer")
    with joined(place):
        _, text = transfer(options, console())
    print(f"\n{text}\n\nwritten to {options.out / 'transfer.txt'} and transfer.json")
