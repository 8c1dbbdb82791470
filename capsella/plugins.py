"""Plug-ins: your own Python files that register a routing, a network or a recipe."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from capsella.errors import CapsellaError

VARIABLE = "CAPSELLA_PLUGIN"  # environment variable: the plug-in of commands without the flag --plugin


def load_plugin(path: Path) -> None:
    """Import a Python file, so that its `@register_routing` and other decorators take effect.

    The file runs with your rights: load only files that you trust.

    Raises:
        CapsellaError: there is no such file, or it raises an error.
    """
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CapsellaError(f"{path}: a plug-in must be an existing .py file")
    if path.stem in sys.modules:
        loaded_from = getattr(sys.modules[path.stem], "__file__", None)
        if loaded_from is not None and Path(loaded_from).resolve() == path.resolve():
            return
        raise CapsellaError(f"{path}: a module named {path.stem} is loaded already; rename the file")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look up their annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any mistake in the user's file
        del sys.modules[path.stem]
        raise CapsellaError(f"{path}: {type(error).__name__}: {error}") from error
