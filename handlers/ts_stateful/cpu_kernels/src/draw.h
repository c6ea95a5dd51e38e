// Draws of tokens from logits, by the rules of language/network/sampler.py.
//
// Tokens come from a heap, the likeliest first, until it is known which one is drawn. The heap has those that are likely enough;
// the probability of the others is only added up.

#pragma once

#include <limits>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace {

// Logarithms of 2^-12 and 2^-24, shares of the likeliest's probability: those with the first are enough for most draws.
constexpr float LIKELY[] = {-8.3177662f, -16.6355324f};
constexpr int64_t AT_ONCE = 256;       // logits whose probabilities are added up in float32
constexpr int64_t UNKNOWN = -1;

// A row's settings. Infinite top_k is none; `drawn` is a number in [0, 1).
struct Draw { double temperature, top_k, top_p, min_p, drawn; };

// The likely tokens of a row of logits. Probabilities are in the likeliest's.
class Tokens {
 public:
  double mass = 0;  // the probability of all tokens, not a number if a logit is none

  Tokens(const float* logits, int64_t vocabulary, double temperature, float likely)
      : temperature(temperature), highest(highest_of(logits, vocabulary)) {
    const float scale = float(std::min(1 / temperature, double(std::numeric_limits<float>::max())));
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

  static float highest_of(const float* logits, int64_t vocabulary) {
    float lanes[LANES];
    V most = all(-std::numeric_limits<float>::infinity());
    int64_t i = 0;
    for (; i + LANES <= vocabulary; i += LANES) most = larger(load(logits + i), most);
    store(lanes, most);
    float highest = *std::max_element(lanes, lanes + LANES);
    for (; i < vocabulary; i++) highest = std::max(highest, logits[i]);
    return highest;
  }
  void put(const float* logits, int64_t i) { heap.push_back({logits[i], int32_t(i)}); }
};

// Return the token that is drawn from a row of logits; UNKNOWN if that depends on tokens that are not likely.
inline int64_t draw(const float* logits, int64_t vocabulary, const Draw& settings, float likely) {
  Tokens tokens(logits, vocabulary, settings.temperature, likely);
  const bool is_open = std::isinf(settings.top_k), is_plain = is_open && settings.top_p >= 1 && settings.min_p <= 0;
  if (!(tokens.mass >= 1) || (!is_open && settings.top_k > double(tokens.size()))) return UNKNOWN;
  const int64_t most = is_open ? tokens.size() : int64_t(settings.top_k);
  double total = is_open ? tokens.mass : 0, sum = 0;
  for (int64_t i = 0; !is_open && i < most; i++) total += tokens.probability(i);
  int64_t num = 0;  // tokens that top-k, top-p and min-p leave, and the sum of their probabilities
  for (; num < most && sum < settings.top_p * total && tokens.probability(num) >= settings.min_p; num++) {
    sum += tokens.probability(num);
    if (is_plain && sum > settings.drawn * total) return tokens.id(num);
  }
  if (is_open && num == most) return UNKNOWN;
  const double target = settings.drawn * sum;
  int64_t rank = 0;
  for (sum = tokens.probability(0); sum <= target && rank + 1 < num;) sum += tokens.probability(++rank);
  return tokens.id(rank);
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
