// The kernels of one instruction set, under the name CAPSELLA_ISA.
#include "kernels.h"

#define CAPSELLA_TEXT(name) #name
#define CAPSELLA_NAME(name) CAPSELLA_TEXT(name)

namespace capsella::CAPSELLA_ISA {

EMForward em_forward;
EMBackward em_backward;
DynamicForward dynamic_forward;
DynamicBackward dynamic_backward;

const Kernels kernels = {CAPSELLA_NAME(CAPSELLA_ISA), em_forward, em_backward, dynamic_forward,
                         dynamic_backward};

}  // namespace capsella::CAPSELLA_ISA
