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
#include <queue>

#include "draw.h"

namespace {

// Of the highest: outputs so near may become equal where they are rounded, and where they are divided.
template <class T> constexpr float TIE = std::is_same_v<T, bfloat16> ? 0x1p-6f : 0x1p-20f;
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

}  // namespace
