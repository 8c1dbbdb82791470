// 3x3 convolutions with stride 1 of maps that are stored channels last, by F(4x4, 3x3) of Winograd (Lavin and Gray 2016,
// arXiv 1509.09308): 36 products for 16 outputs in place of 144. A block of tiles passes through once, so that its
// spectra stay in the cache.
#include <algorithm>
#include <cstring>

#include <omp.h>

#include "kernels.h"
#include "scratch.h"
#include "vec.h"

namespace capsella::CAPSELLA_ISA {

namespace {

constexpr int L = CAPSELLA_LANES;
constexpr int TILE = 6, OUT = 4, POINTS = TILE * TILE;
constexpr int64_t BLOCK = 24;  // tiles at a time: with 64 channels their spectra fill half of a second-level cache
constexpr int64_t PARTS = 8;  // sums of a gradient, which threads share
using V = Vec<L>;

inline V load(const float* from) {
  V x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

inline void store(float* to, V x) { std::memcpy(to, &x, sizeof(x)); }

// The transforms along one axis: of 6 numbers of an image, 6 of a spectrum, and 4 of a slope.
inline void of_image(V* x, int s) {
  const V a = x[0], b = x[s], c = x[2 * s], d = x[3 * s], e = x[4 * s], f = x[5 * s];
  const V even = e - 4.0f * c, odd = d - 4.0f * b, near = e - c, far = 2.0f * (d - b);
  x[0] = 4.0f * a - 5.0f * c + e;
  x[s] = even + odd;
  x[2 * s] = even - odd;
  x[3 * s] = near + far;
  x[4 * s] = near - far;
  x[5 * s] = 4.0f * b - 5.0f * d + f;
}

inline void of_spectrum(V* x, int s) {
  const V a = x[0], f = x[5 * s];
  const V sum = x[s] + x[2 * s], difference = x[s] - x[2 * s];
  const V far_sum = x[3 * s] + x[4 * s], far_difference = x[3 * s] - x[4 * s];
  x[0] = a + sum + far_sum;
  x[s] = difference + 2.0f * far_difference;
  x[2 * s] = sum + 4.0f * far_sum;
  x[3 * s] = difference + 8.0f * far_difference + f;
}

inline void of_slope(V* x, int s) {
  const V a = x[0], b = x[s], c = x[2 * s], d = x[3 * s];
  const V even = a + c, odd = b + d, far_even = a + 4.0f * c, far_odd = 2.0f * b + 8.0f * d;
  x[s] = even + odd;
  x[2 * s] = even - odd;
  x[3 * s] = far_even + far_odd;
  x[4 * s] = far_even - far_odd;
  x[5 * s] = d;
}

// Where tile `number` begins in the output, and of which image.
struct Tile {
  int64_t image, row, column;

  Tile(const Maps& of, int64_t number) {
    const int64_t across = (of.columns + OUT - 1) / OUT, down = (of.rows + OUT - 1) / OUT;
    image = number / (across * down);
    row = number / across % down * OUT;
    column = number % across * OUT;
  }
  static int64_t count(const Maps& of) {
    return of.batch * ((of.columns + OUT - 1) / OUT) * ((of.rows + OUT - 1) / OUT);
  }
};

// Spectra [point][BLOCK][channels] of n x n numbers of maps [b height width channels] around each tile of a block.
template <int n>
void spectra(const Maps& of, const float* maps, int64_t height, int64_t width, int64_t channels, int64_t padding,
             int64_t first, int64_t count, float* to) {
  for (int64_t t = 0; t < count; ++t) {
    const Tile tile(of, first + t);
    for (int64_t c = 0; c < channels; c += L) {
      V x[POINTS];
      for (int i = 0; i < n; ++i) {
        const int64_t row = tile.row + i - padding;
        for (int j = 0; j < n; ++j) {
          const int64_t column = tile.column + j - padding;
          const bool inside = row >= 0 && row < height && column >= 0 && column < width;
          x[i * TILE + j] = inside ? load(maps + ((tile.image * height + row) * width + column) * channels + c) : V{};
        }
        if (n == TILE) of_image(x + i * TILE, 1);
        else of_slope(x + i * TILE, 1);
      }
      for (int j = 0; j < TILE; ++j) {
        if (n == TILE) of_image(x + j, TILE);
        else of_slope(x + j, TILE);
      }
      for (int f = 0; f < POINTS; ++f) store(to + (f * BLOCK + t) * channels + c, x[f]);
    }
  }
  if (count < BLOCK)
    for (int f = 0; f < POINTS; ++f)
      std::memset(to + (f * BLOCK + count) * channels, 0, (BLOCK - count) * channels * sizeof(float));
}

// sums [rows columns] (+)= a [rows depth], or its transpose, by b [depth columns], R rows and N vectors at a time.
template <int R, int N, bool transposed, bool add>
inline void multiply_block(const float* a, const float* b, float* sums, int64_t depth, int64_t a_stride,
                           int64_t columns) {
  V sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = add ? load(sums + r * columns + n * L) : V{};
  for (int64_t k = 0; k < depth; ++k) {
    V right[N];
    for (int n = 0; n < N; ++n) right[n] = load(b + k * columns + n * L);
    for (int r = 0; r < R; ++r) {
      const V left = splat<L>(transposed ? a[k * a_stride + r] : a[r * a_stride + k]);
      for (int n = 0; n < N; ++n) sum[r][n] += left * right[n];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * columns + n * L, sum[r][n]);
}

template <int R, int N, bool transposed, bool add>
void multiply(const float* a, const float* b, float* sums, int64_t rows, int64_t depth, int64_t a_stride,
              int64_t columns) {
  for (int64_t column = 0; column < columns; column += N * L)
    for (int64_t row = 0; row < rows; row += R)
      multiply_block<R, N, transposed, add>(a + (transposed ? row : row * a_stride), b + column,
                                            sums + row * columns + column, depth, a_stride, columns);
}

template <bool transposed, bool add>
void products(const float* a, const float* b, float* sums, int64_t rows, int64_t depth, int64_t a_stride,
              int64_t columns) {
  // As many sums as registers hold: 24 of 32 with AVX-512, 8 or 12 of 16 otherwise. Rows are a multiple of 8 or 24.
  if (L == 16 && columns % (2 * L) == 0) {
    if (transposed) multiply<8, 2, transposed, add>(a, b, sums, rows, depth, a_stride, columns);
    else multiply<12, 2, transposed, add>(a, b, sums, rows, depth, a_stride, columns);
  } else if (columns % (2 * L) == 0) {
    multiply<4, 2, transposed, add>(a, b, sums, rows, depth, a_stride, columns);
  } else {
    multiply<8, 1, transposed, add>(a, b, sums, rows, depth, a_stride, columns);
  }
}

}  // namespace

// out [b rows columns out_channels] of maps [b height width channels], by the spectrum [36 channels out_channels].
void winograd_forward(const Maps& of, const float* maps, const float* spectrum, const float* bias, float* out,
                      int threads) {
  const int64_t tiles = Tile::count(of), blocks = (tiles + BLOCK - 1) / BLOCK;
  const int64_t size = POINTS * BLOCK * (of.channels + of.out_channels);
  Scratch<float> scratch(size * threads);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    float* seen = scratch.get() + size * omp_get_thread_num();
    float* made = seen + POINTS * BLOCK * of.channels;
    const int64_t first = block * BLOCK, count = std::min(BLOCK, tiles - first);
    spectra<TILE>(of, maps, of.height, of.width, of.channels, of.padding, first, count, seen);
    for (int f = 0; f < POINTS; ++f)
      products<false, false>(seen + f * BLOCK * of.channels, spectrum + f * of.channels * of.out_channels,
                             made + f * BLOCK * of.out_channels, BLOCK, of.channels, of.channels, of.out_channels);
    for (int64_t t = 0; t < count; ++t) {
      const Tile tile(of, first + t);
      for (int64_t c = 0; c < of.out_channels; c += L) {
        V x[POINTS];
        for (int f = 0; f < POINTS; ++f) x[f] = load(made + (f * BLOCK + t) * of.out_channels + c);
        for (int j = 0; j < TILE; ++j) of_spectrum(x + j, TILE);
        const V shift = bias != nullptr ? load(bias + c) : V{};
        for (int i = 0; i < OUT && tile.row + i < of.rows; ++i) {
          of_spectrum(x + i * TILE, 1);
          float* row = out + ((tile.image * of.rows + tile.row + i) * of.columns + tile.column) * of.out_channels + c;
          for (int j = 0; j < OUT && tile.column + j < of.columns; ++j)
            store(row + j * of.out_channels, x[i * TILE + j] + shift);
        }
      }
    }
  }
}

// The gradient of the spectrum, by slopes [b rows columns out_channels].
void winograd_weights(const Maps& of, const float* maps, const float* slopes, float* grad_spectrum, int threads) {
  const int64_t tiles = Tile::count(of), blocks = (tiles + BLOCK - 1) / BLOCK;
  const int64_t numbers = POINTS * of.channels * of.out_channels, size = POINTS * BLOCK * (of.channels + of.out_channels);
  // A fixed number of sums, so that the number of threads changes no bit.
  const int64_t parts = std::min(PARTS, std::max<int64_t>(1, blocks));
  Scratch<float> scratch(size * threads), sums(numbers * parts);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < parts; ++part) {
    float* sum = sums.get() + numbers * part;
    float* seen = scratch.get() + size * omp_get_thread_num();
    float* pulled = seen + POINTS * BLOCK * of.channels;
    std::memset(sum, 0, numbers * sizeof(float));
    for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      const int64_t first = block * BLOCK, count = std::min(BLOCK, tiles - first);
      spectra<TILE>(of, maps, of.height, of.width, of.channels, of.padding, first, count, seen);
      spectra<OUT>(of, slopes, of.rows, of.columns, of.out_channels, 0, first, count, pulled);
      for (int f = 0; f < POINTS; ++f)
        products<true, true>(seen + f * BLOCK * of.channels, pulled + f * BLOCK * of.out_channels,
                             sum + f * of.channels * of.out_channels, of.channels, BLOCK, of.channels,
                             of.out_channels);
    }
  }
  for (int64_t n = 0; n < numbers; ++n) {
    float sum = 0.0f;
    for (int64_t part = 0; part < parts; ++part) sum += sums[numbers * part + n];
    grad_spectrum[n] = sum;
  }
}

}  // namespace capsella::CAPSELLA_ISA
