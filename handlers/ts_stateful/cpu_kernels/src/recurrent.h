// A step of recurrent layers on a CPU: LSTMs and GRUs, as torch defines them.
//
// A block of units has the weights of all its gates in the order in which they are read, so that the sums of a few rows stay in
// registers up to the new states. A row's result does not depend on the others'.

#pragma once

#include "vectors.h"

namespace {

constexpr int UNITS = LANES;                  // of a block
constexpr int AT_ONCE = LANES == 16 ? 6 : 2;  // rows: their sums, four each, and a block's weights fill the registers

// A layer's weights (blocks, in + size, gates, UNITS) and biases (blocks, 4, UNITS). Gates of an LSTM: input, forget, cell, output.
// Of a GRU: reset, update, new; its biases: reset, update, new of the inputs, new of the hidden states.
struct Recurrent { const float *weight, *bias; int64_t in, size; };

inline float hyperbolic_tangent(float x) {  // near 0 by Cephes' polynomial
  const float square = x * x, far = 2 * sigmoid(2 * x) - 1;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  return std::abs(x) < 0.625f ? p * square * x + x : far;
}

// Add the products of `num` inputs of M rows and a block's weights; return where the next weights are. The last of three gates
// has a sum for the inputs and one for the hidden states.
template <int M, int GATES, bool IS_HIDDEN>
inline const float* accumulate(const float* w, const float* x, int64_t num, V (&sum)[M][4]) {
  for (int64_t k = 0; k < num; k++, w += GATES * UNITS) {
    V weights[GATES];
    for (int g = 0; g < GATES; g++) weights[g] = held(load(w + g * UNITS));
    for (int m = 0; m < M; m++) {
      const V input = held(all(x[m * num + k]));
      for (int g = 0; g < GATES; g++) {
        V& target = sum[m][g + (GATES == 3 && IS_HIDDEN && g == 2)];
        target = fma(weights[g], input, target);
      }
    }
  }
  return w;
}

// Compute the units of the block at n of M rows.
template <int M, int GATES>
void step_block(const Recurrent& layer, int64_t n, const float* x, const float* h, const float* c, float* new_h, float* new_c) {
  const float *w = layer.weight + n * GATES * (layer.in + layer.size), *bias = layer.bias + n * 4;
  V sum[M][4];
  for (int m = 0; m < M; m++) for (int g = 0; g < 4; g++) sum[m][g] = load(bias + g * UNITS);
  w = accumulate<M, GATES, false>(w, x, layer.in, sum);
  accumulate<M, GATES, true>(w, h, layer.size, sum);
  alignas(64) float all_sums[M][4][UNITS];
  for (int m = 0; m < M; m++) for (int g = 0; g < 4; g++) store(all_sums[m][g], sum[m][g]);
  for (int m = 0; m < M; m++) {
    const float(&gate)[4][UNITS] = all_sums[m];
    const int64_t at = m * layer.size + n;
#pragma omp simd
    for (int u = 0; u < UNITS; u++) {
      if (GATES == 4) {
        const float cell = sigmoid(gate[1][u]) * c[at + u] + sigmoid(gate[0][u]) * hyperbolic_tangent(gate[2][u]);
        new_c[at + u] = cell;
        new_h[at + u] = sigmoid(gate[3][u]) * hyperbolic_tangent(cell);
      } else {
        const float made = hyperbolic_tangent(gate[2][u] + sigmoid(gate[0][u]) * gate[3][u]);
        new_h[at + u] = made + sigmoid(gate[1][u]) * (h[at + u] - made);
      }
    }
  }
}

template <int M, int GATES>
void step_rows(int num, const Recurrent& layer, int64_t n, const float* x, const float* h, const float* c, float* new_h,
               float* new_c) {
  if (num == M) step_block<M, GATES>(layer, n, x, h, c, new_h, new_c);
  else if constexpr (M > 1) step_rows<M - 1, GATES>(num, layer, n, x, h, c, new_h, new_c);
}

// Step all layers; inside a parallel region. x (rows, in), h, c (layers, rows, size)
template <int GATES>
void step_layers(const Recurrent* layers, int64_t num, const float* x, const float* h, const float* c, int64_t rows, float* new_h,
                 float* new_c) {
  for (int64_t i = 0; i < num; i++) {
    const Recurrent& layer = layers[i];
    const int64_t size = layer.size;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < size; n += UNITS)
      for (int64_t m = 0; m < rows; m += AT_ONCE)
        step_rows<AT_ONCE, GATES>(int(std::min<int64_t>(AT_ONCE, rows - m)), layer, n, x + m * layer.in, h + m * size,
                                   c + m * size, new_h + m * size, new_c + m * size);
    x = new_h;
    h += rows * size, c += rows * size, new_h += rows * size, new_c += rows * size;
  }
}

}  // namespace
