// The processors of OpenMP's threads.

#pragma once

#ifdef __linux__
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// The calling thread and its helpers, on different processors.
//
// After a pause Linux may wake a helper on its caller's processor: in a virtual machine it takes a processor that has gone to
// sleep for one that the host has taken away (`vcpu_is_preempted`). They stay there for many steps, each of which takes twice as
// long. So where there is a thread for each processor, each helper is bound to one. The caller is free, because the threads
// that it starts inherit its processors. A helper that is in its way gets the one that it has left.
class Team {
 public:
  // Before the helpers are woken.
  void spread(int num) {
#ifdef __linux__
    if (num != size) begin(num);
    if (!is_bound) return;
    const int cpu = sched_getcpu();
    if (cpu == cpus[0]) return;
    for (int i = 1; i < num; i++)
      if (cpus[i] == cpu) bind(i, cpus[0]);
    cpus[0] = cpu;
#endif
  }

#ifdef __linux__
 private:
  static constexpr int MOST = 256;
  int size = 0, cpus[MOST];
  pid_t threads[MOST];
  bool is_bound = false;

  void begin(int num) {
    cpu_set_t allowed;
    const bool is_known = !sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 1; is_known && is_bound && i < size; i++) sched_setaffinity(threads[i], sizeof allowed, &allowed);
    size = num;
    is_bound = is_known && 1 < num && num <= MOST && CPU_COUNT(&allowed) == num;
    if (!is_bound) return;
    pid_t* found = threads;
#pragma omp parallel num_threads(num)
    if (omp_get_num_threads() == num) found[omp_get_thread_num()] = pid_t(syscall(SYS_gettid));
    else is_bound = false;
    cpus[0] = sched_getcpu();
    for (int i = 1, cpu = 0; is_bound && i < num; i++, cpu++) {
      while (!CPU_ISSET(cpu, &allowed) || cpu == cpus[0]) cpu++;
      bind(i, cpu);
    }
  }

  void bind(int i, int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(threads[i], sizeof one, &one);
    cpus[i] = cpu;
  }
#endif
};

thread_local Team team;

}  // namespace
