// What a window's children bring: poses, activations, votes, and the couplings they start from.
#pragma once

#include "mixture_window.h"

namespace capsella::CAPSELLA_ISA {

// Windows that compete for a child at this position.
template <class W>
float competitors(const W& w, int64_t y, int64_t x) {
  if (!W::Formulas::everywhere(w.conv, w.options)) return 1;
  int64_t row, row_end, column, column_end;
  windows_of(y, w.conv.kernel_height, w.conv.stride_height, w.conv.rows, row, row_end);
  windows_of(x, w.conv.kernel_width, w.conv.stride_width, w.conv.columns, column, column_end);
  return float((row_end - row) * (column_end - column));
}

// V_ij = M_i W_ij of one child for a block of parents: pose [r q], weight [q e] -> out [r e].
template <class W>
[[gnu::always_inline]] inline void vote(const W& w, const float* pose, const VecOf<W>* weight, VecOf<W>* out) {
  for (int64_t r = 0; r < w.R(); ++r) {
    VecOf<W> row[W::row_capacity];
    for (int64_t e = 0; e < w.E(); ++e) row[e] = pose[r * w.Q()] * weight[e];
    for (int64_t q = 1; q < w.Q(); ++q)
      for (int64_t e = 0; e < w.E(); ++e) row[e] += pose[r * w.Q() + q] * weight[q * w.E() + e];
    for (int64_t e = 0; e < w.E(); ++e) out[r * w.E() + e] = row[e];
  }
}

// The same of bfloat16 numbers in pairs along q: pose [r halves], weight [halves e].
template <class W>
[[gnu::always_inline]] inline void vote(const W& w, const uint32_t* pose, const Pairs<W::lanes>* weight,
                                        VecOf<W>* out) {
  for (int64_t r = 0; r < w.R(); ++r) {
    VecOf<W> row[W::row_capacity];
    for (int64_t e = 0; e < w.E(); ++e) row[e] = VecOf<W>{};
    for (int64_t q = 0; q < w.halves(); ++q)
      for (int64_t e = 0; e < w.E(); ++e)
        row[e] = dot_pairs<W::lanes>(row[e], weight[q * w.E() + e], pose[r * w.halves() + q]);
    for (int64_t e = 0; e < w.E(); ++e) out[r * w.E() + e] = row[e];
  }
}

// The weight as registers hold it where it is small: else every store of a vote would have it read again.
template <int64_t Size, class W, class Number, class Element>
[[gnu::always_inline]] inline void vote_once(const W& w, const Number* pose, const Element* weight, VecOf<W>* out) {
  if constexpr (W::fixed && Size <= 16) {
    Element held[Size];
    for (int64_t k = 0; k < Size; ++k) held[k] = weight[k];
    vote(w, pose, static_cast<const Element*>(held), out);
  } else {
    vote(w, pose, weight, out);
  }
}

// The vote of child i with its offset, where votes have one.
template <bool Paired, class W>
[[gnu::always_inline]] inline void vote_of(const W& w, int64_t block, int64_t i, VecOf<W>* out) {
  if constexpr (Paired)
    vote_once<W::pairs_capacity>(w, &w.pose_pairs[i * w.R() * w.halves()], w.pairs_of(block, i), out);
  else
    vote_once<W::weight_capacity>(w, &w.poses[i * w.R() * w.Q()], w.weight_of(block, i), out);
  if (w.inputs.vote_offset)
    for (int64_t d = 0; d < w.D(); ++d) out[d] += w.offsets[i / w.conv.c_in * w.D() + d];
  if constexpr (W::Formulas::biased)
    if (w.packed.bias)
      for (int64_t d = 0; d < w.D(); ++d) out[d] += w.packed.bias[w.bias_at(block, i) + d];
}

template <bool Paired, class W>
void vote_all(W& w) {
  for (int64_t block = 0; block < w.blocks; ++block)
    for (int64_t i = 0; i < w.children; ++i) vote_of<Paired>(w, block, i, w.votes_at(block, i));
}

// The votes of all children for all parents.
template <class W>
void vote(W& w) {
  w.packed.pairs ? vote_all<true>(w) : vote_all<false>(w);
}

// body(first, count) for the children of a window in groups.
template <class W, class Body>
void for_each_group(const W& w, Body body) {
  for (int64_t first = 0; first < w.children; first += GROUP) body(first, std::min(GROUP, w.children - first));
}

// The poses of the children in pairs along q.
template <class W>
void pair_poses(W& w) {
  const float* row = w.poses.get();
  for (int64_t ir = 0; ir < w.children * w.R(); ++ir, row += w.Q())
    for (int64_t half = 0, q = 0; half < w.halves(); ++half, q += 2)
      w.pose_pairs[ir * w.halves() + half] = pair_of<uint32_t>(row[q], q + 1 < w.Q() ? row[q + 1] : 0.0f);
}

// Take the children of a window.
template <class W>
void take_children(W& w, int64_t n) {
  w.n = n;
  w.window = Window(w.conv, n);
  const int64_t P = w.R() * w.Q();
  w.even_data = 0;
  for (int64_t k = 0, i = 0; k < w.slots; ++k, i += w.conv.c_in) {
    const int64_t position = w.window.position(w.conv, k);
    std::memcpy(&w.poses[i * P], w.inputs.poses + position * w.conv.c_in * P, w.conv.c_in * P * sizeof(float));
    std::memcpy(&w.active[i], w.inputs.activations + position * w.conv.c_in, w.conv.c_in * sizeof(float));
    const int64_t y = position / w.conv.width % w.conv.height, x = position % w.conv.width;
    const float count = competitors(w, y, x);
    w.log_counts[k] = std::log(count);
    w.even_data += float(w.conv.c_in) / (count * float(w.conv.c_out));
    if (w.inputs.vote_offset)
      std::memcpy(&w.offsets[k * w.D()], w.inputs.vote_offset + (y * w.conv.width + x) * w.D(), w.D() * sizeof(float));
  }
  if (w.packed.pairs) pair_poses(w);
  const bool off = *std::max_element(w.active.get(), w.active.get() + w.children) < LEAST_ACTIVATION;
  for (int64_t i = 0; i < w.children; ++i) {
    w.log_active[i] = std::max(w.active[i], LEAST_ACTIVATION);
    w.inverse_active[i] = off ? 0.0f : 1.0f / w.log_active[i];  // with no active child, shares are constants
    w.counted[i] = w.active[i] < LEAST_ACTIVATION ? w.active[i] / LEAST_ACTIVATION : 1.0f;
  }
  log_in_place<W::lanes>(w.log_active.get(), w.children);
}

// ln R_ij of a group <- ln 1/|parents of i|, or the given start.
template <class W>
void start_couplings(W& w, int64_t first, int64_t count) {
  for (int64_t block = 0; block < w.blocks; ++block)
    for (int64_t g = 0; g < count; ++g)
      w.couplings[block * GROUP + g] =
          w.packed.log_start[block * w.children + first + g] - w.log_counts[(first + g) / w.conv.c_in];
}

}  // namespace capsella::CAPSELLA_ISA
