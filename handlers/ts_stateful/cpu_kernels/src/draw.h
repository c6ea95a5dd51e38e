// Draws of tokens from logits, by the rules of language/network/sampler.py: a race, which the first token to arrive wins.
//
// Where settings leave some tokens alone, these come from a heap, the likeliest first. It has those that are likely enough; the
// probability of the others is only added up.

#pragma once

#include <limits>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace {

// Logarithms of 2^-12 and 2^-24, shares of the likeliest's probability: those with the first are enough for most rows.
constexpr float LIKELY[] = {-8.3177662f, -16.6355324f};
constexpr int64_t AT_ONCE = 256;       // logits whose probabilities are added up in float32
constexpr int64_t UNKNOWN = -1;
constexpr double LATEST = 23;           // the likeliest token has arrived by then: its time is at most the logarithm of 2^33

// A row's settings. Infinite top_k is none; the keys are integers of 32 bits.
struct Draw { double temperature, top_k, top_p, min_p, first_key, second_key; };

// A race of tokens. See `_arrivals` in sampler.py.
class Race {
 public:
  double least = std::numeric_limits<double>::infinity();  // the time of the first arrival
  int64_t winner = UNKNOWN;

  explicit Race(const Draw& settings) : keys{uint32_t(settings.first_key), uint32_t(settings.second_key)} {}
  uint32_t number(uint32_t token) const { return mixed(mixed(token * 0x9E3779B1u + keys[0]) ^ keys[1]); }
  void enter(int64_t token, double probability) {
    const double drawn = (number(uint32_t(token)) + 0.5) * 0x1p-32;
    if (drawn >= least * probability) return;  // its logarithm is more
    const double time = -std::log1p(-drawn) / probability;
    if (time < least) least = time, winner = token;
  }

 private:
  const uint32_t keys[2];

  static uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
  }
};

inline float highest_of(const float* logits, int64_t vocabulary) {
  float lanes[LANES];
  V most = all(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + LANES <= vocabulary; i += LANES) most = larger(load(logits + i), most);
  store(lanes, most);
  float highest = *std::max_element(lanes, lanes + LANES);
  for (; i < vocabulary; i++) highest = std::max(highest, logits[i]);
  return highest;
}

inline float inverse(double temperature) { return float(std::min(1 / temperature, double(std::numeric_limits<float>::max()))); }

// The likely tokens of a row of logits. Probabilities are in the likeliest's.
class Tokens {
 public:
  double mass = 0;  // the probability of all tokens, not a number if a logit is none

  Tokens(const float* logits, int64_t vocabulary, double temperature, float likely)
      : temperature(temperature), highest(highest_of(logits, vocabulary)) {
    const float scale = inverse(temperature);
    const float least = highest + likely / scale;
    for (int64_t begin = 0; begin < vocabulary; begin += AT_ONCE) {
      const int64_t end = std::min(vocabulary, begin + AT_ONCE);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; i++) sum += power((logits[i] - highest) * scale);
      mass += sum;
      int64_t i = begin;
      for (; i + LANES <= end; i += LANES)
        for (uint32_t lanes = not_below(load(logits + i), least); lanes; lanes &= lanes - 1) put(logits, i + __builtin_ctz(lanes));
      for (; i < end; i++) if (logits[i] >= least) put(logits, i);
    }
    std::make_heap(heap.begin(), heap.end());
  }

  int64_t size() const { return int64_t(heap.size()); }
  // Of the i-th likeliest, for i from 0 on.
  int64_t id(int64_t i) const { return heap[size() - 1 - i].id; }
  double probability(int64_t i) {
    while (int64_t(probabilities.size()) <= i) {
      std::pop_heap(heap.begin(), heap.end() - int64_t(probabilities.size()));
      const double apart = double(heap[size() - 1 - int64_t(probabilities.size())].logit) - highest;
      probabilities.push_back(std::exp(apart / temperature));
    }
    return probabilities[i];
  }

 private:
  struct Token {
    float logit;
    int32_t id;
    // Of equal ones the first comes first.
    bool operator<(const Token& other) const { return logit < other.logit || (logit == other.logit && id > other.id); }
  };
  std::vector<Token> heap;  // and after it those that came from it, the likeliest last
  std::vector<double> probabilities;
  const double temperature;
  const float highest;

  void put(const float* logits, int64_t i) { heap.push_back({logits[i], int32_t(i)}); }
};

// Draw from all tokens of a row of logits. The time of a token is at least the random number over the probability: few can be
// first, and the exact times of these are compared.
inline int64_t draw_of_all(const float* logits, int64_t vocabulary, const Draw& settings) {
  Race race(settings);
  const float highest = highest_of(logits, vocabulary), scale = inverse(settings.temperature);
  double mass = 0;  // not a number if a logit is none
  for (int64_t begin = 0; begin < vocabulary; begin += AT_ONCE) {
    const int64_t num = std::min(vocabulary - begin, AT_ONCE);
    const float bound = float(1.001 * std::min(race.least, LATEST));
    float sum = 0;
    int32_t possible[AT_ONCE], any = 0;
#pragma omp simd reduction(+ : sum) reduction(| : any)
    for (int64_t i = 0; i < num; i++) {
      const float probability = power((logits[begin + i] - highest) * scale);
      sum += probability;
      any |= possible[i] = float(int32_t(race.number(uint32_t(begin + i)) >> 1)) * 0x1p-31f <= bound * probability;
    }
    mass += sum;
    for (int64_t i = 0; any && i < num; i++)
      if (possible[i]) race.enter(begin + i, std::exp((double(logits[begin + i]) - highest) / settings.temperature));
  }
  return mass >= 1 ? race.winner : UNKNOWN;
}

// Return the token that is drawn from a row of logits; UNKNOWN if that depends on tokens that are not likely.
inline int64_t draw(const float* logits, int64_t vocabulary, const Draw& settings, float likely) {
  const bool is_open = std::isinf(settings.top_k);
  if (is_open && settings.top_p >= 1 && settings.min_p <= 0) return draw_of_all(logits, vocabulary, settings);
  Tokens tokens(logits, vocabulary, settings.temperature, likely);
  if (!(tokens.mass >= 1) || (!is_open && settings.top_k > double(tokens.size()))) return UNKNOWN;
  const int64_t most = is_open ? tokens.size() : int64_t(settings.top_k);
  double total = is_open ? tokens.mass : 0, sum = 0;
  for (int64_t i = 0; !is_open && i < most; i++) total += tokens.probability(i);
  Race race(settings);
  int64_t num = 0;  // tokens that top-k, top-p and min-p leave, and the sum of their probabilities
  for (; num < most && sum < settings.top_p * total && tokens.probability(num) >= settings.min_p; num++) {
    sum += tokens.probability(num);
    race.enter(tokens.id(num), tokens.probability(num));
  }
  return is_open && num == most ? UNKNOWN : race.winner;
}

// Draw a token of each row of logits (rows, vocabulary).
inline void draw_rows(const float* logits, int64_t rows, int64_t vocabulary, const Draw* settings, int num_threads, int64_t* tokens) {
  team.spread(num_threads);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (int64_t m = 0; m < rows; m++) {
    tokens[m] = UNKNOWN;
    for (int i = 0; i < 2 && tokens[m] == UNKNOWN; i++) tokens[m] = draw(logits + m * vocabulary, vocabulary, settings[m], LIKELY[i]);
  }
}

// Copy logits (rows, vocabulary), with minus infinity for tokens that a row's mask does not allow: bit i % 32 of its word i / 32 is
// 1 for a token that may come. A row without a mask stays as it is.
inline void forbid_rows(const float* logits, int64_t rows, int64_t vocabulary, const uint32_t* const* masks, int num_threads,
                        float* allowed) {
  team.spread(num_threads);
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t m = 0; m < rows; m++) {
    const float* row = logits + m * vocabulary;
    float* target = allowed + m * vocabulary;
    for (int64_t begin = 0; begin < vocabulary; begin += 32) {
      const uint32_t word = masks[m] ? masks[m][begin / 32] : ~uint32_t(0);
      const int64_t count = std::min(vocabulary - begin, int64_t(32));
#pragma omp simd
      for (int64_t i = 0; i < count; i++)
        target[begin + i] = (word >> i) & 1 ? row[begin + i] : -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace
