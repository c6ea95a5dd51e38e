// Rows that lie side by side in vectors, one in each lane, and products of them and of numbers that are repeated in a vector.

#pragma once

#include "vectors.h"

namespace {

constexpr int MOST = 64;    // rows
constexpr int SEVERAL = 8;  // rows of weights that are multiplied at once: more would take each other's places in a cache
// Where memory is prefetched to: 3, the fastest cache, or 2, the next one where the inputs of a step fill a smaller one.
constexpr int LOCALITY = 0 < FIRST_CACHE && FIRST_CACHE < 48 ? 2 : 3;

#ifdef __AVX512F__
template <class T> constexpr bool IS_BESIDE = std::is_same_v<T, float>;

// Store vectors x(m) to x(m + LANES) as (LANES, LANES), transposed.
template <class X> inline void put_beside(float* target, int m, X x) {
  V rows[LANES], turned[LANES];
  for (int i = 0; i < LANES; i++) rows[i] = x(m + i);
  transpose(rows, turned);
  for (int i = 0; i < LANES; i++) store(target + i * LANES, turned[i]);
}

// Products of N rows of weights and G groups of LANES inputs that lie side by side; result[g * LANES + n]. Each number that is
// loaded is used N or G times: loads would take longer than the arithmetic. Prefetch N rows from `ahead` on if it is not null.
template <int N, int G = 1>
inline void multiply_beside(const float* __restrict w, const float* __restrict x, int64_t in, const float* ahead, V* result) {
  constexpr int CHAINS = N * G < 16 ? 2 : 1;  // fewer sums would wait for their last additions
  V sum[CHAINS][G][N];
  for (int c = 0; c < CHAINS; c++) for (int g = 0; g < G; g++) for (int n = 0; n < N; n++) sum[c][g][n] = zero();
  for (int64_t line = 0; line < in; line += LINE / 4) {
    if (ahead) for (int n = 0; n < N; n++) __builtin_prefetch(ahead + n * in + line, 0, LOCALITY);
    for (int64_t k = line; k < line + LINE / 4; k += CHAINS)
      for (int c = 0; c < CHAINS; c++) {
        V inputs[G];
        for (int g = 0; g < G; g++) inputs[g] = held(load(x + (g * in + k + c) * LANES));
        for (int n = 0; n < N; n++) {
          const V weight = G > 1 ? held(all(w[n * in + k + c])) : all(w[n * in + k + c]);
          for (int g = 0; g < G; g++) sum[c][g][n] = fma(weight, inputs[g], sum[c][g][n]);
        }
      }
  }
  for (int g = 0; g < G; g++)
    for (int n = 0; n < N; n++) result[g * LANES + n] = CHAINS > 1 ? add(sum[0][g][n], sum[CHAINS - 1][g][n]) : sum[0][g][n];
}
template <int G> inline void multiply_groups(const float* w, int num, const float* x, int64_t in, V* result) {
  constexpr int N = G < 4 ? SEVERAL : SEVERAL / 2;  // there are 32 registers
  int n = 0;
  for (; n + N <= num; n += N) multiply_beside<N, G>(w + n * in, x, in, w + (n + N) * in, result + n);
  for (; n < num; n++) multiply_beside<1, G>(w + n * in, x, in, nullptr, result + n);
}

// Products of `num` rows of weights and rows of inputs that lie side by side; result[m][n], n < LANES.
inline void multiply_rows_beside(const float* w, int num, const float* x, int rows, int64_t in, float* result) {
  static_assert(MOST == 4 * LANES);
  V products[MOST], turned[LANES];
  if (rows == LANES) multiply_groups<1>(w, num, x, in, products);
  else if (rows == 2 * LANES) multiply_groups<2>(w, num, x, in, products);
  else if (rows == 3 * LANES) multiply_groups<3>(w, num, x, in, products);
  else multiply_groups<4>(w, num, x, in, products);
  for (int m = 0; m < rows; m++) {
    if (m % LANES == 0) transpose(products + m, turned);
    store(result + m * LANES, turned[m % LANES]);
  }
}

#else
template <class T> constexpr bool IS_BESIDE = false;
#endif

}  // namespace
