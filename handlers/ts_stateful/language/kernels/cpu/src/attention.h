// Attention of single tokens of many sessions on a CPU, and the writing of their states.
//
// Each session's states are read in place, by address, up to its length, once, at the speed of the memory. Splits share a row's
// tokens where there are fewer heads than threads (flash decoding, https://pytorch.org/blog/flash-decoding/). See spans.py for
// the table.

#pragma once

#include "vectors.h"

namespace {

constexpr int BLOCK = 64;  // keys scored at a time
constexpr int TILE = 64;   // dimensions of values summed in registers

template <class T> inline void fetch(const T* p, int dim) {
  for (int d = 0; d < dim; d += 64 / int(sizeof(T))) __builtin_prefetch(p + d);
}

// scores[q][i], q < Q: a query's scores of `count` keys, padded with -infinity to whole vectors.
template <int Q, class T>
void score(const float* query, const T* keys, int count, int dim, float scale, float (*scores)[BLOCK]) {
  for (int begin = 0; begin < count; begin += LANES) {
    const int num = std::min(LANES, count - begin);
    V products[Q][LANES];
    for (int i = 0; i < num; i++) {
      const T* key = keys + int64_t(begin + i) * dim;
      fetch(key + 24 * dim, dim);
      V sum[Q];
      for (int q = 0; q < Q; q++) sum[q] = zero();
      for (int d = 0; d < dim; d += LANES) {
        const V k = load(key + d);
        for (int q = 0; q < Q; q++) sum[q] = fma(load(query + q * dim + d), k, sum[q]);
      }
      for (int q = 0; q < Q; q++) products[q][i] = sum[q];
    }
    for (int q = 0; q < Q; q++) {
      for (int i = num; i < LANES; i++) products[q][i] = zero();
      store(scores[q] + begin, mul(sums(products[q]), all(scale)));
      for (int i = num; i < LANES; i++) scores[q][begin + i] = -INFINITY;
    }
  }
}

// Add weighted values to mean[q][d], q < Q, d < N vectors.
template <int Q, int N, class T>
void gather(const float (*weights)[BLOCK], const T* values, int count, int dim, float* mean) {
  V sum[Q][N];
  for (int q = 0; q < Q; q++) for (int n = 0; n < N; n++) sum[q][n] = load(mean + q * dim + n * LANES);
  for (int i = 0; i < count; i++) {
    const T* value = values + int64_t(i) * dim;
    fetch(value + 24 * dim, N * LANES);
    for (int n = 0; n < N; n++) {
      const V v = load(value + n * LANES);
      for (int q = 0; q < Q; q++) sum[q][n] = fma(all(weights[q][i]), v, sum[q][n]);
    }
  }
  for (int q = 0; q < Q; q++) for (int n = 0; n < N; n++) store(mean + q * dim + n * LANES, sum[q][n]);
}

struct Layer { int64_t heads, group, key_dim, value_dim; float scale, softcap; };

// Attend with Q queries of one head to `count` keys; mean is not yet divided by total.
template <int Q, class T>
void attend_queries(const Layer& layer, const float* query, const T* keys, const T* values, int64_t count, float* mean,
                    float* highest, float* total) {
  const int key_dim = int(layer.key_dim), value_dim = int(layer.value_dim);
  alignas(64) float scores[Q][BLOCK];
  for (int q = 0; q < Q; q++) highest[q] = -INFINITY, total[q] = 0;
  std::fill(mean, mean + Q * value_dim, 0.0f);
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    const int num = int(std::min<int64_t>(BLOCK, count - begin)), padded = (num + LANES - 1) / LANES * LANES;
    score<Q>(query, keys + begin * key_dim, num, key_dim, layer.scale, scores);
    for (int q = 0; q < Q; q++) {
      float* s = scores[q];
      if (layer.softcap > 0)
        for (int i = 0; i < num; i++) s[i] = layer.softcap * std::tanh(s[i] / layer.softcap);
      float higher = highest[q], sum = 0;
#pragma omp simd reduction(max : higher)
      for (int i = 0; i < padded; i++) higher = std::max(higher, s[i]);
#pragma omp simd reduction(+ : sum)
      for (int i = 0; i < padded; i++) sum += s[i] = power(s[i] - higher);  // padding adds 1e-38
      const float shrink = std::exp(highest[q] - higher);
      highest[q] = higher;
      total[q] = total[q] * shrink + sum;
#pragma omp simd
      for (int d = 0; d < value_dim; d++) mean[q * value_dim + d] *= shrink;
    }
    const T* block = values + begin * value_dim;
    int d = 0;
    for (; d + TILE <= value_dim; d += TILE) gather<Q, TILE / LANES>(scores, block + d, num, value_dim, mean + d);
    for (; d < value_dim; d += LANES) gather<Q, 1>(scores, block + d, num, value_dim, mean + d);
  }
}

struct Step {
  const int64_t *table;
  int64_t num_tokens, num_rows, num_spans, layer, window;
  int64_t token(int64_t row) const { return table[2 * num_tokens + row]; }
  int64_t span(int64_t token) const { return table[token]; }
  int64_t position(int64_t token) const { return table[num_tokens + token]; }
  int64_t capacity(int64_t span) const { return table[2 * num_tokens + num_rows + span]; }
  template <class T> T* states(int64_t span, int which) const {
    return reinterpret_cast<T*>(table[2 * num_tokens + num_rows + num_spans + (2 * layer + which) * num_spans + span]);
  }
};

template <class T> void write_states(const Step& step, const T* states, int64_t head_stride, int64_t token_stride,
                                     int64_t heads, int64_t dim, int which) {
  for (int64_t token = 0; token < step.num_tokens; token++) {
    const int64_t span = step.span(token);
    T* target = step.states<T>(span, which) + step.position(token) * dim;
    for (int64_t head = 0; head < heads; head++)
      std::memcpy(target + head * step.capacity(span) * dim, states + head * head_stride + token * token_stride, dim * sizeof(T));
  }
}

// Compute this thread's share of the attention of all rows; inside a parallel region.
template <class T>
void attend_share(const Step& step, const Layer& layer, const T* query, int64_t head_stride, int64_t token_stride,
                 const float* sinks, int64_t num_splits, float* partial, T* output) {
  const int64_t group = layer.group, num_heads = layer.heads * group, slot_size = layer.value_dim + 2;
  const int64_t num_parts = step.num_rows * layer.heads * num_splits;
#pragma omp for schedule(dynamic, 1)
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t split = part % num_splits, head = part / num_splits % layer.heads, row = part / num_splits / layer.heads;
    const int64_t token = step.token(row), span = step.span(token), position = step.position(token);
    const int64_t first = step.window ? std::max<int64_t>(0, position + 1 - step.window) : 0;
    const int64_t share = (position - first) / num_splits + 1;
    const int64_t begin = first + split * share, count = std::min(share, position + 1 - begin);
    const int64_t place = head * step.capacity(span) + begin;
    const T* keys = step.states<T>(span, 0) + place * layer.key_dim;
    const T* values = step.states<T>(span, 1) + place * layer.value_dim;
    float* slots = partial + (part * group) * slot_size;  // (group,): mean, highest, total
    float queries[2 * 1024], means[2 * 1024], highest[2], total[2];
    for (int64_t g = 0; g < group; g += 2) {
      const int num = int(std::min<int64_t>(2, group - g));
      for (int q = 0; q < num; q++)
        for (int64_t d = 0; d < layer.key_dim; d += LANES)
          store(queries + q * layer.key_dim + d, load(query + (head * group + g + q) * head_stride + token * token_stride + d));
      if (num == 2) attend_queries<2>(layer, queries, keys, values, std::max<int64_t>(count, 0), means, highest, total);
      else attend_queries<1>(layer, queries, keys, values, std::max<int64_t>(count, 0), means, highest, total);
      for (int q = 0; q < num; q++) {
        float* slot = slots + (g + q) * slot_size;
        std::copy(means + q * layer.value_dim, means + (q + 1) * layer.value_dim, slot);
        slot[layer.value_dim] = highest[q], slot[layer.value_dim + 1] = total[q];
      }
    }
  }
#pragma omp for schedule(static)
  for (int64_t index = 0; index < step.num_rows * num_heads; index++) {
    const int64_t row = index / num_heads, head = index % num_heads;
    const float* slots = partial + ((row * layer.heads + head / group) * num_splits * group + head % group) * slot_size;
    float highest = sinks ? sinks[head] : -INFINITY;
    for (int64_t s = 0; s < num_splits; s++) highest = std::max(highest, slots[s * group * slot_size + layer.value_dim]);
    float total = sinks ? std::exp(sinks[head] - highest) : 0;
    float mean[1024] = {};
    for (int64_t s = 0; s < num_splits; s++) {
      const float* slot = slots + s * group * slot_size;
      const float weight = std::exp(slot[layer.value_dim] - highest);
      total += slot[layer.value_dim + 1] * weight;
#pragma omp simd
      for (int64_t d = 0; d < layer.value_dim; d++) mean[d] += slot[d] * weight;
    }
    T* target = output + (step.token(row) * num_heads + head) * layer.value_dim;
    const V scale = all(1 / total);
    for (int64_t d = 0; d < layer.value_dim; d += LANES) store(target + d, mul(load(mean + d), scale));
  }
}

}  // namespace
