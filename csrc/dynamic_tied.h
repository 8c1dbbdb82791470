// Dynamic routing where a child's weight depends on its type alone: exact without a single vote.
//
// With children i = (k, m) of type m in slot k, W_mj comes out of both sums of Procedure 1:
//   û_kmj·g_j = u_km·(g_j W_mjᵀ)          and          Σ_km c_kmj û_kmj = Σ_m (Σ_k c_kmj u_km) W_mj.
// One type of one window is one step: g W_mᵀ (the dual of g), logits, couplings, mean poses, mean poses times W_m.
// Vectors run over the columns of a parent's pose (z counts those of a row), or over slots (in blocks of L).
#pragma once

#include "dynamic_common.h"

namespace capsella::CAPSELLA_ISA {

// FixedQ, FixedVectors: columns of a child's pose, and vectors of a row of a parent's pose, where a network of the
// papers has them, of vector poses; else 0. weight [c_in c_out q row_vectors], in vectors, zero beyond e.
template <int L, int FixedQ, int FixedVectors>
class TiedChildren {
  using V = Vec<L>;
  static constexpr bool fixed = FixedQ != 0;
  static constexpr int64_t capacity = fixed ? FixedQ : MOST_POSE_ELEMENTS;

 public:
  TiedChildren(const Conv& conv, const DynamicOptions& options, const float* poses, const float* weight, const V*,
               int threads)
      : conv_(conv), softmax_(conv, options.leaky), poses_(conv, poses), weight_(weight),
        slots_(conv.slots()), blocks_((slots_ + L - 1) / L), terms_(2 * options.iterations - 1),
        memory_(threads * memory()), rows_(threads * conv.c_out * P()), duals_(threads * terms_ * conv.c_out * P()),
        means_(threads * terms_ * conv.c_out * P()) {}

  int64_t count() const { return conv_.c_in; }
  int64_t weights() const { return conv_.c_in; }

  // sums [n c_out d] += the votes of some types in the windows begin ... end - 1, times their couplings.
  void route(int thread, int t, Chunks types, int64_t begin, int64_t end, const V* g, V* sums) {
    for (int64_t m = types.begin; m < types.end; ++m)
      for (int64_t n = begin; n < end; ++n) {
        load_poses(thread, n, m);
        couple(thread, t, m, g + n * size(), couplings(thread, 0), dual(thread, 0));
        mean_poses(thread, couplings(thread, 0), mean(thread, 0));
        add(m, mean(thread, 0), sums + n * size());
      }
  }

  // sums [n c_out d] += these votes, times the gradients of their logits in iteration t.
  void pull(int thread, int t, int64_t m, int64_t begin, int64_t end, const Terms<L>& terms, V* sums) {
    for (int64_t n = begin; n < end; ++n) {
      load_poses(thread, n, m);
      logit_gradients(thread, t, m, n, terms, 0, 1);
      mean_poses(thread, couplings(thread, 1), mean(thread, 0));
      add(m, mean(thread, 0), sums + n * size());
    }
  }

  // grad_weight [c_in c_out q row_vectors] and grad_poses [n i p] of one type.
  void finish(int thread, int64_t m, const Terms<L>& terms, float* grad_weight, float* grad_poses) {
    const int last = terms.iterations() - 1;
    std::memset(grad_weight + m * weight_size(), 0, weight_size() * sizeof(float));
    for (int64_t n = 0; n < conv_.windows(); ++n) {
      load_poses(thread, n, m);
      couple(thread, 0, m, nullptr, couplings(thread, 0), nullptr);
      to_dual(thread, m, terms.sum_gradient(n, 0), dual(thread, 0));
      // couplings go with the gradients of s, and the gradients of logits with g
      for (int t = 1; t <= last; ++t) logit_gradients(thread, t, m, n, terms, t, last + t);
      for (int term = 0; term < terms_; ++term) mean_poses(thread, couplings(thread, term), mean(thread, term));
      add_weight_gradients(thread, m, terms.sum_gradient(n, 0), grad_weight);
      pose_gradients(thread, m, n, grad_poses);
    }
  }

 private:
  int64_t Q() const { return fixed ? FixedQ : conv_.q; }
  int64_t R() const { return fixed ? 1 : conv_.r; }
  int64_t P() const { return R() * Q(); }
  int64_t row_vectors() const { return fixed ? FixedVectors : (conv_.e + L - 1) / L; }
  int64_t pose_vectors() const { return R() * row_vectors(); }
  int64_t size() const { return conv_.c_out * pose_vectors(); }
  int64_t weight_size() const { return conv_.c_out * Q() * row_vectors() * L; }

  // What a thread works on, in vectors: poses [blocks p], couplings or gradients of logits [terms c_out blocks].
  int64_t memory() const { return (P() + terms_ * conv_.c_out) * blocks_; }
  V* children(int thread) { return &memory_[thread * memory()]; }
  V* couplings(int thread, int term) { return children(thread) + (P() + term * conv_.c_out) * blocks_; }
  // In floats [c_out p]: g W_mᵀ, and couplings times poses.
  float* dual(int thread, int term) { return &duals_[(thread * terms_ + term) * conv_.c_out * P()]; }
  float* mean(int thread, int term) { return &means_[(thread * terms_ + term) * conv_.c_out * P()]; }

  // The poses of one type in one window: of L slots in the lanes of vectors; zero beyond the last slot.
  void load_poses(int thread, int64_t n, int64_t m) {
    float* out = reinterpret_cast<float*>(children(thread));
    for (int64_t k = 0; k < slots_; ++k) {
      const float* u = poses_.at(n, k, m);
      float* lane = out + k / L * L * P() + k % L;
      for (int64_t p = 0; p < P(); ++p) lane[p * L] = u[p];
    }
    for (int64_t k = slots_; k < blocks_ * L; ++k)
      for (int64_t p = 0; p < P(); ++p) out[k / L * L * P() + k % L + p * L] = 0;
  }

  // The dual of a vector x [c_out d]: x W_mᵀ [c_out p].
  void to_dual(int thread, int64_t m, const V* x, float* dual) {
    const float* weight = weight_ + m * weight_size();
    V* row = &rows_[thread * conv_.c_out * P()];
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t r = 0; r < R(); ++r, x += row_vectors())
        for (int64_t q = 0; q < Q(); ++q, ++row) {
          const float* w = weight + (j * Q() + q) * row_vectors() * L;
          V sum = x[0] * load<L>(w);
          for (int64_t z = 1; z < row_vectors(); ++z) sum += x[z] * load<L>(w + z * L);
          *row = sum;
        }
    reduce_rows<Add, L>(&rows_[thread * conv_.c_out * P()], conv_.c_out * P(), dual);
  }

  // out [c_out blocks]: the scalar products of the children's votes with what `dual` is the dual of.
  void products(int thread, const float* dual, V* out) {
    const V* u = children(thread);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t block = 0; block < blocks_; ++block) {
        V sum{};
        for (int64_t p = 0; p < P(); ++p) sum += dual[j * P() + p] * u[block * P() + p];
        out[j * blocks_ + block] = sum;
      }
  }

  // The couplings [c_out blocks] of iteration t; `dual` becomes that of g.
  void couple(int thread, int t, int64_t m, const V* g, V* couplings, float* dual) {
    if (t == 0) return softmax_.even(couplings, conv_.c_out * blocks_);
    to_dual(thread, m, g, dual);
    products(thread, dual, couplings);
    for (int64_t block = 0; block < blocks_; ++block) softmax_.apply(couplings + block, blocks_);
  }

  // The couplings of iteration t > 0 as term `of_s` beside the dual of s's gradient, and the gradient of the logits as
  // term `of_g` beside the dual of g.
  void logit_gradients(int thread, int t, int64_t m, int64_t n, const Terms<L>& terms, int of_s, int of_g) {
    couple(thread, t, m, terms.g(n, t), couplings(thread, of_s), dual(thread, of_g));
    to_dual(thread, m, terms.sum_gradient(n, t), dual(thread, of_s));
    products(thread, dual(thread, of_s), couplings(thread, of_g));
    for (int64_t block = 0; block < blocks_; ++block)
      softmax_.gradient(couplings(thread, of_s) + block, couplings(thread, of_g) + block, blocks_);
  }

  // Σ_k factor_kj u_k [c_out p] of factors [c_out blocks].
  void mean_poses(int thread, const V* factors, float* mean) {
    const V* u = children(thread);
    V* row = &rows_[thread * conv_.c_out * P()];
    for (int64_t j = 0; j < conv_.c_out; ++j, row += P()) {
      V sum[capacity];
      for (int64_t p = 0; p < P(); ++p) sum[p] = V{};
      for (int64_t block = 0; block < blocks_; ++block)
        for (int64_t p = 0; p < P(); ++p) sum[p] += factors[j * blocks_ + block] * u[block * P() + p];
      std::copy_n(sum, P(), row);
    }
    reduce_rows<Add, L>(&rows_[thread * conv_.c_out * P()], conv_.c_out * P(), mean);
  }

  // sum [c_out d] += mean poses [c_out p] times W_m.
  void add(int64_t m, const float* mean, V* sum) const {
    const float* weight = weight_ + m * weight_size();
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t r = 0; r < R(); ++r, sum += row_vectors(), mean += Q())
        for (int64_t z = 0; z < row_vectors(); ++z) {
          V total = sum[z];
          for (int64_t q = 0; q < Q(); ++q)
            total += mean[q] * load<L>(weight + ((j * Q() + q) * row_vectors() + z) * L);
          sum[z] = total;
        }
  }

  // The sum over terms of mean poses times their vectors [terms c_out d].
  void add_weight_gradients(int thread, int64_t m, const V* vectors, float* grad_weight) {
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t q = 0; q < Q(); ++q)
        for (int64_t z = 0; z < row_vectors(); ++z) {
          float* into = grad_weight + m * weight_size() + ((j * Q() + q) * row_vectors() + z) * L;
          V sum = load<L>(into);
          for (int term = 0; term < terms_; ++term)
            for (int64_t r = 0; r < R(); ++r)
              sum += mean(thread, term)[j * P() + r * Q() + q] *
                     vectors[term * size() + j * pose_vectors() + r * row_vectors() + z];
          store<L>(into, sum);
        }
  }

  // The sum over terms and parents of factors times duals.
  void pose_gradients(int thread, int64_t m, int64_t n, float* grad_poses) {
    for (int64_t p = 0; p < P(); ++p)
      for (int64_t block = 0; block < blocks_; ++block) {
        V sum{};
        for (int term = 0; term < terms_; ++term)
          for (int64_t j = 0; j < conv_.c_out; ++j)
            sum += dual(thread, term)[j * P() + p] * couplings(thread, term)[j * blocks_ + block];
        for (int64_t l = 0; l < L && block * L + l < slots_; ++l)
          grad_poses[((n * slots_ + block * L + l) * conv_.c_in + m) * P() + p] = sum[l];
      }
  }

  const Conv& conv_;
  Softmax<L> softmax_;
  WindowPoses poses_;
  const float* weight_;
  int64_t slots_, blocks_;  // blocks: of L slots
  int terms_;
  Scratch<V> memory_, rows_;
  Scratch<float> duals_, means_;
};

}  // namespace capsella::CAPSELLA_ISA
