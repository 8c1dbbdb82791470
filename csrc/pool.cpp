#include "pool.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

namespace capsella {
namespace {

// Given back, by size; the largest amount that is kept. A sanitizer must see every block freed, so none is kept there.
#ifdef CAPSELLA_POISON
constexpr size_t MOST_KEPT = 0;
#else
constexpr size_t MOST_KEPT = 64 << 20;
#endif
std::mutex mutex;
std::multimap<size_t, void*> kept;
size_t kept_bytes = 0;

}  // namespace

void* take_memory(size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = kept.find(bytes);
    if (found != kept.end()) {
      void* memory = found->second;
      kept.erase(found);
      kept_bytes -= bytes;
      return memory;
    }
  }
  void* memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give_memory(void* memory, size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (kept_bytes + bytes <= MOST_KEPT) {
      kept.emplace(bytes, memory);
      kept_bytes += bytes;
      return;
    }
  }
  std::free(memory);
}

}  // namespace capsella
