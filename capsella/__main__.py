"""`python -m capsella`."""

from capsella.cli import main

main()
