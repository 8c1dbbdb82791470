"""`capsella transfer`."""

import tyro

from capsella.cli.screen import console
from capsella.compare import TransferOptions, transfer


def run(arguments: list[str]) -> None:
    """Train what is missing, test, and print the table."""
    options = tyro.cli(TransferOptions, args=arguments, prog="capsella transfer")
    _, text = transfer(options, console())
    print(f"\n{text}\n\nwritten to {options.out / 'transfer.txt'} and transfer.json")
