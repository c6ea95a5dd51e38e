// The functions for models with recurrent state. Compiled when first needed; see build.py.

#include "recurrent.h"
#include "threads.h"

extern "C" int64_t recurrent_units() { return UNITS; }

// Step `num` layers, LSTMs with 4 gates or GRUs with 3. x (rows, in), h, c (layers, rows, size); GRUs read and write no c.
extern "C" void step_recurrent(const Recurrent* layers, int64_t num, int64_t gates, const float* x, const float* h, const float* c,
                               int64_t rows, int64_t num_threads, float* new_h, float* new_c) {
  team.spread(int(num_threads));
#pragma omp parallel num_threads(int(num_threads))
  gates == 4 ? step_layers<4>(layers, num, x, h, c, rows, new_h, new_c) : step_layers<3>(layers, num, x, h, c, rows, new_h, new_c);
}
