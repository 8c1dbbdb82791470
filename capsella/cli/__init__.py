"""The command line: a module per sub-command, each a thin layer over the library."""

from capsella.cli.main import main
