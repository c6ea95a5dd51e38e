// Linear layers and norms of few rows on a CPU.
//
// A linear layer of few rows is bound by reading its weights. They are read in place, once for all rows: an output after the
// other for up to three rows, four outputs at a time for more. Of float32, which comes from the caches at half the speed, LANES
// rows lie side by side in a vector, and each weight is repeated in one (AVX-512). The inputs are read for every output, so they
// are packed into reading order, as numbers of the weights' type T, or as float32 for weights that are widened. Sums are float32.

#pragma once

#include "beside.h"
#include "tiles.h"

namespace {

constexpr int WIDE = LANES;   // outputs of a linear layer that a thread computes at once
constexpr int FAR = 8192;     // bytes between what is read and what is prefetched, where weights are read in turn
constexpr int MANY = 24;      // rows whose inputs stay in the fastest cache while a layer's weights are read; more are taken
constexpr int SOME = 16;      // so many at a time

// Weights (out, in), biases (out,) or null, and of weights in 8 bits what a unit of each row is (out,).
template <class T> struct Linear { const T* weight; const Input<T>* bias; int64_t in, out; const float* unit; };
template <class T> struct Norm { const T* weight; int64_t dim; float epsilon, offset; };  // of root mean squares; null: none

// Rows that lie side by side: all of those that tiles multiply, and of float32 whole groups of LANES.
template <class T> inline int num_beside(int rows) {
  if (uses_tiles<T>(rows)) return rows;
  return IS_BESIDE<T> ? rows / LANES * LANES : 0;
}
// Numbers of type Input<T> that have room for so many packed ones.
template <class T> inline int64_t room(int64_t numbers) { return PARTS<T> * 2 > int(sizeof(Input<T>)) ? numbers * 3 / 2 : numbers; }

// Rows are packed in groups of QUARTER, then 2, then 1; a group of M as (in / WIDTH, M, WIDTH). Inputs of wide_bfloat16
// have their even numbers first in each WIDTH. The first num_beside(rows) are packed in groups of LANES, as (in, LANES),
// or as put_pairs stores them.
struct Place { int begin, group; };
inline Place place_of(int rows, int m) {
  const int quarters = rows / QUARTER * QUARTER, twos = rows / 2 * 2;
  if (m < quarters) return {m / QUARTER * QUARTER, QUARTER};
  return m < twos ? Place{quarters, 2} : Place{twos, 1};
}
// Store numbers d to d + LANES of row m, the vector x(m). The first of LANES rows that lie side by side stores those of all.
template <class T, class X> inline void put(Input<T>* target, int rows, int m, int64_t in, int64_t d, X x) {
  const int beside = num_beside<T>(rows);
  if (m < beside) {
    if (m % LANES) return;
    if constexpr (PARTS<T> > 0)
      put_pairs<PARTS<T>>(reinterpret_cast<bfloat16*>(target + room<T>(m * in)), std::min(LANES, rows - m), in, d, m, x);
    else if constexpr (IS_BESIDE<T>) put_beside(target + m * in + d * LANES, m, x);
    return;
  }
  const Place place = place_of(rows - beside, m - beside);
  const int begin = beside + place.begin;
  Input<T>* vector = target + begin * in + (m - begin + d / WIDTH<T> * place.group) * WIDTH<T>;
  if constexpr (std::is_same_v<T, wide_bfloat16>) split(vector + d % WIDTH<T> / 2, x(m));
  else store(vector + d % WIDTH<T>, x(m));
}

template <class T> inline V norm_scale(const Norm<T>& norm, const float* x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < norm.dim; d++) sum += x[d] * x[d];
  return all(1 / std::sqrt(sum / float(norm.dim) + norm.epsilon));
}
template <class T> inline V normed(const Norm<T>& norm, const float* x, int64_t d, V scale) {
  return mul(add(load(norm.weight + d), all(norm.offset)), mul(load(x + d), scale));
}

template <class T> void normalize(const Norm<T>& norm, float* x) {
  const V scale = norm_scale(norm, x);
  for (int64_t d = 0; d < norm.dim; d += LANES) store(x + d, normed(norm, x, d, scale));
}

// Pack row m, which begins at row(m), or its norm if there is one; or those of all rows that lie beside it.
template <class T, class Row>
void pack(Row row, const Norm<Input<T>>& norm, int rows, int m, int64_t in, Input<T>* target) {
  const bool is_beside = m < num_beside<T>(rows);
  if (is_beside && m % LANES) return;
  V scale[LANES];
  const int num = is_beside ? std::min(LANES, rows - m) : 1;
  if (norm.weight) for (int i = 0; i < num; i++) scale[i] = norm_scale(norm, row(m + i));
  for (int64_t d = 0; d < in; d += LANES)
    put<T>(target, rows, m, in, d, [&](int i) { return norm.weight ? normed(norm, row(i), d, scale[i - m]) : load(row(i) + d); });
}
template <class T, class X> void pack(const X* x, int rows, int m, int64_t in, Input<T>* target) {
  for (int64_t d = 0; d < in; d += LANES) put<T>(target, rows, m, in, d, [&](int i) { return load(x + i * in + d); });
}

// Products of WIDE rows of weights and a group of M inputs; result[m][n]. One row after the other: so the memory is read fastest.
template <int M, int N = WIDE, class T>
void multiply_in_turn(const T* __restrict w, const Input<T>* __restrict x, int64_t in, float* result) {
  constexpr int CHAINS = M == 1 ? 4 : 2, STEP = WIDTH<T>;
  V products[M][WIDE];
  for (int m = 0; m < M; m++) for (int n = N; n < WIDE; n++) products[m][n] = zero();
  for (int n = 0; n < N; n++, w += in) {
    V sum[CHAINS][M];
    for (int c = 0; c < CHAINS; c++) for (int m = 0; m < M; m++) sum[c][m] = zero();
    int64_t k = 0;
    for (; k + CHAINS * STEP <= in; k += CHAINS * STEP)
      for (int c = 0; c < CHAINS; c++) {
        const int64_t at = k + c * STEP;
        const auto weights = held(whole(w + at));
        if (c * sizeof(V) % LINE == 0) __builtin_prefetch(w + at + FAR / sizeof(T), 0, LOCALITY);
        for (int m = 0; m < M; m++) sum[c][m] = dot(weights, packed_inputs<T>(x + at * M + m * STEP), sum[c][m]);
      }
    for (; k < in; k += STEP)
      for (int m = 0; m < M; m++) sum[0][m] = dot(whole(w + k), packed_inputs<T>(x + k * M + m * STEP), sum[0][m]);
    for (int m = 0; m < M; m++) {
      for (int c = 1; c < CHAINS; c++) sum[0][m] = add(sum[0][m], sum[c][m]);
      products[m][n] = sum[0][m];
    }
  }
  for (int m = 0; m < M; m++) store(result + m * WIDE, sums(products[m]));
}

// Products of N rows of weights and a group of M inputs; result[m][n]. Prefetch P rows of weights from `ahead` on.
template <int N, int M, int P, class T>
inline void multiply(const T* __restrict w, const Input<T>* __restrict x, int64_t in, const T* ahead, float* result) {
  V sum[LANES];
  for (int i = 0; i < LANES; i++) sum[i] = zero();
  for (int64_t line = 0; line < in; line += LINE / int(sizeof(T)))
    for (int64_t k = line; k < line + LINE / int(sizeof(T)); k += WIDTH<T>, x += M * WIDTH<T>) {
      decltype(whole(w)) weights[N];
      for (int n = 0; n < N; n++) weights[n] = held(whole(w + n * in + k));
      for (int m = 0; m < M; m++) {
        if (k == line) for (int p = m; p < P; p += M) __builtin_prefetch(ahead + p * in + k, 0, LOCALITY);
        const auto input = held(packed_inputs<T>(x + m * WIDTH<T>));
        for (int n = 0; n < N; n++) sum[m * N + n] = dot(weights[n], input, sum[m * N + n]);
      }
    }
  alignas(64) float lanes[LANES];
  store(lanes, sums(sum));
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) result[m * WIDE + n] = lanes[m * N + n];
}

template <int N, int M, class T>
void multiply_group(const T* w, const Input<T>* x, int64_t in, const T* ahead, int num_ahead, float* result) {
  if (num_ahead == 0) multiply<N, M, 0>(w, x, in, ahead, result);
  else if (num_ahead == 1) multiply<N, M, 1>(w, x, in, ahead, result);
  else if (num_ahead == 2) multiply<N, M, 2>(w, x, in, ahead, result);
  else multiply<N, M, 4>(w, x, in, ahead, result);
}

// Each group of inputs prefetches its share of the next N rows of weights: all at once would wait for the memory.
template <int N, class T>
void multiply_rows(const T* w, const Input<T>* x, int rows, int64_t in, bool is_first, float* result) {
  const int groups = rows / QUARTER + rows % QUARTER / 2 + rows % 2;
  for (int m = 0, g = 0; m < rows; g++) {
    const int group = place_of(rows, m).group, first = g * N / groups, num = is_first ? (g + 1) * N / groups - first : 0;
    const Input<T>* inputs = x + m * in;
    const T* ahead = w + (N + first) * in;
    if (group == QUARTER) multiply_group<N, QUARTER>(w, inputs, in, ahead, num, result + m * WIDE);
    else if (group == 2) multiply_group<N, 2>(w, inputs, in, ahead, num, result + m * WIDE);
    else multiply_group<N, 1>(w, inputs, in, ahead, num, result + m * WIDE);
    m += group;
  }
}

// Products of `num` rows of weights and rows of inputs that do not lie side by side; result[m][n].
template <class T> void multiply_grouped(const T* w, int num, const Input<T>* x, int rows, int64_t in, float* result) {
  if (rows <= 3 && num == WIDE) {
    if (rows >= 2) multiply_in_turn<2>(w, x, in, result);
    if (rows % 2) multiply_in_turn<1>(w, x + (rows - 1) * in, in, result + (rows - 1) * WIDE);
    return;
  }
  const int most = rows <= MANY ? rows : SOME, fours = num / 4 * 4;
  for (int m = 0; m < rows; m += most) {
    const Input<T>* inputs = x + m * in;
    const int some = std::min(most, rows - m);
    float* target = result + m * WIDE;
    int i = 0;
    for (; i < fours; i += 4) multiply_rows<4>(w + i * in, inputs, some, in, m == 0, target + i);
    for (; i < num; i++) multiply_rows<1>(w + i * in, inputs, some, in, m == 0, target + i);
  }
}

// Store output n + i of row m in result[m][i], i < WIDE, from packed inputs; return how many of the WIDE exist.
template <class T> int outputs(const Linear<T>& linear, int64_t n, const Input<T>* x, int rows, float* result) {
  const int64_t in = linear.in;
  const int num = int(std::min<int64_t>(WIDE, linear.out - n)), beside = num_beside<T>(rows);
  const T* w = linear.weight + n * in;
  if (beside) {
    if constexpr (PARTS<T> > 0) multiply_tiles(w, num, x, beside, in, result);
    else if constexpr (IS_BESIDE<T>) multiply_rows_beside(w, num, x, beside, in, result);
  }
  if (beside < rows) multiply_grouped(w, num, x + beside * in, rows - beside, in, result + beside * WIDE);
  if constexpr (IS_BYTE<T>)
    for (int m = 0; m < rows; m++) for (int i = 0; i < num; i++) result[m * WIDE + i] *= linear.unit[n + i];
  if (linear.bias)
    for (int m = 0; m < rows; m++) for (int i = 0; i < num; i++) result[m * WIDE + i] += number(linear.bias[n + i]);
  return num;
}

}  // namespace
