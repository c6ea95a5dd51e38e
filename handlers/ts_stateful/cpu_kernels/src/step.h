// The tokens of a step and the places of their sessions' states, as a table has them (spans.py), and the writing of states.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

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

}  // namespace
