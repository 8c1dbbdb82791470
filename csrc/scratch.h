// Memory for a kernel's own use: aligned for any vector, taken before threads start, given back when the call returns.
#pragma once

#include <cstdint>
#include <cstring>

#include "pool.h"

namespace capsella::CAPSELLA_ISA {

template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count) : bytes_((size_t(count) * sizeof(T) + 63) / 64 * 64), data_(nullptr) {
    if (bytes_ == 0) return;
    data_ = static_cast<T*>(take_memory(bytes_));
#ifdef CAPSELLA_POISON
    std::memset(static_cast<void*>(data_), 0xff, bytes_);  // NaN
#endif
  }
  ~Scratch() {
    if (data_ != nullptr) give_memory(data_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() { return data_; }
  const T* get() const { return data_; }
  T& operator[](int64_t k) { return data_[k]; }
  const T& operator[](int64_t k) const { return data_[k]; }

 private:
  size_t bytes_;
  T* data_;
};

}  // namespace capsella::CAPSELLA_ISA
