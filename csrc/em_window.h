// EM routing of one window: its children, and their votes, which fill a tile of a few hundred kilobytes that stays in
// the cache of a core.
//
// Vectors run over the parent types, so every sum over children or pose elements is a plain vertical one. For blocks of
// L parents: votes V [blocks i d], couplings [blocks i]. Letters as in capsella/routing/README.md, symbols as in
// capsella/routing/em/eager.py.
#pragma once

#include <algorithm>

#include "packing.h"
#include "scratch.h"

namespace capsella::CAPSELLA_ISA {

constexpr float LEAST_ACTIVATION = 1e-12f;  // as in eager.py
constexpr float NEVER = -1e30f;             // the logarithm of a coupling to a parent that is only padding

// A window under work, one after the other on one thread. FixedR, FixedQ, FixedE: the pose's factors where they are
// known at compile time, else 0.
template <int L, int FixedR, int FixedQ, int FixedE>
struct EMWindow {
  using V = Vec<L>;
  static constexpr int lanes = L;
  static constexpr bool fixed = FixedR != 0;
  static constexpr int64_t capacity = fixed ? FixedR * FixedE : MOST_POSE_ELEMENTS;
  static constexpr int64_t pose_capacity = fixed ? FixedR * FixedQ : MOST_POSE_ELEMENTS;
  static constexpr int64_t row_capacity = fixed ? FixedE : MOST_POSE_ELEMENTS;

  EMWindow(const Conv& conv, const EMOptions& options, const EMInputs& inputs, const EMKept& kept, const V* weight,
           const V* log_start)
      : conv(conv), options(options), inputs(inputs), kept(kept), weight(weight), log_start(log_start),
        children(conv.children()), slots(conv.slots()), blocks((conv.c_out + L - 1) / L), window(conv, 0),
        votes(blocks * children * D()), couplings(blocks * children), shares(blocks * children), per_child(children),
        poses(children * conv.p()), offsets(inputs.vote_offset ? slots * D() : 0), cost(blocks), gain(blocks),
        data(blocks), grad_log_activation(blocks), grad_cost(blocks), means(options.iterations * blocks * D()),
        precisions(options.iterations * blocks * D()), log_active(children), active(children), log_counts(slots),
        sums(children), largest(children) {}

  int64_t R() const { return fixed ? FixedR : conv.r; }
  int64_t Q() const { return fixed ? FixedQ : conv.q; }
  int64_t E() const { return fixed ? FixedE : conv.e; }
  int64_t D() const { return fixed ? FixedR * FixedE : conv.d(); }

  // What forward keeps of a block of parents in iteration t.
  V* mean_at(int t, int64_t block, int64_t d) const { return at(kept.means, t, block, d); }
  V* variance_at(int t, int64_t block, int64_t d) const { return at(kept.variances, t, block, d); }
  V* log_activation_at(int t, int64_t block) const {
    const int64_t row = n * options.iterations + t;
    return reinterpret_cast<V*>(kept.log_activations + row * conv.padded() + block * L);
  }
  V floored(V variance) const { return vmax<L>(variance, splat<L>(options.variance_floor)); }
  const V* weight_of(int64_t block, int64_t i) const {
    return weight + (block * conv.weights() + (conv.tied ? i % conv.c_in : i)) * Q() * E();
  }
  static V lane_numbers() {
    V x{};
    for (int l = 0; l < L; ++l) x[l] = float(l);
    return x;
  }

  const Conv& conv;
  const EMOptions& options;
  const EMInputs& inputs;
  const EMKept& kept;
  const V *weight, *log_start;  // [blocks weights q e], [blocks i]
  int64_t children, slots, blocks, n = 0;
  float data_scale = 1.0f;
  Window window;
  Scratch<V> votes, couplings, shares, per_child;
  Scratch<float> poses, offsets;
  Scratch<V> cost, gain, data, grad_log_activation, grad_cost, means, precisions;
  Scratch<float> log_active, active, log_counts, sums, largest;

 private:
  V* at(float* values, int t, int64_t block, int64_t d) const {
    const int64_t row = (n * options.iterations + t) * D() + d;
    return reinterpret_cast<V*>(values + row * conv.padded() + block * L);
  }
};

template <class W>
using VecOf = typename W::V;

// The logarithms of positive values [i].
template <class W>
void log_in_place(const W& w, float* values) {
  constexpr int L = W::lanes;
  for (int64_t i = 0; i < w.children; i += L) {
    const size_t bytes = std::min<int64_t>(L, w.children - i) * sizeof(float);
    VecOf<W> x = splat<L>(1.0f);
    std::memcpy(&x, values + i, bytes);
    x = vlog<L>(x);
    std::memcpy(values + i, &x, bytes);
  }
}

// values [b h w c_in] of this window's children -> sums.
template <class W>
void gather(W& w, const float* values) {
  for (int64_t k = 0, i = 0; k < w.slots; ++k, i += w.conv.c_in)
    std::memcpy(&w.sums[i], values + w.window.position(w.conv, k) * w.conv.c_in, w.conv.c_in * sizeof(float));
}

}  // namespace capsella::CAPSELLA_ISA
