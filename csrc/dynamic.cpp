// Dynamic routing of all windows: compiled once for each instruction set, with CAPSELLA_ISA its name and CAPSELLA_LANES
// its widest vector of floats.
#include "dynamic.h"

namespace capsella::CAPSELLA_ISA {

constexpr float EPSILON = 1e-12f;  // as in capsella/routing/squash.py
// Windows whose votes are made together, and those that share a chunk's weight while it is in a core's cache.
constexpr int64_t TOGETHER = 4;
constexpr int64_t BYTES_OF_BLOCK = 256 << 10;
// The children of a window are summed in this many parts, which the threads share; fewer where blocks of windows keep
// the threads busy. Never a matter of the number of threads, so that a result does not depend on it.
constexpr int64_t PARTS = 8;
constexpr int64_t ENOUGH_WORK = 32;

template <int L, int Q, int C>
class Dynamic {
  using V = Vec<L>;

 public:
  Dynamic(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, int threads)
      : conv_(conv), options_(options), threads_(threads), units_(conv.units()), padded_((conv.c + L - 1) / L * L),
        weight_(in_place() ? 0 : weight_rows() * padded_), offset_(inputs.vote_offset ? offset_rows() * padded_ : 0),
        chunks_(conv, options.leaky, inputs.poses, in_place() ? inputs.weight : weight_.get(),
                inputs.vote_offset ? reinterpret_cast<const V*>(offset_.get()) : nullptr),
        stored_(units_ <= conv.q), block_(std::max(TOGETHER, BYTES_OF_BLOCK / (2 * size() * int64_t(sizeof(V))))),
        blocks_((units_ + block_ - 1) / block_),
        parts_(std::min(chunks_.count(), std::clamp<int64_t>(ENOUGH_WORK / std::max<int64_t>(blocks_, 1), 1, PARTS))),
        votes_(stored_ ? units_ * chunks_.count() * chunks_.size() : 0), tiles_(threads * TOGETHER * chunks_.size()),
        factors_(threads * terms() * conv.c_out), partial_(parts_ * units_ * size()), rows_(threads * size()),
        bias_(size()) {
    if (!in_place()) pad(inputs.weight, weight_rows(), weight_.get());
    if (inputs.vote_offset) pad(inputs.vote_offset, offset_rows(), offset_.get());
    for (int64_t e = 0; e < size(); ++e) bias_[e] = V{};
    if (inputs.bias) pad(inputs.bias, parent_rows(), bias_.get());
  }

  void forward(float* sums, float* poses, float* activations) {
    Scratch<V> g(units_ * size());
    clear(g.get(), units_ * size());
    for (int t = 0; t < options_.iterations; ++t) {
      for_each_chunk(t == 0, [&](int thread, int64_t unit, const V* votes, V* sum) {
        V* couplings = factors(thread);
        couple(t, votes, &g[unit * size()], couplings);
        chunks_.add(couplings, votes, sum);
      });
      for_each_unit([&](int thread, int64_t unit) {
        V *s = total(unit), *v = &rows_[thread * size()];
        for (int64_t e = 0; e < size(); ++e) s[e] += bias_[e];
        unpad(s, parent_rows(), sums + sum_at(unit, t));
        squash(s, v);
        for (int64_t e = 0; e < size(); ++e) g[unit * size() + e] += v[e];
        if (t < options_.iterations - 1) return;
        unpad(v, parent_rows(), poses + unit * parent_rows() * conv_.c);
        for (int64_t j = 0; j < conv_.c_out; ++j) activations[unit * conv_.c_out + j] = length(v + j * chunks_.d());
      });
    }
  }

  void backward(const float* sums, const float* grad_poses, const float* grad_activations, DynamicGradients gradients) {
    Scratch<V> vectors(units_ * terms() * size()), grad_g(units_ * size());
    clear(grad_g.get(), units_ * size());
    auto of_unit = [&](int64_t unit) { return &vectors[unit * terms() * size()]; };
    for_each_unit([&](int thread, int64_t unit) {
      recall(thread, unit, sums, of_unit(unit));
      last_gradient(thread, unit, sums, grad_poses, grad_activations, of_unit(unit) + sum_gradient(last()));
    });
    for (int t = last(); t > 0; --t) {
      for_each_chunk(t == last(), [&](int thread, int64_t unit, const V* votes, V* sum) {
        V *couplings = factors(thread), *gradient = couplings + conv_.c_out;
        pull(t, votes, of_unit(unit), couplings, gradient);
        chunks_.add(gradient, votes, sum);
      });
      for_each_unit([&](int thread, int64_t unit) {
        V *s = &rows_[thread * size()], *pulled = total(unit), *out = of_unit(unit) + sum_gradient(t - 1);
        pad(sums + sum_at(unit, t - 1), parent_rows(), s);
        for (int64_t e = 0; e < size(); ++e) out[e] = grad_g[unit * size() + e] += pulled[e];
        squash_gradient(s, out);
      });
    }
    input_gradients(vectors.get(), gradients);
    bias_gradient(vectors.get(), gradients.bias);
  }

 private:
  int last() const { return options_.iterations - 1; }
  bool in_place() const { return padded_ == conv_.c; }
  int64_t weight_rows() const { return conv_.weights() * conv_.c_out * conv_.q; }
  int64_t offset_rows() const { return conv_.height * conv_.width * conv_.n; }
  int64_t parent_rows() const { return conv_.c_out * conv_.n; }
  int64_t size() const { return parent_rows() * padded_ / L; }  // vectors of all parents' poses at one position
  V* factors(int thread) { return &factors_[thread * terms() * conv_.c_out]; }
  int64_t sum_at(int64_t unit, int t) const { return (unit * options_.iterations + t) * parent_rows() * conv_.c; }

  // What backward keeps of a window, in vectors: the gradient of s of every iteration, then g of all but the first.
  int64_t terms() const { return 2 * options_.iterations - 1; }
  int64_t sum_gradient(int t) const { return t * size(); }
  int64_t g_of(int t) const { return (last() + t) * size(); }

  // Rows of c floats to rows of whole vectors, zero beyond, and back.
  void pad(const float* rows, int64_t count, float* out) const {
    for (int64_t r = 0; r < count; ++r)
      for (int64_t m = 0; m < padded_; ++m) out[r * padded_ + m] = m < conv_.c ? rows[r * conv_.c + m] : 0.0f;
  }
  void pad(const float* rows, int64_t count, V* out) const { pad(rows, count, reinterpret_cast<float*>(out)); }
  void unpad(const float* rows, int64_t count, float* out) const {
    for (int64_t r = 0; r < count; ++r) std::memcpy(out + r * conv_.c, rows + r * padded_, conv_.c * sizeof(float));
  }
  void unpad(const V* rows, int64_t count, float* out) const { unpad(reinterpret_cast<const float*>(rows), count, out); }

  static void clear(V* values, int64_t count) {
    if (count > 0) std::memset(static_cast<void*>(values), 0, count * sizeof(V));
  }

  // body(thread, unit, votes, sum [c_out d]) for all chunks of all windows; `total` then adds the parts of each sum. The
  // votes are made anew, except where they are fewer than the weights: then those of the last `fresh` time still stand.
  template <class Body>
  void for_each_chunk(bool fresh, Body body) {
#pragma omp parallel for schedule(static) num_threads(threads_) if (threads_ > 1)
    for (int64_t item = 0; item < blocks_ * parts_; ++item) {
      const int thread = omp_get_thread_num();
      const int64_t part = item % parts_, begin = item / parts_ * block_, end = std::min(begin + block_, units_);
      V* sums = &partial_[part * units_ * size()];
      clear(sums + begin * size(), (end - begin) * size());
      for (int64_t chunk = chunks_.count() * part / parts_; chunk < chunks_.count() * (part + 1) / parts_; ++chunk)
        for (int64_t unit = begin; unit < end; unit += TOGETHER) {
          const int64_t count = std::min(TOGETHER, end - unit);
          V* votes = stored_ ? &votes_[(chunk * units_ + unit) * chunks_.size()] : tile(thread);
          if (fresh || !stored_) chunks_.vote(chunk, unit, count, votes);
          for (int64_t k = 0; k < count; ++k)
            body(thread, unit + k, votes + k * chunks_.size(), sums + (unit + k) * size());
        }
    }
  }

  // body(thread, unit) for all windows.
  template <class Body>
  void for_each_unit(Body body) {
#pragma omp parallel for schedule(static) num_threads(threads_) if (threads_ > 1 && units_ > 1)
    for (int64_t unit = 0; unit < units_; ++unit) body(omp_get_thread_num(), unit);
  }

  V* tile(int thread) { return &tiles_[thread * TOGETHER * chunks_.size()]; }

  // The sum over the parts of a window's children, in their order.
  V* total(int64_t unit) {
    V* sum = &partial_[unit * size()];
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t e = 0; e < size(); ++e) sum[e] += partial_[(part * units_ + unit) * size() + e];
    return sum;
  }

  // The couplings [c_out] of iteration t.
  void couple(int t, const V* votes, const V* g, V* couplings) const {
    if (t == 0) return chunks_.even(couplings);
    chunks_.products(votes, g, couplings);
    chunks_.softmax(couplings);
  }

  // Couplings of iteration t > 0, and the gradient of its logits.
  void pull(int t, const V* votes, const V* vectors, V* couplings, V* gradient) const {
    couple(t, votes, vectors + g_of(t), couplings);
    chunks_.products(votes, vectors + sum_gradient(t), gradient);
    chunks_.softmax_gradient(couplings, gradient);
  }

  // g of every iteration of a window but the first, from the sums that forward kept.
  void recall(int thread, int64_t unit, const float* sums, V* vectors) {
    V* s = &rows_[thread * size()];
    for (int t = 1; t < options_.iterations; ++t) {
      pad(sums + sum_at(unit, t - 1), parent_rows(), s);
      squash(s, vectors + g_of(t));
      for (int64_t e = 0; t > 1 && e < size(); ++e) vectors[g_of(t) + e] += vectors[g_of(t - 1) + e];
    }
  }

  // Gradient of the last iteration's s, from those of the outputs v and ‖v‖.
  void last_gradient(int thread, int64_t unit, const float* sums, const float* grad_poses, const float* grad_activations,
                     V* out) {
    V* s = &rows_[thread * size()];
    pad(sums + sum_at(unit, last()), parent_rows(), s);
    squash(s, out);
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      V* v = out + j * chunks_.d();
      const float scale = grad_activations[unit * conv_.c_out + j] / length(v);
      float* row = reinterpret_cast<float*>(v);
      for (int64_t r = 0; r < conv_.n; ++r)
        for (int64_t m = 0; m < conv_.c; ++m) {
          const float grad = grad_poses[((unit * conv_.c_out + j) * conv_.n + r) * conv_.c + m];
          row[r * padded_ + m] = row[r * padded_ + m] * scale + grad;
        }
    }
    squash_gradient(s, out);
  }

  float product(const V* a, const V* b) const {
    V sum{};
    for (int64_t e = 0; e < chunks_.d(); ++e) sum += a[e] * b[e];
    float all = 0;
    for (int l = 0; l < L; ++l) all += sum[l];
    return all;
  }
  float length(const V* v) const { return std::sqrt(product(v, v) + EPSILON); }

  // Poses s [c_out d] to v: Equation 1.
  void squash(const V* s, V* v) const {
    for (int64_t j = 0; j < conv_.c_out; ++j, s += chunks_.d(), v += chunks_.d()) {
      const float squared = product(s, s), scale = squared / (1 + squared) / std::sqrt(squared + EPSILON);
      for (int64_t e = 0; e < chunks_.d(); ++e) v[e] = s[e] * scale;
    }
  }

  // The gradient of v to that of s, in place: v = s f(‖s‖²), so f dv + 2 f' (s·dv) s.
  void squash_gradient(const V* s, V* gradient) const {
    for (int64_t j = 0; j < conv_.c_out; ++j, s += chunks_.d(), gradient += chunks_.d()) {
      const float squared = product(s, s), inverse = 1 / (1 + squared), root = std::sqrt(squared + EPSILON);
      const float scale = squared * inverse / root;
      const float slope = inverse * inverse / root - 0.5f * scale / (squared + EPSILON);
      const float along = 2 * slope * product(s, gradient);
      for (int64_t e = 0; e < chunks_.d(); ++e) gradient[e] = scale * gradient[e] + along * s[e];
    }
  }

  // With all iterations' gradients known, a chunk of children gets those of its poses and its weight from all windows.
  void input_gradients(const V* vectors, DynamicGradients gradients) {
    const bool dense = conv_.sites() == 1 && conv_.children() == conv_.height * conv_.width * conv_.c_in;
    Scratch<float> slots(dense ? 0 : units_ * conv_.children() * conv_.p());
    Scratch<float> padded(in_place() ? 0 : weight_rows() * padded_);
    float *grad_poses = dense ? gradients.poses : slots.get(), *grad_weight = in_place() ? gradients.weight : padded.get();
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
      const int thread = omp_get_thread_num();
      V *votes = tile(thread), *f = factors(thread);
      float* here = grad_weight + chunks_.first(chunk) * chunks_.weight_size();
      std::memset(here, 0, chunks_.here(chunk) * chunks_.weight_size() * sizeof(float));
      chunks_.even(f);
      for (int64_t unit = 0; unit < units_; unit += TOGETHER) {
        const int64_t count = std::min(TOGETHER, units_ - unit);
        if (last() > 0) chunks_.vote(chunk, unit, count, votes);
        for (int64_t k = 0; k < count; ++k) {
          const V* of_unit = vectors + (unit + k) * terms() * size();
          V* mine = votes + k * chunks_.size();
          for (int t = 1; t < options_.iterations; ++t)
            pull(t, mine, of_unit, f + t * conv_.c_out, f + (last() + t) * conv_.c_out);
          chunks_.vote_gradients(f, of_unit, terms(), mine);
        }
        chunks_.add_weight_gradients(chunk, unit, count, votes, grad_weight);
        chunks_.pose_gradients(chunk, unit, count, votes, grad_poses);
      }
    }
    if (!in_place()) unpad(grad_weight, weight_rows(), gradients.weight);
    if (!dense) gather_children(slots.get(), gradients.poses);
  }

  // Gradients at each window's children to those of the grid.
  void gather_children(const float* slots, float* grad_poses) {
    const int64_t width = conv_.c_in * conv_.p(), area = conv_.height * conv_.width;
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (int64_t child = 0; child < conv_.batch * area; ++child) {
      float* into = grad_poses + child * width;
      std::memset(into, 0, width * sizeof(float));
      visit_windows(conv_, child / area, child % area / conv_.width, child % conv_.width,
                    [&](int64_t unit, int64_t position) {
                      const float* slot = slots + (unit * conv_.children() + position * conv_.c_in) * conv_.p();
                      for (int64_t e = 0; e < width; ++e) into[e] += slot[e];
                    });
    }
  }

  void bias_gradient(const V* vectors, float* grad_bias) {
    Scratch<V> sum(size());
    clear(sum.get(), size());
    for (int64_t unit = 0; unit < units_; ++unit)
      for (int64_t e = 0; e < options_.iterations * size(); ++e)
        sum[e % size()] += vectors[unit * terms() * size() + e];
    unpad(sum.get(), parent_rows(), grad_bias);
  }

  const Conv& conv_;
  const DynamicOptions& options_;
  int threads_;
  int64_t units_, padded_;  // padded: floats of a row of whole vectors
  Scratch<float> weight_, offset_;
  Chunks<L, Q, C> chunks_;
  bool stored_;
  int64_t block_, blocks_, parts_;
  Scratch<V> votes_, tiles_, factors_, partial_, rows_, bias_;
};

// Call with<L, Q, C>() with the pose's factors as constants where a network of the papers has them.
template <int L, template <int, int, int> class Run, class... Arguments>
void with_factors(const Conv& conv, Arguments&&... arguments) {
  if (conv.n == 1 && conv.q == 8 && conv.c == L) return Run<L, 8, 1>::run(conv, arguments...);
  if (conv.n == 1 && conv.q == 8 && conv.c == 2 * L) return Run<L, 8, 2>::run(conv, arguments...);
  Run<L, 0, 0>::run(conv, arguments...);
}

// With the widest vectors that a row of a pose fills.
template <template <int, int, int> class Run, class... Arguments>
void with_lanes(const Conv& conv, Arguments&&... arguments) {
  if (CAPSELLA_LANES > 4 && conv.c <= 4) return with_factors<4, Run>(conv, arguments...);
  if constexpr (CAPSELLA_LANES > 8) {
    if (conv.c <= 8) return with_factors<8, Run>(conv, arguments...);
  }
  with_factors<CAPSELLA_LANES, Run>(conv, arguments...);
}

template <int L, int Q, int C>
struct Forward {
  static void run(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, float* sums,
                  float* poses, float* activations, int threads) {
    Dynamic<L, Q, C>(conv, options, inputs, threads).forward(sums, poses, activations);
  }
};

template <int L, int Q, int C>
struct Backward {
  static void run(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, const float* sums,
                  const float* grad_poses, const float* grad_activations, DynamicGradients gradients, int threads) {
    Dynamic<L, Q, C>(conv, options, inputs, threads).backward(sums, grad_poses, grad_activations, gradients);
  }
};

void dynamic_forward(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, float* sums,
                     float* poses, float* activations, int threads) {
  with_lanes<Forward>(conv, options, inputs, sums, poses, activations, threads);
}

void dynamic_backward(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, const float* sums,
                      const float* grad_poses, const float* grad_activations, DynamicGradients gradients, int threads) {
  with_lanes<Backward>(conv, options, inputs, sums, grad_poses, grad_activations, gradients, threads);
}

}  // namespace capsella::CAPSELLA_ISA
