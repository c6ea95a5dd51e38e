// Decoder layers of the Llama family on a CPU, for steps of one token for each of some sessions ("rows").
//
// A linear layer of few rows is bound by reading its weights. They are read in place, once for all rows, four outputs at a
// time. The inputs are read for every output, so they are packed into reading order. decoder_layout.py recognizes the layers.

#pragma once

#include "attention.h"

namespace {

constexpr int MOST = 64;   // rows
constexpr int WIDE = 16;   // outputs of a linear layer that a thread computes at once
constexpr int FAR = 4096;  // weights prefetched where rows are computed one after the other

struct Linear { const float *weight, *bias; int64_t in, out; };  // (out, in), (out,) or null

struct Decoder {
  Linear q, k, v, o, gate, up, down;
  const float *norm, *q_norm, *k_norm, *ffn_norm;  // of queries and keys: may be null
  float epsilon, q_epsilon, k_epsilon, ffn_epsilon;
  int64_t window, turned;  // 0: none; 1: rotary positions
  Layer attention;
};

// Rows are packed in groups of 4, then 2, then 1; a group of M as (in / LANES, M, LANES).
struct Place { int begin, group; };
inline Place place_of(int rows, int m) {
  const int fours = rows / 4 * 4, twos = rows / 2 * 2;
  if (m < fours) return {m / 4 * 4, 4};
  return m < twos ? Place{fours, 2} : Place{twos, 1};
}
inline float* packed(float* target, int rows, int m, int64_t in) {  // row m's first LANES; the next are `group` vectors further
  const Place place = place_of(rows, m);
  return target + place.begin * in + (m - place.begin) * LANES;
}

void pack(const float* x, int rows, int m, int64_t in, float* target) {
  const int group = place_of(rows, m).group;
  target = packed(target, rows, m, in);
  for (int64_t d = 0; d < in; d += LANES) store(target + d * group, load(x + d));
}

inline float norm_scale(const float* x, int64_t dim, float epsilon) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < dim; d++) sum += x[d] * x[d];
  return 1 / std::sqrt(sum / float(dim) + epsilon);
}

void pack_normed(const float* x, const float* weight, float epsilon, int rows, int m, int64_t in, float* target) {
  const int group = place_of(rows, m).group;
  const V scale = all(norm_scale(x, in, epsilon));
  target = packed(target, rows, m, in);
  for (int64_t d = 0; d < in; d += LANES) store(target + d * group, mul(load(weight + d), mul(load(x + d), scale)));
}

// Products of N rows of weights and a group of M inputs; result[m][n].
template <int N, int M>
inline void multiply(const float* __restrict w, const float* __restrict x, int64_t in, int64_t ahead, float* result) {
  V sum[LANES];
  for (int i = 0; i < LANES; i++) sum[i] = zero();
  for (int64_t k = 0; k < in; k += LANES, x += M * LANES) {
    V weights[N];
    for (int n = 0; n < N; n++) weights[n] = load(w + n * in + k);
    if (ahead) for (int n = 0; n < N; n++) __builtin_prefetch(w + n * in + k + ahead);
    for (int m = 0; m < M; m++) {
      const V input = load(x + m * LANES);
      for (int n = 0; n < N; n++) sum[m * N + n] = fma(weights[n], input, sum[m * N + n]);
    }
  }
  alignas(64) float lanes[LANES];
  store(lanes, sums(sum));
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) result[m * WIDE + n] = lanes[m * N + n];
}

template <int N> void multiply_rows(const float* w, const float* x, int rows, int64_t in, float* result) {
  int64_t ahead = rows <= 2 ? FAR : 4 * in;
  for (int m = 0; m < rows;) {
    const int group = place_of(rows, m).group;
    const float* inputs = x + m * in;
    if (group == 4) multiply<N, 4>(w, inputs, in, ahead, result + m * WIDE);
    else if (group == 2) multiply<N, 2>(w, inputs, in, ahead, result + m * WIDE);
    else multiply<N, 1>(w, inputs, in, ahead, result + m * WIDE);
    m += group;
    ahead = 0;
  }
}

// Store output n + i of row m in result[m][i], i < WIDE, from packed inputs; return how many of the WIDE exist.
int outputs(const Linear& linear, int64_t n, const float* x, int rows, float* result) {
  const int num = int(std::min<int64_t>(WIDE, linear.out - n));
  const float* w = linear.weight + n * linear.in;
  int i = 0;
  for (; i + 4 <= num; i += 4) multiply_rows<4>(w + i * linear.in, x, rows, linear.in, result + i);
  for (; i < num; i++) multiply_rows<1>(w + i * linear.in, x, rows, linear.in, result + i);
  if (linear.bias)
    for (int m = 0; m < rows; m++) for (i = 0; i < num; i++) result[m * WIDE + i] += linear.bias[n + i];
  return num;
}

// hidden (rows, out) += a linear layer's outputs.
void add_outputs(const Linear& linear, const float* x, int rows, float* hidden) {
  alignas(64) float result[MOST * WIDE];
#pragma omp for schedule(static)
  for (int64_t n = 0; n < linear.out; n += WIDE) {
    outputs(linear, n, x, rows, result);
    for (int m = 0; m < rows; m++) {
      float* target = hidden + m * linear.out + n;
      store(target, add(load(target), load(result + m * WIDE)));
    }
  }
}

inline void turn(float* x, const float* cos, const float* sin, int64_t dim) {
  const int64_t half = dim / 2;
#pragma omp simd
  for (int64_t d = 0; d < half; d++) {
    const float a = x[d], b = x[d + half];
    x[d] = a * cos[d] - b * sin[d];
    x[d + half] = b * cos[d + half] + a * sin[d + half];
  }
}

inline float silu(float x) {
  const float e = power(-std::fabs(x));
  return x >= 0 ? x / (1 + e) : x * e / (1 + e);
}

// A layer's scratch space, as offsets in floats.
struct Scratch {
  int64_t qkv, mixed, inner, partial, end;
  Scratch(const Decoder& d, int64_t rows, int64_t num_splits) {
    qkv = rows * std::max(d.q.in, d.q.out);  // after the packed inputs
    mixed = qkv + rows * (d.q.out + d.k.out + d.v.out);
    inner = mixed + rows * d.q.out;
    partial = inner + rows * d.gate.out;
    end = partial + rows * d.attention.heads * d.attention.group * num_splits * (d.attention.value_dim + 2);
  }
};

// Compute queries, keys and values (rows, heads, dim); store keys and values in their sessions. cos, sin: (rows, dim)
void project(const Step& step, const Decoder& d, const float* cos, const float* sin, const float* inputs, float* qkv) {
  const int rows = int(step.num_rows);
  const int64_t dim = d.attention.key_dim, num_q = d.q.out / dim, num_kv = d.attention.heads, num = num_q + 2 * num_kv;
  const Linear* parts[] = {&d.q, &d.k, &d.v};
  alignas(64) float result[MOST * WIDE];
#pragma omp for schedule(static)
  for (int64_t n = 0; n < num * dim; n += WIDE) {
    int64_t at = n;
    int part = 0;
    while (at >= parts[part]->out) at -= parts[part++]->out;
    outputs(*parts[part], at, inputs, rows, result);
    for (int m = 0; m < rows; m++) store(qkv + m * num * dim + n, load(result + m * WIDE));
  }
#pragma omp for schedule(static)
  for (int64_t i = 0; i < rows * num; i++) {
    const int64_t m = i / num, head = i % num;
    const bool is_q = head < num_q, is_v = head >= num_q + num_kv;
    float* x = qkv + i * dim;
    const float* weight = is_v ? nullptr : is_q ? d.q_norm : d.k_norm;
    if (weight) {
      const float scale = norm_scale(x, dim, is_q ? d.q_epsilon : d.k_epsilon);
      for (int64_t j = 0; j < dim; j++) x[j] = weight[j] * (x[j] * scale);
    }
    if (d.turned && !is_v) turn(x, cos + m * dim, sin + m * dim, dim);
    if (is_q) continue;
    const int64_t token = step.token(m), span = step.span(token), kv = head - num_q - (is_v ? num_kv : 0);
    float* states = step.states<float>(span, is_v) + (kv * step.capacity(span) + step.position(token)) * dim;
    std::memcpy(states, x, dim * sizeof(float));
  }
}

// Compute one layer on hidden (rows, hidden), in place; inside a parallel region.
void decode(const Step& step, const Decoder& d, const float* cos, const float* sin, int64_t num_splits, float* scratch,
            float* hidden) {
  const int rows = int(step.num_rows);
  const int64_t dim = d.attention.key_dim, width = d.q.out + d.k.out + d.v.out;
  const Scratch at(d, rows, num_splits);
  float *inputs = scratch, *qkv = scratch + at.qkv, *mixed = scratch + at.mixed, *inner = scratch + at.inner;
  alignas(64) float gates[MOST * WIDE], ups[MOST * WIDE];
#pragma omp for schedule(static)
  for (int m = 0; m < rows; m++) pack_normed(hidden + m * d.q.in, d.norm, d.epsilon, rows, m, d.q.in, inputs);
  project(step, d, cos, sin, inputs, qkv);
  attend_share<float>(step, d.attention, qkv, dim, width, nullptr, num_splits, scratch + at.partial, mixed);
#pragma omp for schedule(static)
  for (int m = 0; m < rows; m++) pack(mixed + m * d.o.in, rows, m, d.o.in, inputs);
  add_outputs(d.o, inputs, rows, hidden);
#pragma omp for schedule(static)
  for (int m = 0; m < rows; m++) pack_normed(hidden + m * d.q.in, d.ffn_norm, d.ffn_epsilon, rows, m, d.q.in, inputs);
#pragma omp for schedule(static)
  for (int64_t n = 0; n < d.gate.out; n += WIDE) {
    outputs(d.gate, n, inputs, rows, gates);
    outputs(d.up, n, inputs, rows, ups);
#pragma omp simd
    for (int i = 0; i < rows * WIDE; i++) ups[i] *= silu(gates[i]);
    for (int m = 0; m < rows; m++)
      store(packed(inner, rows, m, d.down.in) + n * place_of(rows, m).group, load(ups + m * WIDE));
  }
  add_outputs(d.down, inner, rows, hidden);
}

}  // namespace
