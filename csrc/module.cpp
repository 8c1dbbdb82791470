// The Python module capsella._native.kernels: arrays in, arrays filled. Shapes are the caller's duty
// (capsella/routing/native.py); sizes are checked here, because a wrong one would corrupt memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace capsella;

namespace {

using Input = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

const Kernels* const ALL[] = {
#ifdef CAPSELLA_HAS_avx512
    &avx512::kernels,
#endif
#ifdef CAPSELLA_HAS_avx2
    &avx2::kernels,
#endif
#ifdef CAPSELLA_HAS_baseline
    &baseline::kernels,
#endif
};

bool runs_here(const std::string& name) {
#if defined(__x86_64__)
  if (name == "avx512") return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return name == "baseline";
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* kernels : ALL)
    if (runs_here(kernels->name)) names.emplace_back(kernels->name);
  return names;
}

const Kernels* chosen = nullptr;

void use(const std::string& name) {
  for (const Kernels* kernels : ALL)
    if (kernels->name == name && runs_here(name)) {
      chosen = kernels;
      return;
    }
  throw std::invalid_argument("instruction set: must be one of instruction_sets(), got '" + name + "'");
}

template <class Array>
auto* checked(const char* name, const Array& array, int64_t size) {
  if (int64_t(array.size()) != size)
    throw std::invalid_argument(std::string(name) + ": must have " + std::to_string(size) + " elements, got " +
                                std::to_string(array.size()));
  return array.data();
}

template <class Array>
auto checked(const char* name, const std::optional<Array>& array, int64_t size) -> decltype(array->data()) {
  return array ? checked(name, *array, size) : nullptr;
}

Conv conv_of(const std::array<int64_t, 14>& s, bool tied) {
  return {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13], tied};
}

// The tensors of EM routing, as Python holds them.
struct EMTensors {
  Input poses, activations, weight;
  std::optional<Input> vote_offset;
  Input beta_u, beta_a;
  std::optional<Input> start;
  Output means, variances, log_activations, log_normalisers;

  EMInputs inputs(const Conv& conv) const {
    const int64_t children = conv.batch * conv.height * conv.width * conv.c_in;
    return {checked("poses", poses, children * conv.p()),
            checked("activations", activations, children),
            checked("weight", weight, conv.weights() * conv.c_out * conv.q * conv.c),
            checked("vote_offset", vote_offset, conv.height * conv.width * conv.d()),
            checked("beta_u", beta_u, conv.c_out),
            checked("beta_a", beta_a, conv.c_out),
            checked("start", start, conv.children() * conv.c_out)};
  }
  EMKept kept(const Conv& conv, const EMOptions& options) const {
    const int64_t rows = conv.units() * options.iterations * conv.padded();
    const bool normalised = options.compete_everywhere && conv.sites() > 1;
    const int64_t children = conv.batch * conv.height * conv.width * conv.c_in;
    return {checked("means", means, rows * conv.d()), checked("variances", variances, rows * conv.d()),
            checked("log_activations", log_activations, rows),
            checked("log_normalisers", log_normalisers, normalised ? (options.iterations - 1) * children : 0)};
  }
};

EMOptions em_options(const std::vector<float>& inverse_temperatures, float variance_floor, float cost_scale,
                     bool standardise, bool compete_everywhere) {
  return {int(inverse_temperatures.size()), inverse_temperatures.data(), variance_floor, cost_scale, standardise,
          compete_everywhere};
}

// The tensors of dynamic routing.
struct DynamicTensors {
  Input poses, weight;
  std::optional<Input> vote_offset, bias;

  DynamicInputs inputs(const Conv& conv) const {
    if (conv.tied && vote_offset) throw std::invalid_argument("vote_offset: must be None for tied weights");
    return {checked("poses", poses, conv.batch * conv.height * conv.width * conv.c_in * conv.p()),
            checked("weight", weight, conv.weights() * conv.c_out * conv.q * conv.c),
            checked("vote_offset", vote_offset, conv.height * conv.width * conv.d()),
            checked("bias", bias, conv.c_out * conv.d())};
  }
};

}  // namespace

NB_MODULE(kernels, m) {
  use(instruction_sets().front());
  m.def("instruction_sets", &instruction_sets, "Those of this build that this processor runs, best first.");
  m.def("instruction_set", [] { return std::string(chosen->name); }, "The one in use.");
  m.def("use", &use, nb::arg("name"), "Use the kernels of another of `instruction_sets()`.");

  nb::class_<EMTensors>(m, "EMTensors")
      .def(nb::init<Input, Input, Input, std::optional<Input>, Input, Input, std::optional<Input>, Output, Output, Output,
                    Output>(),
           nb::arg("poses"), nb::arg("activations"), nb::arg("weight"), nb::arg("vote_offset").none(),
           nb::arg("beta_u"), nb::arg("beta_a"), nb::arg("start").none(), nb::arg("means"), nb::arg("variances"),
           nb::arg("log_activations"), nb::arg("log_normalisers"));

  m.def("em_forward",
        [](const std::array<int64_t, 14>& shape, bool tied, const std::vector<float>& inverse_temperatures,
           float variance_floor, float cost_scale, bool standardise, bool compete_everywhere, const EMTensors& tensors,
           Output poses, Output activations, int threads) {
          const Conv conv = conv_of(shape, tied);
          const EMOptions options =
              em_options(inverse_temperatures, variance_floor, cost_scale, standardise, compete_everywhere);
          const EMInputs inputs = tensors.inputs(conv);
          const EMKept kept = tensors.kept(conv, options);
          float* out_poses = checked("poses", poses, conv.units() * conv.c_out * conv.d());
          float* out_activations = checked("activations", activations, conv.units() * conv.c_out);
          nb::gil_scoped_release release;
          chosen->em_forward(conv, options, inputs, kept, out_poses, out_activations, threads);
        });

  m.def("em_backward",
        [](const std::array<int64_t, 14>& shape, bool tied, const std::vector<float>& inverse_temperatures,
           float variance_floor, float cost_scale, bool standardise, bool compete_everywhere, const EMTensors& tensors,
           Input grad_poses, Input grad_activations, const std::vector<Output>& gradients, int threads) {
          const Conv conv = conv_of(shape, tied);
          const EMOptions options =
              em_options(inverse_temperatures, variance_floor, cost_scale, standardise, compete_everywhere);
          const EMInputs inputs = tensors.inputs(conv);
          const EMKept kept = tensors.kept(conv, options);
          const int64_t children = conv.batch * conv.height * conv.width * conv.c_in;
          const float* out_poses = checked("grad_poses", grad_poses, conv.units() * conv.c_out * conv.d());
          const float* out_activations = checked("grad_activations", grad_activations, conv.units() * conv.c_out);
          if (gradients.size() != 5) throw std::invalid_argument("gradients: must be five arrays");
          const EMGradients results = {
              checked("gradient of poses", gradients[0], children * conv.p()),
              checked("gradient of activations", gradients[1], children),
              checked("gradient of weight", gradients[2], conv.weights() * conv.c_out * conv.q * conv.c),
              checked("gradient of beta_u", gradients[3], conv.c_out),
              checked("gradient of beta_a", gradients[4], conv.c_out)};
          nb::gil_scoped_release release;
          chosen->em_backward(conv, options, inputs, kept, out_poses, out_activations, results, threads);
        });

  nb::class_<DynamicTensors>(m, "DynamicTensors")
      .def(nb::init<Input, Input, std::optional<Input>, std::optional<Input>>(), nb::arg("poses"), nb::arg("weight"),
           nb::arg("vote_offset").none(), nb::arg("bias").none());

  m.def("dynamic_forward",
        [](const std::array<int64_t, 14>& shape, bool tied, int iterations, bool leaky, const DynamicTensors& tensors,
           Output sums, Output poses, Output activations, int threads) {
          const Conv conv = conv_of(shape, tied);
          const DynamicInputs inputs = tensors.inputs(conv);
          const int64_t parents = conv.units() * conv.c_out;
          float* kept = checked("sums", sums, parents * iterations * conv.d());
          float* out_poses = checked("poses", poses, parents * conv.d());
          float* out_activations = checked("activations", activations, parents);
          nb::gil_scoped_release release;
          chosen->dynamic_forward(conv, {iterations, leaky}, inputs, kept, out_poses, out_activations, threads);
        });

  m.def("dynamic_backward",
        [](const std::array<int64_t, 14>& shape, bool tied, int iterations, bool leaky, const DynamicTensors& tensors,
           Input sums, Input grad_poses, Input grad_activations, Output poses, Output weight, Output bias, int threads) {
          const Conv conv = conv_of(shape, tied);
          const DynamicInputs inputs = tensors.inputs(conv);
          const int64_t parents = conv.units() * conv.c_out;
          const float* kept = checked("sums", sums, parents * iterations * conv.d());
          const float* out_poses = checked("grad_poses", grad_poses, parents * conv.d());
          const float* out_activations = checked("grad_activations", grad_activations, parents);
          const DynamicGradients gradients = {
              checked("gradient of poses", poses, conv.batch * conv.height * conv.width * conv.c_in * conv.p()),
              checked("gradient of weight", weight, conv.weights() * conv.c_out * conv.q * conv.c),
              checked("gradient of bias", bias, conv.c_out * conv.d())};
          nb::gil_scoped_release release;
          chosen->dynamic_backward(conv, {iterations, leaky}, inputs, kept, out_poses, out_activations, gradients,
                                   threads);
        });
}
