// Attention of queries of one head to a block of keys on a CPU.

#pragma once

#include "beside.h"
#include "tiles.h"

namespace {

constexpr int BLOCK = 64;      // keys scored at a time
constexpr int TILE = 64;       // dimensions of values summed in registers, at most
constexpr int QUERIES = 4;     // that share a key in registers
constexpr int KEYS = QUARTER;  // that share a query there
constexpr int TOGETHER = 16;   // queries that share a block of keys in a cache
constexpr int WIDEST = 1024;   // dimensions at most, which `_WIDEST` of kernels/cpu/attention.py checks

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

// Whether tiles multiply queries and keys in T.
template <class T> inline bool attends_by_tiles(const Layer& layer) {
  return PARTS<T> && has_tiles && layer.key_dim % WIDTH<bfloat16> == 0;
}

#ifdef __AVX512F__
static_assert(TOGETHER == LANES, "queries and means have room for TOGETHER");

// Make weights of the scores of `num` keys and LANES queries, which lie side by side; see attend_block.
inline void weigh(const Layer& layer, int64_t begin, int num, Query* queries, float (*scores)[LANES], float* mean) {
  alignas(64) float higher[LANES], sum[LANES] = {};
  int first[LANES], end[LANES];
  if (layer.softcap > 0)
    for (int i = 0; i < num; i++) for (int q = 0; q < LANES; q++) scores[i][q] = layer.softcap * std::tanh(scores[i][q] / layer.softcap);
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
    for (int d = 0; d < layer.value_dim; d++) mean[q * layer.value_dim + d] *= shrink;
  }
}

// Attend with LANES queries of one head, which lie side by side as (key_dim, LANES), to a block of keys; see attend_block.
template <class T>
void attend_beside(const Layer& layer, const float* query, const T* keys, const T* values, int64_t begin, int num,
                   Query* queries, float* mean) {
  const int key_dim = int(layer.key_dim), value_dim = int(layer.value_dim);
  alignas(64) float scores[BLOCK][LANES], wide[SEVERAL * WIDEST];
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
  weigh(layer, begin, num, queries, scores, mean);
  for (int q = 0; q < LANES; q += QUERIES)
    gather_all<QUERIES, 1, LANES>(*scores + q, values, num, value_dim, q == 0, mean + q * value_dim);
}

#ifdef __AMX_BF16__
// scores[i][q]: products of `num` keys and queries as put_pairs stores them, in two parts. Prefetch the next keys and values.
inline void score_tiles(const Layer& layer, const bfloat16* query, const bfloat16* keys, const bfloat16* values, int num,
                        float (*scores)[LANES]) {
  const int dim = int(layer.key_dim), value_dim = int(layer.value_dim);
  alignas(LINE) bfloat16 rest[LANES * WIDEST];
  for (int i = 0; i < num; i += LANES) {
    const bfloat16* key = keys + i * dim;
    for (int k = 0; k < LANES; k++) fetch(key + (BLOCK + k) * dim, dim), fetch(values + (BLOCK + i + k) * value_dim, value_dim);
    if (num - i < LANES) std::copy_n(key, (num - i) * dim, rest), key = rest;  // no other memory may follow
    clear_tile<0>();
    for (int d = 0; d < dim; d += WIDTH<bfloat16>) {
      load_tile<WEIGHTS>(key + d, dim * 2);
      load_tile<INPUTS>(query + d * LANES, LINE), multiply_tile<0, INPUTS>();
      load_tile<INPUTS>(query + (dim + d) * LANES, LINE), multiply_tile<0, INPUTS>();
    }
    store_tile<0>(scores[i], LINE);
  }
}

// Add `num` values, weighted by scores[i][q] in two parts, to mean[q][d].
inline void gather_tiles(float (*scores)[LANES], const bfloat16* values, int num, int dim, float* mean) {
  constexpr int STEP = WIDTH<bfloat16>;
  alignas(LINE) bfloat16 pairs[BLOCK * WIDEST], weights[2][LANES][BLOCK];
  const int end = (num + STEP - 1) / STEP * STEP;
  for (int i = num; i < end; i++) store(scores[i], zero());
  for (int i = 0; i < end; i += LANES) {
    V rows[LANES], turned[LANES];
    for (int k = 0; k < LANES; k++) rows[k] = load(scores[i + k]);
    transpose(rows, turned);
    for (int q = 0; q < LANES; q++) {
      store(weights[0][q] + i, turned[q]);
      store(weights[1][q] + i, _mm512_sub_ps(turned[q], load(weights[0][q] + i)));
    }
  }
  for (int i = 0; i < end; i += 2)
    for (int d = 0; d < dim; d += LANES) {
      const auto bits = [&](int k) {
        if (k >= num) return _mm512_setzero_si512();
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + k * dim + d)));
      };
      _mm512_store_si512(pairs + i * dim + 2 * d, _mm512_or_si512(bits(i), _mm512_slli_epi32(bits(i + 1), 16)));
    }
  for (int d = 0; d < dim; d += LANES) {
    load_tile<0>(mean + d, dim * 4);
    for (int i = 0; i < end; i += STEP) {
      load_tile<INPUTS>(pairs + i * dim + 2 * d, dim * 4);
      load_tile<WEIGHTS>(weights[0][0] + i, BLOCK * 2), multiply_tile<0, INPUTS>();
      load_tile<WEIGHTS>(weights[1][0] + i, BLOCK * 2), multiply_tile<0, INPUTS>();
    }
    store_tile<0>(mean + d, dim * 4);
  }
}

// The same as attend_beside, by tiles, with queries as put_pairs stores them, in two parts.
inline void attend_tiles(const Layer& layer, const bfloat16* query, const bfloat16* keys, const bfloat16* values, int64_t begin,
                         int num, Query* queries, float* mean) {
  alignas(LINE) float scores[BLOCK][LANES];
  Tiles::begin(LANES, LANES);
  score_tiles(layer, query, keys, values, num, scores);
  for (int i = 0; i < num; i++) store(scores[i], mul(load(scores[i]), all(layer.scale)));
  weigh(layer, begin, num, queries, scores, mean);
  gather_tiles(scores, values, num, int(layer.value_dim), mean);
}
#endif

// Attend with at most LANES queries of one head to the `count` keys of a part; `queries` and `means` have room for LANES.
template <class T>
void attend_all_beside(const Layer& layer, const float* query, const T* keys, const T* values, int64_t count, int num,
                       Query* queries, float* means) {
  alignas(64) float turned[WIDEST * LANES];
  for (int i = num; i < LANES; i++) queries[i] = {0, count, -INFINITY, 0};
  std::fill(means, means + LANES * layer.value_dim, 0.0f);
  const auto for_blocks = [&](auto attend) {
    for (int64_t begin = 0; begin < count; begin += BLOCK)
      attend(begin, keys + begin * layer.key_dim, values + begin * layer.value_dim, int(std::min<int64_t>(BLOCK, count - begin)));
  };
  const auto row = [&](int64_t d) { return [=](int i) { return i < num ? load(query + i * layer.key_dim + d) : zero(); }; };
  if constexpr (PARTS<T> > 0)
    if (attends_by_tiles<T>(layer)) {
      auto* pairs = reinterpret_cast<bfloat16*>(turned);
      for (int64_t d = 0; d < layer.key_dim; d += LANES) put_pairs<2>(pairs, LANES, layer.key_dim, d, 0, row(d));
      return for_blocks([&](int64_t begin, const T* key, const T* value, int some) {
        attend_tiles(layer, pairs, key, value, begin, some, queries, means);
      });
    }
  for (int64_t d = 0; d < layer.key_dim; d += LANES) put_beside(turned + d * LANES, 0, row(d));
  for_blocks([&](int64_t begin, const T* key, const T* value, int some) {
    attend_beside(layer, turned, key, value, begin, some, queries, means);
  });
}
#endif

}  // namespace
