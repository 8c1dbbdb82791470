// Weights with parents in the lanes of vectors, and the children of a window in one row.
#pragma once

#include <cmath>
#include <cstring>

#include <omp.h>

#include "kernels.h"
#include "vec.h"

namespace capsella::CAPSELLA_ISA {

constexpr int64_t MOST_POSE_ELEMENTS = 256;

// values [rows c_out elements] -> packed [blocks rows elements] of vectors, a block holding L parents; zeros beyond.
template <int L>
void pack_parents(const float* values, int64_t rows, int64_t c_out, int64_t elements, Vec<L>* packed, int64_t blocks,
                  int threads) {
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1)
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t row = 0; row < rows; ++row) {
      Vec<L>* out = packed + (block * rows + row) * elements;
      for (int64_t k = 0; k < elements; ++k) out[k] = Vec<L>{};
      for (int64_t l = 0; l < L && block * L + l < c_out; ++l) {
        const float* in = values + (row * c_out + block * L + l) * elements;
        for (int64_t k = 0; k < elements; ++k) out[k][l] = in[k];
      }
    }
}

// packed [n q e], of bfloat16 numbers -> pairs along q [n (q + 1) / 2 e]; an odd q's last is paired with 0.
template <int L>
void pack_pairs(const Vec<L>* packed, Pairs<L>* pairs, int64_t n, int64_t Q, int64_t E, int threads) {
  const int64_t halves = (Q + 1) / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t k = 0; k < n * halves; ++k) {
    const Vec<L>* first = packed + (k / halves * Q + k % halves * 2) * E;
    const bool whole = k % halves * 2 + 1 < Q;
    for (int64_t e = 0; e < E; ++e)
      pairs[k * E + e] = pair_of<Pairs<L>>(first[e], whole ? first[E + e] : Vec<L>{});
  }
}

// The sum of `copies` of what is so packed, one behind the other, in their order -> values [rows c_out elements].
template <int L>
void unpack_sum(const Vec<L>* packed, int64_t copies, int64_t rows, int64_t c_out, int64_t elements, float* values,
                int64_t blocks, int threads) {
  const int64_t stride = blocks * rows * elements;
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1)
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t k = 0; k < elements; ++k) {
        Vec<L> sum{};
        for (int64_t copy = 0; copy < copies; ++copy)
          sum += packed[copy * stride + (block * rows + row) * elements + k];
        for (int64_t l = 0; l < L && block * L + l < c_out; ++l)
          values[(row * c_out + block * L + l) * elements + k] = sum[l];
      }
}

// One window: its image, and the row and column of its first slot.
struct Window {
  int64_t image, top, left;

  Window(const Conv& conv, int64_t n) {
    image = n / conv.sites();
    const int64_t site = n % conv.sites();
    top = site / conv.columns * conv.stride_height;
    left = site % conv.columns * conv.stride_width;
  }

  // The position in [b h w] of slot k.
  int64_t position(const Conv& conv, int64_t k) const {
    const int64_t y = top + k / conv.kernel_width, x = left + k % conv.kernel_width;
    return (image * conv.height + y) * conv.width + x;
  }
};

// Windows along one axis that hold place x: the first, and one past the last.
inline void windows_of(int64_t x, int64_t kernel, int64_t stride, int64_t count, int64_t& first, int64_t& end) {
  first = x < kernel ? 0 : (x - kernel) / stride + 1;
  end = x / stride + 1 < count ? x / stride + 1 : count;
}

// Call visit(n, k) for every window n of the image that holds position (y, x), in its slot k; in the order of windows.
template <class Visit>
void visit_windows(const Conv& conv, int64_t image, int64_t y, int64_t x, Visit visit) {
  int64_t row, row_end, first_column, column_end;
  windows_of(y, conv.kernel_height, conv.stride_height, conv.rows, row, row_end);
  windows_of(x, conv.kernel_width, conv.stride_width, conv.columns, first_column, column_end);
  for (; row < row_end; ++row)
    for (int64_t column = first_column; column < column_end; ++column)
      visit((image * conv.rows + row) * conv.columns + column,
            (y - row * conv.stride_height) * conv.kernel_width + (x - column * conv.stride_width));
}

}  // namespace capsella::CAPSELLA_ISA
