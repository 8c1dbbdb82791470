// Memory that kernels take and give back: kept for the next call, because fresh pages cost more than the work on them.
#pragma once

#include <cstddef>

namespace capsella {

// At least `bytes`, a multiple of 64, aligned to 64. Throws std::bad_alloc.
void* take_memory(size_t bytes);
void give_memory(void* memory, size_t bytes);

}  // namespace capsella
