// The outputs of a linear layer on which a choice depends, without reading all of its weights: of a language model's output layer,
// the tokens that may be the next one.
//
// The weights are held in 8 bits beside the real ones. By Cauchy and Schwarz, what that changes of a product with x is at most
// |w - w'| |x|. So most outputs cannot be among the highest. Those that can are computed from the real weights.

#pragma once

#include <atomic>

#include "aim.h"
#include "bytes.h"
#include "linear.h"
#include "threads.h"

namespace {

// Rows, of which those with top-p count twice. With more, the layer takes no longer.
#ifdef __AVX512VNNI__
template <class T> constexpr int MOST_LISTED = std::is_same_v<T, bfloat16> || PARTS<T> ? 8 : 24;
#else
template <class T> constexpr int MOST_LISTED = sizeof(T) > 2 ? 8 : 3;
#endif

// 8-bit weights (out, in), what a unit of them is (out,), and how long the differences from the real weights are (out,).
template <class T> struct Shortlist { Linear<T> linear; const int8_t* weight; const float *unit, *error; };

// Output n of row x, packed, as the layer gives it.
template <class T> float compute(const Linear<T>& linear, int64_t n, const Input<T>* x) {
  alignas(64) float result[WIDE];
  const T* w = linear.weight + n * linear.in;
  // The last outputs, if they are fewer than WIDE, are added up in another order.
  if (n < linear.out / WIDE * WIDE) multiply_in_turn<1, 1>(w, x, linear.in, result);
  else multiply_rows<1>(w, x, 1, linear.in, false, result);
  if (linear.bias) result[0] += number(linear.bias[n]);
  Input<T> rounded;
  store_some(&rounded, result, 1);
  return number(rounded);
}

// Bounds of outputs n to n + num of a row, as they are compared, from their estimates.
template <class T, bool UPPER>
void bound(const Shortlist<T>& list, const Aim& aim, const float* estimates, int64_t n, int num, float length, float* bounds) {
#pragma omp simd
  for (int i = 0; i < num; i++) bounds[i] = estimates[i] + list.error[n + i] * (UPPER ? length : -length);
  if (aim.spread == 0) return;
#pragma omp simd
  for (int i = 0; i < num; i++) {
    const uint32_t number = aim.race.number(uint32_t(n + i));
    const float u = (float(int32_t(number >> 16)) + (float(int32_t(number & 0xFFFF)) + 0.5f) * 0x1p-16f) * 0x1p-16f;
    bounds[i] += aim.spread * (UPPER ? most_added(u) : least_added(u));
  }
}

// A row of inputs: what its draw depends on, its length, what a unit of its narrowed numbers is, and what is found of its outputs.
// Those that are `least` or more are computed.
struct Sought { Aim aim; Highest highest; Tails tails; Mass mass; float length, unit, least; };

// Estimate outputs n to n + num of narrowed rows x by the weights in 8 bits.
template <class T>
void estimate(const Shortlist<T>& list, int64_t n, int num, const float* x, const std::vector<Sought>& rows, float* y) {
  const Linear<T>& linear = list.linear;
  const int64_t in = linear.in;
  const int num_rows = int(rows.size());
  alignas(64) float result[MOST_LISTED<T> * LANES];
  for (const int64_t end = n + num; n < end; n += LANES) {
    const int8_t* w = list.weight + n * in;
    num = int(std::min<int64_t>(LANES, end - n));
    int m = 0;
    for (; m + 4 <= num_rows; m += 4) multiply_bytes<4>(w, num, x + m * in, in, result + m * LANES);
    for (; m + 2 <= num_rows; m += 2) multiply_bytes<2>(w, num, x + m * in, in, result + m * LANES);
    if (m < num_rows) multiply_bytes<1>(w, num, x + m * in, in, result + m * LANES);
    for (m = 0; m < num_rows; m++)
      for (int i = 0; i < num; i++)
        y[m * linear.out + n + i] =
            result[m * LANES + i] * rows[m].unit * list.unit[n + i] + (linear.bias ? number(linear.bias[n + i]) : 0);
  }
}

// Pack and narrow a row.
template <class T> void prepare(const Input<T>* x, int64_t in, Input<T>* packed, float* wide, Sought& row) {
  pack<T>(x, 1, 0, in, packed);
  float sum = 0, largest = 0;
#pragma omp simd reduction(+ : sum) reduction(max : largest)
  for (int64_t d = 0; d < in; d++) {
    const float value = number(x[d]);
    sum += value * value, largest = std::max(largest, std::fabs(value));
  }
  // Nothing bounds rows of zeros, or with inputs that are no finite numbers, or whose squares are none.
  row.length = largest > 1e-15f && largest < 1e15f ? std::sqrt(sum) : NAN;
  row.unit = narrow(x, in, largest, wide);
}

// Estimate all outputs, and find bounds of each row's highest ones. Inside a parallel region, with a barrier at the end.
template <class T>
void estimate_all(const Shortlist<T>& list, const float* wide, std::vector<Sought>& rows, float* y) {
  const int64_t out = list.linear.out;
  float bounds[AT_ONCE];
  std::vector<Highest> own;
  for (const Sought& row : rows) own.emplace_back(row.aim.count);
#pragma omp for schedule(static)
  for (int64_t n = 0; n < out; n += AT_ONCE) {
    const int num = int(std::min(AT_ONCE, out - n));
    estimate(list, n, num, wide, rows, y);
    for (size_t m = 0; m < rows.size(); m++) {
      bound<T, false>(list, rows[m].aim, y + m * out + n, n, num, rows[m].length, bounds);
      own[m].add(bounds, num);
    }
  }
#pragma omp critical
  for (size_t m = 0; m < rows.size(); m++) rows[m].highest.add(own[m]);
#pragma omp barrier
}

// Choose how high the outputs y must be that are computed. Inside a parallel region, with a barrier at the end.
template <class T> void choose_least(const Shortlist<T>& list, std::vector<Sought>& rows, const float* y) {
  const int64_t out = list.linear.out;
  float bounds[AT_ONCE];
#pragma omp for schedule(static)
  for (size_t m = 0; m < rows.size(); m++) {
    rows[m].highest.order();
    rows[m].tails = Tails(rows[m].highest);
    rows[m].least = rows[m].aim.template least<T>(rows[m].highest.least);
  }
  for (size_t m = 0; m < rows.size(); m++) {
    Sought& row = rows[m];
    if (row.aim.top_p == 1) continue;
    Tails own(row.highest);
#pragma omp for schedule(static) nowait
    for (int64_t n = 0; n < out; n += AT_ONCE) {
      const int num = int(std::min(AT_ONCE, out - n));
      bound<T, true>(list, row.aim, y + m * out + n, n, num, row.length, bounds);
      own.add(y + m * out + n, bounds, num, float(1 / row.aim.temperature));
    }
#pragma omp critical
    row.tails.add(own);
  }
#pragma omp barrier
#pragma omp for schedule(static)
  for (size_t m = 0; m < rows.size(); m++)
    if (rows[m].aim.top_p < 1) rows[m].least = rows[m].aim.template least<T>(rows[m].tails.limit());
}

// Compute those of a row's outputs y that may matter, while fewer than `most` are; count all. Inside a parallel region.
template <class T>
void compute_possible(const Shortlist<T>& list, const Input<T>* packed, int64_t most, std::atomic<int64_t>& num_possible,
                      Sought& row, float* y) {
  const int64_t out = list.linear.out;
  const Aim& aim = row.aim;
  const float least = row.least;
  float bounds[AT_ONCE];
  Mass own;
#pragma omp for schedule(static) nowait
  for (int64_t n = 0; n < out; n += AT_ONCE) {
    const int num = int(std::min(AT_ONCE, out - n));
    bound<T, true>(list, aim, y + n, n, num, row.length, bounds);
    if (aim.top_p < 1) own.template add<T>(bounds, list.error + n, num, row.length, least, float(1 / aim.temperature));
    if (highest_of(bounds, num) < least) continue;
    for (int i = 0; i < num; i++) {
      if (bounds[i] < least) continue;
      if (num_possible.fetch_add(1, std::memory_order_relaxed) >= most) break;
      y[n + i] = compute(list.linear, n + i, packed);
      if (aim.top_p < 1) own.values.emplace_back(y[n + i], n + i);
    }
  }
#pragma omp critical
  row.mass.add(own);
}

// Map up to MOST_LISTED rows x (rows, in) to y (rows, out), of which those on which each row's draw depends are the layer's. Others
// may be estimates that are lower. `packed` and `wide` have room for x. Return false, and y is of no use, if too many outputs matter.
template <class T>
bool find_candidates(const Shortlist<T>& list, const Input<T>* x, int num_rows, const Draw* draws, int num_threads, Input<T>* packed,
                     float* wide, float* y) {
  const int64_t in = list.linear.in, out = list.linear.out, most = out / 8 + 2 * num_rows;
  std::atomic<int64_t> num_possible{0};
  std::vector<Sought> rows;
  for (int m = 0; m < num_rows; m++) {
    const Aim aim(draws[m], std::clamp(out / (64 * num_rows), int64_t(1), NUCLEUS));
    rows.push_back({aim, Highest(aim.count), {}, {}, 0, 0, 0});
  }
  bool is_clear = true;
  team.spread(num_threads);
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp for schedule(static)
    for (int m = 0; m < num_rows; m++) prepare<T>(x + m * in, in, packed + m * in, wide + m * in, rows[m]);
    estimate_all(list, wide, rows, y);
    choose_least(list, rows, y);
    for (int m = 0; m < num_rows; m++) compute_possible(list, packed + m * in, most, num_possible, rows[m], y + m * out);
#pragma omp barrier
#pragma omp for schedule(static) reduction(&& : is_clear)
    for (int m = 0; m < num_rows; m++)
      if (Sought& row = rows[m]; row.aim.top_p < 1 && num_possible <= most)
        is_clear = is_clear && row.mass.template is_clear<T>(row.aim, row.least);
  }
  return num_possible <= most && is_clear;
}

}  // namespace
