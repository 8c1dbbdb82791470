// Memory for a kernel's own use: aligned for any vector, allocated before threads start, freed when the call returns.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace capsella::CAPSELLA_ISA {

template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count) : data_(nullptr) {
    const size_t bytes = (size_t(count) * sizeof(T) + 63) / 64 * 64;
    if (bytes == 0) return;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() { return data_; }
  T& operator[](int64_t k) { return data_[k]; }
  const T& operator[](int64_t k) const { return data_[k]; }

 private:
  T* data_;
};

}  // namespace capsella::CAPSELLA_ISA
