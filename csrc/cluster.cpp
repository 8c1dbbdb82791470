// Cluster routing: how well each cluster of votes agrees in itself, and the means weighed by it. Every element of every
// parent is by itself, so a chunk of them passes through once, and what lies between votes and poses stays in the cache.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <omp.h>

#include "kernels.h"
#include "scratch.h"
#include "vec.h"

namespace capsella::CAPSELLA_ISA {

namespace {

constexpr int64_t CHUNK = 128;  // elements at a time: those of 32 votes fit into a first-level cache
constexpr float EPSILON = 1e-12f;  // of capsella/routing/cluster/eager.py

inline float value_of(float x) { return x; }

inline float value_of(BFloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void store(float* to, float x) { *to = x; }

// To the nearest, and of two as near to the even one.
inline void store(BFloat16* to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = uint16_t(x == x ? rounded : 0x7fc0);
}

// A chunk of one image: elements [first, first + count) of all its votes.
struct Chunk {
  int64_t image, first, count;

  Chunk(const Clusters& of, int64_t number) {
    const int64_t chunks = chunks_of(of);
    image = number / chunks;
    first = number % chunks * CHUNK;
    count = std::min(CHUNK, of.elements - first);
  }
  static int64_t chunks_of(const Clusters& of) { return (of.elements + CHUNK - 1) / CHUNK; }
  // Where row `row` of [batch rows elements] has it.
  int64_t at(const Clusters& of, int64_t rows, int64_t row) const {
    return (image * rows + row) * of.elements + first;
  }
};

// Of one child's votes [g n] the means, how far these are from the first vote, and one over the deviations. Squares are
// of distances from the first vote: they are at most g times the variance, so no digits are lost.
template <class T>
void measure(const Clusters& of, const T* votes, int64_t count, float* __restrict mean, float* __restrict shift,
             float* __restrict sharpness) {
  float first[CHUNK], sums[CHUNK] = {}, squares[CHUNK] = {};
  for (int64_t c = 0; c < count; ++c) first[c] = value_of(votes[c]);
  for (int64_t g = 1; g < of.votes; ++g) {
    const T* row = votes + g * of.elements;
    for (int64_t c = 0; c < count; ++c) {
      const float apart = value_of(row[c]) - first[c];
      sums[c] += apart;
      squares[c] += apart * apart;
    }
  }
  const float share = 1.0f / of.votes;
  for (int64_t c = 0; c < count; ++c) {
    shift[c] = sums[c] * share;
    mean[c] = first[c] + shift[c];
    sharpness[c] = 1.0f / std::sqrt(std::max(squares[c] * share - shift[c] * shift[c], 0.0f) + EPSILON);
  }
}

// Weights [i n] in place of sharpness, and the poses [n] with them.
void weigh(const Clusters& of, const float* __restrict means, float* __restrict weights, int64_t stride, int64_t count,
           float* __restrict poses) {
  float total[CHUNK] = {}, sum[CHUNK] = {};
  for (int64_t i = 0; i < of.children; ++i)
    for (int64_t c = 0; c < count; ++c) total[c] += weights[i * stride + c];
  for (int64_t i = 0; i < of.children; ++i)
    for (int64_t c = 0; c < count; ++c) {
      const float weight = weights[i * stride + c] / total[c];
      weights[i * stride + c] = weight;
      sum[c] += weight * means[i * CHUNK + c];
    }
  for (int64_t c = 0; c < count; ++c) poses[c] = sum[c];
}

template <class T>
void forward(const Clusters& of, const T* votes, float* poses, float* weights, int threads) {
  Scratch<float> means(threads * of.children * CHUNK);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const FlushDenormals flush;
    float *mean = means.get() + omp_get_thread_num() * of.children * CHUNK, shift[CHUNK];
#pragma omp for
    for (int64_t number = 0; number < of.batch * Chunk::chunks_of(of); ++number) {
      const Chunk chunk(of, number);
      for (int64_t i = 0; i < of.children; ++i)
        measure(of, votes + chunk.at(of, of.children * of.votes, i * of.votes), chunk.count, mean + i * CHUNK, shift,
                weights + chunk.at(of, of.children, i));
      weigh(of, mean, weights + chunk.at(of, of.children, 0), of.elements, chunk.count,
            poses + chunk.at(of, 1, 0));
    }
  }
}

// What one chunk's gradients are made of: of each child means, shifts, sharpness and weights; the poses p, and the sum of
// w times the gradient of w from above, which all children have in common.
struct Kept {
  float *means, *shifts, *sharpness, *weights, *poses, *common;
  static int64_t size(const Clusters& of) { return (4 * of.children + 2) * CHUNK; }
  Kept(const Clusters& of, float* memory)
      : means(memory),
        shifts(means + of.children * CHUNK),
        sharpness(shifts + of.children * CHUNK),
        weights(sharpness + of.children * CHUNK),
        poses(weights + of.children * CHUNK),
        common(poses + CHUNK) {}
};

// dL/dV_g of one child = w dp / g + dL/ds² 2 (V_g - m) / g, where dL/ds² = -½ w (dp (m - p) + dw - common) / s².
template <class T>
void differentiate_child(const Clusters& of, const T* votes, const Kept& kept, int64_t i, const float* grad_poses,
                         const float* grad_weights, int64_t count, T* grad_votes) {
  const float *mean = kept.means + i * CHUNK, *sharp = kept.sharpness + i * CHUNK, *weight = kept.weights + i * CHUNK;
  const float* shift = kept.shifts + i * CHUNK;
  const float share = 1.0f / of.votes;
  float of_mean[CHUNK], of_apart[CHUNK];
  for (int64_t c = 0; c < count; ++c) {
    const float of_weight = grad_poses[c] * (mean[c] - kept.poses[c]) + grad_weights[c] - kept.common[c];
    of_mean[c] = weight[c] * grad_poses[c] * share;
    of_apart[c] = -(weight[c] * of_weight) * (sharp[c] * sharp[c]) * share;
  }
  for (int64_t g = 0; g < of.votes; ++g) {
    const T* row = votes + g * of.elements;
    T* to = grad_votes + g * of.elements;
    for (int64_t c = 0; c < count; ++c) {
      const float apart = value_of(row[c]) - value_of(votes[c]) - shift[c];  // V_g - m, without the digits of m
      store(to + c, of_mean[c] + of_apart[c] * apart);
    }
  }
}

template <class T>
void differentiate(const Clusters& of, const T* votes, const Kept& kept, const Chunk& chunk, const float* grad_poses,
                   const float* grad_weights, T* grad_votes) {
  const auto votes_at = [&](int64_t i) { return chunk.at(of, of.children * of.votes, i * of.votes); };
  for (int64_t i = 0; i < of.children; ++i) {
    measure(of, votes + votes_at(i), chunk.count, kept.means + i * CHUNK, kept.shifts + i * CHUNK,
            kept.sharpness + i * CHUNK);
    std::copy_n(kept.sharpness + i * CHUNK, chunk.count, kept.weights + i * CHUNK);
  }
  weigh(of, kept.means, kept.weights, CHUNK, chunk.count, kept.poses);
  const float* of_poses = grad_poses + chunk.at(of, 1, 0);
  std::fill_n(kept.common, chunk.count, 0.0f);
  for (int64_t i = 0; i < of.children; ++i) {
    const float* of_weights = grad_weights + chunk.at(of, of.children, i);
    for (int64_t c = 0; c < chunk.count; ++c) kept.common[c] += kept.weights[i * CHUNK + c] * of_weights[c];
  }
  for (int64_t i = 0; i < of.children; ++i)
    differentiate_child(of, votes + votes_at(i), kept, i, of_poses, grad_weights + chunk.at(of, of.children, i),
                        chunk.count, grad_votes + votes_at(i));
}

template <class T>
void backward(const Clusters& of, const T* votes, const float* grad_poses, const float* grad_weights, T* grad_votes,
              int threads) {
  Scratch<float> memory(threads * Kept::size(of));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const FlushDenormals flush;
    const Kept kept(of, memory.get() + omp_get_thread_num() * Kept::size(of));
#pragma omp for
    for (int64_t number = 0; number < of.batch * Chunk::chunks_of(of); ++number)
      differentiate(of, votes, kept, Chunk(of, number), grad_poses, grad_weights, grad_votes);
  }
}

}  // namespace

void cluster_forward(const Clusters& of, const float* votes, float* poses, float* weights, int threads) {
  forward(of, votes, poses, weights, threads);
}

void cluster_backward(const Clusters& of, const float* votes, const float* grad_poses, const float* grad_weights,
                      float* grad_votes, int threads) {
  backward(of, votes, grad_poses, grad_weights, grad_votes, threads);
}

void cluster_forward_bfloat16(const Clusters& of, const BFloat16* votes, float* poses, float* weights, int threads) {
  forward(of, votes, poses, weights, threads);
}

void cluster_backward_bfloat16(const Clusters& of, const BFloat16* votes, const float* grad_poses,
                               const float* grad_weights, BFloat16* grad_votes, int threads) {
  backward(of, votes, grad_poses, grad_weights, grad_votes, threads);
}

}  // namespace capsella::CAPSELLA_ISA
