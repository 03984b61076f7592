// Included once per instruction set (see portable_products.cc): the checkpoint's formats widened to fp32 in registers, for
// vectors of any fixed size. No include guard by design of foreach_target.

#if defined(DEEPINFER_PORTABLE_FORMATS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_PORTABLE_FORMATS_H
#undef DEEPINFER_PORTABLE_FORMATS_H
#else
#define DEEPINFER_PORTABLE_FORMATS_H
#endif

#include <cstdint>
#include <cstring>

#include "base/scalar_types.h"

#if HWY_TARGET & DEEPINFER_PORTABLE_TARGETS

HWY_BEFORE_NAMESPACE();
namespace deepinfer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using F = hn::Vec<FloatTag>;
constexpr int64_t kLanes = hn::MaxLanes(FloatTag());

HWY_INLINE F zero() { return hn::Zero(FloatTag()); }
HWY_INLINE F load(const float* p) { return hn::Load(FloatTag(), p); }
HWY_INLINE void store(float* p, F v) { hn::Store(v, FloatTag(), p); }
/// The fixed tree of lanes.
HWY_INLINE float reduce(F v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// Even and odd elements of a vector of bf16, as fp32.
HWY_INLINE void split_bf16(hn::Vec<hn::Repartition<uint32_t, FloatTag>> pairs, F* even, F* odd) {
  const hn::Repartition<uint32_t, FloatTag> d32;
  *even = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(pairs));
  *odd = hn::BitCast(FloatTag(), hn::And(pairs, hn::Set(d32, 0xffff0000u)));
}

// A block is what a vector of E4M3 widens to: 4 * kLanes columns. Vector j, lane i of a widened block holds column
// (j & 1) * 2 * kLanes + 2 * i + (j >> 1): words of even columns, words of odd ones, each in two halves.
constexpr int64_t kBlockColumns = 4 * kLanes;

struct Bf16Format {
  static constexpr int64_t kBlockBytes = 2 * kBlockColumns;
  static HWY_INLINE void widen(const uint8_t* p, F (&w)[4]) {
    const hn::Repartition<uint8_t, FloatTag> d8;
    const hn::Repartition<uint32_t, FloatTag> d32;
    split_bf16(hn::BitCast(d32, hn::LoadU(d8, p)), &w[0], &w[2]);
    split_bf16(hn::BitCast(d32, hn::LoadU(d8, p + 4 * kLanes)), &w[1], &w[3]);
  }
};

// E4M3 is moved into the fields of fp16, whose exponent is one bit wider and biased by 8 more: exact, subnormals included, and
// every processor with AVX2 or NEON converts fp16. The result is the value divided by 2^8.
constexpr int kE4m3Shift = 8;

struct E4m3Format {
  static constexpr int64_t kBlockBytes = kBlockColumns;
  static HWY_INLINE void widen(const uint8_t* p, F (&w)[4]) {
    const hn::Repartition<uint8_t, FloatTag> d8;
    const hn::Repartition<int16_t, FloatTag> d16;
    const auto words = hn::BitCast(d16, hn::LoadU(d8, p));
    const auto fields = hn::Set(d16, static_cast<int16_t>(0xbf80));
    widen_halves(hn::And(hn::ShiftRight<1>(hn::ShiftLeft<8>(words)), fields), &w[0], &w[1]);
    widen_halves(hn::And(hn::ShiftRight<1>(words), fields), &w[2], &w[3]);
  }

  static HWY_INLINE void widen_halves(hn::Vec<hn::Repartition<int16_t, FloatTag>> v, F* lower, F* upper) {
    const hn::Rebind<int16_t, FloatTag> half;
    const hn::Rebind<hwy::float16_t, FloatTag> half16;
    *lower = hn::PromoteTo(FloatTag(), hn::BitCast(half16, hn::LowerHalf(half, v)));
    *upper = hn::PromoteTo(FloatTag(), hn::BitCast(half16, hn::UpperHalf(half, v)));
  }
};

// A block of E2M1: 8 vectors from one vector of codes. Every 128-bit part of a widened vector holds columns of one group of 32,
// so that the scales of a block are one vector, too.
constexpr int64_t kFp4Vectors = 8;
constexpr int64_t kFp4Columns = kFp4Vectors * kLanes;
constexpr int64_t kFp4Bytes = kFp4Columns / 2;
constexpr int64_t kFp4Groups = kLanes / 4;

class E2m1Decoder {
 public:
  using D32 = hn::Repartition<uint32_t, FloatTag>;

#if HWY_TARGET == HWY_AVX3
  /// Column of lane i < 4 of vector n within its group.
  static constexpr int64_t column(int64_t n, int64_t i) { return 8 * i + n; }

  E2m1Decoder() : table_(hn::LoadU(FloatTag(), kE2m1Values.data())) {}

  HWY_INLINE void widen(const uint8_t* codes, F (&w)[kFp4Vectors]) const {
    const auto v = hn::BitCast(D32(), hn::LoadU(hn::Repartition<uint8_t, FloatTag>(), codes));
    w[0] = look_up(v);
    w[1] = look_up(hn::ShiftRight<4>(v));
    w[2] = look_up(hn::ShiftRight<8>(v));
    w[3] = look_up(hn::ShiftRight<12>(v));
    w[4] = look_up(hn::ShiftRight<16>(v));
    w[5] = look_up(hn::ShiftRight<20>(v));
    w[6] = look_up(hn::ShiftRight<24>(v));
    w[7] = look_up(hn::ShiftRight<28>(v));
  }

 private:
  // The instruction reads four bits of the index. Highway's own look-up wants the others to be zero.
  HWY_INLINE F look_up(hn::Vec<D32> index) const { return F{_mm512_permutexvar_ps(index.raw, table_.raw)}; }

  F table_;
#else
  static constexpr int64_t column(int64_t n, int64_t i) { return 4 * i + (n & 1) * 2 + (n & 2) * 8 + (n >> 2); }

  E2m1Decoder() : low_(hn::LoadDup128(D8(), kLow)), high_(hn::LoadDup128(D8(), kHigh)) {}

  HWY_INLINE void widen(const uint8_t* codes, F (&w)[kFp4Vectors]) const {
    const auto bytes = hn::LoadU(D8(), codes);
    const auto nibble = hn::Set(D8(), 15);
    widen_codes(hn::And(bytes, nibble), &w[0]);
    widen_codes(hn::And(hn::BitCast(D8(), hn::ShiftRight<4>(hn::BitCast(D16(), bytes))), nibble), &w[4]);
  }

 private:
  using D8 = hn::Repartition<uint8_t, FloatTag>;
  using D16 = hn::Repartition<uint16_t, FloatTag>;

  // The bytes of the codes' bf16 values.
  alignas(16) static constexpr uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                                   0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
  alignas(16) static constexpr uint8_t kHigh[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                    0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};

  HWY_INLINE void widen_codes(hn::Vec<D8> codes, F* w) const {
    const auto low = hn::TableLookupBytes(low_, codes);
    const auto high = hn::TableLookupBytes(high_, codes);
    split_bf16(hn::BitCast(D32(), hn::InterleaveLower(D8(), low, high)), &w[0], &w[1]);
    split_bf16(hn::BitCast(D32(), hn::InterleaveUpper(D8(), low, high)), &w[2], &w[3]);
  }

  hn::Vec<D8> low_, high_;
#endif
};

/// Values of kLanes E8M0 bytes, which are those of four blocks of E2M1. Byte 0 gives 0.
HWY_INLINE F load_scales(const uint8_t* p) {
  const hn::Rebind<uint8_t, FloatTag> d8;
  const hn::Repartition<uint32_t, FloatTag> d32;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::PromoteTo(d32, hn::LoadU(d8, p))));
}

struct ScaleLanes {
  alignas(64) int32_t index[4][kLanes];
};
constexpr ScaleLanes make_scale_lanes() {
  ScaleLanes s{};
  for (int64_t q = 0; q < 4; ++q) {
    for (int64_t i = 0; i < kLanes; ++i) s.index[q][i] = static_cast<int32_t>(q * kFp4Groups + i / 4);
  }
  return s;
}
constexpr ScaleLanes kScaleLanes = make_scale_lanes();

/// Scales of block q of those four, each in the lanes of its group.
HWY_INLINE F spread_scales(F scales, int64_t q) {
  return hn::TableLookupLanes(scales, hn::SetTableIndices(FloatTag(), kScaleLanes.index[q]));
}

}  // namespace deepinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
