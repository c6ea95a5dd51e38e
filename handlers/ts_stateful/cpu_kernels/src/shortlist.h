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

#ifdef __AVX512VNNI__
constexpr int FEW = 12, FEWER = 8;
#else
constexpr int FEW = 8, FEWER = 3;
#endif
// Rows: with more, reading the real weights is not what takes the time.
template <class T> constexpr int MOST_LISTED = sizeof(T) > 2 ? FEW : FEWER;

// 8-bit weights (out, in), what a unit of them is (out,), and how long the differences from the real weights are (out,).
template <class T> struct Shortlist { Linear<T> linear; const int8_t* weight; const float *unit, *error; };

// Estimate outputs n to n + num of narrowed rows x by the weights in 8 bits.
template <class T>
void estimate(const Shortlist<T>& list, int64_t n, int num, const float* x, const float* units, int rows, float* y) {
  const Linear<T>& linear = list.linear;
  const int64_t in = linear.in;
  alignas(64) float result[FEW * LANES];
  for (const int64_t end = n + num; n < end; n += LANES) {
    const int8_t* w = list.weight + n * in;
    num = int(std::min<int64_t>(LANES, end - n));
    int m = 0;
    for (; m + 4 <= rows; m += 4) multiply_bytes<4>(w, num, x + m * in, in, result + m * LANES);
    for (; m + 2 <= rows; m += 2) multiply_bytes<2>(w, num, x + m * in, in, result + m * LANES);
    if (m < rows) multiply_bytes<1>(w, num, x + m * in, in, result + m * LANES);
    for (m = 0; m < rows; m++)
      for (int i = 0; i < num; i++)
        y[m * linear.out + n + i] =
            result[m * LANES + i] * units[m] * list.unit[n + i] + (linear.bias ? number(linear.bias[n + i]) : 0);
  }
}

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

// Map up to FEW rows x (rows, in) to y (rows, out), of which those on which each row's draw depends are the layer's. Others may be
// estimates that are lower. `packed` and `wide` have room for x. Return false, and y is of no use, if too many outputs matter.
template <class T>
bool find_candidates(const Shortlist<T>& list, const Input<T>* x, int rows, const Draw* draws, int num_threads, Input<T>* packed,
                     float* wide, float* y) {
  const Linear<T>& linear = list.linear;
  const int64_t in = linear.in, out = linear.out, most = out / 8 + 2 * rows;
  std::atomic<int64_t> num_possible{0};
  float lengths[FEW], units[FEW];
  std::vector<Aim> aims;
  std::vector<Highest> highest;
  for (int m = 0; m < rows; m++) {
    aims.emplace_back(draws[m], std::clamp(out / (64 * rows), int64_t(1), NUCLEUS));
    highest.emplace_back(aims[m].count);
  }
  std::vector<Mass> masses(rows);
  bool is_clear = true;
  team.spread(num_threads);
#pragma omp parallel num_threads(num_threads)
  {
    float bounds[AT_ONCE];
    std::vector<Highest> own = highest;
#pragma omp for schedule(static)
    for (int m = 0; m < rows; m++) {
      pack<T>(x + m * in, 1, 0, in, packed + m * in);
      float sum = 0, largest = 0;
#pragma omp simd reduction(+ : sum) reduction(max : largest)
      for (int64_t d = 0; d < in; d++) {
        const float value = number(x[m * in + d]);
        sum += value * value, largest = std::max(largest, std::fabs(value));
      }
      // Nothing bounds rows of zeros, or with inputs that are no finite numbers, or whose squares are none.
      lengths[m] = largest > 1e-15f && largest < 1e15f ? std::sqrt(sum) : NAN;
      units[m] = narrow(x + m * in, in, largest, wide + m * in);
    }
#pragma omp for schedule(static)
    for (int64_t n = 0; n < out; n += AT_ONCE) {
      const int num = int(std::min(AT_ONCE, out - n));
      estimate(list, n, num, wide, units, rows, y);
      for (int m = 0; m < rows; m++) {
        bound<T, false>(list, aims[m], y + m * out + n, n, num, lengths[m], bounds);
        own[m].add(bounds, num);
      }
    }
#pragma omp critical
    for (int m = 0; m < rows; m++) highest[m].add(own[m]);
#pragma omp barrier
    for (int m = 0; m < rows; m++) {
      const Aim& aim = aims[m];
      const float least = aim.template least<T>(highest[m].least);
      Mass mass;
#pragma omp for schedule(static) nowait
      for (int64_t n = 0; n < out; n += AT_ONCE) {
        const int num = int(std::min(AT_ONCE, out - n));
        float* values = y + m * out + n;
        bound<T, true>(list, aim, values, n, num, lengths[m], bounds);
        if (aim.top_p < 1) mass.template add<T>(bounds, list.error + n, num, lengths[m], least, float(1 / aim.temperature));
        if (highest_of(bounds, num) < least) continue;
        for (int i = 0; i < num; i++) {
          if (bounds[i] < least) continue;
          if (num_possible.fetch_add(1, std::memory_order_relaxed) >= most) break;
          values[i] = compute(linear, n + i, packed + m * in);
          if (aim.top_p < 1) mass.values.emplace_back(values[i], n + i);
        }
      }
#pragma omp critical
      masses[m].add(mass);
    }
#pragma omp barrier
#pragma omp for schedule(static) reduction(&& : is_clear)
    for (int m = 0; m < rows; m++)
      if (aims[m].top_p < 1 && num_possible <= most)
        is_clear = is_clear && masses[m].template is_clear<T>(aims[m], aims[m].template least<T>(highest[m].least));
  }
  return num_possible <= most && is_clear;
}

}  // namespace
