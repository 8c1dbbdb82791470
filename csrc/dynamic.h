// Dynamic routing (Sabour et al. 2017, Procedure 1) of a chunk of L children of one window.
//
// Procedure 1 adds v to the logits as û·v in every iteration. û never changes, so the logits of an iteration are û·g,
// with g the sum of the v before it: an iteration is one pass over the children that needs g alone, and makes the votes
// anew. Vectors of a vote run over the columns of a pose; vectors of logits and couplings run over the L children.
#pragma once

#include <algorithm>

#include "packing.h"
#include "scratch.h"

namespace capsella::CAPSELLA_ISA {

template <int L>
inline Vec<L> load(const float* from) {
  Vec<L> x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

template <int L>
inline void store(float* to, Vec<L> x) {
  std::memcpy(to, &x, sizeof(x));
}

// Q: columns of a child's pose, C: vectors of a parent's pose, where a network of the papers has them; else 0. Known
// ones are of vector poses. weight [children c_out q columns] and vote_offset [h w d] are in vectors, zero beyond c.
template <int L, int Q, int C>
class Chunks {
  using V = Vec<L>;
  static constexpr bool fixed = Q != 0;
  static constexpr int64_t capacity = fixed ? Q : MOST_POSE_ELEMENTS;

 public:
  Chunks(const Conv& conv, bool leaky, const float* poses, const float* weight, const V* vote_offset)
      : conv_(conv), leaky_(leaky), poses_(poses), weight_(weight), vote_offset_(vote_offset), corners_(conv.units()),
        steps_(conv.children()) {
    for (int64_t unit = 0; unit < conv.units(); ++unit) corners_[unit] = Window(conv, unit).child(conv, 0);
    for (int64_t i = 0; i < conv.children(); ++i) {
      const int64_t position = i / conv.c_in;
      steps_[i] = position / conv.kernel_width * conv.width + position % conv.kernel_width;
    }
  }

  int64_t q() const { return fixed ? Q : conv_.q; }
  int64_t rows() const { return fixed ? 1 : conv_.n; }
  int64_t columns() const { return fixed ? C : (conv_.c + L - 1) / L; }
  int64_t d() const { return rows() * columns(); }        // vectors of a vote
  int64_t parents() const { return conv_.c_out * d(); }    // vectors of all parents at one position
  int64_t size() const { return L * parents(); }           // vectors of a chunk's votes
  int64_t count() const { return (conv_.children() + L - 1) / L; }
  int64_t weight_size() const { return conv_.c_out * q() * columns() * L; }  // floats of the weight of one child
  int64_t first(int64_t chunk) const { return chunk * L; }
  int64_t here(int64_t chunk) const { return std::min<int64_t>(L, conv_.children() - chunk * L); }

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

  // Couplings of the first iteration.
  void even(V* couplings) const {
    for (int64_t j = 0; j < conv_.c_out; ++j) couplings[j] = splat<L>(1.0f / float(conv_.c_out + leaky_));
  }

  // Logits [c_out] to couplings, in place; a leak is one more parent, with logit 0.
  void softmax(V* logits) const {
    V largest = leaky_ ? V{} : logits[0];
    for (int64_t j = 0; j < conv_.c_out; ++j) largest = vmax<L>(largest, logits[j]);
    V sum = leaky_ ? vexp<L>(-largest) : V{};
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      logits[j] = vexp<L>(logits[j] - largest);
      sum += logits[j];
    }
    const V inverse = 1.0f / sum;
    for (int64_t j = 0; j < conv_.c_out; ++j) logits[j] *= inverse;
  }

  // The gradient of couplings [c_out] to that of their logits, in place.
  void softmax_gradient(const V* couplings, V* gradient) const {
    V mean{};
    for (int64_t j = 0; j < conv_.c_out; ++j) mean += couplings[j] * gradient[j];
    for (int64_t j = 0; j < conv_.c_out; ++j) gradient[j] = couplings[j] * (gradient[j] - mean);
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

  // Gradients of the chunk's votes: sum over `terms` of factors [terms c_out] times vectors [terms c_out d].
  void vote_gradients(const V* factors, const V* vectors, int64_t terms, V* gradients) const {
    const float* factor = reinterpret_cast<const float*>(factors);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t e = j * d(); e < (j + 1) * d(); ++e) {
        V sum[L];
        for (int64_t k = 0; k < L; ++k) sum[k] = V{};
        for (int64_t x = 0; x < terms; ++x) {
          const V vector = vectors[x * parents() + e];
          for (int64_t k = 0; k < L; ++k) sum[k] += factor[(x * conv_.c_out + j) * L + k] * vector;
        }
        for (int64_t k = 0; k < L; ++k) gradients[k * parents() + e] = sum[k];
      }
  }

  // grad_weight, laid out as the weight, += what the gradients of the votes of `units` windows give.
  void add_weight_gradients(int64_t chunk, int64_t unit, int64_t units, const V* gradients, float* grad_weight) const {
    for (int64_t k = 0; k < here(chunk); ++k) {
      const int64_t i = first(chunk) + k;
      for (int64_t j = 0; j < conv_.c_out; ++j)
        for (int64_t m = 0; m < columns(); ++m) {
          float* into = grad_weight + i * weight_size() + (j * q() * columns() + m) * L;
          V sum[capacity];
          for (int64_t e = 0; e < q(); ++e) sum[e] = load<L>(into + e * columns() * L);
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

 private:
  const float* pose(int64_t unit, int64_t i) const {
    return poses_ + ((corners_[unit] + steps_[i]) * conv_.c_in + i % conv_.c_in) * conv_.p();
  }

  // Votes [c_out d] of child i in one window.
  void vote_of(int64_t i, int64_t unit, V* out) const {
    const float *u = pose(unit, i), *weight = weight_ + i * weight_size();
    const int64_t position = (corners_[unit] + steps_[i]) % (conv_.height * conv_.width);
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
  bool leaky_;
  const float *poses_, *weight_;
  const V* vote_offset_;
  Scratch<int64_t> corners_;  // [units]: row of a window's first child position in [b h w]
  Scratch<int64_t> steps_;    // [children]: rows from there to the child's position
};

}  // namespace capsella::CAPSELLA_ISA
