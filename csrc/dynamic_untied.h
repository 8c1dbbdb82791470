// Dynamic routing where every child of a window has its own weight, of a chunk of L children at a time.
//
// An iteration needs g alone (dynamic_common.h), and makes the votes anew. Vectors of a vote run over the columns of a
// pose; vectors of logits and couplings run over the L children.
#pragma once

#include "dynamic_common.h"

namespace capsella::CAPSELLA_ISA {

// Windows whose votes are made together: a child's weight serves them all.
constexpr int64_t TOGETHER = 4;

// Q: columns of a child's pose, C: vectors of a parent's pose, where a network of the papers has them; else 0. Known
// ones are of vector poses. weight [children c_out q columns] and vote_offset [h w d] are in vectors, zero beyond c.
template <int L, int Q, int C>
class UntiedChildren {
  using V = Vec<L>;
  static constexpr bool fixed = Q != 0;
  static constexpr int64_t capacity = fixed ? Q : MOST_POSE_ELEMENTS;

 public:
  UntiedChildren(const Conv& conv, const DynamicOptions& options, const float* poses, const float* weight,
                 const V* vote_offset, int threads)
      : conv_(conv), softmax_(conv, options.leaky), poses_(conv, poses), weight_(weight), vote_offset_(vote_offset),
        stored_(conv.units() <= conv.q), votes_(stored_ ? conv.units() * count() * size() : 0),
        tiles_(stored_ ? 0 : threads * TOGETHER * size()), terms_(2 * options.iterations - 1),
        factors_(threads * terms_ * conv.c_out) {}

  int64_t count() const { return (conv_.children() + L - 1) / L; }
  int64_t weights() const { return conv_.children(); }

  // sums [units c_out d] += the votes of a chunk in the windows begin ... end - 1, times their couplings.
  void route(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const V* g, V* sums) {
    with_votes(thread, t == 0, chunk, begin, end, [&](int64_t unit, const V* votes) {
      V* couplings = factor(thread, 0);
      couple(t, votes, g + unit * parents(), couplings);
      add(couplings, votes, sums + unit * parents());
    });
  }

  // sums [units c_out d] += these votes, times the gradients of their logits in iteration t.
  void pull(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const Terms<L>& terms, V* sums) {
    with_votes(thread, t == terms.iterations() - 1, chunk, begin, end, [&](int64_t unit, const V* votes) {
      V* gradient = factor(thread, 1);
      logit_gradients(t, votes, unit, terms, factor(thread, 0), gradient);
      add(gradient, votes, sums + unit * parents());
    });
  }

  // grad_weight [children c_out q columns] and grad_poses [units children p] of a chunk; after all iterations' `pull`.
  void finish(int thread, int64_t chunk, const Terms<L>& terms, float* grad_weight, float* grad_poses) {
    const int last = terms.iterations() - 1;
    softmax_.even(factor(thread, 0), conv_.c_out);
    for (int64_t unit = 0; unit < conv_.units(); unit += TOGETHER) {
      const int64_t count = std::min(TOGETHER, conv_.units() - unit);
      V* votes = votes_of(thread, chunk, unit);
      if (last > 0 && !stored_) vote(chunk, unit, count, votes);
      for (int64_t k = 0; k < count; ++k) {
        V* mine = votes + k * size();
        // couplings go with the gradients of s, and the gradients of logits with g
        for (int t = 1; t <= last; ++t)
          logit_gradients(t, mine, unit + k, terms, factor(thread, t), factor(thread, last + t));
        vote_gradients(factor(thread, 0), terms.sum_gradient(unit + k, 0), mine);
      }
      add_weight_gradients(chunk, unit, count, votes, grad_weight);
      pose_gradients(chunk, unit, count, votes, grad_poses);
    }
  }

 protected:
  int64_t q() const { return fixed ? Q : conv_.q; }
  int64_t rows() const { return fixed ? 1 : conv_.n; }
  int64_t columns() const { return fixed ? C : (conv_.c + L - 1) / L; }
  int64_t d() const { return rows() * columns(); }      // vectors of a vote
  int64_t parents() const { return conv_.c_out * d(); }  // vectors of all parents at one position
  int64_t size() const { return L * parents(); }         // vectors of a chunk's votes
  int64_t weight_size() const { return conv_.c_out * q() * columns() * L; }  // floats of the weight of one child
  int64_t first(int64_t chunk) const { return chunk * L; }
  int64_t here(int64_t chunk) const { return std::min<int64_t>(L, conv_.children() - chunk * L); }
  V* factor(int thread, int x) { return &factors_[(thread * terms_ + x) * conv_.c_out]; }
  V* votes_of(int thread, int64_t chunk, int64_t unit) {
    return stored_ ? &votes_[(chunk * conv_.units() + unit) * size()] : &tiles_[thread * TOGETHER * size()];
  }

  // body(unit, votes) for a chunk in the windows begin ... end - 1. The votes are made anew, except where they are fewer
  // than the weights: then those of the last `fresh` time still stand.
  template <class Body>
  void with_votes(int thread, bool fresh, int64_t chunk, int64_t begin, int64_t end, Body body) {
    for (int64_t unit = begin; unit < end; unit += TOGETHER) {
      const int64_t count = std::min(TOGETHER, end - unit);
      V* votes = votes_of(thread, chunk, unit);
      if (fresh || !stored_) vote(chunk, unit, count, votes);
      for (int64_t k = 0; k < count; ++k) body(unit + k, votes + k * size());
    }
  }

  // Votes [units L c_out d] of a chunk in the windows unit ...; zero beyond the last child. A child's weight serves all
  // the windows while it is in the nearest cache.
  void vote(int64_t chunk, int64_t unit, int64_t units, V* votes) const {
    for (int64_t k = 0; k < L; ++k)
      for (int64_t g = 0; g < units; ++g) {
        V* out = votes + g * size() + k * parents();
        if (k < here(chunk))
          vote_of(first(chunk) + k, unit + g, out);
        else
          for (int64_t e = 0; e < parents(); ++e) out[e] = V{};
      }
  }

  // out [c_out]: the scalar products of the chunk's votes and the vectors x [c_out d].
  void products(const V* votes, const V* x, V* out) const {
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      V terms[L];
      for (int64_t k = 0; k < L; ++k) {
        const V* vote = votes + k * parents() + j * d();
        V sum = vote[0] * x[j * d()];
        for (int64_t e = 1; e < d(); ++e) sum += vote[e] * x[j * d() + e];
        terms[k] = sum;
      }
      out[j] = reduce_block<Add, L>(terms);
    }
  }

  // The couplings [c_out] of iteration t.
  void couple(int t, const V* votes, const V* g, V* couplings) const {
    if (t == 0) return softmax_.even(couplings, conv_.c_out);
    products(votes, g, couplings);
    softmax_.apply(couplings);
  }

  // Couplings of iteration t > 0, and the gradient of its logits.
  void logit_gradients(int t, const V* votes, int64_t unit, const Terms<L>& terms, V* couplings, V* gradient) const {
    couple(t, votes, terms.g(unit, t), couplings);
    products(votes, terms.sum_gradient(unit, t), gradient);
    softmax_.gradient(couplings, gradient);
  }

  // sum [c_out d] += the chunk's votes, each times its factor [c_out].
  void add(const V* factors, const V* votes, V* sum) const {
    const float* factor = reinterpret_cast<const float*>(factors);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t e = j * d(); e < (j + 1) * d(); ++e) {
        V even = sum[e], odd{};
        for (int64_t k = 0; k < L; k += 2) {
          even += factor[j * L + k] * votes[k * parents() + e];
          odd += factor[j * L + k + 1] * votes[(k + 1) * parents() + e];
        }
        sum[e] = even + odd;
      }
  }

  // Gradients of the chunk's votes: the sum over terms of factors [terms c_out] times vectors [terms c_out d].
  void vote_gradients(const V* factors, const V* vectors, V* gradients) const {
    const float* factor = reinterpret_cast<const float*>(factors);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t e = j * d(); e < (j + 1) * d(); ++e) {
        V sum[L];
        for (int64_t k = 0; k < L; ++k) sum[k] = V{};
        for (int x = 0; x < terms_; ++x) {
          const V vector = vectors[x * parents() + e];
          for (int64_t k = 0; k < L; ++k) sum[k] += factor[(x * conv_.c_out + j) * L + k] * vector;
        }
        for (int64_t k = 0; k < L; ++k) gradients[k * parents() + e] = sum[k];
      }
  }

  // What the gradients of the votes of `units` windows add to the weight's; the first windows begin with 0.
  void add_weight_gradients(int64_t chunk, int64_t unit, int64_t units, const V* gradients, float* grad_weight) const {
    for (int64_t k = 0; k < here(chunk); ++k) {
      const int64_t i = first(chunk) + k;
      for (int64_t j = 0; j < conv_.c_out; ++j)
        for (int64_t m = 0; m < columns(); ++m) {
          float* into = grad_weight + i * weight_size() + (j * q() * columns() + m) * L;
          V sum[capacity];
          for (int64_t e = 0; e < q(); ++e) sum[e] = unit == 0 ? V{} : load<L>(into + e * columns() * L);
          for (int64_t g = 0; g < units; ++g)
            for (int64_t r = 0; r < rows(); ++r) {
              const float* u = pose(unit + g, i) + r * q();
              const V x = gradients[g * size() + k * parents() + j * d() + r * columns() + m];
              for (int64_t e = 0; e < q(); ++e) sum[e] += u[e] * x;
            }
          for (int64_t e = 0; e < q(); ++e) store<L>(into + e * columns() * L, sum[e]);
        }
    }
  }

  // grad_poses [units of the layer, children, p] of a chunk in the windows unit ....
  void pose_gradients(int64_t chunk, int64_t unit, int64_t units, const V* gradients, float* grad_poses) const {
    for (int64_t k = 0; k < here(chunk); ++k)
      for (int64_t g = 0; g < units; ++g) {
        const int64_t i = first(chunk) + k;
        const float* weight = weight_ + i * weight_size();
        for (int64_t r = 0; r < rows(); ++r) {
          V sum[capacity];
          for (int64_t e = 0; e < q(); ++e) sum[e] = V{};
          for (int64_t j = 0; j < conv_.c_out; ++j)
            for (int64_t m = 0; m < columns(); ++m) {
              const V x = gradients[g * size() + k * parents() + j * d() + r * columns() + m];
              for (int64_t e = 0; e < q(); ++e) sum[e] += load<L>(weight + ((j * q() + e) * columns() + m) * L) * x;
            }
          reduce_rows<Add, L>(sum, q(), grad_poses + ((unit + g) * conv_.children() + i) * conv_.p() + r * q());
        }
      }
  }

  const float* pose(int64_t unit, int64_t i) const { return poses_.at(unit, i / conv_.c_in, i % conv_.c_in); }

  // Votes [c_out d] of child i in one window.
  void vote_of(int64_t i, int64_t unit, V* out) const {
    const float *u = pose(unit, i), *weight = weight_ + i * weight_size();
    const int64_t position = poses_.position(unit, i / conv_.c_in) % (conv_.height * conv_.width);
    const V* offset = vote_offset_ == nullptr ? nullptr : vote_offset_ + position * d();
    for (int64_t r = 0; r < rows(); ++r) {
      V pose[capacity];
      for (int64_t e = 0; e < q(); ++e) pose[e] = splat<L>(u[r * q() + e]);
      for (int64_t j = 0; j < conv_.c_out; ++j)
        for (int64_t m = 0; m < columns(); ++m) {
          V sum = offset == nullptr ? V{} : offset[r * columns() + m];
          for (int64_t e = 0; e < q(); ++e) sum += pose[e] * load<L>(weight + ((j * q() + e) * columns() + m) * L);
          out[j * d() + r * columns() + m] = sum;
        }
    }
  }

  const Conv& conv_;
  Softmax<L> softmax_;
  WindowPoses poses_;
  const float* weight_;
  const V* vote_offset_;
  bool stored_;
  Scratch<V> votes_, tiles_;
  int terms_;
  Scratch<V> factors_;
};

}  // namespace capsella::CAPSELLA_ISA
