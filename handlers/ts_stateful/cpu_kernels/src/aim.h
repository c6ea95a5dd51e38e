// What a row's draw depends on: the highest outputs, those that may win its race, or those that hold a part of the probability.
//
// The winner of a race of all tokens is the one with the highest x - t log(e): x is its logit, t the temperature, e what its
// probability divides, see `Race`. As e is known, bounds of x tell which tokens cannot win. The tokens that top-p leaves are among
// the highest, and the bounds tell how much probability the others have.

#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "draw.h"

namespace {

// Of the highest: outputs so near may become equal where they are rounded, and where they are divided.
template <class T> constexpr float TIE = std::is_same_v<T, bfloat16> ? 0x1p-6f : 0x1p-20f;
constexpr int64_t NUCLEUS = 512;  // outputs of a row with top-p, at most
constexpr double HARDLY = 0.003;  // the part of the probability that those may have which are not computed, if that is possible

// The `count` highest numbers.
class Highest {
 public:
  float least = -std::numeric_limits<float>::infinity();  // of them, or lower before `order`

  explicit Highest(size_t count = 1) : count(count) {}
  void add(const float* numbers, int num) {
    if (!(highest_of(numbers, num) > least)) return;
    int i = 0;
    for (; i + LANES <= num; i += LANES)
      for (uint32_t lanes = not_below(load(numbers + i), least); lanes; lanes &= lanes - 1) put(numbers[i + __builtin_ctz(lanes)]);
    for (; i < num; i++) if (numbers[i] >= least) put(numbers[i]);
  }
  void add(const Highest& other) { add(other.kept.data(), int(other.kept.size())); }
  void order() {
    cut();
    std::sort(kept.begin(), kept.end(), std::greater<float>());
  }
  // The number of this rank, from 1 on, when they are ordered; if there are fewer, the last.
  float at(size_t rank) const { return kept.empty() ? least : kept[std::min(rank, kept.size()) - 1]; }

 private:
  size_t count;
  std::vector<float> kept;

  void put(float number) {
    kept.push_back(number);
    if (kept.size() == 2 * count) cut();
  }
  void cut() {
    if (kept.size() < count) return;
    std::nth_element(kept.begin(), kept.begin() + int64_t(count) - 1, kept.end(), std::greater<float>());
    kept.resize(count);
    least = kept.back();
  }
};

// The outputs of a row that matter: the `count` highest ones and what is at most `below` them. Where `spread` is not 0, outputs
// are compared with - spread * log(e) added. Where `top_p` is not 1, those with this part of the probability must be among them.
struct Aim {
  size_t count = 1;
  float below = 0, spread = 0;
  double top_p = 1, temperature;
  Race race;

  Aim(const Draw& settings, int64_t nucleus) : temperature(settings.temperature), race(settings) {
    if (!(float(temperature) > 0)) return;
    if (!std::isinf(settings.top_k)) count = size_t(settings.top_k);
    else if (settings.top_p < 1) count = size_t(nucleus), top_p = settings.top_p;
    else if (settings.min_p > 0) below = float(-temperature * std::log(settings.min_p));
    else spread = float(temperature);
  }

  // What may become equal to `value` or higher where outputs are rounded, and where they are divided.
  template <class T> float least(float value) const {
    return value - below - (std::fabs(value) + below + spread * float(LATEST)) * TIE<T>;
  }
};

// How likely all outputs of a row are by their estimates, and at most those below some limits; in the highest lower bound's.
struct Tails {
  static constexpr int NUM = 7;
  float highest = 0, limits[NUM] = {};  // the latter are bounds of ranks 8, 16, ... 512
  double all = 0, below[NUM] = {};

  Tails() = default;
  explicit Tails(const Highest& bounds) : highest(bounds.at(1)) {
    for (int i = 0; i < NUM; i++) limits[i] = bounds.at(size_t(8) << i);
  }
  void add(const float* estimates, const float* bounds, int num, float scale) {
    float most[AT_ONCE], sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < num; i++) {
      sum += power(std::min((estimates[i] - highest) * scale, 80.0f));
      most[i] = power(std::min((bounds[i] - highest) * scale, 80.0f));
    }
    all += sum;
    for (int k = 0; k < NUM; k++) {
      sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int i = 0; i < num; i++) sum += bounds[i] < limits[k] ? most[i] : 0;
      below[k] += sum;
    }
  }
  void add(const Tails& other) {
    all += other.all;
    for (int k = 0; k < NUM; k++) below[k] += other.below[k];
  }
  // The highest limit below which there is hardly anything, or the lowest.
  float limit() const {
    int k = 0;
    while (k < NUM - 1 && !(below[k] <= HARDLY * all)) k++;
    return limits[k];
  }
};

// The outputs of a row that were computed, and bounds of the probability of all others, in that of an output of `least`.
struct Mass {
  std::vector<std::pair<float, int64_t>> values;  // and their tokens
  double low = 0, high = 0;

  // Add outputs whose upper bounds are below `least`. They are rounded, by a part of `least` and a part of what they are below it.
  template <class T>
  void add(const float* bounds, const float* errors, int num, float length, float least, float scale) {
    float lower = 0, upper = 0;
#pragma omp simd reduction(+ : lower, upper)
    for (int i = 0; i < num; i++) {
      const float apart = std::min(bounds[i] - least, 0.0f), counts = bounds[i] < least;
      lower += counts * power((apart - 2 * errors[i] * length) * (1 + TIE<T> / 4) * scale);
      upper += counts * power(apart * (1 - TIE<T> / 4) * scale);
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
    // Of equal ones the first comes first.
    std::sort(values.begin(), values.end(),
              [](const auto& x, const auto& y) { return x.first != y.first ? x.first > y.first : x.second < y.second; });
    const double scale = 1 / aim.temperature, highest = values[0].first;
    const double slack = std::exp(TIE<T> * std::max(std::fabs(highest), double(std::fabs(least))) * scale);  // of estimates
    const double unit = std::exp((least - highest) * scale);
    double head = 0, sum = 0;
    for (const auto& [value, _] : values) head += std::exp((value - highest) * scale);
    const double enough = 0.99999 * aim.top_p * (head + low * unit / slack);
    const double surely = 1.00001 * aim.top_p * (head + high * unit * slack);
    Race race = aim.race;
    int64_t winner = UNKNOWN;
    for (const auto& [value, token] : values) {
      if (value < least) return false;
      const double probability = std::exp((value - highest) * scale);
      sum += probability;
      race.enter(token, probability);
      if (sum >= enough && winner == UNKNOWN) winner = race.winner;
      if (sum >= surely) return winner == race.winner;
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

}  // namespace
