// EM routing of one window: its votes fill one tile of a few hundred kilobytes, which stays in the cache of a core.
//
// Vectors run over the parent types, so every sum over children or pose elements is a plain vertical one. For blocks of
// L parents: votes V [blocks children d], couplings [blocks children]. Symbols as in capsella/routing/em/eager.py.
#pragma once

#include <algorithm>

#include "packing.h"
#include "scratch.h"

namespace capsella::CAPSELLA_ISA {

constexpr float LEAST_ACTIVATION = 1e-12f;   // as in eager.py
constexpr float COST_EPSILON = 1e-8f;        // STANDARDISED_COST_EPSILON
constexpr float NEVER = -1e30f;              // the logarithm of a coupling to a parent that is only padding
constexpr float LOG_2PI = 1.8378770664093453f;

// What a window carries from one phase of its backward pass to the next: vectors, for t iterations.
// shares, pulls [t blocks children]; grad_means, grad_variances [t blocks d]; log_couplings [blocks children];
// grad_activations [children]. pulls holds the gradient of each iteration's logits.
template <int L>
struct Carried {
  Vec<L>*shares, *pulls, *grad_means, *grad_variances, *log_couplings, *grad_activations;

  static int64_t size(int64_t t, int64_t blocks, int64_t children, int64_t d) {
    return 2 * t * blocks * (children + d) + blocks * children + children;
  }
  Carried(Vec<L>* memory, int64_t t, int64_t blocks, int64_t children, int64_t d) {
    shares = memory;
    pulls = shares + t * blocks * children;
    grad_means = pulls + t * blocks * children;
    grad_variances = grad_means + t * blocks * d;
    log_couplings = grad_variances + t * blocks * d;
    grad_activations = log_couplings + blocks * children;
  }
};

// N, Q, C: the pose's factors where they are known at compile time, else 0.
template <int L, int N, int Q, int C>
class EMSite {
  using V = Vec<L>;
  static constexpr bool fixed = N != 0;
  static constexpr int64_t capacity = fixed ? N * C : MOST_POSE_ELEMENTS;
  static constexpr int64_t weight_capacity = fixed ? N * Q : MOST_POSE_ELEMENTS;

 public:
  EMSite(const Conv& conv, const EMOptions& options, const EMInputs& inputs, const EMKept& kept, const V* weight,
         const V* log_start)
      : conv_(conv), options_(options), inputs_(inputs), kept_(kept), weight_(weight), log_start_(log_start),
        children_(conv.children()), positions_(conv.children() / conv.c_in), blocks_((conv.c_out + L - 1) / L), window_(conv, 0),
        votes_(blocks_ * children_ * d()), couplings_(blocks_ * children_), shares_(blocks_ * children_),
        rows_(children_), poses_(children_ * conv.p()), offsets_(inputs.vote_offset ? positions_ * d() : 0),
        cost_(blocks_), gain_(blocks_), data_(blocks_), grad_log_activation_(blocks_), grad_cost_(blocks_),
        means_(options.iterations * blocks_ * d()), precisions_(options.iterations * blocks_ * d()),
        log_active_(children_), active_(children_), log_counts_(positions_), sums_(children_), largest_(children_) {}

  int64_t d() const { return fixed ? N * C : conv_.d(); }
  int64_t q() const { return fixed ? Q : conv_.q; }
  int64_t c() const { return fixed ? C : conv_.c; }
  int64_t n() const { return fixed ? N : conv_.n; }
  V* couplings() { return couplings_.get(); }
  int64_t unit() const { return unit_; }
  const float* sums() { return sums_.get(); }

  // Take the children of a window and let them vote.
  void load(int64_t unit) {
    unit_ = unit;
    window_ = Window(conv_, unit);
    const int64_t p = conv_.p();
    float even = 0;  // data of a parent if every child were active and undecided
    for (int64_t k = 0, i = 0; k < positions_; ++k, i += conv_.c_in) {
      const int64_t child = window_.child(conv_, k);
      std::memcpy(&poses_[i * p], inputs_.poses + child * conv_.c_in * p, conv_.c_in * p * sizeof(float));
      std::memcpy(&active_[i], inputs_.activations + child * conv_.c_in, conv_.c_in * sizeof(float));
      const int64_t y = child / conv_.width % conv_.height, x = child % conv_.width;
      const float count = competitors(y, x);
      log_counts_[k] = std::log(count);
      even += float(conv_.c_in) / (count * float(conv_.c_out));
      if (inputs_.vote_offset)
        std::memcpy(&offsets_[k * d()], inputs_.vote_offset + (y * conv_.width + x) * d(), d() * sizeof(float));
    }
    for (int64_t i = 0; i < children_; ++i) log_active_[i] = std::max(active_[i], LEAST_ACTIVATION);
    log_in_place(log_active_.get());
    data_scale_ = options_.cost_scale == 0 ? 1.0f : options_.cost_scale / even;
    for (int64_t b = 0; b < blocks_; ++b) vote(b);
  }

  // R_ij <- 1/|parents of i|, or the given start: log_couplings [blocks children].
  void start(V* log_couplings) {
    for (int64_t b = 0; b < blocks_; ++b)
      for (int64_t k = 0, i = b * children_; k < positions_; ++k)
        for (int64_t m = 0; m < conv_.c_in; ++m, ++i) log_couplings[i] = log_start_[i] - log_counts_[k];
  }

  // M-step of iteration t: means, variances and log-activations into what is kept.
  void m_step(int t, const V* log_couplings) {
    for (int64_t b = 0; b < blocks_; ++b) {
      V* s = &shares_[b * children_];
      const V data = shares(log_couplings + b * children_, s);
      const V *votes = &votes_[b * children_ * d()];
      V mu[capacity], variance[capacity];
      for (int64_t h = 0; h < d(); ++h) mu[h] = variance[h] = V{};
      for (int64_t i = 0; i < children_; ++i)
        for (int64_t h = 0; h < d(); ++h) mu[h] += s[i] * votes[i * d() + h];
      for (int64_t i = 0; i < children_; ++i)
        for (int64_t h = 0; h < d(); ++h) {
          const V x = votes[i * d() + h] - mu[h];
          variance[h] += s[i] * (x * x);
        }
      for (int64_t h = 0; h < d(); ++h) {
        *mean_at(t, b, h) = mu[h];
        *variance_at(t, b, h) = variance[h];
      }
      cost_of(t, b, data);
    }
    logistic(t);
  }

  // The logits of the E-step after iteration t: ln a_j + ln N(V_ij; mu_j, sigma^2_j), [blocks children].
  void e_step(int t, V* logits) {
    for (int64_t b = 0; b < blocks_; ++b) {
      V mu[capacity], precision[capacity];
      V constant = *log_activation_at(t, b) - 0.5f * (log_determinant(t, b) + splat<L>(LOG_2PI * d()));
      for (int64_t h = 0; h < d(); ++h) {
        mu[h] = *mean_at(t, b, h);
        precision[h] = 1.0f / floored(*variance_at(t, b, h));
      }
      constant = (float(b * L) + lane_numbers() < splat<L>(conv_.c_out)) ? constant : splat<L>(NEVER);
      const V* votes = &votes_[b * children_ * d()];
      for (int64_t i = 0; i < children_; ++i) {
        V distance{};
        for (int64_t h = 0; h < d(); ++h) {
          const V x = votes[i * d() + h] - mu[h];
          distance += (x * x) * precision[h];
        }
        logits[b * children_ + i] = constant - 0.5f * distance;
      }
    }
  }

  // ln sum_j exp(logits_ij) over the types at this position, [children].
  void log_sum_exp(const V* logits, float* out) {
    for (int64_t i = 0; i < children_; ++i) {
      V m = logits[i];
      for (int64_t b = 1; b < blocks_; ++b) m = vmax<L>(m, logits[b * children_ + i]);
      rows_[i] = m;
    }
    reduce_rows<Max, L>(rows_.get(), children_, largest_.get());
    for (int64_t i = 0; i < children_; ++i) {
      V sum{};
      for (int64_t b = 0; b < blocks_; ++b) sum += vexp<L>(logits[b * children_ + i] - largest_[i]);
      rows_[i] = sum;
    }
    reduce_rows<Add, L>(rows_.get(), children_, out);
    log_in_place(out);
    for (int64_t i = 0; i < children_; ++i) out[i] += largest_[i];
  }

  // Logits to log-couplings, in place: over the types at this position, or over all parents of the child (log Z [b h w
  // c_in]).
  void normalise(V* logits, const float* log_normalisers) {
    if (log_normalisers)
      gather(log_normalisers);
    else
      log_sum_exp(logits, sums_.get());
    for (int64_t b = 0; b < blocks_; ++b)
      for (int64_t i = 0; i < children_; ++i) logits[b * children_ + i] -= sums_[i];
  }

  // values [b h w c_in] of this window's children -> sums.
  void gather(const float* values) {
    for (int64_t k = 0, i = 0; k < positions_; ++k, i += conv_.c_in)
      std::memcpy(&sums_[i], values + window_.child(conv_, k) * conv_.c_in, conv_.c_in * sizeof(float));
  }

  // The parents at this position: poses [c_out d], activations [c_out].
  void write(float* poses, float* activations) {
    const int t = options_.iterations - 1;
    for (int64_t b = 0; b < blocks_; ++b) {
      const V a = vexp<L>(*log_activation_at(t, b));
      for (int64_t l = 0; l < L && b * L + l < conv_.c_out; ++l) {
        activations[unit_ * conv_.c_out + b * L + l] = a[l];
        for (int64_t h = 0; h < d(); ++h) poses[(unit_ * conv_.c_out + b * L + l) * d() + h] = (*mean_at(t, b, h))[l];
      }
    }
  }

  // The couplings of iteration t from what forward kept.
  void recall(int t, V* log_couplings, const float* log_normalisers) {
    if (t == 0) return start(log_couplings);
    e_step(t - 1, log_couplings);
    normalise(log_couplings, log_normalisers);
  }

  // Backward through iteration t, from the gradients of its means, variances and ln a to that of its couplings'
  // logarithms. `carried.pulls` of t holds the gradient of the logits of the E-step after it; that of t - 1 gets the
  // gradient of ln R_t, not yet normalised, and `sums` its sum over the types.
  void backward_iteration(int t, Carried<L>& carried, const float* grad_poses, const float* grad_activations,
                          V* grad_beta_u, V* grad_beta_a) {
    for (int64_t b = 0; b < blocks_; ++b) {
      V* s = carried.shares + (t * blocks_ + b) * children_;
      data_[b] = shares(carried.log_couplings + b * children_, s);
      cost_of(t, b, data_[b]);
      grad_log_activation_[b] = outer_gradients(t, b, carried, grad_poses, grad_activations);
    }
    cost_gradients(t, grad_beta_a);
    for (int64_t b = 0; b < blocks_; ++b) {
      const V amount = data_[b] * data_scale_;
      grad_beta_u[b] += grad_cost_[b] * amount * float(d());
      V* gv = carried.grad_variances + (t * blocks_ + b) * d();
      for (int64_t h = 0; h < d(); ++h) {
        const V variance = *variance_at(t, b, h);
        const V g = gv[h] + 0.5f * grad_cost_[b] * amount / floored(variance);
        gv[h] = variance >= splat<L>(options_.variance_floor) ? g : V{};
      }
      share_gradients(t, b, carried, grad_cost_[b] * gain_[b] * data_scale_);
    }
    if (t > 0) {
      const V* pull = carried.pulls + (t - 1) * blocks_ * children_;
      for (int64_t i = 0; i < children_; ++i) {
        rows_[i] = pull[i];
        for (int64_t b = 1; b < blocks_; ++b) rows_[i] += pull[b * children_ + i];
      }
      reduce_rows<Add, L>(rows_.get(), children_, sums_.get());
    }
  }

  // Through the softmax over parents: pulls of t, the gradient of ln R, to that of the logits. `sums` must hold its sum
  // over all parents of each child.
  void pull_through_softmax(int t, Carried<L>& carried) {
    V* pull = carried.pulls + t * blocks_ * children_;
    for (int64_t b = 0; b < blocks_; ++b)
      for (int64_t i = 0; i < children_; ++i)
        pull[b * children_ + i] -= vexp<L>(carried.log_couplings[b * children_ + i]) * sums_[i];
  }

  // From all iterations' gradients to those of the window's poses [children p] and activations [children], and of the
  // weight, added to grad_weight [blocks weights q*c].
  void finish(Carried<L>& carried, V* grad_weight, float* grad_poses, float* grad_activations) {
    reduce_rows<Add, L>(carried.grad_activations, children_, grad_activations);
    const int64_t p = n() * q();
    prepare_vote_gradients();
    for (int64_t i = 0; i < children_; ++i) {
      V grad_pose[weight_capacity];
      for (int64_t e = 0; e < p; ++e) grad_pose[e] = V{};
      for (int64_t b = 0; b < blocks_; ++b) {
        V g[capacity];
        vote_gradient(i, b, carried, g);
        const V* weight = weight_of(b, i);
        V* into = grad_weight + (weight - weight_);
        const float* pose = &poses_[i * p];
        for (int64_t k = 0; k < q(); ++k)
          for (int64_t m = 0; m < c(); ++m) {
            V sum = into[k * c() + m];
            for (int64_t r = 0; r < n(); ++r) {
              sum += pose[r * q() + k] * g[r * c() + m];
              grad_pose[r * q() + k] += g[r * c() + m] * weight[k * c() + m];
            }
            into[k * c() + m] = sum;
          }
      }
      reduce_rows<Add, L>(grad_pose, p, grad_poses + i * p);
    }
  }

 private:
  static V lane_numbers() {
    V x{};
    for (int l = 0; l < L; ++l) x[l] = float(l);
    return x;
  }
  V* at(float* values, int t, int64_t b, int64_t h) const {
    const int64_t row = (unit_ * options_.iterations + t) * d() + h;
    return reinterpret_cast<V*>(values + row * conv_.padded() + b * L);
  }
  V* mean_at(int t, int64_t b, int64_t h) const { return at(kept_.means, t, b, h); }
  V* variance_at(int t, int64_t b, int64_t h) const { return at(kept_.variances, t, b, h); }
  V* log_activation_at(int t, int64_t b) const {
    const int64_t row = unit_ * options_.iterations + t;
    return reinterpret_cast<V*>(kept_.log_activations + row * conv_.padded() + b * L);
  }
  V floored(V variance) const { return vmax<L>(variance, splat<L>(options_.variance_floor)); }
  V parameter(const float* values, int64_t b) const {
    V x{};
    for (int64_t l = 0; l < L && b * L + l < conv_.c_out; ++l) x[l] = values[b * L + l];
    return x;
  }

  // Windows that compete for a child at this position.
  float competitors(int64_t y, int64_t x) const {
    if (!options_.compete_everywhere) return 1;
    int64_t row, row_end, column, column_end;
    windows_of(y, conv_.kernel_height, conv_.stride_height, conv_.rows, row, row_end);
    windows_of(x, conv_.kernel_width, conv_.stride_width, conv_.columns, column, column_end);
    return float((row_end - row) * (column_end - column));
  }

  const V* weight_of(int64_t b, int64_t i) const {
    return weight_ + (b * conv_.weights() + (conv_.tied ? i % conv_.c_in : i)) * q() * c();
  }

  // V_ij = M_i W_ij, for a block of parents.
  void vote(int64_t b) {
    const int64_t p = n() * q();
    for (int64_t i = 0; i < children_; ++i) {
      const V* weight = weight_of(b, i);
      V* out = &votes_[(b * children_ + i) * d()];
      for (int64_t r = 0; r < n(); ++r) {
        V row[fixed ? C : MOST_POSE_ELEMENTS];
        for (int64_t m = 0; m < c(); ++m) row[m] = V{};
        for (int64_t k = 0; k < q(); ++k) {
          const float pose = poses_[i * p + r * q() + k];
          for (int64_t m = 0; m < c(); ++m) row[m] += pose * weight[k * c() + m];
        }
        for (int64_t m = 0; m < c(); ++m) out[r * c() + m] = row[m];
      }
      if (inputs_.vote_offset)
        for (int64_t h = 0; h < d(); ++h) out[h] += offsets_[i / conv_.c_in * d() + h];
    }
  }

  // The logarithms of positive values [children].
  void log_in_place(float* values) const {
    for (int64_t i = 0; i < children_; i += L) {
      const size_t bytes = std::min<int64_t>(L, children_ - i) * sizeof(float);
      V x = splat<L>(1.0f);
      std::memcpy(&x, values + i, bytes);
      x = vlog<L>(x);
      std::memcpy(values + i, &x, bytes);
    }
  }

  // r_ij / sum_i r_ij into s [children], as a softmax over the children; returns the data sum_i R_ij a_i.
  V shares(const V* log_couplings, V* s) {
    V m = splat<L>(Max::neutral);
    for (int64_t i = 0; i < children_; ++i) m = vmax<L>(m, log_couplings[i] + log_active_[i]);
    V sum{}, data{};
    for (int64_t i = 0; i < children_; ++i) {
      s[i] = vexp<L>(log_couplings[i] + log_active_[i] - m);
      sum += s[i];
      data += active_[i] < LEAST_ACTIVATION ? s[i] * (active_[i] / LEAST_ACTIVATION) : s[i];
    }
    const V inverse = 1.0f / sum;
    for (int64_t i = 0; i < children_; ++i) s[i] *= inverse;
    return data * vexp<L>(m);
  }

  // Sum_h ln sigma^2_h, of the floored variances.
  V log_determinant(int t, int64_t b) const {
    V sum{};
    for (int64_t h = 0; h < d(); ++h) sum += vlog<L>(floored(*variance_at(t, b, h)));
    return sum;
  }

  // cost_j before it is standardised, and gain, by which it grows with the (scaled) data.
  void cost_of(int t, int64_t b, V data) {
    gain_[b] = float(d()) * parameter(inputs_.beta_u, b) + 0.5f * log_determinant(t, b);
    cost_[b] = gain_[b] * data * data_scale_;
  }

  // The costs become their standardised values over the real types; returns 1 / standard deviation.
  float standardise() {
    float mean = 0, square = 0;
    for (int64_t j = 0; j < conv_.c_out; ++j) mean += cost_[j / L][j % L];
    mean /= float(conv_.c_out);
    for (int64_t j = 0; j < conv_.c_out; ++j) square += (cost_[j / L][j % L] - mean) * (cost_[j / L][j % L] - mean);
    const float inverse = 1.0f / std::sqrt(square / float(conv_.c_out) + COST_EPSILON);
    for (int64_t b = 0; b < blocks_; ++b) cost_[b] = (cost_[b] - mean) * inverse;
    return inverse;
  }

  // ln a_j = ln logistic(lambda (beta_a - cost_j)).
  void logistic(int t) {
    if (options_.standardise) standardise();
    for (int64_t b = 0; b < blocks_; ++b) {
      const V z = options_.inverse_temperatures[t] * (parameter(inputs_.beta_a, b) - cost_[b]);
      const auto negative = z < V{};
      *log_activation_at(t, b) = (negative ? z : V{}) - vlog1p<L>(vexp<L>(negative ? z : -z));
    }
  }

  // Gradients of this iteration's means, variances and (returned) ln a: from the outputs after the last, else from the
  // E-step.
  V outer_gradients(int t, int64_t b, Carried<L>& carried, const float* grad_poses, const float* grad_activations) {
    V* gm = carried.grad_means + (t * blocks_ + b) * d();
    V* gv = carried.grad_variances + (t * blocks_ + b) * d();
    if (t == options_.iterations - 1) {
      V grad{};
      for (int64_t h = 0; h < d(); ++h) gm[h] = gv[h] = V{};
      for (int64_t l = 0; l < L && b * L + l < conv_.c_out; ++l) {
        const int64_t parent = unit_ * conv_.c_out + b * L + l;
        grad[l] = grad_activations[parent];
        for (int64_t h = 0; h < d(); ++h) gm[h][l] = grad_poses[parent * d() + h];
      }
      return grad * vexp<L>(*log_activation_at(t, b));
    }
    const V* pull = carried.pulls + (t * blocks_ + b) * children_;
    V total{};
    for (int64_t i = 0; i < children_; ++i) total += pull[i];
    constexpr int64_t part = fixed && capacity % 2 == 0 ? capacity / 2 : capacity;  // two halves: registers suffice
    for (int64_t from = 0; from < d(); from += part) {
      const int64_t count = std::min(part, d() - from);
      V mu[part], first[part], second[part];
      for (int64_t h = 0; h < count; ++h) {
        mu[h] = *mean_at(t, b, from + h);
        first[h] = second[h] = V{};
      }
      for (int64_t i = 0; i < children_; ++i) {
        const V* votes = &votes_[(b * children_ + i) * d() + from];
        for (int64_t h = 0; h < count; ++h) {
          const V x = votes[h] - mu[h], pulled = pull[i] * x;
          first[h] += pulled;
          second[h] += pulled * x;
        }
      }
      for (int64_t h = 0; h < count; ++h) {
        const V precision = 1.0f / floored(*variance_at(t, b, from + h));
        gm[from + h] = first[h] * precision;
        gv[from + h] = 0.5f * precision * (second[h] * precision - total);
      }
    }
    return total;
  }

  // From the gradient of ln a to that of the costs before they are standardised; adds to beta_a's.
  void cost_gradients(int t, V* grad_beta_a) {
    const float lambda = options_.inverse_temperatures[t];
    const float inverse = options_.standardise ? standardise() : 1.0f;
    for (int64_t b = 0; b < blocks_; ++b) {
      const V z = lambda * (parameter(inputs_.beta_a, b) - cost_[b]);
      const V g = lambda * grad_log_activation_[b] / (1.0f + vexp<L>(z));
      grad_beta_a[b] += g;
      grad_cost_[b] = -g;
    }
    if (!options_.standardise) return;
    float mean = 0, product = 0;
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      mean += grad_cost_[j / L][j % L];
      product += grad_cost_[j / L][j % L] * cost_[j / L][j % L];
    }
    mean /= float(conv_.c_out);
    product /= float(conv_.c_out);
    for (int64_t b = 0; b < blocks_; ++b) {
      const V g = inverse * (grad_cost_[b] - cost_[b] * product - mean);
      grad_cost_[b] = (float(b * L) + lane_numbers() < splat<L>(conv_.c_out)) ? g : V{};
    }
  }

  // Through the means, variances and data to ln R, of which all but the first iteration's is kept, and to a.
  void share_gradients(int t, int64_t b, Carried<L>& carried, V grad_data) {
    const V* s = carried.shares + (t * blocks_ + b) * children_;
    const V* log_couplings = carried.log_couplings + b * children_;
    V mu[capacity], gm[capacity], gv[capacity];
    for (int64_t h = 0; h < d(); ++h) {
      mu[h] = *mean_at(t, b, h);
      gm[h] = carried.grad_means[(t * blocks_ + b) * d() + h];
      gv[h] = carried.grad_variances[(t * blocks_ + b) * d() + h];
    }
    const V* votes = &votes_[b * children_ * d()];
    V mean{};
    for (int64_t i = 0; i < children_; ++i) {
      V g{};
      for (int64_t h = 0; h < d(); ++h) {
        const V x = votes[i * d() + h] - mu[h];
        g += x * (gm[h] + gv[h] * x);
      }
      rows_[i] = g;
      mean += s[i] * g;
    }
    for (int64_t i = 0; i < children_; ++i) {
      const V coupling = vexp<L>(log_couplings[i]);
      const V grad_share = s[i] * (rows_[i] - mean);
      if (t > 0) carried.pulls[((t - 1) * blocks_ + b) * children_ + i] = grad_share + grad_data * coupling * active_[i];
      V ga = grad_data * coupling;
      if (active_[i] >= LEAST_ACTIVATION) ga += grad_share / active_[i];
      carried.grad_activations[i] = (t == options_.iterations - 1 && b == 0 ? V{} : carried.grad_activations[i]) + ga;
    }
  }

  // What `vote_gradient` needs beside the gradients themselves, side by side.
  void prepare_vote_gradients() {
    for (int t = 0; t < options_.iterations; ++t)
      for (int64_t b = 0; b < blocks_; ++b)
        for (int64_t h = 0; h < d(); ++h) {
          means_[(t * blocks_ + b) * d() + h] = *mean_at(t, b, h);
          precisions_[(t * blocks_ + b) * d() + h] = 1.0f / floored(*variance_at(t, b, h));
        }
  }

  // Gradient of the vote of child i for the parents of a block, from its share s and its pull e in every iteration:
  // g [d] = sum_t s (grad mu + 2 grad sigma^2 (V - mu)) - e (V - mu) / sigma^2.
  void vote_gradient(int64_t i, int64_t b, const Carried<L>& carried, V* g) {
    const V* votes = &votes_[(b * children_ + i) * d()];
    for (int64_t h = 0; h < d(); ++h) g[h] = V{};
    for (int t = 0; t < options_.iterations; ++t) {
      const int64_t k = t * blocks_ + b;
      const V s = carried.shares[k * children_ + i], s2 = s + s;
      const V e = t == options_.iterations - 1 ? V{} : carried.pulls[k * children_ + i];
      const V *gm = carried.grad_means + k * d(), *gv = carried.grad_variances + k * d();
      const V *mu = &means_[k * d()], *precision = &precisions_[k * d()];
      for (int64_t h = 0; h < d(); ++h)
        g[h] += s * gm[h] + (s2 * gv[h] - e * precision[h]) * (votes[h] - mu[h]);
    }
  }

  const Conv& conv_;
  const EMOptions& options_;
  const EMInputs& inputs_;
  const EMKept& kept_;
  const V *weight_, *log_start_;
  int64_t children_, positions_, blocks_, unit_ = 0;
  float data_scale_ = 1.0f;
  Window window_;
  Scratch<V> votes_, couplings_, shares_, rows_;
  Scratch<float> poses_, offsets_;
  Scratch<V> cost_, gain_, data_, grad_log_activation_, grad_cost_, means_, precisions_;
  Scratch<float> log_active_, active_, log_counts_, sums_, largest_;
};

}  // namespace capsella::CAPSELLA_ISA
