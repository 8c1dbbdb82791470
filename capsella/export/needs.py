"""Packages that only exporting needs."""

from importlib.util import find_spec

from capsella.errors import CapsellaError


def check_installed(*packages: str) -> None:
    """The packages of the extra `export` that a task needs are there.

    Raises:
        CapsellaError: one is not; says how to get it.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise CapsellaError(f"this needs {', '.join(missing)}: pip install 'capsella[export]'")
