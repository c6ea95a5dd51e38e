// Products of bfloat16 by tiles of registers (AMX): an instruction multiplies up to 16 rows of weights by up to 16 rows of inputs.
//
// Weights are read in place, a line of a cache of each row at a time. Inputs lie side by side: pairs of neighboring numbers of each
// row, one row after the other. An input in float32 is the sum of three numbers in bfloat16, which are multiplied one after the other;
// so products and sums are those of float32 (arXiv:1904.06376).
// https://www.intel.com/content/www/us/en/docs/intrinsics-guide/index.html, "AMX".

#pragma once

#include "vectors.h"
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Numbers in bfloat16 that an input of weights of type T is; 0: tiles do not multiply them.
#ifdef __AMX_BF16__
template <class T> constexpr int PARTS = std::is_same_v<T, bfloat16> ? 1 : std::is_same_v<T, wide_bfloat16> ? 3 : 0;
#else
template <class T> constexpr int PARTS = 0;
#endif

#ifdef __AMX_BF16__
constexpr int FEWEST = 4;  // rows; fewer are read faster by other code

// Tiles: products of whole groups of LANES rows, from 0 on; those of the last group; weights, and inputs of both.
constexpr int LAST_SUM = 3, WEIGHTS = 4, INPUTS = 5, LAST_INPUTS = 6, NUM_TILES = 7;

// Return whether the system lets this process use tiles. They are large, so it keeps them only for those who ask.
// https://docs.kernel.org/arch/x86/xstate.html
inline bool ask_for_tiles() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
const bool has_tiles = ask_for_tiles();

template <int TILE> inline void clear_tile() { __asm__ volatile("tilezero %%tmm%c0" : : "i"(TILE)); }
template <int TILE> inline void load_tile(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(TILE), "r"(p), "r"(stride) : "memory");
}
template <int TILE> inline void store_tile(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(p), "r"(stride) : "memory");
}
// Add the products of the tile of weights and one of inputs to one of sums.
template <int SUM, int INPUT> inline void multiply_tile() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(WEIGHTS), "i"(INPUT));
}

// The sizes of the calling thread's tiles, until this is destroyed. To set them takes as long as twenty products.
class Tiles {
 public:
  ~Tiles() {
    if (outputs) __asm__ volatile("tilerelease");
    outputs = 0;
  }

  // For rows of weights, and rows of inputs in the last group.
  static void begin(int num_outputs, int num_last) {
    if (num_outputs == outputs && num_last == last) return;
    outputs = num_outputs, last = num_last;
    struct alignas(LINE) { uint8_t palette = 1, unused[15] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } sizes;
    for (int tile = 0; tile < NUM_TILES; tile++) {
      sizes.bytes[tile] = uint16_t(tile == LAST_SUM || tile == LAST_INPUTS ? 4 * num_last : LINE);
      sizes.rows[tile] = uint8_t(tile == INPUTS || tile == LAST_INPUTS ? LANES : num_outputs);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(sizes));
  }

 private:
  static thread_local int outputs, last;
};
thread_local int Tiles::outputs = 0, Tiles::last = 0;

// Store numbers d to d + LANES of rows m to m + num, the vectors x(m) to x(m + num), in the inputs of their group: each part's as
// (in / 2, num, 2).
template <int NUM_PARTS, class X> inline void put_pairs(bfloat16* target, int num, int64_t in, int64_t d, int m, X x) {
  const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                         19, 3, 18, 2, 17, 1, 16, 0);
  V rows[LANES], numbers[LANES];
  for (int i = 0; i < LANES; i++) rows[i] = i < num ? x(m + i) : zero();
  transpose(rows, numbers);
  for (int i = 0; i < LANES; i += 2) {
    V even = numbers[i], odd = numbers[i + 1];
    for (int part = 0; part < NUM_PARTS; part++) {
      const Pairs pairs = _mm512_permutexvar_epi16(turns, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
      _mm512_mask_storeu_epi32(target + (part * in + d + i) * num, __mmask16((1u << num) - 1), pairs);
      even = _mm512_sub_ps(even, first(pairs)), odd = _mm512_sub_ps(odd, second(pairs));
    }
  }
}

// Store products of `num` rows of weights and some groups of inputs, WHOLE ones and the last one, in result[m][n], n < LANES.
// Prefetch the next rows of weights if `fetches`.
template <int NUM_PARTS, int WHOLE, bool HAS_LAST>
inline void multiply_groups(const bfloat16* w, const bfloat16* x, int last, int64_t in, bool fetches, float* result) {
  const int64_t group = NUM_PARTS * in * LANES;
  if constexpr (WHOLE > 0) clear_tile<0>();
  if constexpr (WHOLE > 1) clear_tile<1>();
  if constexpr (WHOLE > 2) clear_tile<2>();
  if constexpr (HAS_LAST) clear_tile<LAST_SUM>();
  for (int64_t k = 0; k < in; k += WIDTH<bfloat16>) {
    load_tile<WEIGHTS>(w + k, in * 2);
    if (fetches) for (int n = 0; n < LANES; n++) __builtin_prefetch(w + (LANES + n) * in + k, 0, 2);
    for (int part = 0; part < NUM_PARTS; part++) {
      const int64_t at = part * in + k;
      if constexpr (WHOLE > 0) load_tile<INPUTS>(x + at * LANES, LINE), multiply_tile<0, INPUTS>();
      if constexpr (WHOLE > 1) load_tile<INPUTS>(x + group + at * LANES, LINE), multiply_tile<1, INPUTS>();
      if constexpr (WHOLE > 2) load_tile<INPUTS>(x + 2 * group + at * LANES, LINE), multiply_tile<2, INPUTS>();
      if constexpr (HAS_LAST) load_tile<LAST_INPUTS>(x + WHOLE * group + at * last, 4 * last), multiply_tile<LAST_SUM, LAST_INPUTS>();
    }
  }
  alignas(LINE) float sums[LANES][LANES];
  V products[LANES], turned[LANES];
  for (int g = 0; g < WHOLE + HAS_LAST; g++) {
    if (g == WHOLE) store_tile<LAST_SUM>(sums, LINE);
    else if (g == 0) store_tile<0>(sums, LINE);
    else if (g == 1) store_tile<1>(sums, LINE);
    else store_tile<2>(sums, LINE);
    for (int n = 0; n < LANES; n++) products[n] = load(sums[n]);
    transpose(products, turned);
    for (int m = 0; m < (g == WHOLE ? last : LANES); m++) store(result + (g * LANES + m) * LANES, turned[m]);
  }
}

// Products of `num` rows of weights and rows of inputs, as put_pairs stores them; result[m][n], n < LANES.
template <class T> void multiply_tiles(const T* weights, int num, const Input<T>* inputs, int rows, int64_t in, float* result) {
  const auto *w = reinterpret_cast<const bfloat16*>(weights), *x = reinterpret_cast<const bfloat16*>(inputs);
  const int whole = (rows - 1) / LANES, last = rows - whole * LANES;
  Tiles::begin(num, last);
  int g = 0;
  const auto multiply = [&](auto some, auto has_last) {
    multiply_groups<PARTS<T>, decltype(some)::value, decltype(has_last)::value>(w, x + g * PARTS<T> * in * LANES, last, in, g == 0,
                                                                               result + g * LANES * LANES);
    g += some;
  };
  while (whole - g > 3) multiply(std::integral_constant<int, 3>(), std::false_type());
  switch (whole - g) {
    case 0: return multiply(std::integral_constant<int, 0>(), std::true_type());
    case 1: return multiply(std::integral_constant<int, 1>(), std::true_type());
    case 2: return multiply(std::integral_constant<int, 2>(), std::true_type());
    default: return multiply(std::integral_constant<int, 3>(), std::true_type());
  }
}
#else
constexpr int FEWEST = 1;
constexpr bool has_tiles = false;
struct Tiles {};
template <int, class X> void put_pairs(bfloat16*, int, int64_t, int64_t, int, X);
template <class T> void multiply_tiles(const T*, int, const Input<T>*, int, int64_t, float*);
#endif

// Whether tiles multiply so many rows by weights of type T.
template <class T> inline bool uses_tiles(int64_t rows) { return PARTS<T> && has_tiles && rows >= FEWEST; }

}  // namespace
