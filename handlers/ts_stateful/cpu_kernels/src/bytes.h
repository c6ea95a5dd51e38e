// Products of weights in 8 bits: by bytes where the processor multiplies these (AVX-512 VNNI), else in float32.

#pragma once

#include "linear.h"

namespace {

#ifdef __AVX512VNNI__
// Inputs in 16 bits: their high bytes plus 128, and then their low bytes. Return what a unit of them is, for the largest one.
template <class X> float narrow(const X* x, int64_t in, float largest, float* narrowed) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(narrowed);
  const float scale = 32767 / largest;
#pragma omp simd
  for (int64_t d = 0; d < in; d++) {
    const int32_t in_16_bits = int32_t(std::nearbyint(number(x[d]) * scale)) + 32768;
    bytes[d] = uint8_t(in_16_bits >> 8), bytes[in + d] = uint8_t(in_16_bits);
  }
  return largest / 32767;
}

// Add products of bytes, of which x has no signs, four in each lane. GCC's own function moves sums from register to register.
inline void add_products(__m512i& sum, __m512i x, __m512i w) { __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w)); }

// Products of `num` rows of weights in 8 bits and M narrowed inputs, each after room for `in` floats; result[m][n].
template <int M> void multiply_bytes(const int8_t* __restrict w, int num, const float* narrowed, int64_t in, float* result) {
  constexpr int N = M == 4 ? 2 : 4;  // rows of weights at a time
  const uint8_t* __restrict x = reinterpret_cast<const uint8_t*>(narrowed);
  V products[M][LANES];
  for (int n = 0; n < LANES; n += N) {
    __m512i added[N] = {}, high[M][N] = {}, low[M][N] = {};  // `added` is 128 times the weights
    const int8_t* rows[N];
    for (int i = 0; i < N; i++) rows[i] = w + std::min(n + i, num - 1) * in;
    for (int64_t k = 0; k < in; k += LINE) {
      const __mmask64 some = in - k < LINE ? (uint64_t(1) << (in - k)) - 1 : ~uint64_t(0);
      __m512i weights[N];
      for (int i = 0; i < N; i++) {
        weights[i] = _mm512_maskz_loadu_epi8(some, rows[i] + k);
        __builtin_prefetch(rows[i] + k + FAR, 0, LOCALITY);
        add_products(added[i], _mm512_set1_epi8(-128), weights[i]);
      }
      for (int m = 0; m < M; m++) {
        const __m512i highs = _mm512_maskz_loadu_epi8(some, x + 4 * m * in + k);
        const __m512i lows = _mm512_maskz_loadu_epi8(some, x + (4 * m + 1) * in + k);
        for (int i = 0; i < N; i++) add_products(high[m][i], highs, weights[i]), add_products(low[m][i], lows, weights[i]);
      }
    }
    for (int m = 0; m < M; m++)
      for (int i = 0; i < N; i++) {
        const V highs = _mm512_cvtepi32_ps(_mm512_sub_epi32(high[m][i], added[i]));
        products[m][n + i] = fma(highs, all(256), _mm512_cvtepi32_ps(low[m][i]));
      }
  }
  for (int m = 0; m < M; m++) store(result + m * LANES, sums(products[m]));
}
#else
template <class X> float narrow(const X* x, int64_t in, float, float* narrowed) {
  for (int64_t d = 0; d < in; d++) narrowed[d] = number(x[d]);
  return 1;
}

// Products of `num` rows of weights in 8 bits and M inputs; result[m][n].
template <int M> void multiply_bytes(const int8_t* __restrict w, int num, const float* __restrict x, int64_t in, float* result) {
  constexpr int CHAINS = M == 1 ? 4 : 2;
  V products[M][LANES];
  for (int m = 0; m < M; m++) for (int n = num; n < LANES; n++) products[m][n] = zero();
  for (int n = 0; n < num; n++, w += in) {
    V sum[CHAINS][M];
    for (int c = 0; c < CHAINS; c++) for (int m = 0; m < M; m++) sum[c][m] = zero();
    int64_t k = 0;
    for (; k + CHAINS * LANES <= in; k += CHAINS * LANES)
      for (int c = 0; c < CHAINS; c++) {
        const int64_t at = k + c * LANES;
        const V weights = held(load(w + at));
        if (at % LINE == 0) __builtin_prefetch(w + at + FAR, 0, LOCALITY);
        for (int m = 0; m < M; m++) sum[c][m] = fma(weights, load(x + m * in + at), sum[c][m]);
      }
    for (; k < in; k += LANES)
      for (int m = 0; m < M; m++) sum[0][m] = fma(load(w + k), load(x + m * in + k), sum[0][m]);
    for (int m = 0; m < M; m++) {
      for (int c = 1; c < CHAINS; c++) sum[0][m] = add(sum[0][m], sum[c][m]);
      products[m][n] = sum[0][m];
    }
  }
  for (int m = 0; m < M; m++) store(result + m * LANES, sums(products[m]));
}
#endif

}  // namespace
