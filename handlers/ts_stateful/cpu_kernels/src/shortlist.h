// The highest output of a linear layer, without reading all of its weights: of a language model's output layer, the likeliest
// token.
//
// The weights are held in 8 bits beside the real ones. By Cauchy and Schwarz, what that changes of a product with x is at most
// |w - w'| |x|. So most outputs cannot be the highest. Those that can are computed from the real weights.

#pragma once

#include <atomic>
#include <limits>

#include "linear.h"
#include "threads.h"

namespace {

constexpr int FEW = 8;  // rows
// Of the highest: outputs so near may become equal where they are rounded, and where they are divided.
template <class T> constexpr float TIE = std::is_same_v<T, bfloat16> ? 0x1p-6f : 0x1p-20f;

// 8-bit weights (out, in), what a unit of them is (out,), and how long the differences from the real weights are (out,).
template <class T> struct Shortlist { Linear<T> linear; const int8_t* weight; const float *unit, *error; };

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

// Store outputs n to n + LANES of rows x (rows, in) in result[m][i], by the weights in 8 bits; return how many of them exist.
template <class T> int estimate(const Shortlist<T>& list, int64_t n, const float* x, int rows, float* result) {
  const int64_t in = list.linear.in;
  const int num = int(std::min<int64_t>(LANES, list.linear.out - n));
  const int8_t* w = list.weight + n * in;
  int m = 0;
  for (; m + 4 <= rows; m += 4) multiply_bytes<4>(w, num, x + m * in, in, result + m * LANES);
  for (; m + 2 <= rows; m += 2) multiply_bytes<2>(w, num, x + m * in, in, result + m * LANES);
  if (m < rows) multiply_bytes<1>(w, num, x + m * in, in, result + m * LANES);
  for (m = 0; m < rows; m++)
    for (int i = 0; i < num; i++) {
      float& value = result[m * LANES + i];
      value = value * list.unit[n + i] + (list.linear.bias ? number(list.linear.bias[n + i]) : 0);
    }
  return num;
}

// Output n of row x, packed, as the layer gives it.
template <class T> float compute(const Linear<T>& linear, int64_t n, const Input<T>* x) {
  alignas(64) float result[WIDE];
  multiply_in_turn<1, 1>(linear.weight + n * linear.in, x, linear.in, result);
  if (linear.bias) result[0] += number(linear.bias[n]);
  Input<T> rounded;
  store_some(&rounded, result, 1);
  return number(rounded);
}

// Map up to FEW rows x (rows, in) to y (rows, out), of which the highest of each row is the layer's. Others may be estimates that
// are lower. `packed` and `wide` have room for x. Return false, and y is of no use, if too many outputs may be the highest.
template <class T>
bool find_highest(const Shortlist<T>& list, const Input<T>* x, int rows, int num_threads, Input<T>* packed, float* wide, float* y) {
  const Linear<T>& linear = list.linear;
  const int64_t in = linear.in, out = linear.out, most = out / 16 + 2 * rows;
  std::atomic<int64_t> num_possible{0};
  float lengths[FEW], least[FEW];  // of the rows; what the highest output of each is at least
  std::fill_n(least, FEW, -std::numeric_limits<float>::infinity());
  team.spread(num_threads);
#pragma omp parallel num_threads(num_threads)
  {
    alignas(64) float result[FEW * LANES];
    float own[FEW];
    std::copy_n(least, FEW, own);
#pragma omp for schedule(static)
    for (int m = 0; m < rows; m++) {
      pack<T>(x + m * in, 1, 0, in, packed + m * in);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = 0; d < in; d++) {
        const float value = wide[m * in + d] = number(x[m * in + d]);
        sum += value * value;
      }
      lengths[m] = std::sqrt(sum);
    }
#pragma omp for schedule(static)
    for (int64_t n = 0; n < out; n += LANES) {
      const int num = estimate(list, n, wide, rows, result);
      for (int m = 0; m < rows; m++) {
        float highest = own[m];
#pragma omp simd reduction(max : highest)
        for (int i = 0; i < num; i++) highest = std::max(highest, result[m * LANES + i] - list.error[n + i] * lengths[m]);
        own[m] = highest;
        std::copy_n(result + m * LANES, num, y + m * out + n);
      }
    }
#pragma omp critical
    for (int m = 0; m < rows; m++) least[m] = std::max(least[m], own[m] - std::fabs(own[m]) * TIE<T>);
#pragma omp barrier
    for (int m = 0; m < rows; m++)
#pragma omp for schedule(static) nowait
      for (int64_t n = 0; n < out; n++) {
        float& value = y[m * out + n];
        if (!(value + list.error[n] * lengths[m] >= least[m])) continue;
        if (num_possible.fetch_add(1, std::memory_order_relaxed) < most) value = compute(linear, n, packed + m * in);
      }
  }
  return num_possible <= most;
}

}  // namespace
