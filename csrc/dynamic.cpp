// Dynamic routing of all windows: compiled once for each instruction set, with CAPSELLA_ISA its name and CAPSELLA_LANES
// its widest vector of floats.
#include "dynamic_octets.h"
#include "dynamic_tied.h"
#include "dynamic_untied.h"

namespace capsella::CAPSELLA_ISA {

constexpr float EPSILON = 1e-12f;  // as in capsella/routing/squash.py
// Windows that share the weight of a group of children while it is in a core's cache.
constexpr int64_t BYTES_OF_BLOCK = 256 << 10;
// The children of a window are summed in this many parts, which the threads share; fewer where blocks of windows keep
// the threads busy. Never a matter of the number of threads, so that a result does not depend on it.
constexpr int64_t PARTS = 8;
constexpr int64_t ENOUGH_WORK = 32;

// Children: UntiedChildren or TiedChildren; it knows groups of them, whose sums are made together.
template <int L, class Children>
class Dynamic {
  using V = Vec<L>;

 public:
  Dynamic(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, int threads)
      : conv_(conv), options_(options), threads_(threads), units_(conv.units()), padded_((conv.c + L - 1) / L * L),
        weight_(in_place() ? 0 : weight_rows() * padded_), offset_(inputs.vote_offset ? offset_rows() * padded_ : 0),
        children_(conv, options, inputs.poses, in_place() ? inputs.weight : weight_.get(),
                  inputs.vote_offset ? reinterpret_cast<const V*>(offset_.get()) : nullptr, threads),
        blocks_(in_parts_of(std::max<int64_t>(4, BYTES_OF_BLOCK / (2 * size() * int64_t(sizeof(V)))))),
        block_(blocks_ == 0 ? 0 : (units_ + blocks_ - 1) / blocks_),
        parts_(std::min(children_.count(), std::clamp<int64_t>(ENOUGH_WORK / std::max<int64_t>(blocks_, 1), 1, PARTS))),
        partial_(parts_ * units_ * size()), rows_(threads * size()), bias_(size()) {
    if (!in_place()) pad(inputs.weight, weight_rows(), weight_.get());
    if (inputs.vote_offset) pad(inputs.vote_offset, offset_rows(), offset_.get());
    for (int64_t e = 0; e < size(); ++e) bias_[e] = V{};
    if (inputs.bias) pad(inputs.bias, parent_rows(), bias_.get());
  }

  void forward(float* sums, float* poses, float* activations) {
    Scratch<V> g(units_ * size());
    clear(g.get(), units_ * size());
    for (int t = 0; t < options_.iterations; ++t) {
      for_each_group([&](int thread, int64_t group, int64_t begin, int64_t end, V* sums) {
        children_.route(thread, t, group, begin, end, g.get(), sums);
      });
      for_each_unit([&](int thread, int64_t unit) {
        V *s = total(unit), *v = &rows_[thread * size()];
        for (int64_t e = 0; e < size(); ++e) s[e] += bias_[e];
        unpad(s, parent_rows(), sums + sum_at(unit, t));
        squash(s, v);
        for (int64_t e = 0; e < size(); ++e) g[unit * size() + e] += v[e];
        if (t < options_.iterations - 1) return;
        unpad(v, parent_rows(), poses + unit * parent_rows() * conv_.c);
        for (int64_t j = 0; j < conv_.c_out; ++j) activations[unit * conv_.c_out + j] = length(v + j * d());
      });
    }
  }

  void backward(const float* sums, const float* grad_poses, const float* grad_activations, DynamicGradients gradients) {
    Terms<L> terms(units_, options_.iterations, size());
    Scratch<V> grad_g(units_ * size());
    clear(grad_g.get(), units_ * size());
    for_each_unit([&](int thread, int64_t unit) {
      recall(thread, unit, sums, terms);
      last_gradient(thread, unit, sums, grad_poses, grad_activations, terms.sum_gradient(unit, last()));
    });
    for (int t = last(); t > 0; --t) {
      for_each_group([&](int thread, int64_t group, int64_t begin, int64_t end, V* pulled) {
        children_.pull(thread, t, group, begin, end, terms, pulled);
      });
      for_each_unit([&](int thread, int64_t unit) {
        V *s = &rows_[thread * size()], *pulled = total(unit), *out = terms.sum_gradient(unit, t - 1);
        pad(sums + sum_at(unit, t - 1), parent_rows(), s);
        for (int64_t e = 0; e < size(); ++e) out[e] = grad_g[unit * size() + e] += pulled[e];
        squash_gradient(s, out);
      });
    }
    input_gradients(terms, gradients);
    bias_gradient(terms, gradients.bias);
  }

 private:
  int last() const { return options_.iterations - 1; }
  int64_t in_parts_of(int64_t most) const { return (units_ + most - 1) / most; }
  bool in_place() const { return padded_ == conv_.c; }
  int64_t weight_rows() const { return conv_.weights() * conv_.c_out * conv_.q; }
  int64_t offset_rows() const { return conv_.height * conv_.width * conv_.n; }
  int64_t parent_rows() const { return conv_.c_out * conv_.n; }
  int64_t d() const { return conv_.n * padded_ / L; }  // vectors of a parent's pose
  int64_t size() const { return conv_.c_out * d(); }   // of all parents' poses at one position
  int64_t sum_at(int64_t unit, int t) const { return (unit * options_.iterations + t) * parent_rows() * conv_.c; }

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

  // body(thread, group, begin, end, sums [units c_out d]) for all groups of children in all windows begin ... end - 1;
  // `total` then adds the parts of each sum.
  template <class Body>
  void for_each_group(Body body) {
#pragma omp parallel for schedule(static) num_threads(threads_) if (threads_ > 1)
    for (int64_t item = 0; item < blocks_ * parts_; ++item) {
      [[maybe_unused]] const FlushDenormals flush;
      const int64_t part = item % parts_, begin = item / parts_ * block_, end = std::min(begin + block_, units_);
      V* sums = &partial_[part * units_ * size()];
      clear(sums + begin * size(), (end - begin) * size());
      for (int64_t group = children_.count() * part / parts_; group < children_.count() * (part + 1) / parts_; ++group)
        body(omp_get_thread_num(), group, begin, end, sums);
    }
  }

  // body(thread, unit) for all windows.
  template <class Body>
  void for_each_unit(Body body) {
#pragma omp parallel for schedule(static) num_threads(threads_) if (threads_ > 1 && units_ > 1)
    for (int64_t unit = 0; unit < units_; ++unit) body(omp_get_thread_num(), unit);
  }

  // The sum over the parts of a window's children, in their order.
  V* total(int64_t unit) {
    V* sum = &partial_[unit * size()];
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t e = 0; e < size(); ++e) sum[e] += partial_[(part * units_ + unit) * size() + e];
    return sum;
  }

  // g of every iteration of a window but the first, from the sums that forward kept.
  void recall(int thread, int64_t unit, const float* sums, Terms<L>& terms) {
    V* s = &rows_[thread * size()];
    for (int t = 1; t < options_.iterations; ++t) {
      pad(sums + sum_at(unit, t - 1), parent_rows(), s);
      squash(s, terms.g(unit, t));
      for (int64_t e = 0; t > 1 && e < size(); ++e) terms.g(unit, t)[e] += terms.g(unit, t - 1)[e];
    }
  }

  // Gradient of the last iteration's s, from those of the outputs v and ‖v‖.
  void last_gradient(int thread, int64_t unit, const float* sums, const float* grad_poses, const float* grad_activations,
                     V* out) {
    V* s = &rows_[thread * size()];
    pad(sums + sum_at(unit, last()), parent_rows(), s);
    squash(s, out);
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      V* v = out + j * d();
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
    for (int64_t e = 0; e < d(); ++e) sum += a[e] * b[e];
    float all = 0;
    for (int l = 0; l < L; ++l) all += sum[l];
    return all;
  }
  float length(const V* v) const { return std::sqrt(product(v, v) + EPSILON); }

  // Poses s [c_out d] to v: Equation 1.
  void squash(const V* s, V* v) const {
    for (int64_t j = 0; j < conv_.c_out; ++j, s += d(), v += d()) {
      const float squared = product(s, s), scale = squared / (1 + squared) / std::sqrt(squared + EPSILON);
      for (int64_t e = 0; e < d(); ++e) v[e] = s[e] * scale;
    }
  }

  // The gradient of v to that of s, in place: v = s f(‖s‖²), so f dv + 2 f' (s·dv) s.
  void squash_gradient(const V* s, V* gradient) const {
    for (int64_t j = 0; j < conv_.c_out; ++j, s += d(), gradient += d()) {
      const float squared = product(s, s), inverse = 1 / (1 + squared), root = std::sqrt(squared + EPSILON);
      const float scale = squared * inverse / root;
      const float slope = inverse * inverse / root - 0.5f * scale / (squared + EPSILON);
      const float along = 2 * slope * product(s, gradient);
      for (int64_t e = 0; e < d(); ++e) gradient[e] = scale * gradient[e] + along * s[e];
    }
  }

  // With all iterations' gradients known, a group of children gets those of its poses and its weight from all windows.
  void input_gradients(const Terms<L>& terms, DynamicGradients gradients) {
    const bool dense = conv_.sites() == 1 && conv_.children() == conv_.height * conv_.width * conv_.c_in;
    Scratch<float> slots(dense ? 0 : units_ * conv_.children() * conv_.p());
    Scratch<float> padded(in_place() ? 0 : weight_rows() * padded_);
    float *grad_poses = dense ? gradients.poses : slots.get(), *grad_weight = in_place() ? gradients.weight : padded.get();
    if (units_ == 0) std::memset(grad_weight, 0, weight_rows() * padded_ * sizeof(float));
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (int64_t group = 0; group < children_.count(); ++group) {
      [[maybe_unused]] const FlushDenormals flush;
      children_.finish(omp_get_thread_num(), group, terms, grad_weight, grad_poses);
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

  void bias_gradient(const Terms<L>& terms, float* grad_bias) {
    Scratch<V> sum(size());
    clear(sum.get(), size());
    for (int64_t unit = 0; unit < units_; ++unit)
      for (int t = 0; t < options_.iterations; ++t)
        for (int64_t e = 0; e < size(); ++e) sum[e] += terms.sum_gradient(unit, t)[e];
    unpad(sum.get(), parent_rows(), grad_bias);
  }

  const Conv& conv_;
  const DynamicOptions& options_;
  int threads_;
  int64_t units_, padded_;  // padded: floats of a row of whole vectors
  Scratch<float> weight_, offset_;
  Children children_;
  int64_t blocks_, block_, parts_;  // blocks of windows, all but the last of one size; parts of a window's children
  Scratch<V> partial_, rows_, bias_;
};

// Call with<L, Children>() with the pose's factors as constants where a network of the papers has them.
template <int L, template <int, class> class Run, class... Arguments>
void with_children(const Conv& conv, Arguments&&... arguments) {
  const bool vectors_of_8 = conv.n == 1 && conv.q == 8;
  if (conv.tied) {
    if (vectors_of_8 && conv.c == 96) return Run<L, TiedChildren<L, 8, 96 / L>>::run(conv, arguments...);
    return Run<L, TiedChildren<L, 0, 0>>::run(conv, arguments...);
  }
  if constexpr (L == 8 && CAPSELLA_LANES == 16) {
    if (vectors_of_8 && conv.c == 8) return Run<L, OctetChildren>::run(conv, arguments...);
  }
  if (vectors_of_8 && conv.c == L) return Run<L, UntiedChildren<L, 8, 1>>::run(conv, arguments...);
  if (vectors_of_8 && conv.c == 2 * L) return Run<L, UntiedChildren<L, 8, 2>>::run(conv, arguments...);
  Run<L, UntiedChildren<L, 0, 0>>::run(conv, arguments...);
}

// With the widest vectors that a row of a pose fills.
template <template <int, class> class Run, class... Arguments>
void with_lanes(const Conv& conv, Arguments&&... arguments) {
  if (CAPSELLA_LANES > 4 && conv.c <= 4) return with_children<4, Run>(conv, arguments...);
  if constexpr (CAPSELLA_LANES > 8) {
    if (conv.c <= 8) return with_children<8, Run>(conv, arguments...);
  }
  with_children<CAPSELLA_LANES, Run>(conv, arguments...);
}

template <int L, class Children>
struct Forward {
  static void run(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, float* sums,
                  float* poses, float* activations, int threads) {
    Dynamic<L, Children>(conv, options, inputs, threads).forward(sums, poses, activations);
  }
};

template <int L, class Children>
struct Backward {
  static void run(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, const float* sums,
                  const float* grad_poses, const float* grad_activations, DynamicGradients gradients, int threads) {
    Dynamic<L, Children>(conv, options, inputs, threads).backward(sums, grad_poses, grad_activations, gradients);
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
