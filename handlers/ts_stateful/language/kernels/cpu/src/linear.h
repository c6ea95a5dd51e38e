// Linear layers and norms of few rows on a CPU.
//
// A linear layer of few rows is bound by reading its weights. They are read in place, once for all rows, four outputs at a
// time. The inputs are read for every output, so they are packed into reading order.

#pragma once

#include "vectors.h"

namespace {

constexpr int MOST = 64;   // rows
constexpr int WIDE = 16;   // outputs of a linear layer that a thread computes at once
constexpr int FAR = 4096;  // weights prefetched where rows are computed one after the other

struct Linear { const float *weight, *bias; int64_t in, out; };  // (out, in), (out,) or null
struct Norm { const float* weight; int64_t dim; float epsilon, offset; };  // of root mean squares; null: none

// Rows are packed in groups of 4, then 2, then 1; a group of M as (in / LANES, M, LANES).
struct Place { int begin, group; };
inline Place place_of(int rows, int m) {
  const int fours = rows / 4 * 4, twos = rows / 2 * 2;
  if (m < fours) return {m / 4 * 4, 4};
  return m < twos ? Place{fours, 2} : Place{twos, 1};
}
inline float* packed(float* target, int rows, int m, int64_t in) {  // row m's first LANES; the next are `group` vectors further
  const Place place = place_of(rows, m);
  return target + place.begin * in + (m - place.begin) * LANES;
}

inline V norm_scale(const Norm& norm, const float* x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < norm.dim; d++) sum += x[d] * x[d];
  return all(1 / std::sqrt(sum / float(norm.dim) + norm.epsilon));
}
inline V normed(const Norm& norm, const float* x, int64_t d, V scale) {
  return mul(add(load(norm.weight + d), all(norm.offset)), mul(load(x + d), scale));
}

void normalize(const Norm& norm, float* x) {
  const V scale = norm_scale(norm, x);
  for (int64_t d = 0; d < norm.dim; d += LANES) store(x + d, normed(norm, x, d, scale));
}

void pack(const float* x, const Norm& norm, int rows, int m, int64_t in, float* target) {
  const int group = place_of(rows, m).group;
  target = packed(target, rows, m, in);
  if (norm.weight) {
    const V scale = norm_scale(norm, x);
    for (int64_t d = 0; d < in; d += LANES) store(target + d * group, normed(norm, x, d, scale));
  } else {
    for (int64_t d = 0; d < in; d += LANES) store(target + d * group, load(x + d));
  }
}

// Products of N rows of weights and a group of M inputs; result[m][n].
template <int N, int M>
inline void multiply(const float* __restrict w, const float* __restrict x, int64_t in, int64_t ahead, float* result) {
  V sum[LANES];
  for (int i = 0; i < LANES; i++) sum[i] = zero();
  for (int64_t k = 0; k < in; k += LANES, x += M * LANES) {
    V weights[N];
    for (int n = 0; n < N; n++) weights[n] = load(w + n * in + k);
    if (ahead) for (int n = 0; n < N; n++) __builtin_prefetch(w + n * in + k + ahead);
    for (int m = 0; m < M; m++) {
      const V input = load(x + m * LANES);
      for (int n = 0; n < N; n++) sum[m * N + n] = fma(weights[n], input, sum[m * N + n]);
    }
  }
  alignas(64) float lanes[LANES];
  store(lanes, sums(sum));
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) result[m * WIDE + n] = lanes[m * N + n];
}

template <int N> void multiply_rows(const float* w, const float* x, int rows, int64_t in, float* result) {
  int64_t ahead = rows <= 2 ? FAR : 4 * in;
  for (int m = 0; m < rows;) {
    const int group = place_of(rows, m).group;
    const float* inputs = x + m * in;
    if (group == 4) multiply<N, 4>(w, inputs, in, ahead, result + m * WIDE);
    else if (group == 2) multiply<N, 2>(w, inputs, in, ahead, result + m * WIDE);
    else multiply<N, 1>(w, inputs, in, ahead, result + m * WIDE);
    m += group;
    ahead = 0;
  }
}

// Store output n + i of row m in result[m][i], i < WIDE, from packed inputs; return how many of the WIDE exist.
int outputs(const Linear& linear, int64_t n, const float* x, int rows, float* result) {
  const int num = int(std::min<int64_t>(WIDE, linear.out - n));
  const float* w = linear.weight + n * linear.in;
  int i = 0;
  for (; i + 4 <= num; i += 4) multiply_rows<4>(w + i * linear.in, x, rows, linear.in, result + i);
  for (; i < num; i++) multiply_rows<1>(w + i * linear.in, x, rows, linear.in, result + i);
  if (linear.bias)
    for (int m = 0; m < rows; m++) for (i = 0; i < num; i++) result[m * WIDE + i] += linear.bias[n + i];
  return num;
}

}  // namespace
