// The functions for language models. Compiled when first needed; see build.py.

#include "attention.h"
#include "draw.h"
#include "layer.h"
#include "shortlist.h"
#include "threads.h"

#define EXPORT_STATES(NAME, T)                                                                                              \
  extern "C" void write_##NAME(const Step* step, const T* states, int64_t head_stride, int64_t token_stride, int64_t heads, \
                               int64_t dim, int which) {                                                                    \
    write_states<T>(*step, states, head_stride, token_stride, heads, dim, which);                                           \
  }                                                                                                                         \
  extern "C" void attend_##NAME(const Step* step, const Layer* layer, const T* query, int64_t head_stride,                  \
                                int64_t token_stride, const float* sinks, int64_t num_splits, float* partial, T* output) {  \
    _Pragma("omp parallel") {                                                                                               \
      [[maybe_unused]] const Tiles tiles;                                                                                   \
      attend_share<T>(*step, *layer, query, head_stride, token_stride, sinks, num_splits, partial, output);                 \
    }                                                                                                                       \
  }

#define EXPORT_WEIGHTS(NAME, T)                                                                                             \
  extern "C" int64_t decode_scratch_##NAME(const Decoder<T>* layers, int64_t num_layers, int64_t rows, int64_t splits) {    \
    return decode_scratch(layers, num_layers, rows, splits);                                                                \
  }                                                                                                                         \
  extern "C" void decode_layers_##NAME(const Step* step, const Decoder<T>* layers, int64_t num_layers, const float* cos,    \
                                       const float* sin, const Norm<Input<T>>* norm, int64_t splits, int64_t num_threads,   \
                                       float* scratch, const float* deepstack, int64_t num_deepstack, float* hidden) {      \
    decode_layers(*step, layers, num_layers, cos, sin, *norm, splits, int(num_threads), scratch, deepstack, num_deepstack,  \
                  hidden);                                                                                                  \
  }                                                                                                                         \
  extern "C" void multiply_linear_##NAME(const Linear<T>* linear, const Input<T>* x, int64_t rows, int64_t num_threads,     \
                                         Input<T>* scratch, Input<T>* y) {                                                  \
    multiply_linear(*linear, x, int(rows), int(num_threads), scratch, y);                                                   \
  }                                                                                                                         \
  extern "C" int64_t most_linear_rows_##NAME() { return most_linear_rows<T>(); }                                             \
  extern "C" int64_t most_listed_rows_##NAME() { return MOST_LISTED<T>; }                                                   \
  extern "C" bool find_candidates_##NAME(const Shortlist<T>* list, const Input<T>* x, int64_t rows, const Draw* draws,      \
                                         int64_t num_threads, Input<T>* packed, float* wide, float* y) {                    \
    return find_candidates(*list, x, int(rows), draws, int(num_threads), packed, wide, y);                                  \
  }

namespace {

// Floats of scratch space that `decode_layers` needs.
template <class T> int64_t decode_scratch(const Decoder<T>* layers, int64_t num_layers, int64_t rows, int64_t num_splits) {
  int64_t most = 0;
  for (int64_t i = 0; i < num_layers; i++) most = std::max(most, Scratch(layers[i], rows, num_splits).end);
  return most;
}

// Compute all decoder layers and the last norm on hidden (rows, hidden), in place. cos, sin: (tables, rows, turned). Every token
// of the step is a row. deepstack (num_deepstack, rows, hidden) is added to hidden after each of the first layers.
template <class T>
void decode_layers(const Step& step, const Decoder<T>* layers, int64_t num_layers, const float* cos, const float* sin,
                   const Norm<Input<T>>& norm, int64_t num_splits, int num_threads, float* scratch, const float* deepstack,
                   int64_t num_deepstack, float* hidden) {
  const int64_t size = step.num_rows * norm.dim;
  Routes shared{};
  team.spread(num_threads);
#pragma omp parallel num_threads(num_threads)
  {
    [[maybe_unused]] const Tiles tiles;
    for (int64_t i = 0; i < num_layers; i++) {
      Step own = step;
      own.layer = i, own.window = layers[i].window;
      decode(own, layers[i], cos, sin, num_splits, &shared, scratch, hidden);
      if (i >= num_deepstack) continue;
#pragma omp for simd schedule(static)
      for (int64_t j = 0; j < size; j++) hidden[j] += deepstack[i * size + j];
    }
#pragma omp for schedule(static)
    for (int64_t m = 0; m < step.num_rows; m++) normalize(norm, hidden + m * norm.dim);
  }
}

// Rows that multiply_linear multiplies faster than torch.
template <class T> int64_t most_linear_rows() { return IS_WIDENED<T> || IS_BESIDE<T> || uses_tiles<T>(MOST) ? MOST : MOST / 2; }

// Map x (rows, in) to y (rows, out); `scratch` has room for packed inputs.
template <class T>
void multiply_linear(const Linear<T>& linear, const Input<T>* x, int rows, int num_threads, Input<T>* scratch, Input<T>* y) {
  team.spread(num_threads);
#pragma omp parallel num_threads(num_threads)
  {
    [[maybe_unused]] const Tiles tiles;
    alignas(64) float result[MOST * WIDE];
#pragma omp for schedule(static)
    for (int m = 0; m < rows; m++) pack<T>(x, rows, m, linear.in, scratch);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < linear.out; n += WIDE) {
      const int num = outputs(linear, n, scratch, rows, result);
      for (int64_t m = 0; m < rows; m++) store_some(y + m * linear.out + n, result + m * WIDE, num);
    }
  }
}

}  // namespace

EXPORT_STATES(float32, float)
EXPORT_STATES(bfloat16, bfloat16)
EXPORT_WEIGHTS(float32, float)
EXPORT_WEIGHTS(bfloat16, bfloat16)
EXPORT_WEIGHTS(wide_bfloat16, wide_bfloat16)
EXPORT_WEIGHTS(wide_float16, wide_float16)
EXPORT_WEIGHTS(wide_int8, wide_int8)

extern "C" void draw_rows_float32(const float* logits, int64_t rows, int64_t vocabulary, const Draw* settings, int64_t num_threads,
                                  int64_t* tokens) {
  draw_rows(logits, rows, vocabulary, settings, int(num_threads), tokens);
}

extern "C" void forbid_rows_float32(const float* logits, int64_t rows, int64_t vocabulary, const uint32_t* const* masks,
                                    int64_t num_threads, float* allowed) {
  forbid_rows(logits, rows, vocabulary, masks, int(num_threads), allowed);
}

extern "C" int64_t most_rows() { return MOST; }

// Prepare for torch's operators, which have the same threads.
extern "C" void spread_threads(int64_t num_threads) { team.spread(int(num_threads)); }
