// Allocator for tests: once armed, it grants C++ code so many requests for memory, and refuses all others.
#include <atomic>
#include <cstdlib>
#include <new>

static std::atomic<long> granted{-1};  // negative: not armed

extern "C" void arm(long count) { granted = count; }
extern "C" void disarm() { granted = -1; }

void* operator new(std::size_t nbytes) {
    if (granted == 0) throw std::bad_alloc();
    if (granted > 0) --granted;
    void* const memory = std::malloc(nbytes ? nbytes : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
