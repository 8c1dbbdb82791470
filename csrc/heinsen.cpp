#include "heinsen.h"

#include "mixture.h"

namespace capsella::CAPSELLA_ISA {

void heinsen_forward(const Conv& conv, const HeinsenOptions& options, const MixtureInputs& inputs,
                     MixtureKept kept, float* poses, float* log_odds, int threads) {
  Passes<Heinsen>::forward(conv, options, inputs, kept, poses, log_odds, threads);
}

void heinsen_backward(const Conv& conv, const HeinsenOptions& options, const MixtureInputs& inputs,
                      MixtureKept kept, const float* grad_poses, const float* grad_log_odds,
                      MixtureGradients gradients, int threads) {
  Passes<Heinsen>::backward(conv, options, inputs, kept, grad_poses, grad_log_odds, gradients, threads);
}

}  // namespace capsella::CAPSELLA_ISA
