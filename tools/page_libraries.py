"""`python -m tools.page_libraries`: fetch with npm what shared pages hold of others, at the versions named here.

The files are committed, so that whoever shares a run needs neither npm nor a network. npm compares what it fetches with
its registry's checksums. A new version is a change here, and a run of the tests in tests/web.
"""

import lzma
import subprocess
import tarfile
import tempfile
from pathlib import Path

SHARE = Path(__file__).parent.parent / "capsella" / "web"
ORT, GIFENC = "onnxruntime-web@1.30.0", "gifenc@1.0.3"
_WRAPPED = """// {package} (https://github.com/mattdesl/gifenc), MIT licence, © 2017 Matt DesLauriers, as built.
export const gifenc = (() => {{
{body}
return {{ {names} }};
}})();
"""


def fetched(package: str, *paths: str) -> list[bytes]:
    """Files of an npm package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", package], cwd=folder, check=True, capture_output=True)
        (packed,) = Path(folder).glob("*.tgz")
        with tarfile.open(packed) as archive:
            files = [archive.extractfile(f"package/{path}") for path in paths]
            return [file.read() for file in files if file is not None]


def without_map(script: bytes) -> str:
    """Return a script without the comment that names a file for debugging."""
    return "".join(line for line in script.decode().splitlines(True) if not line.startswith("//# sourceMappingURL"))


def wrapped(module: str, package: str, *names: str) -> str:
    """Return a module, whose short names would meet those of the page, as one name."""
    body, _, exported = without_map(module.encode()).partition("export{")
    pairs = [one.split(" as ") for one in exported.strip().rstrip(";}").split(",")]
    inner = {name: short for short, name in pairs}
    return _WRAPPED.format(
        package=package, body=body.strip(), names=", ".join(f"{name}: {inner[name]}" for name in names)
    )


def main() -> None:
    """Write the files."""
    script, wasm = fetched(ORT, "dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm")
    (SHARE / "onnxruntime-web" / "ort.mjs").write_text(without_map(script), encoding="utf-8")
    (SHARE / "onnxruntime-web" / "ort.wasm.xz").write_bytes(lzma.compress(wasm, preset=9 | lzma.PRESET_EXTREME))
    (module,) = fetched(GIFENC, "dist/gifenc.esm.js")
    text = wrapped(module.decode(), GIFENC.replace("@", " "), "GIFEncoder", "quantize", "applyPalette")
    (SHARE / "page" / "gifenc.js").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
