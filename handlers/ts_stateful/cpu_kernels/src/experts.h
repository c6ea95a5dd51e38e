// The feed-forward part of a decoder layer on a CPU: one network for all rows, or experts that a router chooses for each.

#pragma once

#include "linear.h"

namespace {

enum Activation : int64_t { SILU, GELU_TANH, CLAMPED };

// Weights and biases are those of the first expert; `stride` and `down_stride` are the weights from one expert's to the next one's.
template <class T> struct Experts {
  Linear<Input<T>> router;  // without weights: one expert for all rows
  Linear<T> gate, up, down;
  int64_t stride, down_stride, chosen, rescaled, activation;
  float alpha, limit;  // of CLAMPED
  int64_t num() const { return router.weight ? router.out : 1; }
};

// The rows of each expert that has some, one after the other: those of expert[g] are row[begin[g]] to row[begin[g + 1]].
struct Routes { int num, *expert, *begin, *row; float* weight; };

// The routes of a layer that has no choice.
struct AllRows {
  int expert[1] = {0}, begin[2] = {0, 0}, row[MOST];
  float weight[MOST];
  explicit AllRows(int rows) {
    begin[1] = rows;
    for (int m = 0; m < rows; m++) row[m] = m, weight[m] = 1;
  }
  Routes routes() { return {1, expert, begin, row, weight}; }
};

// Scratch space for routes, in floats.
template <class T> int64_t routes_size(const Experts<T>& e, int64_t rows) {
  return rows * e.num() + 2 * e.num() + 2 + 4 * rows * e.chosen;
}

// Choose experts by scores (rows, experts), which become probabilities; on one thread.
template <class T> Routes choose(const Experts<T>& e, int rows, float* scores, int* room) {
  const int num = int(e.num()), chosen = int(e.chosen), slots = rows * chosen;
  int *expert = room, *begin = expert + num, *row = begin + num + 1, *best = row + slots;
  float *weight = reinterpret_cast<float*>(best + slots), *share = weight + slots;
  std::fill(begin, begin + num + 1, 0);
  for (int m = 0; m < rows; m++) {
    float *s = scores + m * num, total = 0, kept = 0;
    const float highest = *std::max_element(s, s + num);
    for (int i = 0; i < num; i++) total += s[i] = std::exp(s[i] - highest);
    for (int i = 0; i < num; i++) s[i] = s[i] >= 0 ? s[i] : 0;  // not NaN, or an expert could be chosen twice
    for (int c = 0; c < chosen; c++) {
      const int found = int(std::max_element(s, s + num) - s);
      best[m * chosen + c] = found, share[m * chosen + c] = s[found];
      kept += s[found], s[found] = -1;
      begin[found + 1]++;
    }
    for (int c = 0; c < chosen; c++) share[m * chosen + c] /= e.rescaled ? kept : total;
  }
  for (int i = 0; i < num; i++) begin[i + 1] += begin[i];
  for (int slot = slots; slot-- > 0;) {  // from the end, so that begin[i + 1] sinks to the beginning of expert i
    const int at = --begin[best[slot] + 1];
    row[at] = slot / chosen, weight[at] = share[slot];
  }
  int groups = 0;
  for (int i = 0; i < num; i++) {
    const int first = begin[i + 1], end = i + 1 < num ? begin[i + 2] : slots;
    if (first < end) expert[groups] = i, begin[groups++] = first;
  }
  begin[groups] = slots;
  return {groups, expert, begin, row, weight};
}

template <class T> Linear<T> of_expert(Linear<T> linear, int64_t weights) {
  linear.weight += weights;
  if (linear.bias) linear.bias += weights / linear.in;
  return linear;
}

// ups (num,) *= the activation of gates.
template <class T> void activate(const Experts<T>& e, const float* gates, int num, float* ups) {
  if (e.activation == CLAMPED) {
#pragma omp simd
    for (int i = 0; i < num; i++) {
      const float gate = std::min(gates[i], e.limit), up = std::max(-e.limit, std::min(ups[i], e.limit));
      ups[i] = (up + 1) * gate * sigmoid(e.alpha * gate);
    }
  } else if (e.activation == GELU_TANH) {  // (1 + tanh(z)) / 2 is sigmoid(2 z)
#pragma omp simd
    for (int i = 0; i < num; i++) ups[i] *= gates[i] * sigmoid(1.5957691216f * (gates[i] + 0.044715f * gates[i] * gates[i] * gates[i]));
  } else {
#pragma omp simd
    for (int i = 0; i < num; i++) ups[i] *= gates[i] * sigmoid(gates[i]);
  }
}

// Add to hidden (rows, out) the norm of the weighted outputs of each row's experts, times `factor`. `sum` has room for as much.
template <class T>
void add_outputs(const Linear<T>& linear, int64_t stride, const Routes& routes, const Input<T>* x, const Norm<Input<T>>& norm,
                 float factor, int rows, float* sum, float* hidden) {
  const int64_t width = linear.out;
  float* target = norm.weight ? sum : hidden;
  const float scale = norm.weight ? 1 : factor;
  alignas(64) float result[MOST * WIDE];
#pragma omp for schedule(static)
  for (int64_t n = 0; n < width; n += WIDE) {
    if (norm.weight) for (int m = 0; m < rows; m++) store(target + m * width + n, zero());
    for (int g = 0; g < routes.num; g++) {
      const int begin = routes.begin[g], count = routes.begin[g + 1] - begin;
      outputs(of_expert(linear, routes.expert[g] * stride), n, x + room<T>(begin * linear.in), count, result);
      for (int m = 0; m < count; m++) {
        float* to = target + routes.row[begin + m] * width + n;
        store(to, fma(all(routes.weight[begin + m] * scale), load(result + m * WIDE), load(to)));
      }
    }
  }
  if (!norm.weight) return;
#pragma omp for schedule(static)
  for (int m = 0; m < rows; m++) {
    float* to = hidden + m * width;
    normalize(norm, sum + m * width);
    for (int64_t d = 0; d < width; d += LANES) store(to + d, fma(all(factor), load(sum + m * width + d), load(to + d)));
  }
}

// Compute the gated products of each row's experts from packed inputs, packed for add_outputs.
template <class T> void gate(const Experts<T>& e, const Routes& routes, const Input<T>* inputs, Input<T>* inner) {
  const int64_t in = e.gate.in, width = e.gate.out, blocks = width / WIDE;
  alignas(64) float gates[MOST * WIDE], ups[MOST * WIDE];
#pragma omp for schedule(static)
  for (int64_t item = 0; item < routes.num * blocks; item++) {
    const int64_t group = item / blocks, n = item % blocks * WIDE, stride = routes.expert[group] * e.stride;
    const int begin = routes.begin[group], count = routes.begin[group + 1] - begin;
    outputs(of_expert(e.gate, stride), n, inputs + room<T>(begin * in), count, gates);
    outputs(of_expert(e.up, stride), n, inputs + room<T>(begin * in), count, ups);
    activate(e, gates, count * WIDE, ups);
    for (int m = 0; m < count; m++) put<T>(inner + room<T>(begin * width), count, m, width, n, [&](int i) { return load(ups + i * WIDE); });
  }
}

}  // namespace
