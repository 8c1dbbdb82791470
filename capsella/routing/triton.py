"""Triton kernels for routing that never writes its votes: every pass computes them again from poses and weights.

Memory holds one number for each child and parent (couplings, logits), in the backward pass one pose for each child of
each window, and the parents' statistics; votes exist only as tiles in registers. All that routing asks of votes,
forward and backward, is three passes over δ = V − μ (μ = 0 where it is not given):

* `Factors.sums`: Σ_i s δ and Σ_i s δ²,
* `Factors.scores`: Σ_h δ (α + β δ),
* `Factors.gradients`: for ∂L/∂V = s (α + β δ), the gradients of poses, weight and vote offset.

Sums are taken in a fixed order: results are the same on every run. They are float32 (float64 for float64 poses).
Products are exact to float32 too, unless `torch.set_float32_matmul_precision` allows less: three TF32 products then
stand for one. bfloat16 and float16 numbers are TF32 numbers, so one TF32 product is exact for their votes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, no_type_check

import torch
from torch import Tensor

from capsella.routing.convolution import Geometry, gather_windows

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
    """A tile's first window; of its rows [BM]: window after the first, site in image, image, row of pose, existence."""
    row = tl.arange(0, BM)
    first = block * (BM // RP)
    n = first + row // RP
    r = row % RP
    return first.to(tl.int64), row // RP, n % SITES, (n // SITES).to(tl.int64), r, (n < windows) & (r < R)


@triton.jit
@no_type_check
def _columns(block, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, BC: tl.constexpr):
    """Of a tile's columns [BC]: parent, element of a row of its pose, existence."""
    column = tl.arange(0, BC)
    j = block * (BC // EP) + column // EP
    e = column % EP
    return j, e, (j < J) & (e < E)


@triton.jit
@no_type_check
def _vote_tile(
    poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, k, c, which,
    C: tl.constexpr, J: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, K: tl.constexpr,
    BQ: tl.constexpr, OFFSET: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr,
):  # fmt: skip
    """The votes M W + offset [BM BC] of child type c in slot k of each window with weight number `which`; M and W."""
    q = tl.arange(0, BQ)
    position = tl.load(slots + site * K + k)  # of the child, in its image
    child = (image * area + position) * C + c
    M = tl.load(
        poses + (child * (R * Q) + r * Q)[:, None] + q[None, :], mask=rows[:, None] & (q < Q)[None, :], other=0.0
    )
    W = tl.load(
        weight + ((which * J + j) * (Q * E) + e)[None, :] + (q * E)[:, None],
        mask=columns[None, :] & (q < Q)[:, None],
        other=0.0,
    )
    V = tl.dot(M, W, input_precision=PRECISION, out_dtype=REAL)
    if OFFSET:
        at = offset + (position * (R * E) + r * E)[:, None] + e[None, :]
        V += tl.load(at, mask=rows[:, None] & columns[None, :], other=0.0)
    return V, M, W


@triton.jit(do_not_specialize=["area", "windows"])
@no_type_check
def _sums(
    poses, weight, offset, slots, area, windows, shares, mu, out,
    SITES: tl.constexpr, C: tl.constexpr, J: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    K: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr,
    TIED: tl.constexpr, OFFSET: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ s δ, and where centred Σ s δ², over one chunk of children: out [chunks, 1 or 2, n j d]."""
    REAL: tl.constexpr = out.dtype.element_ty
    start, n, site, image, r, rows = _rows(tl.program_id(0), windows, SITES, R, RP, BM)
    j, e, columns = _columns(tl.program_id(1), J, E, EP, BC)
    exist = rows[:, None] & columns[None, :]
    parent = (n * J)[:, None] + j[None, :]
    element = parent * (R * E) + (r * E)[:, None] + e[None, :]
    first = tl.zeros((BM, BC), REAL)
    if CENTRED:
        center = tl.load(mu + start * (J * R * E) + element, mask=exist, other=0.0)
        second = tl.zeros((BM, BC), REAL)
    chunk = tl.program_id(2)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, K * C)):
        c = i % C
        V, _, _ = _vote_tile(
            poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, i // C, c, c if TIED else i,
            C, J, R, Q, E, K, BQ, OFFSET, PRECISION, REAL,
        )  # fmt: skip
        s = tl.load(shares + start * (J * K * C) + i + parent * (K * C), mask=exist, other=0.0)
        if CENTRED:
            V -= center
            second += s * V * V
        first += s * V
    size = windows.to(tl.int64) * (J * R * E)
    out += chunk * (2 if CENTRED else 1) * size + start * (J * R * E)
    tl.store(out + element, first, mask=exist)
    if CENTRED:
        tl.store(out + size + element, second, mask=exist)


@triton.jit(do_not_specialize=["area", "windows"])
@no_type_check
def _scores(
    poses, weight, offset, slots, area, windows, alpha, mu, beta, out,
    SITES: tl.constexpr, C: tl.constexpr, J: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    K: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr,
    TIED: tl.constexpr, OFFSET: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ_h δ α, or where centred Σ_h δ (α + β δ), for one chunk of children: out [n j i]."""
    REAL: tl.constexpr = out.dtype.element_ty
    BN: tl.constexpr = BM // RP
    BJ: tl.constexpr = BC // EP
    start, n, site, image, r, rows = _rows(tl.program_id(0), windows, SITES, R, RP, BM)
    j, e, columns = _columns(tl.program_id(1), J, E, EP, BC)
    exist = rows[:, None] & columns[None, :]
    element = ((n * J)[:, None] + j[None, :]) * (R * E) + (r * E)[:, None] + e[None, :]
    direction = tl.load(alpha + start * (J * R * E) + element, mask=exist, other=0.0)
    if CENTRED:
        center = tl.load(mu + start * (J * R * E) + element, mask=exist, other=0.0)
        curvature = tl.load(beta + start * (J * R * E) + element, mask=exist, other=0.0)
    window = tl.arange(0, BN)
    to = tl.program_id(1) * BJ + tl.arange(0, BJ)
    pairs = out + start * (J * K * C) + ((window * J)[:, None] + to[None, :]) * (K * C)
    exist_pairs = (start + window < windows)[:, None] & (to < J)[None, :]
    chunk = tl.program_id(2)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, K * C)):
        c = i % C
        V, _, _ = _vote_tile(
            poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, i // C, c, c if TIED else i,
            C, J, R, Q, E, K, BQ, OFFSET, PRECISION, REAL,
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
def _gradients(
    poses, weight, offset, slots, area, windows, shares, alpha, mu, beta, grad_poses, grad_weight, grad_offset,
    SITES: tl.constexpr, C: tl.constexpr, J: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    K: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr,
    TIED: tl.constexpr, OFFSET: tl.constexpr, CENTRED: tl.constexpr, PRECISION: tl.constexpr,
    OFFSET_WANTED: tl.constexpr, PER_PROGRAM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """All of some weights' votes in a group of windows, for ∂L/∂V = s α, or where centred s (α + β δ).

    Adds to zeros: grad_poses [n i p], grad_weight [groups, weights, j q e], grad_offset [n i d]. Only this program adds
    to its part of each, and one thread to each number, so that the order is fixed.
    """
    REAL: tl.constexpr = grad_poses.dtype.element_ty
    I: tl.constexpr = K * C  # noqa: E741
    WEIGHTS: tl.constexpr = C if TIED else I
    q = tl.arange(0, BQ)
    first = tl.program_id(0) * PER_PROGRAM
    group = tl.program_id(1)
    for block in range(group * GROUP, tl.minimum(group * GROUP + GROUP, tl.cdiv(windows, BM // RP))):
        start, n, site, image, r, rows = _rows(block, windows, SITES, R, RP, BM)
        for j_block in range((J + BC // EP - 1) // (BC // EP)):
            j, e, columns = _columns(j_block, J, E, EP, BC)
            exist = rows[:, None] & columns[None, :]
            parent = (n * J)[:, None] + j[None, :]
            element = parent * (R * E) + (r * E)[:, None] + e[None, :]
            direction = tl.load(alpha + start * (J * R * E) + element, mask=exist, other=0.0)
            if CENTRED:
                center = tl.load(mu + start * (J * R * E) + element, mask=exist, other=0.0)
                curvature = tl.load(beta + start * (J * R * E) + element, mask=exist, other=0.0)
            for which in range(first, tl.minimum(first + PER_PROGRAM, WEIGHTS)):
                for slot in range(K if TIED else 1):
                    i = slot * C + which  # the number of the child in its window, and of its weight unless tied
                    V, M, W = _vote_tile(
                        poses, weight, offset, slots, area, site, image, r, rows, j, e, columns, i // C, i % C, which,
                        C, J, R, Q, E, K, BQ, OFFSET, PRECISION, REAL,
                    )  # fmt: skip
                    grad_V = tl.load(shares + start * (J * I) + i + parent * I, mask=exist, other=0.0)
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
                        + (((group * WEIGHTS + which).to(tl.int64) * J + j) * (Q * E) + e)[None, :]
                        + (q * E)[:, None],
                        tl.dot(tl.trans(M), grad_V, input_precision=PRECISION, out_dtype=REAL),
                        mask=columns[None, :] & (q < Q)[:, None],
                        sem="relaxed",
                    )
                    if OFFSET_WANTED:
                        h = tl.arange(0, EP)
                        tl.atomic_add(
                            grad_offset + (start * I + i) * (R * E) + (n * (I * R * E) + r * E)[:, None] + h[None, :],
                            tl.sum(tl.reshape(grad_V, (BM, BC // EP, EP)), axis=1),
                            mask=rows[:, None] & (h < E)[None, :],
                            sem="relaxed",
                        )


INTERPRETED = not isinstance(_sums, triton.runtime.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when Python came here: kernels then run as NumPy code on CPU tensors."""


def _constants(poses: Tensor, weight: Tensor, slots: Tensor, short: bool) -> dict[str, Any]:
    """What every kernel is compiled for: numbers of things, and the tile that suits them."""
    (sites, window), (c_out, q, e) = slots.shape, weight.shape[3:]
    rows = poses.shape[4] // q
    row_side, column_side = triton.next_power_of_2(rows), triton.next_power_of_2(e)
    columns = max(column_side, min(TILE, max(LEAST_SIDE, triton.next_power_of_2(c_out) * column_side)))
    needed = triton.next_power_of_2(len(poses) * sites * row_side)
    return {
        "SITES": sites, "C": poses.shape[3], "J": c_out, "R": rows, "Q": q, "E": e, "K": window,
        "RP": row_side, "EP": column_side, "BC": columns, "BQ": max(LEAST_SIDE, triton.next_power_of_2(q)),
        "BM": max(LEAST_SIDE, row_side, min(TILE, TILE * TILE // columns, needed)),
        "TIED": weight.shape[:2].numel() < window,
        "PRECISION": _precision(poses.dtype, short),
    }  # fmt: skip


def _precision(dtype: torch.dtype, short: bool) -> str:
    """How tl.dot multiplies: exactly, except where the user allows less for float32."""
    if short:
        return "tf32"
    return "ieee" if dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest" else "tf32x3"


def _launch(kernel: Any, grid: Sequence[int], *tensors: Tensor | int | None, **constants: Any) -> None:
    """Run a kernel where its tensors are; an empty grid is no launch."""
    if 0 not in grid:
        with torch.cuda.device_of(tensors[0]):
            contiguous = (t.contiguous() if isinstance(t, Tensor) else t for t in tensors)
            kernel[tuple(grid)](*contiguous, **constants, num_warps=WARPS)


def _grid(constants: dict[str, Any], windows: int) -> tuple[int, int, int]:
    """Blocks of windows, of parents, and chunks of children."""
    children = constants["K"] * constants["C"]
    return (
        triton.cdiv(windows, constants["BM"] // constants["RP"]),
        triton.cdiv(constants["J"], constants["BC"] // constants["EP"]),
        triton.cdiv(children, CHILDREN),
    )


@torch.library.custom_op("capsella::vote_sums", mutates_args=())
def _vote_sums(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    slots: Tensor,
    short: bool,
    shares: Tensor,
    mu: Tensor | None,
) -> Tensor:
    """[1 n j d], or [2 n j d] where μ is given."""
    constants = _constants(poses, weight, slots, short)
    area, windows, d = poses.shape[1:3].numel(), len(shares), constants["R"] * constants["E"]
    grid = _grid(constants, windows)
    out = shares.new_empty(grid[2], 1 if mu is None else 2, *shares.shape[:2], d)
    _launch(
        _sums, grid, poses, weight, offset, slots, area, windows, shares, mu, out,
        **constants, OFFSET=offset is not None, CENTRED=mu is not None, CHUNK=CHILDREN,
    )  # fmt: skip
    return out.sum(0)


@_vote_sums.register_fake
def _(poses: Tensor, weight: Tensor, offset: Any, slots: Any, short: Any, shares: Tensor, mu: Any) -> Tensor:
    d = poses.shape[4] // weight.shape[4] * weight.shape[5]
    return shares.new_empty(1 if mu is None else 2, *shares.shape[:2], d)


@torch.library.custom_op("capsella::vote_scores", mutates_args=())
def _vote_scores(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    slots: Tensor,
    short: bool,
    alpha: Tensor,
    mu: Tensor | None,
    beta: Tensor | None,
) -> Tensor:
    """[n j i]."""
    constants = _constants(poses, weight, slots, short)
    area, windows = poses.shape[1:3].numel(), len(alpha)
    out = alpha.new_empty(*alpha.shape[:2], constants["K"] * constants["C"])
    _launch(
        _scores, _grid(constants, windows), poses, weight, offset, slots, area, windows, alpha, mu, beta, out,
        **constants, OFFSET=offset is not None, CENTRED=mu is not None, CHUNK=CHILDREN,
    )  # fmt: skip
    return out


@_vote_scores.register_fake
def _(poses: Tensor, weight: Any, offset: Any, slots: Tensor, short: Any, alpha: Tensor, *rest: Any) -> Tensor:
    return alpha.new_empty(*alpha.shape[:2], slots.shape[1] * poses.shape[3])


@torch.library.custom_op("capsella::vote_gradients", mutates_args=())
def _vote_gradients(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    slots: Tensor,
    short: bool,
    shares: Tensor,
    alpha: Tensor,
    mu: Tensor | None,
    beta: Tensor | None,
    offset_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the pose of each child of each window [n i p], the weight, and each such child's offset [n i d]."""
    constants = _constants(poses, weight, slots, short)
    area, windows, children = poses.shape[1:3].numel(), len(alpha), shares.shape[2]
    weights = constants["C"] if constants["TIED"] else children
    groups = triton.cdiv(windows, constants["BM"] // constants["RP"] * BLOCKS)
    per_program = 1 if constants["TIED"] else WEIGHTS
    grad_poses = alpha.new_zeros(windows, children, poses.shape[4])
    grad_weight = alpha.new_zeros(groups, *weight.shape)
    grad_offset = alpha.new_zeros(windows if offset_wanted else 0, children, alpha.shape[2])
    _launch(
        _gradients, (triton.cdiv(weights, per_program), groups),
        poses, weight, offset, slots, area, windows, shares, alpha, mu, beta, grad_poses, grad_weight, grad_offset,
        **constants, OFFSET=offset is not None, CENTRED=mu is not None,
        OFFSET_WANTED=offset_wanted, PER_PROGRAM=per_program, GROUP=BLOCKS,
    )  # fmt: skip
    return grad_poses, grad_weight.sum(0), grad_offset


@_vote_gradients.register_fake
def _(
    poses: Tensor,
    weight: Tensor,
    offset: Any,
    slots: Any,
    short: Any,
    shares: Tensor,
    alpha: Tensor,
    mu: Any,
    beta: Any,
    offset_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    windows, children = len(shares), shares.shape[2]
    return (
        alpha.new_empty(windows, children, poses.shape[4]),
        alpha.new_empty(weight.shape),
        alpha.new_empty(windows if offset_wanted else 0, children, alpha.shape[2]),
    )


class Factors(NamedTuple):
    """What votes are made of: V = M W, plus `offset` where there is one, for every child of every window.

    poses [b h w c_in p] and weight [kh kw c_in c_out q e] of one type; offset [h w d] or None; slots [sites k], the
    position of the child in each slot of each window of an image; short, whether poses and weight hold 16-bit numbers.
    """

    poses: Tensor
    weight: Tensor
    offset: Tensor | None
    slots: Tensor
    short: bool

    def sums(self, shares: Tensor, mu: Tensor | None = None) -> Tensor:
        """Σ_i s δ, and where μ is given Σ_i s δ²: [1 n j d] or [2 n j d], for shares [n j i] and μ [n j d]."""
        return torch.ops.capsella.vote_sums(*self, shares, mu)

    def scores(self, alpha: Tensor, mu: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        """Σ_h δ (α + β δ) [n j i], for α, μ, β [n j d]; μ and β come together."""
        return torch.ops.capsella.vote_scores(*self, alpha, mu, beta)

    def gradients(
        self,
        geometry: Geometry,
        shares: Tensor,
        alpha: Tensor,
        mu: Tensor | None = None,
        beta: Tensor | None = None,
        *,
        offset_wanted: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        """For each of these factors its gradient or None, where that of the votes is s (α + β δ)."""
        by_window, weight, offset = torch.ops.capsella.vote_gradients(*self, shares, alpha, mu, beta, offset_wanted)
        batch, *size, types, p = self.poses.shape
        window = (batch, *geometry.grid((size[0], size[1])), *geometry.kernel, types, p)
        poses = _add_windows(by_window.reshape(window), geometry, size)
        if offset_wanted:
            of_positions = offset.reshape(*window[:-1], alpha.shape[2]).sum(5)
            of_grid = _add_windows(of_positions, geometry, size).sum(0)
        return poses, weight, of_grid if offset_wanted else None, None, None


def vote_factors(
    poses: Tensor, activations: Tensor, weight: Tensor, geometry: Geometry, vote_offset: Tensor | None
) -> tuple[Factors, Tensor]:
    """What the votes of a capsule convolution are made of, and the activations [n i] of the children in its windows.

    Activations are float32, or float64 for float64 poses, as is everything computed from them. Shapes are the caller's
    to check.

    Raises:
        ValueError: poses that are not on a CUDA device.
    """
    if not (poses.is_cuda or INTERPRETED):
        raise ValueError(
            f"backend: 'triton' needs poses on a CUDA device, got {poses.device}; move model and images there, or take "
            "backend 'eager' (with TRITON_INTERPRET=1 in the environment, kernels run on a CPU: slow, for tests)"
        )
    short = torch.promote_types(poses.dtype, weight.dtype).itemsize == 2
    # Converted here, for autograd to add up the gradients of all passes before it rounds them to shorter types.
    dtype = torch.promote_types(torch.promote_types(poses.dtype, weight.dtype), torch.float32)
    poses, weight, activations = poses.to(dtype).contiguous(), weight.to(dtype).contiguous(), activations.to(dtype)
    vote_offset = None if vote_offset is None else vote_offset.to(dtype)
    positions = torch.arange(poses.shape[1:3].numel(), dtype=torch.int32, device=poses.device)
    slots = gather_windows(positions.reshape(1, *poses.shape[1:3], 1), geometry).flatten(0, 2).flatten(1)
    children = gather_windows(activations, geometry).reshape(len(poses) * len(slots), slots.shape[1] * poses.shape[3])
    return Factors(poses, weight, vote_offset, slots, short), children


def _add_windows(windows: Tensor, geometry: Geometry, size: Sequence[int]) -> Tensor:
    """The adjoint of `gather_windows`: [b h' w' kh kw *rest] → [b h w *rest], windows added where they overlap."""
    children = windows.movedim((3, 4), (-2, -1))
    for axis in (1, 0):
        shape = list(children.shape[:-1])
        shape[1 + axis] = size[axis]
        children = torch.ops.aten.unfold_backward(
            children, shape, 1 + axis, geometry.kernel[axis], geometry.stride[axis]
        )
    return children
