"""Settings that kernel tests change and restore."""

from collections.abc import Callable, Iterator

import pytest
import torch

from capsella import _native


@pytest.fixture
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set that the test's parameters name: see `helpers.kernel_cases`."""
    best = _native.kernels.instruction_set()
    _native.kernels.use(request.param)
    yield request.param
    _native.kernels.use(best)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def nan_in_new_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
