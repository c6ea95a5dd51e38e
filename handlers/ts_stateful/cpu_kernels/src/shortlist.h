// The outputs of a linear layer on which a choice depends, without reading all of its weights: of a language model's output layer,
// the tokens that may be the next one.
//
// The weights are held in 8 bits beside the real ones. By Cauchy and Schwarz, what that changes of a product with x is at most
// |w - w'| |x|. So most outputs cannot be among the highest. Those that can are computed from the real weights.
//
// The winner of a race of all tokens is the one with the highest x - t log(e): x is its logit, t the temperature, e what its
// probability divides, see `Race`. As e is known, the same bounds tell which tokens cannot win. The tokens that top-p leaves are
// among the highest, and the bounds tell how much probability the others have.

#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <queue>

#include "draw.h"
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
// Of the highest: outputs so near may become equal where they are rounded, and where they are divided.
template <class T> constexpr float TIE = std::is_same_v<T, bfloat16> ? 0x1p-6f : 0x1p-20f;

// 8-bit weights (out, in), what a unit of them is (out,), and how long the differences from the real weights are (out,).
template <class T> struct Shortlist { Linear<T> linear; const int8_t* weight; const float *unit, *error; };

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
  multiply_in_turn<1, 1>(linear.weight + n * linear.in, x, linear.in, result);
  if (linear.bias) result[0] += number(linear.bias[n]);
  Input<T> rounded;
  store_some(&rounded, result, 1);
  return number(rounded);
}

constexpr int64_t NUCLEUS = 512;  // outputs of a row with top-p, at most

// The lowest of the `count` highest numbers.
class Highest {
 public:
  float least = -std::numeric_limits<float>::infinity();

  explicit Highest(size_t count = 1) : count(count) {}
  void add(const float* numbers, int num) {
    if (!(highest_of(numbers, num) > least)) return;
    for (int i = 0; i < num; i++) add(numbers[i]);
  }
  void add(Highest other) {
    for (; !other.queue.empty(); other.queue.pop()) add(other.queue.top());
  }

 private:
  size_t count;
  std::priority_queue<float, std::vector<float>, std::greater<float>> queue;

  void add(float number) {
    if (!(number > least)) return;
    queue.push(number);
    if (queue.size() > count) queue.pop();
    if (queue.size() == count) least = queue.top();
  }
};

// The outputs of a row that matter: the `count` highest ones and what is at most `below` them. Where `spread` is not 0, outputs
// are compared with - spread * log(e) added. Where `top_p` is not 1, those with this part of the probability must be among them.
struct Aim {
  size_t count = 1;
  float below = 0, spread = 0, temperature;
  double top_p = 1;
  Race race;

  Aim(const Draw& settings, int64_t nucleus) : temperature(float(settings.temperature)), race(settings) {
    if (!(temperature > 0)) return;
    if (!std::isinf(settings.top_k)) count = size_t(settings.top_k);
    else if (settings.top_p < 1) count = size_t(nucleus), top_p = settings.top_p;
    else if (settings.min_p > 0) below = -temperature * float(std::log(settings.min_p));
    else spread = temperature;
  }

  // What may become equal to `value` or higher where outputs are rounded, and where they are divided.
  template <class T> float least(float value) const {
    return value - below - (std::fabs(value) + below + spread * float(LATEST)) * TIE<T>;
  }
};

// The outputs of a row that were computed, and bounds of the probability of all others, in that of an output of `least`.
struct Mass {
  std::vector<std::pair<float, int64_t>> values;  // and their tokens
  double low = 0, high = 0;

  // Add outputs whose upper bounds are below `least`.
  void add(const float* bounds, const float* errors, int num, float length, float least, float scale) {
    float lower = 0, upper = 0;
#pragma omp simd reduction(+ : lower, upper)
    for (int i = 0; i < num; i++) {
      const float apart = std::min(bounds[i] - least, 0.0f), counts = bounds[i] < least;
      lower += counts * power((apart - 2 * errors[i] * length) * scale), upper += counts * power(apart * scale);
    }
    low += lower, high += upper;
  }
  void add(const Mass& other) {
    values.insert(values.end(), other.values.begin(), other.values.end());
    low += other.low, high += other.high;
  }

  // Return whether the same token wins the race of the fewest and of the most tokens that may have `top_p` of the probability.
  template <class T> bool is_clear(const Aim& aim, float least) {
    if (values.empty()) return false;
    std::sort(values.begin(), values.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
    const double scale = 1 / double(aim.temperature), highest = values[0].first;
    const double slack = std::exp(TIE<T> * std::max(std::fabs(highest), double(std::fabs(least))) * scale);  // of estimates
    const double unit = std::exp((least - highest) * scale);
    double head = 0, sum = 0;
    for (const auto& [value, _] : values) head += std::exp((value - highest) * scale);
    const double enough = 0.99999 * aim.top_p * (head + low * unit / slack);
    const double surely = 1.00001 * aim.top_p * (head + high * unit * slack);
    Race race = aim.race;
    int64_t winner = UNKNOWN;
    for (const auto& [value, token] : values) {
      if (sum >= enough && winner == UNKNOWN) winner = race.winner;
      if (sum >= surely) return winner == race.winner;
      if (value < least) return false;
      const double probability = std::exp((value - highest) * scale);
      sum += probability;
      race.enter(token, probability);
    }
    return false;
  }
};

// Bounds of - log(e) of a token's number: e = - log(1 - u) is between u and u * exp(3.14 u). The logarithm of u is that of a power
// of two, and a straight line between two of them, which is at most 0.0597 too low.
inline float most_added(float u) {
  int32_t bits;
  std::memcpy(&bits, &u, sizeof bits);
  return (127 - float(bits) * 0x1p-23f) * 0.6931472f + 1e-3f;
}
inline float least_added(float u) { return most_added(u) - 0.0617f - 3.14f * u; }

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
      // Nothing bounds rows of zeros, or with inputs that are no finite numbers.
      lengths[m] = largest > 1e-30f && largest < 1e30f ? std::sqrt(sum) : NAN;
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
        if (aim.top_p < 1) mass.add(bounds, list.error + n, num, lengths[m], least, 1 / aim.temperature);
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
