// Attention of single tokens of many sessions on a CPU.
//
// Each session's states are read in place, by address, up to its length, once, at the speed of the memory. Splits share a row's
// tokens where there are fewer heads than threads (flash decoding, https://pytorch.org/blog/flash-decoding/).

#pragma once

#include "attention_block.h"
#include "step.h"

namespace {

// Attend with `num` queries of one head to the `count` keys of a part: each key comes from the memory once.
template <class T>
void attend_queries(const Layer& layer, const float* query, const T* keys, const T* values, int64_t count, int num,
                    Query* queries, float* means) {
  const int64_t key_dim = layer.key_dim, value_dim = layer.value_dim;
#ifdef __AVX512F__
  const int most = attends_by_tiles<T>(layer) ? QUERIES : LANES / 2;
  if (num > most) return attend_all_beside(layer, query, keys, values, count, num, queries, means);
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
    alignas(LINE) float rows[TOGETHER * WIDEST], means[TOGETHER * WIDEST];
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
    float mean[WIDEST] = {};
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
