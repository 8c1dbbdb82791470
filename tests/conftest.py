"""For every test: shape annotations are checked, and random numbers are the same on every run."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

# Before the package is imported: in tests, and only there, annotated shapes of these parts are checked on each call.
install_import_hook(["capsella.routing", "capsella.layers", "capsella.losses"], "beartype.beartype")

import torch  # noqa: E402

# Triton decides when kernels are imported: without a GPU they run as NumPy code.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("capsella", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("capsella")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def as_users_call() -> Iterator[None]:
    """Without the annotation checks, so that a wrong shape reaches the package's own error message."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
