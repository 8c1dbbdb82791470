"""The command line: one sub-command a verb, each a thin layer over the library."""

from capsella.cli.main import main
