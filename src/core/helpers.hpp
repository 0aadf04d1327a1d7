// Who decodes a large batch together with the calling thread? Threads that wait for work until the process ends.
#pragma once

#include "arrays.hpp"

namespace sharpwave {

// Works on a job: the caller as number 0, each helper as its own number, all at the same time. Raises nothing.
using Work = void (*)(const void* job, int64_t number) noexcept;

// Runs ``work`` on the calling thread and up to ``helpers`` others, fewer where the system allows no more threads. They
// begin late or never; when this returns, none of them touches the job any more.
//
// One caller at a time has the helpers; another works alone meanwhile.
void work_together(int64_t helpers, Work work, const void* job);

}  // namespace sharpwave
