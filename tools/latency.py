"""What `capsella bench` measured, as a section of docs/reference/results.md."""

from typing import Any

from capsella.environment import hardware
from tools.markdown import markdown_row

BAR_MS = 50.0
"""Most milliseconds an image on the instrument of the thesis (Forslöv 2018)."""
HEADS = ("network", "image", "fastest", "p50 ms", f"under {BAR_MS:.0f} ms", "images/s")


def latency_section(name: str, values: dict[str, Any]) -> str:
    """A row a network: its fastest backend, then the median milliseconds of every backend with one image a call."""
    backends = values["settings"]["backends"]
    networks = values["networks"]
    about = (
        f"One image a call: the median in milliseconds, and the best throughput of any backend. "
        f"{hardware(values['environment'])}; torch {values['environment']['torch']}."
    )
    missing = [
        f"- {network}, {backend}: {reason}\n"
        for network, result in networks.items()
        for backend, reason in result["unavailable"].items()
    ]
    return (
        f"\n## Latency: {name}\n\n`{values['command']}`. {about}\n\n"
        + markdown_row(*HEADS, *backends)
        + f"|---|---|---|---:|---|---:|{'---:|' * len(backends)}\n"
        + "".join(_row(network, result, backends) for network, result in networks.items())
        + ("\nNot measured:\n\n" + "".join(missing) if missing else "")
    )


def _row(network: str, result: dict[str, Any], backends: list[str]) -> str:
    times = {backend: row["latency_ms"]["p50"] for backend, row in result["backends"].items()}
    channels, height, width = result["size"]
    cells = [network, f"{height}×{width}×{channels}"]
    if times:
        best = min(times, key=lambda backend: times[backend])
        rate = max(row["throughput"]["images_per_second"] for row in result["backends"].values())
        cells += [best, f"{times[best]:.1f}", "yes" if times[best] < BAR_MS else "no", f"{rate:.0f}"]
    else:
        cells += ["none", "", "no", ""]
    return markdown_row(*cells, *(f"{times[backend]:.1f}" if backend in times else "" for backend in backends))
