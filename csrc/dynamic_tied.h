// Dynamic routing where a child's weight depends on its type alone: exact without a single vote, as in
// capsella/routing/dynamic/tied.py.
//
// With children i = (k, t) of type t at position k, W_tj comes out of both sums of Procedure 1:
//   û_ktj·g_j = u_kt·(g_j W_tjᵀ)          and          Σ_kt c_ktj û_ktj = Σ_t (Σ_k c_ktj u_kt) W_tj.
// One type of one window is one step: g W_tᵀ (the dual of g), logits, couplings, mean poses, mean poses times W_t.
// Vectors run over the columns of a parent's pose, or over the positions of the children.
#pragma once

#include "dynamic_common.h"

namespace capsella::CAPSELLA_ISA {

// Q: columns of a child's pose where a network of the papers has them, of vector poses; else 0.
// weight [c_in c_out q columns], in vectors, zero beyond c.
template <int L, int Q, int C>
class TiedChildren {
  using V = Vec<L>;
  static constexpr bool fixed = Q != 0;
  static constexpr int64_t capacity = fixed ? Q : MOST_POSE_ELEMENTS;

 public:
  TiedChildren(const Conv& conv, const DynamicOptions& options, const float* poses, const float* weight, const V*,
               int threads)
      : conv_(conv), softmax_(conv, options.leaky), poses_(conv, poses), weight_(weight),
        positions_(conv.children() / conv.c_in), blocks_((positions_ + L - 1) / L), terms_(2 * options.iterations - 1),
        memory_(threads * memory()), rows_(threads * conv.c_out * p()), duals_(threads * terms_ * conv.c_out * p()),
        means_(threads * terms_ * conv.c_out * p()) {}

  int64_t count() const { return conv_.c_in; }
  int64_t weights() const { return conv_.c_in; }

  // sums [units c_out d] += the votes of one type in the windows begin ... end - 1, times their couplings.
  void route(int thread, int t, int64_t type, int64_t begin, int64_t end, const V* g, V* sums) {
    for (int64_t unit = begin; unit < end; ++unit) {
      load_poses(thread, unit, type);
      couple(thread, t, type, g + unit * size(), couplings(thread, 0), dual(thread, 0));
      mean_poses(thread, couplings(thread, 0), mean(thread, 0));
      add(type, mean(thread, 0), sums + unit * size());
    }
  }

  // sums [units c_out d] += these votes, times the gradients of their logits in iteration t.
  void pull(int thread, int t, int64_t type, int64_t begin, int64_t end, const Terms<L>& terms, V* sums) {
    for (int64_t unit = begin; unit < end; ++unit) {
      load_poses(thread, unit, type);
      logit_gradients(thread, t, type, unit, terms, 0, 1);
      mean_poses(thread, couplings(thread, 1), mean(thread, 0));
      add(type, mean(thread, 0), sums + unit * size());
    }
  }

  // grad_weight [c_in c_out q columns] and grad_poses [units children p] of one type.
  void finish(int thread, int64_t type, const Terms<L>& terms, float* grad_weight, float* grad_poses) {
    const int last = terms.iterations() - 1;
    std::memset(grad_weight + type * weight_size(), 0, weight_size() * sizeof(float));
    for (int64_t unit = 0; unit < conv_.units(); ++unit) {
      load_poses(thread, unit, type);
      couple(thread, 0, type, nullptr, couplings(thread, 0), nullptr);
      to_dual(thread, type, terms.sum_gradient(unit, 0), dual(thread, 0));
      // couplings go with the gradients of s, and the gradients of logits with g
      for (int t = 1; t <= last; ++t) logit_gradients(thread, t, type, unit, terms, t, last + t);
      for (int x = 0; x < terms_; ++x) mean_poses(thread, couplings(thread, x), mean(thread, x));
      add_weight_gradients(thread, type, terms.sum_gradient(unit, 0), grad_weight);
      pose_gradients(thread, type, unit, grad_poses);
    }
  }

 private:
  int64_t q() const { return fixed ? Q : conv_.q; }
  int64_t rows() const { return fixed ? 1 : conv_.n; }
  int64_t p() const { return rows() * q(); }
  int64_t columns() const { return fixed ? C : (conv_.c + L - 1) / L; }
  int64_t d() const { return rows() * columns(); }
  int64_t size() const { return conv_.c_out * d(); }
  int64_t weight_size() const { return conv_.c_out * q() * columns() * L; }

  // What a thread works on, in vectors: poses [blocks p], couplings or gradients of logits [terms c_out blocks].
  int64_t memory() const { return (p() + terms_ * conv_.c_out) * blocks_; }
  V* children(int thread) { return &memory_[thread * memory()]; }
  V* couplings(int thread, int x) { return children(thread) + (p() + x * conv_.c_out) * blocks_; }
  // In floats [c_out p]: g W_tᵀ, and couplings times poses.
  float* dual(int thread, int x) { return &duals_[(thread * terms_ + x) * conv_.c_out * p()]; }
  float* mean(int thread, int x) { return &means_[(thread * terms_ + x) * conv_.c_out * p()]; }

  // The poses of one type in one window: of L positions in the lanes of vectors; zero beyond the last position.
  void load_poses(int thread, int64_t unit, int64_t type) {
    float* out = reinterpret_cast<float*>(children(thread));
    for (int64_t k = 0; k < positions_; ++k) {
      const float* u = poses_.at(unit, k, type);
      float* lane = out + k / L * L * p() + k % L;
      for (int64_t e = 0; e < p(); ++e) lane[e * L] = u[e];
    }
    for (int64_t k = positions_; k < blocks_ * L; ++k)
      for (int64_t e = 0; e < p(); ++e) out[k / L * L * p() + k % L + e * L] = 0;
  }

  // The dual of a vector x [c_out d]: x W_tᵀ [c_out p].
  void to_dual(int thread, int64_t type, const V* x, float* dual) {
    const float* weight = weight_ + type * weight_size();
    V* row = &rows_[thread * conv_.c_out * p()];
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t r = 0; r < rows(); ++r, x += columns())
        for (int64_t e = 0; e < q(); ++e, ++row) {
          const float* w = weight + (j * q() + e) * columns() * L;
          V sum = x[0] * load<L>(w);
          for (int64_t m = 1; m < columns(); ++m) sum += x[m] * load<L>(w + m * L);
          *row = sum;
        }
    reduce_rows<Add, L>(&rows_[thread * conv_.c_out * p()], conv_.c_out * p(), dual);
  }

  // out [c_out blocks]: the scalar products of the children's votes with what `dual` is the dual of.
  void products(int thread, const float* dual, V* out) {
    const V* u = children(thread);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t k = 0; k < blocks_; ++k) {
        V sum{};
        for (int64_t e = 0; e < p(); ++e) sum += dual[j * p() + e] * u[k * p() + e];
        out[j * blocks_ + k] = sum;
      }
  }

  // The couplings [c_out blocks] of iteration t; `dual` becomes that of g.
  void couple(int thread, int t, int64_t type, const V* g, V* couplings, float* dual) {
    if (t == 0) return softmax_.even(couplings, conv_.c_out * blocks_);
    to_dual(thread, type, g, dual);
    products(thread, dual, couplings);
    for (int64_t k = 0; k < blocks_; ++k) softmax_.apply(couplings + k, blocks_);
  }

  // The couplings of iteration t > 0 as term `c` beside the dual of s's gradient, and the gradient of the logits as
  // term `l` beside the dual of g.
  void logit_gradients(int thread, int t, int64_t type, int64_t unit, const Terms<L>& terms, int c, int l) {
    couple(thread, t, type, terms.g(unit, t), couplings(thread, c), dual(thread, l));
    to_dual(thread, type, terms.sum_gradient(unit, t), dual(thread, c));
    products(thread, dual(thread, c), couplings(thread, l));
    for (int64_t k = 0; k < blocks_; ++k)
      softmax_.gradient(couplings(thread, c) + k, couplings(thread, l) + k, blocks_);
  }

  // Σ_k factor_kj u_k [c_out p] of factors [c_out blocks].
  void mean_poses(int thread, const V* factors, float* mean) {
    const V* u = children(thread);
    V* row = &rows_[thread * conv_.c_out * p()];
    for (int64_t j = 0; j < conv_.c_out; ++j, row += p()) {
      V sum[capacity];
      for (int64_t e = 0; e < p(); ++e) sum[e] = V{};
      for (int64_t k = 0; k < blocks_; ++k)
        for (int64_t e = 0; e < p(); ++e) sum[e] += factors[j * blocks_ + k] * u[k * p() + e];
      std::copy_n(sum, p(), row);
    }
    reduce_rows<Add, L>(&rows_[thread * conv_.c_out * p()], conv_.c_out * p(), mean);
  }

  // sum [c_out d] += mean poses [c_out p] times W_t.
  void add(int64_t type, const float* mean, V* sum) const {
    const float* weight = weight_ + type * weight_size();
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t r = 0; r < rows(); ++r, sum += columns(), mean += q())
        for (int64_t m = 0; m < columns(); ++m) {
          V total = sum[m];
          for (int64_t e = 0; e < q(); ++e) total += mean[e] * load<L>(weight + ((j * q() + e) * columns() + m) * L);
          sum[m] = total;
        }
  }

  // The sum over terms of mean poses times their vectors [terms c_out d].
  void add_weight_gradients(int thread, int64_t type, const V* vectors, float* grad_weight) {
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t e = 0; e < q(); ++e)
        for (int64_t m = 0; m < columns(); ++m) {
          float* into = grad_weight + type * weight_size() + ((j * q() + e) * columns() + m) * L;
          V sum = load<L>(into);
          for (int x = 0; x < terms_; ++x)
            for (int64_t r = 0; r < rows(); ++r)
              sum += mean(thread, x)[j * p() + r * q() + e] * vectors[x * size() + j * d() + r * columns() + m];
          store<L>(into, sum);
        }
  }

  // The sum over terms and parents of factors times duals.
  void pose_gradients(int thread, int64_t type, int64_t unit, float* grad_poses) {
    for (int64_t e = 0; e < p(); ++e)
      for (int64_t k = 0; k < blocks_; ++k) {
        V sum{};
        for (int x = 0; x < terms_; ++x)
          for (int64_t j = 0; j < conv_.c_out; ++j)
            sum += dual(thread, x)[j * p() + e] * couplings(thread, x)[j * blocks_ + k];
        for (int64_t l = 0; l < L && k * L + l < positions_; ++l)
          grad_poses[((unit * positions_ + k * L + l) * conv_.c_in + type) * p() + e] = sum[l];
      }
  }

  const Conv& conv_;
  Softmax<L> softmax_;
  WindowPoses poses_;
  const float* weight_;
  int64_t positions_, blocks_;  // blocks: of L positions
  int terms_;
  Scratch<V> memory_, rows_;
  Scratch<float> duals_, means_;
};

}  // namespace capsella::CAPSELLA_ISA
