// Vectors of L floats, and the few functions of them that routing needs. GCC and Clang lower them to whatever
// registers the instruction set of this translation unit has.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace capsella::CAPSELLA_ISA {

// While one lives, its thread takes numbers below 1e-38 for 0. Couplings of EM routing fall there by the thousand, where
// x86 processors are a hundred times slower.
class FlushDenormals {
#if defined(__SSE__)
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
#endif
};

template <int L>
struct Lanes {
  typedef float Float __attribute__((vector_size(L * sizeof(float)), may_alias));
  typedef int32_t Int __attribute__((vector_size(L * sizeof(int32_t)), may_alias));
  typedef uint32_t Pair __attribute__((vector_size(L * sizeof(uint32_t)), may_alias));
};

template <int L>
using Vec = typename Lanes<L>::Float;
// In every lane two bfloat16 numbers, the first in the lower half. Each is the upper half of the same float.
template <int L>
using Pairs = typename Lanes<L>::Pair;

// Two floats that are bfloat16 numbers as a pair, or two vectors of them.
template <class Pair, class Float>
inline Pair pair_of(Float first, Float second) {
  Pair low, high;
  std::memcpy(&low, &first, sizeof(low));
  std::memcpy(&high, &second, sizeof(high));
  return low >> 16 | (high & 0xffff0000u);
}

template <class Float, class Pair>
inline Float first_of(Pair pair) {
  pair <<= 16;
  Float x;
  std::memcpy(&x, &pair, sizeof(x));
  return x;
}

template <class Float, class Pair>
inline Float second_of(Pair pair) {
  pair &= 0xffff0000u;
  Float x;
  std::memcpy(&x, &pair, sizeof(x));
  return x;
}

// sum + the products of the first and of the second numbers of each pair: exact products, sums of floats.
template <int L>
inline Vec<L> dot_pairs(Vec<L> sum, Pairs<L> a, uint32_t b) {
#if defined(__AVX512BF16__)
  if constexpr (L == 16)
    return Vec<L>(_mm512_dpbf16_ps(__m512(sum), (__m512bh)a, (__m512bh)_mm512_set1_epi32(int32_t(b))));
  if constexpr (L == 8)
    return Vec<L>(_mm256_dpbf16_ps(__m256(sum), (__m256bh)a, (__m256bh)_mm256_set1_epi32(int32_t(b))));
#endif
  sum += second_of<Vec<L>>(a) * second_of<float>(b);
  return sum + first_of<Vec<L>>(a) * first_of<float>(b);
}

// Scalars x, and vectors of x in every lane.
template <int L>
inline Vec<L> splat(float x) {
  return x - Vec<L>{};  // 0 + x would be an addition, for the sake of -0
}

template <int L>
inline Vec<L> vmax(Vec<L> a, Vec<L> b) {
  return a > b ? a : b;
}

// e^r - 1 - r over r^2, for |r| <= ln 2 / 2.
template <class V>
inline V exp_tail(V r) {
  V y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  return y * r + 5.0000001201e-1f;
}

// e^x within 2 ulp; 0 below -87.3 and capped above 88.
template <int L>
inline Vec<L> vexp(Vec<L> x) {
  using V = Vec<L>;
  using I = typename Lanes<L>::Int;
  const auto vanishes = x < splat<L>(-87.3f);
  x = vanishes ? splat<L>(-87.3f) : x;
  x = x > splat<L>(88.0f) ? splat<L>(88.0f) : x;
  constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits
  const V n = (x * 1.44269504088896341f + round) - round;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const V y = exp_tail(r) * (r * r) + r + 1.0f;
  const I bits = (__builtin_convertvector(n, I) + 127) << 23;
  V scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return vanishes ? V{} : y * scale;
}

#if defined(__AVX512F__)
// The same, with instructions that round and scale by a power of two.
template <>
inline Vec<16> vexp<16>(Vec<16> x) {
  // Both take their second argument where one is not a number: x, which so stays one.
  const __m512 capped = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(_mm512_set1_ps(-100.0f), __m512(x)));
  const __m512 n = _mm512_roundscale_ps(capped * _mm512_set1_ps(1.44269504088896341f), 8);  // to the nearest integer
  const Vec<16> r = Vec<16>(_mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f),
                                             _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), capped)));
  return Vec<16>(_mm512_scalef_ps(__m512(exp_tail(r) * (r * r) + r + 1.0f), n));
}
#endif

// ln x within 2 ulp, for positive normal x; what is not a number, or infinite, gives no number.
template <int L>
inline Vec<L> vlog(Vec<L> x) {
  using V = Vec<L>;
  using I = typename Lanes<L>::Int;
  I bits;
  std::memcpy(&bits, &x, sizeof(bits));
  I exponent = ((bits >> 23) & 255) - 126;
  bits = (bits & 0x007fffff) | 0x3f000000;
  V m;
  std::memcpy(&m, &bits, sizeof(m));  // in [0.5, 1)
  const auto small = m < splat<L>(0.707106781186547524f);
  V e = __builtin_convertvector(exponent, V);
  e = small ? e - 1.0f : e;
  m = (small ? m + m : m) - 1.0f;
  const V z = m * m;
  V y = splat<L>(7.0376836292e-2f);
  y = y * m - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * z + e * -2.12194440e-4f - 0.5f * z;
  const V nothing = x - x;  // 0, or no number
  return m + y + e * 0.693359375f + nothing;
}

// ln(1 + x) for x >= 0, exact also where 1 + x rounds (Kahan).
template <int L>
inline Vec<L> vlog1p(Vec<L> x) {
  const Vec<L> u = x + 1.0f;
  const auto rounded = u == splat<L>(1.0f);
  const Vec<L> excess = rounded ? splat<L>(1.0f) : u - 1.0f;
  return rounded ? x : vlog<L>(u) * (x / excess);
}

struct Add {
  template <class V>
  static V apply(V a, V b) { return a + b; }
  static constexpr float neutral = 0.0f;
};

struct Max {
  template <class V>
  static V apply(V a, V b) { return a > b ? a : b; }
  static constexpr float neutral = -3.0e38f;
};

// Of every group of G lanes of a and b, one after the other, its first half joined with its second half.
template <class Op, int L, int G, size_t... l>
inline Vec<L> fold(Vec<L> a, Vec<L> b, std::index_sequence<l...>) {
  const Vec<L> low = __builtin_shufflevector(a, b, int((l / (G / 2)) * G + l % (G / 2))...);
  const Vec<L> high = __builtin_shufflevector(a, b, int((l / (G / 2)) * G + l % (G / 2) + G / 2)...);
  return Op::apply(low, high);
}

// L vectors to one: lane k of the result is the sum (or maximum) over the lanes of rows[k].
template <class Op, int L, int G = L>
inline Vec<L> reduce_block(Vec<L>* rows) {
  for (int k = 0; k < G / 2; ++k) rows[k] = fold<Op, L, G>(rows[2 * k], rows[2 * k + 1], std::make_index_sequence<L>{});
  if constexpr (G == 2)
    return rows[0];
  else
    return reduce_block<Op, L, G / 2>(rows);
}

// out[k] = sum (or maximum) over the lanes of rows[k], k < count; in a fixed order.
template <class Op, int L>
inline void reduce_rows(const Vec<L>* rows, int64_t count, float* out) {
  for (int64_t k = 0; k < count; k += L) {
    const int64_t here = count - k < L ? count - k : L;
    Vec<L> block[L];
    for (int64_t m = 0; m < L; ++m) block[m] = m < here ? rows[k + m] : splat<L>(Op::neutral);
    const Vec<L> reduced = reduce_block<Op, L>(block);
    std::memcpy(out + k, &reduced, here * sizeof(float));
  }
}

}  // namespace capsella::CAPSELLA_ISA
