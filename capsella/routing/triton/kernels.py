"""The Triton kernels of vote passes: tiles of votes in registers, and the constants that each is compiled for.

The docstring of `capsella.routing.triton` describes what they compute, and in which precision.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "backend 'triton': needs the package triton, which comes with PyTorch's CUDA builds for Linux; "
        "otherwise: pip install 'capsella[triton]'"
    ) from error

# A tile has at most TILE × TILE vote elements where they fit: rows are windows and the rows of a pose in them, columns
# are parents and the elements of such a row. tl.dot takes no side shorter than LEAST_SIDE.
TILE, LEAST_SIDE = 64, 16
# Children that one program takes one after the other, while it keeps what belongs to the parents in registers.
CHILDREN = 64
# Weights, and blocks of windows, that one program takes in the backward pass.
WEIGHTS, BLOCKS = 4, 8
# With fewer warps a tile does not fit into registers beside its addresses.
WARPS = 8


# no_type_check: annotation checkers must not wrap what Triton reads as source.
@triton.jit
@no_type_check
def _rows(block, windows, SITES: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, BM: tl.constexpr):
    """Return a tile's first window; for its rows [BM]: window minus the first, site, image, row of pose, mask."""
    row = tl.arange(0, BM)
    first = block * (BM // RP)
    n = first + row // RP
    r = row % RP
    return first.to(tl.int64), row // RP, n % SITES, (n // SITES).to(tl.int64), r, (n < windows) & (r < R)


@triton.jit
@no_type_check
def _columns(block, C_OUT: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, BC: tl.constexpr):
    """Return for a tile's columns [BC]: parent type, element of a row of its pose, mask."""
    column = tl.arange(0, BC)
    j = block * (BC // EP) + column // EP
    e = column % EP
    return j, e, (j < C_OUT) & (e < E)


@triton.jit
@no_type_check
def _vote_tile(
    poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, k, m, which,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, K: tl.constexpr,
    BQ: tl.constexpr, OFFSET: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr,
):  # fmt: skip
    """Return the votes u W + offset [BM BC] of child type m in slot k of each window with weight `which`; u and W."""
    q = tl.arange(0, BQ)
    position = tl.load(slots + site * K + k)  # of the child, in its image
    child = (image * area + position) * C_IN + m
    u = tl.load(
        poses + (child * (R * Q) + r * Q)[:, None] + q[None, :], mask=rows[:, None] & (q < Q)[None, :], other=0.0
    )
    W = tl.load(
        weight + ((which * C_OUT + j) * (Q * E) + e)[None, :] + (q * E)[:, None],
        mask=columns[None, :] & (q < Q)[:, None],
        other=0.0,
    )
    V = tl.dot(u, W, input_precision=PRECISION, out_dtype=REAL)
    if OFFSET:
        at = offset + (position * (R * E) + r * E)[:, None] + e[None, :]
        V += tl.load(at, mask=rows[:, None] & columns[None, :], other=0.0)
    return V, u, W


@triton.jit(do_not_specialize=["area", "windows"])
@no_type_check
def sums_kernel(
    poses, weight, offset, slots, area, windows, shares, mu, out,
    SITES: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    K: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr,
    TIED: tl.constexpr, OFFSET: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ s δ, and where centred Σ s δ², over one chunk of children: out [chunks, 1 or 2, n j d]."""
    REAL: tl.constexpr = out.dtype.element_ty
    start, n, site, image, r, rows = _rows(tl.program_id(0), windows, SITES, R, RP, BM)
    j, e, columns = _columns(tl.program_id(1), C_OUT, E, EP, BC)
    exist = rows[:, None] & columns[None, :]
    parent = (n * C_OUT)[:, None] + j[None, :]
    element = parent * (R * E) + (r * E)[:, None] + e[None, :]
    first = tl.zeros((BM, BC), REAL)
    if CENTRED:
        center = tl.load(mu + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
        second = tl.zeros((BM, BC), REAL)
    chunk = tl.program_id(2)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, K * C_IN)):
        m = i % C_IN
        V, _, _ = _vote_tile(
            poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, i // C_IN, m, m if TIED else i,
            C_IN, C_OUT, R, Q, E, K, BQ, OFFSET, PRECISION, REAL,
        )  # fmt: skip
        s = tl.load(shares + start * (C_OUT * K * C_IN) + i + parent * (K * C_IN), mask=exist, other=0.0)
        if CENTRED:
            V -= center
            second += s * V * V
        first += s * V
    size = windows.to(tl.int64) * (C_OUT * R * E)
    out += chunk * (2 if CENTRED else 1) * size + start * (C_OUT * R * E)
    tl.store(out + element, first, mask=exist)
    if CENTRED:
        tl.store(out + size + element, second, mask=exist)


@triton.jit(do_not_specialize=["area", "windows"])
@no_type_check
def scores_kernel(
    poses, weight, offset, slots, area, windows, alpha, mu, beta, out,
    SITES: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    K: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr,
    TIED: tl.constexpr, OFFSET: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ_d δ α, or where centred Σ_d δ (α + β δ), for one chunk of children: out [n j i]."""
    REAL: tl.constexpr = out.dtype.element_ty
    BN: tl.constexpr = BM // RP
    BJ: tl.constexpr = BC // EP
    start, n, site, image, r, rows = _rows(tl.program_id(0), windows, SITES, R, RP, BM)
    j, e, columns = _columns(tl.program_id(1), C_OUT, E, EP, BC)
    exist = rows[:, None] & columns[None, :]
    element = ((n * C_OUT)[:, None] + j[None, :]) * (R * E) + (r * E)[:, None] + e[None, :]
    direction = tl.load(alpha + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
    if CENTRED:
        center = tl.load(mu + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
        curvature = tl.load(beta + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
    window = tl.arange(0, BN)
    to = tl.program_id(1) * BJ + tl.arange(0, BJ)
    pairs = out + start * (C_OUT * K * C_IN) + ((window * C_OUT)[:, None] + to[None, :]) * (K * C_IN)
    exist_pairs = (start + window < windows)[:, None] & (to < C_OUT)[None, :]
    chunk = tl.program_id(2)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, K * C_IN)):
        m = i % C_IN
        V, _, _ = _vote_tile(
            poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, i // C_IN, m, m if TIED else i,
            C_IN, C_OUT, R, Q, E, K, BQ, OFFSET, PRECISION, REAL,
        )  # fmt: skip
        if CENTRED:
            V -= center
            terms = V * (direction + curvature * V)
        else:
            terms = V * direction
        score = tl.sum(tl.sum(tl.reshape(terms, (BN, RP, BJ, EP)), axis=3), axis=1)
        tl.store(pairs + i, score, mask=exist_pairs)


@triton.jit(do_not_specialize=["area", "windows"])
@no_type_check
def gradients_kernel(
    poses, weight, offset, slots, area, windows, shares, alpha, mu, beta, grad_poses, grad_weight,
    SITES: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    K: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr,
    TIED: tl.constexpr, OFFSET: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr,
    PER_PROGRAM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of all votes by some weights in a group of windows, for ∂L/∂V = s α, or where centred s (α + β δ).

    Adds to zeros: grad_poses [n i p], grad_weight [groups, weights, j q e]. No other program adds to the same part of
    them, and one thread adds to each number, so that the order is fixed.
    """
    REAL: tl.constexpr = grad_poses.dtype.element_ty
    I: tl.constexpr = K * C_IN  # noqa: E741
    WEIGHTS: tl.constexpr = C_IN if TIED else I
    q = tl.arange(0, BQ)
    first = tl.program_id(0) * PER_PROGRAM
    group = tl.program_id(1)
    for block in range(group * GROUP, tl.minimum(group * GROUP + GROUP, tl.cdiv(windows, BM // RP))):
        start, n, site, image, r, rows = _rows(block, windows, SITES, R, RP, BM)
        for j_block in range((C_OUT + BC // EP - 1) // (BC // EP)):
            j, e, columns = _columns(j_block, C_OUT, E, EP, BC)
            exist = rows[:, None] & columns[None, :]
            parent = (n * C_OUT)[:, None] + j[None, :]
            element = parent * (R * E) + (r * E)[:, None] + e[None, :]
            direction = tl.load(alpha + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
            if CENTRED:
                center = tl.load(mu + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
                curvature = tl.load(beta + start * (C_OUT * R * E) + element, mask=exist, other=0.0)
            for which in range(first, tl.minimum(first + PER_PROGRAM, WEIGHTS)):
                for k in range(K if TIED else 1):
                    i = k * C_IN + which  # the index of the child in its window, and of its weight unless tied
                    V, u, W = _vote_tile(
                        poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, i // C_IN, i % C_IN,
                        which, C_IN, C_OUT, R, Q, E, K, BQ, OFFSET, PRECISION, REAL,
                    )  # fmt: skip
                    grad_V = tl.load(shares + start * (C_OUT * I) + i + parent * I, mask=exist, other=0.0)
                    if CENTRED:
                        grad_V *= direction + curvature * (V - center)
                    else:
                        grad_V *= direction
                    tl.atomic_add(
                        grad_poses + (start * I + i) * (R * Q) + (n * (I * R * Q) + r * Q)[:, None] + q[None, :],
                        tl.dot(grad_V, tl.trans(W), input_precision=PRECISION, out_dtype=REAL),
                        mask=rows[:, None] & (q < Q)[None, :],
                        sem="relaxed",
                    )
                    tl.atomic_add(
                        grad_weight
                        + (((group * WEIGHTS + which).to(tl.int64) * C_OUT + j) * (Q * E) + e)[None, :]
                        + (q * E)[:, None],
                        tl.dot(tl.trans(u), grad_V, input_precision=PRECISION, out_dtype=REAL),
                        mask=columns[None, :] & (q < Q)[:, None],
                        sem="relaxed",
                    )


def constants_of(poses: Tensor, weight: Tensor, slots: Tensor) -> dict[str, Any]:
    """Return the constants of every kernel: sizes of axes, and the tile that suits them."""
    (sites, window), (c_out, q, e) = slots.shape, weight.shape[3:]
    rows = poses.shape[4] // q
    row_side, column_side = triton.next_power_of_2(rows), triton.next_power_of_2(e)
    columns = max(column_side, min(TILE, max(LEAST_SIDE, triton.next_power_of_2(c_out) * column_side)))
    # tl.dot multiplies exactly, except where the user allows less for float32.
    exact = poses.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
    needed = triton.next_power_of_2(len(poses) * sites * row_side)
    return {
        "SITES": sites, "C_IN": poses.shape[3], "C_OUT": c_out, "R": rows, "Q": q, "E": e, "K": window,
        "RP": row_side, "EP": column_side, "BC": columns, "BQ": max(LEAST_SIDE, triton.next_power_of_2(q)),
        "BM": max(LEAST_SIDE, row_side, min(TILE, TILE * TILE // columns, needed)),
        "TIED": weight.shape[:2].numel() < window,
        "PRECISION": "ieee" if exact else "tf32x3",
    }  # fmt: skip


def launch(kernel: Any, grid: Sequence[int], *tensors: Tensor | int | None, **constants: Any) -> None:
    """Launch a kernel on its tensors' device, unless the grid is empty."""
    if 0 not in grid:
        with torch.cuda.device_of(tensors[0]):
            contiguous = (t.contiguous() if isinstance(t, Tensor) else t for t in tensors)
            kernel[tuple(grid)](*contiguous, **constants, num_warps=WARPS)


def grid_of(constants: dict[str, Any], windows: int) -> tuple[int, int, int]:
    """Return the numbers of blocks of windows, blocks of parents, and chunks of children."""
    children = constants["K"] * constants["C_IN"]
    return (
        triton.cdiv(windows, constants["BM"] // constants["RP"]),
        triton.cdiv(constants["C_OUT"], constants["BC"] // constants["EP"]),
        triton.cdiv(children, CHILDREN),
    )
