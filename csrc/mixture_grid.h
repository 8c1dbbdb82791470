// Sums over the windows that hold a child: from each window's children to the grid's.
#pragma once

#include <algorithm>

#include "mixture_window.h"

namespace capsella::CAPSELLA_ISA {

template <int L>
struct Grid {
  using V = Vec<L>;

  const Conv& conv;
  int threads;

  // From log-sum-exps at each window's children to those over all parents of each child [b h w c_in].
  void total_log(int64_t first, int64_t count, const float* sums, float* out) {
    for_each_position(first, count, [&](int64_t image, int64_t y, int64_t x, int64_t position) {
      for (int64_t m = 0; m < conv.c_in; m += L) {
        const size_t bytes = std::min<int64_t>(L, conv.c_in - m) * sizeof(float);
        auto of_window = [&](int64_t n, int64_t k) {
          V here{};
          std::memcpy(&here, sums + (n - first) * conv.children() + k * conv.c_in + m, bytes);
          return here;
        };
        V largest = splat<L>(NEVER), sum{};
        visit_windows(conv, image, y, x, [&](int64_t n, int64_t k) {
          largest = vmax<L>(largest, of_window(n, k));
        });
        visit_windows(conv, image, y, x, [&](int64_t n, int64_t k) {
          sum += vexp<L>(of_window(n, k) - largest);
        });
        const V total = largest + vlog<L>(sum);
        std::memcpy(out + position * conv.c_in + m, &total, bytes);
      }
    });
  }

  void total(int64_t first, int64_t count, const float* sums, float* out) {
    for_each_position(first, count, [&](int64_t image, int64_t y, int64_t x, int64_t position) {
      for (int64_t m = 0; m < conv.c_in; ++m) out[position * conv.c_in + m] = 0;
      visit_windows(conv, image, y, x, [&](int64_t n, int64_t k) {
        const float* here = sums + (n - first) * conv.children() + k * conv.c_in;
        for (int64_t m = 0; m < conv.c_in; ++m) out[position * conv.c_in + m] += here[m];
      });
    });
  }

  // body(image, y, x, y and x's position in [b h w]) for all positions of the images of these windows.
  template <class Body>
  void for_each_position(int64_t first, int64_t count, Body body) {
    const int64_t area = conv.positions();
    const int64_t begin = first / conv.sites() * area, end = (first + count) / conv.sites() * area;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t position = begin; position < end; ++position)
      body(position / area, position % area / conv.width, position % conv.width, position);
  }

  // Gradients at each window's children to those of the grid.
  void gather_children(const float* child_poses, const float* child_activations, MixtureGradients gradients) {
    const int64_t width = conv.c_in * conv.p();
    for_each_position(0, conv.windows(), [&](int64_t image, int64_t y, int64_t x, int64_t position) {
      float *poses = gradients.poses + position * width, *activations = gradients.activations + position * conv.c_in;
      std::memset(poses, 0, width * sizeof(float));
      std::memset(activations, 0, conv.c_in * sizeof(float));
      visit_windows(conv, image, y, x, [&](int64_t n, int64_t k) {
        const int64_t first_child = n * conv.children() + k * conv.c_in;
        for (int64_t mp = 0; mp < width; ++mp) poses[mp] += child_poses[first_child * conv.p() + mp];
        for (int64_t m = 0; m < conv.c_in; ++m) activations[m] += child_activations[first_child + m];
      });
    });
  }
};

}  // namespace capsella::CAPSELLA_ISA
