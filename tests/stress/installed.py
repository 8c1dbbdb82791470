"""`python installed.py [native]`: the package that is installed beside this Python works; no file of the tree is used.

The README's Python runs, every part can be imported, and a layer routes. `native`: the kernels must be there.
"""

import importlib
import pkgutil
import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
EXTRAS = ("capsella.routing.triton", "capsella.routing.dynamic.triton", "capsella.routing.em.triton")
"""Modules of extras that are not installed with the package; those of kernels go without saying."""


def main() -> None:
    sys.path = [path for path in sys.path if Path(path or ".").resolve() not in (README.parent, Path(__file__).parent)]
    import capsella
    from capsella import _native

    if "site-packages" not in str(capsella.__file__):
        sys.exit(f"error: {capsella.__file__} is no installed package")
    if "native" in sys.argv and _native.UNAVAILABLE is not None:
        sys.exit(f"error: {_native.UNAVAILABLE}")
    for block in re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(README), "exec"), {})
    modules = [one.name for one in pkgutil.walk_packages(capsella.__path__, "capsella.")]
    native = _native.UNAVAILABLE is None
    tried = [
        name for name in modules if name not in EXTRAS and "__main__" not in name and (native or ".native" not in name)
    ]
    missing = [error for name in tried if (error := failure(name)) is not None]
    if missing:
        sys.exit("error: " + "\n".join(missing))
    print(f"{len(tried)} modules imported; kernels: {_native.UNAVAILABLE or 'here'}")


def failure(name: str) -> str | None:
    """Why a module cannot be imported; that an extra is not installed is no failure."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        optional = {
            "triton",
            "optuna",
            "starlette",
            "uvicorn",
            "onnx",
            "onnxruntime",
            "onnxscript",
            "onnx_ir",
            "openvino",
        }
        return None if missing in {*optional, "pyarrow", "transformers"} else f"{name}: {error}"
    except ImportError as error:  # one of ours says which extra it takes
        return None if "pip install 'capsella[" in str(error) else f"{name}: {error}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main()
