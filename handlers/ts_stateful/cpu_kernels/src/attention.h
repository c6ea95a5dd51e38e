// Attention of single tokens of many sessions on a CPU.
//
// Each session's states are read in place, by address, up to its length, once, at the speed of the memory. Splits share a row's
// tokens where there are fewer heads than threads (flash decoding, https://pytorch.org/blog/flash-decoding/).

#pragma once

#include "beside.h"
#include "step.h"

namespace {

constexpr int BLOCK = 64;      // keys scored at a time
constexpr int TILE = 64;       // dimensions of values summed in registers, at most
constexpr int QUERIES = 4;     // that share a key in registers
constexpr int KEYS = QUARTER;  // that share a query there
constexpr int TOGETHER = 16;   // queries that share a block of keys in a cache

template <class T> inline void fetch(const T* p, int dim) {
  for (int d = 0; d < dim; d += 64 / int(sizeof(T))) __builtin_prefetch(p + d);
}

// products[q][i + k], q < Q, k < K: those of queries and keys, by lanes.
template <int Q, int K, class T>
void multiply(const float* query, const T* keys, int dim, bool fetches, int i, V (*products)[LANES]) {
  if (fetches) for (int k = 0; k < K; k++) fetch(keys + (k + 24) * dim, dim);
  V sum[K][Q];
  for (int k = 0; k < K; k++) for (int q = 0; q < Q; q++) sum[k][q] = zero();
  for (int d = 0; d < dim; d += LANES) {
    V x[Q];
    for (int q = 0; q < Q; q++) x[q] = load(query + q * dim + d);
    for (int k = 0; k < K; k++) {
      const V y = load(keys + k * dim + d);
      for (int q = 0; q < Q; q++) sum[k][q] = fma(x[q], y, sum[k][q]);
    }
  }
  for (int k = 0; k < K; k++) for (int q = 0; q < Q; q++) products[q][i + k] = sum[k][q];
}

// scores[q][i], q < Q: a query's scores of `count` keys, padded with -infinity to whole vectors.
template <int Q, class T>
void score(const float* query, const T* keys, int count, int dim, float scale, bool fetches, float (*scores)[BLOCK]) {
  constexpr int K = Q < QUERIES ? 1 : KEYS;  // for few queries the memory is the limit, which likes one stream
  for (int begin = 0; begin < count; begin += LANES) {
    const int num = std::min(LANES, count - begin);
    const T* key = keys + int64_t(begin) * dim;
    V products[Q][LANES];
    int i = 0;
    for (; i + K <= num; i += K) multiply<Q, K>(query, key + i * dim, dim, fetches, i, products);
    for (; i < num; i++) multiply<Q, 1>(query, key + i * dim, dim, fetches, i, products);
    for (int q = 0; q < Q; q++) {
      for (int i = num; i < LANES; i++) products[q][i] = zero();
      store(scores[q] + begin, mul(sums(products[q]), all(scale)));
      for (int i = num; i < LANES; i++) scores[q][begin + i] = -INFINITY;
    }
  }
}

// Add values, weighted by weights[q * BY_QUERY + i * BY_KEY], to mean[q][d], q < Q, d < N vectors.
template <int Q, int N, int BY_QUERY, int BY_KEY, class T>
void gather(const float* weights, const T* values, int count, int dim, bool fetches, float* mean) {
  V sum[Q][N];
  for (int q = 0; q < Q; q++) for (int n = 0; n < N; n++) sum[q][n] = load(mean + q * dim + n * LANES);
  for (int i = 0; i < count; i++) {
    const T* value = values + int64_t(i) * dim;
    if (fetches) fetch(value + 24 * dim, N * LANES);
    for (int n = 0; n < N; n++) {
      const V v = load(value + n * LANES);
      for (int q = 0; q < Q; q++) sum[q][n] = fma(all(weights[q * BY_QUERY + i * BY_KEY]), v, sum[q][n]);
    }
  }
  for (int q = 0; q < Q; q++) for (int n = 0; n < N; n++) store(mean + q * dim + n * LANES, sum[q][n]);
}

// The same for all dimensions.
template <int Q, int BY_QUERY, int BY_KEY, class T>
void gather_all(const float* weights, const T* values, int count, int dim, bool fetches, float* mean) {
  constexpr int VECTORS = std::min(TILE / LANES, LANES / Q);
  int d = 0;
  for (; d + VECTORS * LANES <= dim; d += VECTORS * LANES)
    gather<Q, VECTORS, BY_QUERY, BY_KEY>(weights, values + d, count, dim, fetches, mean + d);
  for (; d < dim; d += LANES) gather<Q, 1, BY_QUERY, BY_KEY>(weights, values + d, count, dim, fetches, mean + d);
}

struct Layer { int64_t heads, group, key_dim, value_dim; float scale, softcap; };

// The keys that a query sees, counted from the first key of its part, and its result so far: mean is not yet divided by total.
struct Query {
  int64_t begin, end;
  float highest, total;
};

// Attend with Q queries of one head to a block of `num` keys, which begins at key `begin` of the part.
template <int Q, class T>
void attend_block(const Layer& layer, const float* query, const T* keys, const T* values, int64_t begin, int num, bool fetches,
                  Query* queries, float* mean) {
  const int key_dim = int(layer.key_dim), value_dim = int(layer.value_dim), padded = (num + LANES - 1) / LANES * LANES;
  alignas(64) float scores[Q][BLOCK];
  score<Q>(query, keys, num, key_dim, layer.scale, fetches, scores);
  for (int q = 0; q < Q; q++) {
    float* s = scores[q];
    if (layer.softcap > 0)
      for (int i = 0; i < num; i++) s[i] = layer.softcap * std::tanh(s[i] / layer.softcap);
    Query& own = queries[q];
    const int first = int(std::clamp<int64_t>(own.begin - begin, 0, num)), end = int(std::clamp<int64_t>(own.end - begin, 0, num));
    if (first >= end) {
      std::fill(s, s + padded, 0.0f);
      continue;
    }
    std::fill(s, s + first, -INFINITY);
    std::fill(s + end, s + num, -INFINITY);
    float higher = own.highest, sum = 0;
#pragma omp simd reduction(max : higher)
    for (int i = 0; i < padded; i++) higher = std::max(higher, s[i]);
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < padded; i++) sum += s[i] = power(s[i] - higher);  // what is not seen adds 1e-38
    const float shrink = std::exp(own.highest - higher);
    own.highest = higher;
    own.total = own.total * shrink + sum;
#pragma omp simd
    for (int d = 0; d < value_dim; d++) mean[q * value_dim + d] *= shrink;
  }
  gather_all<Q, BLOCK, 1>(*scores, values, num, value_dim, fetches, mean);
}

#ifdef __AVX512F__
static_assert(TOGETHER == LANES, "queries and means have room for TOGETHER");

// Attend with LANES queries of one head, which lie side by side as (key_dim, LANES), to a block of keys; see attend_block.
template <class T>
void attend_beside(const Layer& layer, const float* query, const T* keys, const T* values, int64_t begin, int num,
                   Query* queries, float* mean) {
  const int key_dim = int(layer.key_dim), value_dim = int(layer.value_dim);
  alignas(64) float scores[BLOCK][LANES], higher[LANES], sum[LANES] = {}, wide[SEVERAL * 1024];
  int first[LANES], end[LANES];
  for (int i = 0; i < num; i += SEVERAL) {
    const int some = std::min(SEVERAL, num - i);
    const T* key = keys + int64_t(i) * key_dim;
    const float* weights = wide;
    for (int k = 0; k < some; k++) fetch(key + (k + 24) * key_dim, key_dim);
    if constexpr (std::is_same_v<T, float>) weights = key;
    else for (int d = 0; d < some * key_dim; d += LANES) store(wide + d, load(key + d));
    V products[SEVERAL];
    if (some == SEVERAL) multiply_beside<SEVERAL>(weights, query, key_dim, nullptr, products);
    else for (int k = 0; k < some; k++) multiply_beside<1>(weights + k * key_dim, query, key_dim, nullptr, products + k);
    for (int k = 0; k < some; k++) store(scores[i + k], mul(products[k], all(layer.scale)));
  }
  if (layer.softcap > 0)
    for (int i = 0; i < num; i++) for (float& s : scores[i]) s = layer.softcap * std::tanh(s / layer.softcap);
  for (int q = 0; q < LANES; q++) {
    higher[q] = queries[q].highest;
    first[q] = int(std::clamp<int64_t>(queries[q].begin - begin, 0, num));
    end[q] = int(std::clamp<int64_t>(queries[q].end - begin, 0, num));
  }
  for (int i = 0; i < num; i++)
#pragma omp simd
    for (int q = 0; q < LANES; q++) {
      if (i < first[q] || i >= end[q]) scores[i][q] = -INFINITY;
      higher[q] = std::max(higher[q], scores[i][q]);
    }
  for (int i = 0; i < num; i++)
#pragma omp simd
    for (int q = 0; q < LANES; q++) sum[q] += scores[i][q] = scores[i][q] == -INFINITY ? 0 : power(scores[i][q] - higher[q]);
  for (int q = 0; q < LANES; q++) {
    const float shrink = higher[q] > queries[q].highest ? std::exp(queries[q].highest - higher[q]) : 1;
    queries[q].highest = higher[q];
    queries[q].total = queries[q].total * shrink + sum[q];
    if (shrink == 1) continue;
#pragma omp simd
    for (int d = 0; d < value_dim; d++) mean[q * value_dim + d] *= shrink;
  }
  for (int q = 0; q < LANES; q += QUERIES)
    gather_all<QUERIES, 1, LANES>(*scores + q, values, num, value_dim, q == 0, mean + q * value_dim);
}

// Attend with at most LANES queries of one head to the `count` keys of a part; `queries` and `means` have room for LANES.
template <class T>
void attend_all_beside(const Layer& layer, const float* query, const T* keys, const T* values, int64_t count, int num,
                       Query* queries, float* means) {
  alignas(64) float turned[1024 * LANES];
  for (int i = num; i < LANES; i++) queries[i] = {0, count, -INFINITY, 0};
  for (int64_t d = 0; d < layer.key_dim; d += LANES)
    put_beside(turned + d * LANES, 0, [&](int i) { return i < num ? load(query + i * layer.key_dim + d) : zero(); });
  std::fill(means, means + LANES * layer.value_dim, 0.0f);
  for (int64_t begin = 0; begin < count; begin += BLOCK)
    attend_beside(layer, turned, keys + begin * layer.key_dim, values + begin * layer.value_dim, begin,
                  int(std::min<int64_t>(BLOCK, count - begin)), queries, means);
}
#endif

// Attend with `num` queries of one head to the `count` keys of a part: each key comes from the memory once.
template <class T>
void attend_queries(const Layer& layer, const float* query, const T* keys, const T* values, int64_t count, int num,
                    Query* queries, float* means) {
  const int64_t key_dim = layer.key_dim, value_dim = layer.value_dim;
#ifdef __AVX512F__
  if (num > LANES / 2) return attend_all_beside(layer, query, keys, values, count, num, queries, means);
#endif
  std::fill(means, means + num * value_dim, 0.0f);
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    const int some = int(std::min<int64_t>(BLOCK, count - begin));
    const T *key = keys + begin * key_dim, *value = values + begin * value_dim;
    const auto attend = [&](auto size, int q) {
      attend_block<decltype(size)::value>(layer, query + q * key_dim, key, value, begin, some, q == 0, queries + q,
                                          means + q * value_dim);
    };
    int q = 0;
    for (; q + QUERIES <= num; q += QUERIES) attend(std::integral_constant<int, QUERIES>(), q);
    for (; q + 2 <= num; q += 2) attend(std::integral_constant<int, 2>(), q);
    if (q < num) attend(std::integral_constant<int, 1>(), q);
  }
}

// Compute this thread's share of the attention of all rows; inside a parallel region.
//
// Rows of a session at neighboring positions see the same keys but for a few, and are computed together.
template <class T, class X>
void attend_share(const Step& step, const Layer& layer, const X* query, int64_t head_stride, int64_t token_stride,
                  const float* sinks, int64_t num_splits, float* partial, T* output) {
  const int64_t group = layer.group, num_heads = layer.heads * group, slot_size = layer.value_dim + 2;
  const int64_t num_parts = step.num_rows * layer.heads * num_splits;
  const int64_t most_rows = std::max<int64_t>(1, TOGETHER / group), most_heads = std::min<int64_t>(TOGETHER, group);
  const auto position = [&](int64_t row) { return step.position(step.token(row)); };
  const auto is_joined = [&](int64_t row) {  // with the row before it
    return row > 0 && row < step.num_rows && step.span(step.token(row)) == step.span(step.token(row - 1)) &&
           position(row) / most_rows == position(row - 1) / most_rows;
  };
  const auto first_key = [&](int64_t row) { return step.window ? std::max<int64_t>(0, position(row) + 1 - step.window) : 0; };
#pragma omp for schedule(dynamic, 1)
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t split = part % num_splits, head = part / num_splits % layer.heads, row = part / num_splits / layer.heads;
    if (is_joined(row)) continue;
    int64_t stop = row + 1;
    while (is_joined(stop)) stop++;
    const int64_t first = first_key(row), end = position(stop - 1) + 1, share = (end - first - 1) / num_splits + 1;
    const int64_t begin = first + split * share, count = std::min(share, end - begin), span = step.span(step.token(row));
    const int64_t place = head * step.capacity(span) + begin;
    const T* keys = step.states<T>(span, 0) + place * layer.key_dim;
    const T* values = step.states<T>(span, 1) + place * layer.value_dim;
    float rows[TOGETHER * 1024], means[TOGETHER * 1024];
    Query queries[TOGETHER];
    for (int64_t g = 0; g < group; g += most_heads) {
      const int64_t some = std::min(most_heads, group - g), num = (stop - row) * some;
      for (int64_t i = 0; i < num; i++) {
        const int64_t own = row + i / some, from = head * group + g + i % some;
        queries[i] = {first_key(own) - begin, position(own) + 1 - begin, -INFINITY, 0};
        for (int64_t d = 0; d < layer.key_dim; d += LANES)
          store(rows + i * layer.key_dim + d, load(query + from * head_stride + step.token(own) * token_stride + d));
      }
      attend_queries(layer, rows, keys, values, count, int(num), queries, means);
      for (int64_t i = 0; i < num; i++) {
        const int64_t own = ((row + i / some) * layer.heads + head) * num_splits + split;
        float* slot = partial + (own * group + g + i % some) * slot_size;  // mean, highest, total
        std::copy_n(means + i * layer.value_dim, layer.value_dim, slot);
        slot[layer.value_dim] = queries[i].highest, slot[layer.value_dim + 1] = queries[i].total;
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
