// What a window's children bring: poses, activations, votes, and the couplings they start from.
#pragma once

#include "em_window.h"

namespace capsella::CAPSELLA_ISA {

// Windows that compete for a child at this position.
template <class W>
float competitors(const W& w, int64_t y, int64_t x) {
  if (!w.options.compete_everywhere) return 1;
  int64_t row, row_end, column, column_end;
  windows_of(y, w.conv.kernel_height, w.conv.stride_height, w.conv.rows, row, row_end);
  windows_of(x, w.conv.kernel_width, w.conv.stride_width, w.conv.columns, column, column_end);
  return float((row_end - row) * (column_end - column));
}

// V_ij = M_i W_ij, for a block of parents.
template <class W>
void vote(W& w, int64_t block) {
  using V = VecOf<W>;
  const int64_t P = w.R() * w.Q();
  for (int64_t i = 0; i < w.children; ++i) {
    const V* weight = w.weight_of(block, i);
    V* out = &w.votes[(block * w.children + i) * w.D()];
    for (int64_t r = 0; r < w.R(); ++r) {
      V row[W::row_capacity];
      for (int64_t e = 0; e < w.E(); ++e) row[e] = V{};
      for (int64_t q = 0; q < w.Q(); ++q) {
        const float pose = w.poses[i * P + r * w.Q() + q];
        for (int64_t e = 0; e < w.E(); ++e) row[e] += pose * weight[q * w.E() + e];
      }
      for (int64_t e = 0; e < w.E(); ++e) out[r * w.E() + e] = row[e];
    }
    if (w.inputs.vote_offset)
      for (int64_t d = 0; d < w.D(); ++d) out[d] += w.offsets[i / w.conv.c_in * w.D() + d];
  }
}

// Take the children of a window and let them vote.
template <class W>
void take_children(W& w, int64_t n) {
  w.n = n;
  w.window = Window(w.conv, n);
  const int64_t P = w.R() * w.Q();
  float even = 0;  // data of a parent if every child were active and undecided
  for (int64_t k = 0, i = 0; k < w.slots; ++k, i += w.conv.c_in) {
    const int64_t position = w.window.position(w.conv, k);
    std::memcpy(&w.poses[i * P], w.inputs.poses + position * w.conv.c_in * P, w.conv.c_in * P * sizeof(float));
    std::memcpy(&w.active[i], w.inputs.activations + position * w.conv.c_in, w.conv.c_in * sizeof(float));
    const int64_t y = position / w.conv.width % w.conv.height, x = position % w.conv.width;
    const float count = competitors(w, y, x);
    w.log_counts[k] = std::log(count);
    even += float(w.conv.c_in) / (count * float(w.conv.c_out));
    if (w.inputs.vote_offset)
      std::memcpy(&w.offsets[k * w.D()], w.inputs.vote_offset + (y * w.conv.width + x) * w.D(), w.D() * sizeof(float));
  }
  for (int64_t i = 0; i < w.children; ++i) w.log_active[i] = std::max(w.active[i], LEAST_ACTIVATION);
  log_in_place(w, w.log_active.get());
  w.data_scale = w.options.cost_scale == 0 ? 1.0f : w.options.cost_scale / even;
  for (int64_t block = 0; block < w.blocks; ++block) vote(w, block);
}

// R_ij <- 1/|parents of i|, or the given start: log_couplings [blocks i].
template <class W>
void start_couplings(const W& w, VecOf<W>* log_couplings) {
  for (int64_t block = 0; block < w.blocks; ++block)
    for (int64_t k = 0, i = block * w.children; k < w.slots; ++k)
      for (int64_t m = 0; m < w.conv.c_in; ++m, ++i) log_couplings[i] = w.log_start[i] - w.log_counts[k];
}

}  // namespace capsella::CAPSELLA_ISA
