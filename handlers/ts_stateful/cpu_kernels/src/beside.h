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

// Products of N rows of weights and LANES inputs that lie side by side; result[n]. Prefetch as many from `ahead` on if there are.
template <int N>
inline void multiply_beside(const float* __restrict w, const float* __restrict x, int64_t in, const float* ahead, V* result) {
  constexpr int CHAINS = 2;
  V sum[CHAINS][N];
  for (int c = 0; c < CHAINS; c++) for (int n = 0; n < N; n++) sum[c][n] = zero();
  for (int64_t line = 0; line < in; line += LINE / 4) {
    if (ahead) for (int n = 0; n < N; n++) __builtin_prefetch(ahead + n * in + line, 0, LOCALITY);
    for (int64_t k = line; k < line + LINE / 4; k += CHAINS)
      for (int c = 0; c < CHAINS; c++, x += LANES) {
        const V inputs = held(load(x));
        for (int n = 0; n < N; n++) sum[c][n] = fma(all(w[n * in + k + c]), inputs, sum[c][n]);
      }
  }
  for (int n = 0; n < N; n++) result[n] = add(sum[0][n], sum[1][n]);
}

// Products of `num` rows of weights and rows of inputs that lie side by side; result[m][n], n < LANES.
inline void multiply_rows_beside(const float* w, int num, const float* x, int rows, int64_t in, float* result) {
  V products[MOST / LANES][LANES], turned[LANES];
  for (int n = 0; n < num;) {
    const bool is_many = n + SEVERAL <= num;
    const float *weights = w + n * in, *ahead = weights + SEVERAL * in;
    for (int m = 0; m < rows; m += LANES) {
      V* target = products[m / LANES] + n;
      if (is_many) multiply_beside<SEVERAL>(weights, x + m * in, in, m ? nullptr : ahead, target);
      else multiply_beside<1>(weights, x + m * in, in, nullptr, target);
    }
    n += is_many ? SEVERAL : 1;
  }
  for (int m = 0; m < rows; m++) {
    if (m % LANES == 0) transpose(products[m / LANES], turned);
    store(result + m * LANES, turned[m % LANES]);
  }
}

#else
template <class T> constexpr bool IS_BESIDE = false;
#endif

}  // namespace
