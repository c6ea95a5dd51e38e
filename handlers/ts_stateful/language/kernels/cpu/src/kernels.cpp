// The exported functions of the CPU kernels. Compiled when first needed; see library.py.

#include "attention.h"
#include "layer.h"
#include "threads.h"

#define EXPORT(NAME, T)                                                                                                     \
  extern "C" void write_##NAME(const Step* step, const T* states, int64_t head_stride, int64_t token_stride, int64_t heads, \
                               int64_t dim, int which) {                                                                    \
    write_states<T>(*step, states, head_stride, token_stride, heads, dim, which);                                           \
  }                                                                                                                         \
  extern "C" void attend_##NAME(const Step* step, const Layer* layer, const T* query, int64_t head_stride,                  \
                                int64_t token_stride, const float* sinks, int64_t num_splits, float* partial, T* output) {  \
    _Pragma("omp parallel")                                                                                                 \
    attend_share<T>(*step, *layer, query, head_stride, token_stride, sinks, num_splits, partial, output);                   \
  }
EXPORT(float32, float)
EXPORT(bfloat16, bfloat16)

extern "C" int64_t most_rows() { return MOST; }

// Floats of scratch space that `decode_layers` needs.
extern "C" int64_t decode_scratch(const Decoder* layers, int64_t num_layers, int64_t rows, int64_t num_splits) {
  int64_t most = 0;
  for (int64_t i = 0; i < num_layers; i++) most = std::max(most, Scratch(layers[i], rows, num_splits).end);
  return most;
}

// Compute all decoder layers on hidden (rows, hidden), in place. cos, sin: (tables, rows, turned). Every token of the step is a row.
extern "C" void decode_layers(const Step* step, const Decoder* layers, int64_t num_layers, const float* cos, const float* sin,
                              int64_t num_splits, int64_t num_threads, float* scratch, float* hidden) {
  Routes shared{};
  team.spread(int(num_threads));
#pragma omp parallel num_threads(int(num_threads))
  for (int64_t i = 0; i < num_layers; i++) {
    Step own = *step;
    own.layer = i, own.window = layers[i].window;
    decode(own, layers[i], cos, sin, num_splits, &shared, scratch, hidden);
  }
}

// Prepare for torch's operators, which have the same threads.
extern "C" void spread_threads(int64_t num_threads) { team.spread(int(num_threads)); }

// Map x (rows, in) to y (rows, out); `scratch` has room for x.
extern "C" void multiply_linear(const Linear* linear, const float* x, int64_t rows, int64_t num_threads,
                                float* scratch, float* y) {
  team.spread(int(num_threads));
#pragma omp parallel num_threads(int(num_threads))
  {
    alignas(64) float result[MOST * WIDE];
#pragma omp for schedule(static)
    for (int64_t m = 0; m < rows; m++) pack(x + m * linear->in, Norm{}, int(rows), int(m), linear->in, scratch);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < linear->out; n += WIDE) {
      const int num = outputs(*linear, n, scratch, int(rows), result);
      for (int64_t m = 0; m < rows; m++) std::copy_n(result + m * WIDE, num, y + m * linear->out + n);
    }
  }
}
