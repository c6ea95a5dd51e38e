// Decoder layers on a CPU, for steps of one token for each of some sessions ("rows").
//
// A layer's differences from others are data. decoder_layout.py recognizes the layers that these data describe.

#pragma once

#include "attention.h"
#include "experts.h"

namespace {

// Weights are of type T, norms, states and what is multiplied by weights of Input<T>. What a layer adds to is float32.
template <class T> struct Decoder {
  Linear<T> q, k, v, o;
  Norm<Input<T>> norm, q_norm, k_norm, attended_norm, ffn_norm, fed_norm;  // of queries and keys: of each head, or of all together
  Experts<T> experts;
  Layer attention;
  int64_t window, turned, positions;  // 0: none; rotated dimensions of each head, 0: none; table of positions
  int64_t neighbors;                  // 1: a number is rotated with its neighbor, 0: with the one half of `turned` away
  const float* sinks;                 // a score of each head, of no value; or null
  float residual;                     // factor of what is added to hidden
};

inline void turn(float* x, const float* cos, const float* sin, int64_t dim) {
  const int64_t half = dim / 2;
#pragma omp simd
  for (int64_t d = 0; d < half; d++) {
    const float a = x[d], b = x[d + half];
    x[d] = a * cos[d] - b * sin[d];
    x[d + half] = b * cos[d + half] + a * sin[d + half];
  }
}

inline void turn_neighbors(float* x, const float* cos, const float* sin, int64_t dim) {
#pragma omp simd
  for (int64_t d = 0; d < dim; d += 2) {
    const float a = x[d], b = x[d + 1];
    x[d] = a * cos[d] - b * sin[d];
    x[d + 1] = b * cos[d + 1] + a * sin[d + 1];
  }
}

// A layer's scratch space, as offsets in floats. Numbers of type Input<T> take as much room.
struct Scratch {
  int64_t qkv, mixed, inner, sum, partial, routes, end;
  template <class T> Scratch(const Decoder<T>& d, int64_t rows, int64_t num_splits) {
    qkv = room<T>(rows * std::max(d.experts.chosen * d.q.in, d.q.out));  // after the packed inputs
    mixed = qkv + rows * (d.q.out + d.k.out + d.v.out);
    inner = mixed + rows * d.q.out;
    sum = inner + room<T>(rows * d.experts.chosen * d.experts.gate.out);
    partial = sum + rows * d.q.in;
    routes = partial + rows * d.attention.heads * d.attention.group * num_splits * (d.attention.value_dim + 2);
    end = routes + routes_size(d.experts, rows);
  }
};

// Compute queries, keys and values (rows, heads, dim); store keys and values in their sessions. cos, sin: (rows, turned)
template <class T>
void project(const Step& step, const Decoder<T>& d, const float* cos, const float* sin, const Input<T>* inputs,
             float* qkv) {
  const int rows = int(step.num_rows);
  const int64_t dim = d.attention.key_dim, num_q = d.q.out / dim, num_kv = d.attention.heads, num = num_q + 2 * num_kv;
  const Linear<T>* parts[] = {&d.q, &d.k, &d.v};
  alignas(64) float result[MOST * WIDE];
#pragma omp for schedule(static)
  for (int64_t n = 0; n < num * dim; n += WIDE) {
    int64_t at = n;
    int part = 0;
    while (at >= parts[part]->out) at -= parts[part++]->out;
    outputs(*parts[part], at, inputs, rows, result);
    for (int m = 0; m < rows; m++) store(qkv + m * num * dim + n, load(result + m * WIDE));
  }
  if (d.q_norm.dim > dim) {
#pragma omp for schedule(static)
    for (int m = 0; m < rows; m++) {
      normalize(d.q_norm, qkv + m * num * dim);
      normalize(d.k_norm, qkv + (m * num + num_q) * dim);
    }
  }
#pragma omp for schedule(static)
  for (int64_t i = 0; i < rows * num; i++) {
    const int64_t m = i / num, head = i % num;
    const bool is_q = head < num_q, is_v = head >= num_q + num_kv;
    float* x = qkv + i * dim;
    if (!is_v && d.q_norm.weight && d.q_norm.dim == dim) normalize(is_q ? d.q_norm : d.k_norm, x);
    if (d.turned && !is_v) (d.neighbors ? turn_neighbors : turn)(x, cos + m * d.turned, sin + m * d.turned, d.turned);
    if (is_q) continue;
    const int64_t token = step.token(m), span = step.span(token), kv = head - num_q - (is_v ? num_kv : 0);
    Input<T>* states = step.states<Input<T>>(span, is_v) + (kv * step.capacity(span) + step.position(token)) * dim;
    for (int64_t d = 0; d < dim; d += LANES) store(states + d, load(x + d));
  }
}

// Compute the feed-forward part on hidden (rows, hidden), in place. `shared` is seen by all threads.
template <class T>
void feed(const Decoder<T>& d, const Scratch& at, int rows, AllRows& everyone, Routes* shared, float* scratch, float* hidden) {
  const Experts<T>& e = d.experts;
  const int64_t in = e.gate.in;
  auto *inputs = reinterpret_cast<Input<T>*>(scratch), *inner = reinterpret_cast<Input<T>*>(scratch + at.inner);
  Routes routes = everyone.routes();
  if (e.router.weight) {
    alignas(64) float result[MOST * WIDE];
    float* scores = scratch + at.routes;
#pragma omp for schedule(static)
    for (int m = 0; m < rows; m++) pack<Input<T>>([&](int i) { return hidden + i * in; }, d.ffn_norm, rows, m, in, inputs);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < e.router.out; n += WIDE) {
      const int num = outputs(e.router, n, inputs, rows, result);
      for (int m = 0; m < rows; m++) store_some(scores + m * e.router.out + n, result + m * WIDE, num);
    }
#pragma omp single
    *shared = choose(e, rows, scores, reinterpret_cast<int*>(scores + rows * e.router.out));
    routes = *shared;
  }
#pragma omp for schedule(static)
  for (int slot = 0; slot < rows * int(e.chosen); slot++) {
    const int group = int(std::upper_bound(routes.begin, routes.begin + routes.num, slot) - routes.begin) - 1;
    const int begin = routes.begin[group];
    const auto row = [&](int i) { return hidden + routes.row[begin + i] * in; };
    pack<T>(row, d.ffn_norm, routes.begin[group + 1] - begin, slot - begin, in, inputs + room<T>(begin * in));
  }
  gate(e, routes, inputs, inner);
  add_outputs(e.down, e.down_stride, routes, inner, d.fed_norm, d.residual, rows, scratch + at.sum, hidden);
}

// Compute one layer on hidden (rows, hidden), in place; inside a parallel region. cos, sin: (tables, rows, turned)
template <class T>
void decode(const Step& step, const Decoder<T>& d, const float* cos, const float* sin, int64_t num_splits, Routes* shared,
            float* scratch, float* hidden) {
  const int rows = int(step.num_rows);
  const int64_t dim = d.attention.key_dim, width = d.q.out + d.k.out + d.v.out, table = d.positions * rows * d.turned;
  const Scratch at(d, rows, num_splits);
  auto *inputs = reinterpret_cast<Input<T>*>(scratch), *mixed = reinterpret_cast<Input<T>*>(scratch + at.mixed);
  float* qkv = scratch + at.qkv;
  AllRows everyone(rows);
#pragma omp for schedule(static)
  for (int m = 0; m < rows; m++) pack<T>([&](int i) { return hidden + i * d.q.in; }, d.norm, rows, m, d.q.in, inputs);
  project(step, d, cos + table, sin + table, inputs, qkv);
  attend_share<Input<T>>(step, d.attention, qkv, dim, width, d.sinks, num_splits, scratch + at.partial, mixed);
#pragma omp for schedule(static)
  for (int m = 0; m < rows; m++) pack<T>(mixed, rows, m, d.o.in, inputs);
  add_outputs(d.o, 0, everyone.routes(), inputs, d.attended_norm, d.residual, rows, scratch + at.sum, hidden);
  feed(d, at, rows, everyone, shared, scratch, hidden);
}

}  // namespace
