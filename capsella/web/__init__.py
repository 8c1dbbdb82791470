"""The interactive page about trained runs: one HTML file to send (share), or served with Python behind it (explore)."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.web.served_run import ServedRun, open_served_run
    from capsella.web.server import serve
    from capsella.web.share import MAX_IMAGES, MAX_MEGABYTES, SharedPage, share_runs
else:
    __getattr__ = lazy_imports(__name__, __file__)
