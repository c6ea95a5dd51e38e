// Vectors in registers, and operations on them: AVX-512 or AVX2 intrinsics, elsewhere loops that the compiler vectorizes.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAS_AVX2
#include <immintrin.h>
#endif

namespace {

// Lanes of a vector. Dimensions are multiples of 16, inputs of linear layers fill whole lines of a cache.
#if defined(HAS_AVX2) && !defined(__AVX512F__)
constexpr int LANES = 8;
#else
constexpr int LANES = 16;
#endif
constexpr int QUARTER = LANES / 4;  // so many by 4 products at a time: their sums take half of the registers
constexpr int LINE = 64;            // bytes of a line of a cache

struct bfloat16 { uint16_t bits; };
struct wide_bfloat16 { uint16_t bits; };  // weights that are widened to float32, the type of their inputs
struct wide_float16 { uint16_t bits; };
struct wide_int8 { int8_t number; };  // in units of their row
template <class T> constexpr bool IS_BYTE = std::is_same_v<T, wide_int8>;
template <class T> constexpr bool IS_WIDENED = std::is_same_v<T, wide_bfloat16> || std::is_same_v<T, wide_float16> || IS_BYTE<T>;
template <class T> constexpr int WIDTH = LANES * 4 / int(sizeof(T));      // numbers in the bytes of a vector
template <class T> using Input = std::conditional_t<IS_WIDENED<T>, float, T>;  // of weights of type T

inline float number(float x) { return x; }
inline float number(bfloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float number(wide_float16 x) {  // finite
  const uint32_t bits = uint32_t(x.bits & 0x7fff) << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return (x.bits & 0x8000 ? -0x1p112f : 0x1p112f) * value;
}

// A vector of LANES numbers, and one of twice as many bfloat16.
#ifdef __AVX512F__
using V = __m512;
using Pairs = __m512i;
inline V zero() { return _mm512_setzero_ps(); }
inline V all(float x) { return _mm512_set1_ps(x); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline V load(const bfloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline V load(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline V load(const wide_float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Pairs whole(const bfloat16* p) { return _mm512_loadu_si512(p); }
inline V first(Pairs p) { return _mm512_castsi512_ps(_mm512_slli_epi32(p, 16)); }
inline V second(Pairs p) { return _mm512_castsi512_ps(_mm512_and_si512(p, _mm512_set1_epi32(-65536))); }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }
inline V add(V x, V y) { return _mm512_add_ps(x, y); }
inline V mul(V x, V y) { return _mm512_mul_ps(x, y); }
inline V fma(V x, V y, V z) { return _mm512_fmadd_ps(x, y, z); }
inline V larger(V x, V y) { return _mm512_max_ps(x, y); }  // y where one is no number
// Bit i: whether lane i is at least so much.
inline uint32_t not_below(V x, float least) { return _mm512_cmp_ps_mask(x, all(least), _CMP_GE_OQ); }
// z and the products of x and y: two neighbors in each lane.
inline V dot(Pairs x, Pairs y, V z) {
#ifdef __AVX512BF16__
  return _mm512_dpbf16_ps(z, (__m512bh)x, (__m512bh)y);
#else
  return fma(second(x), second(y), fma(first(x), first(y), z));
#endif
}
// Lane i: the sum of the lanes of x[i].
inline V sums(const V* x) {
  V a[8], b[4], c[2];
  for (int i = 0; i < 8; i++)
    a[i] = add(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
  for (int i = 0; i < 4; i++)
    b[i] = add(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44), _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xEE));
  for (int i = 0; i < 2; i++)
    c[i] = add(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88), _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xDD));
  return add(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xDD));
}
// Lane j of y[i]: lane i of x[j].
inline void transpose(const V* x, V* y) {
  V a[4], b[4][4];
  for (int i = 0; i < 4; i++) {
    for (int j = 0; j < 4; j++)
      a[j] = j % 2 ? _mm512_unpackhi_ps(x[4 * i + j - 1], x[4 * i + j]) : _mm512_unpacklo_ps(x[4 * i + j], x[4 * i + j + 1]);
    for (int j = 0; j < 4; j++) {
      const __m512d low = _mm512_castps_pd(a[j / 2]), high = _mm512_castps_pd(a[j / 2 + 2]);
      b[j][i] = _mm512_castpd_ps(j % 2 ? _mm512_unpackhi_pd(low, high) : _mm512_unpacklo_pd(low, high));
    }
  }
  for (int j = 0; j < 4; j++) {
    const V even[] = {_mm512_shuffle_f32x4(b[j][0], b[j][1], 0x88), _mm512_shuffle_f32x4(b[j][2], b[j][3], 0x88)};
    const V odd[] = {_mm512_shuffle_f32x4(b[j][0], b[j][1], 0xDD), _mm512_shuffle_f32x4(b[j][2], b[j][3], 0xDD)};
    y[j] = _mm512_shuffle_f32x4(even[0], even[1], 0x88), y[j + 8] = _mm512_shuffle_f32x4(even[0], even[1], 0xDD);
    y[j + 4] = _mm512_shuffle_f32x4(odd[0], odd[1], 0x88), y[j + 12] = _mm512_shuffle_f32x4(odd[0], odd[1], 0xDD);
  }
}
// Store the even lanes from p on, and the odd ones from p + LANES on.
inline void split(float* p, V x) {
  const V halves = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), x);
  _mm256_storeu_ps(p, _mm512_castps512_ps256(halves));
  _mm256_storeu_pd(reinterpret_cast<double*>(p + LANES), _mm512_extractf64x4_pd(_mm512_castps_pd(halves), 1));
}
#elif defined(HAS_AVX2)
using V = __m256;
using Pairs = __m256i;
inline V zero() { return _mm256_setzero_ps(); }
inline V all(float x) { return _mm256_set1_ps(x); }
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline V load(const bfloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline V load(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline V load(const wide_float16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Pairs whole(const bfloat16* p) { return _mm256_loadu_si256(reinterpret_cast<const Pairs*>(p)); }
inline V first(Pairs p) { return _mm256_castsi256_ps(_mm256_slli_epi32(p, 16)); }
inline V second(Pairs p) { return _mm256_castsi256_ps(_mm256_and_si256(p, _mm256_set1_epi32(-65536))); }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x); }
inline V add(V x, V y) { return _mm256_add_ps(x, y); }
inline V mul(V x, V y) { return _mm256_mul_ps(x, y); }
inline V fma(V x, V y, V z) { return _mm256_fmadd_ps(x, y, z); }
inline V larger(V x, V y) { return _mm256_max_ps(x, y); }
inline uint32_t not_below(V x, float least) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x, all(least), _CMP_GE_OQ))); }
inline V dot(Pairs x, Pairs y, V z) { return fma(second(x), second(y), fma(first(x), first(y), z)); }
inline V sums(const V* x) {
  V a[2];
  for (int i = 0; i < 2; i++)
    a[i] = _mm256_hadd_ps(_mm256_hadd_ps(x[4 * i], x[4 * i + 1]), _mm256_hadd_ps(x[4 * i + 2], x[4 * i + 3]));
  return add(_mm256_permute2f128_ps(a[0], a[1], 0x20), _mm256_permute2f128_ps(a[0], a[1], 0x31));
}
inline void split(float* p, V x) {
  const V halves = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  _mm_storeu_ps(p, _mm256_castps256_ps128(halves));
  _mm_storeu_ps(p + LANES, _mm256_extractf128_ps(halves, 1));
}
#else
struct V { float lane[LANES]; };
struct Pairs { V even, odd; };
#define EACH _Pragma("omp simd") for (int i = 0; i < LANES; i++)
inline V all(float x) { V r; EACH r.lane[i] = x; return r; }
inline V zero() { return all(0); }
inline V load(const float* p) { V r; std::memcpy(&r, p, sizeof r); return r; }
inline V load(const bfloat16* p) { V r; EACH r.lane[i] = number(p[i]); return r; }
inline V load(const int8_t* p) { V r; EACH r.lane[i] = float(p[i]); return r; }
inline V load(const wide_float16* p) { V r; EACH r.lane[i] = number(p[i]); return r; }
inline Pairs whole(const bfloat16* p) {
  Pairs r;
  EACH r.even.lane[i] = number(p[2 * i]), r.odd.lane[i] = number(p[2 * i + 1]);
  return r;
}
inline V first(Pairs p) { return p.even; }
inline V second(Pairs p) { return p.odd; }
inline void store(float* p, V x) { std::memcpy(p, &x, sizeof x); }
inline V add(V x, V y) { V r; EACH r.lane[i] = x.lane[i] + y.lane[i]; return r; }
inline V mul(V x, V y) { V r; EACH r.lane[i] = x.lane[i] * y.lane[i]; return r; }
inline V fma(V x, V y, V z) { V r; EACH r.lane[i] = x.lane[i] * y.lane[i] + z.lane[i]; return r; }
inline V larger(V x, V y) { V r; EACH r.lane[i] = x.lane[i] > y.lane[i] ? x.lane[i] : y.lane[i]; return r; }
inline uint32_t not_below(V x, float least) {
  uint32_t lanes = 0;
  for (int i = 0; i < LANES; i++) lanes |= uint32_t(x.lane[i] >= least) << i;
  return lanes;
}
inline V dot(Pairs x, Pairs y, V z) { return fma(x.odd, y.odd, fma(x.even, y.even, z)); }
inline void split(float* p, V x) { EACH p[i / 2 + i % 2 * LANES] = x.lane[i]; }
inline V sums(const V* x) {
  V r = zero();
  for (int j = 0; j < LANES; j++) for (int i = 0; i < LANES; i++) r.lane[i] += x[i].lane[j];
  return r;
}
#endif

// Two vectors: of weights that are widened, or of their inputs. Those of bfloat16 are the even ones and the odd ones.
struct Wide { V first, second; };
inline Wide whole(const wide_bfloat16* p) {
  const Pairs pairs = whole(reinterpret_cast<const bfloat16*>(p));
  return {first(pairs), second(pairs)};
}
inline Wide whole(const wide_float16* p) { return {load(p), load(p + LANES)}; }
struct Wider { Wide first, second; };  // four vectors
inline Wider whole(const wide_int8* w) {
  const int8_t* p = &w->number;
  return {{load(p), load(p + LANES)}, {load(p + 2 * LANES), load(p + 3 * LANES)}};
}
inline V whole(const float* p) { return load(p); }
inline V dot(V x, V y, V z) { return fma(x, y, z); }
inline V dot(Wide x, Wide y, V z) { return fma(x.second, y.second, fma(x.first, y.first, z)); }
inline V dot(Wider x, Wider y, V z) { return dot(x.second, y.second, dot(x.first, y.first, z)); }

// Packed inputs of a vector of weights of type T.
template <class T> inline auto packed_inputs(const Input<T>* p) {
  if constexpr (IS_BYTE<T>) return Wider{{load(p), load(p + LANES)}, {load(p + 2 * LANES), load(p + 3 * LANES)}};
  else if constexpr (IS_WIDENED<T>) return Wide{load(p), load(p + LANES)};
  else return whole(p);
}

// Keep x in a register. Else GCC reads it from memory for each use, and then loads take longer than the arithmetic.
template <class X> inline X held(X x) {
#ifdef HAS_AVX2
  __asm__("" : "+v"(x));
#endif
  return x;
}
inline Wide held(Wide x) { return {held(x.first), held(x.second)}; }
inline Wider held(Wider x) { return {held(x.first), held(x.second)}; }

// Rounds to the nearest, ties to even.
inline void store(bfloat16* p, V x) {
#ifdef __AVX512BF16__
  const __m256bh rounded = _mm512_cvtneps_pbh(x);
  std::memcpy(p, &rounded, sizeof rounded);
#else
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < LANES; i++) {
    uint32_t bits;
    std::memcpy(&bits, &lanes[i], 4);
    p[i].bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
#endif
}

// Store `num` of the LANES numbers that x has room for.
template <class T> void store_some(T* p, const float* x, int num) {
  if (num == LANES) return store(p, load(x));
  T all[LANES];
  store(all, load(x));
  std::copy_n(all, num, p);
}

// e to the x for x <= 0, to 1e-7 (Cephes' polynomial); loops over it become vectors.
inline float power(float x) {
  x = std::max(x, -87.0f);
  const float n = std::nearbyint(x * 1.44269504088896341f);
  x = x - n * 0.693359375f;
  x = x + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * x + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  p = p * x * x + x + 1.0f;
  const int32_t bits = (int32_t(n) + 127) << 23;
  float two;
  std::memcpy(&two, &bits, 4);
  return p * two;
}

inline float sigmoid(float x) {
  const float e = power(-std::fabs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}

}  // namespace
