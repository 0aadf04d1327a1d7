// Which threads get signals? None that begins while one is ``Quiet``: Python's handlers run in the main thread.
#pragma once

#if __has_include(<pthread.h>)
#include <pthread.h>
#include <signal.h>
#endif

namespace sharpwave {

// Holds back all signals of the calling thread for a scope, and so for good those of threads that it starts.
class Quiet {
  public:
#if __has_include(<pthread.h>)
    Quiet() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~Quiet() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

  private:
    sigset_t before_;
#else
    Quiet() {}
#endif
};

}  // namespace sharpwave
