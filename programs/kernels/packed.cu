// Packed integers in a word, carries and numbers wider than a register.
#include "suite.h"

// Applies `f` to each pair of 16-bit halves or bytes of two words.
template <typename Part, typename F> static uint32_t each(uint32_t a, uint32_t b, F f) {
    constexpr int kBits = 8 * sizeof(Part);
    uint32_t result = 0;
    for (int shift = 0; shift < 32; shift += kBits) {
        int32_t part = f(static_cast<Part>(a >> shift), static_cast<Part>(b >> shift));
        result |= (static_cast<uint32_t>(part) & ((1ull << kBits) - 1)) << shift;
    }
    return result;
}
template <typename Part, typename F> static uint32_t total(uint32_t a, uint32_t b, F f) {
    uint32_t sum = 0;
    for (int shift = 0; shift < 32; shift += 8 * sizeof(Part)) {
        sum += static_cast<uint32_t>(f(static_cast<Part>(a >> shift), static_cast<Part>(b >> shift)));
    }
    return sum;
}
static int32_t clamp(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

using I = int32_t;
#define PACKED1(NAME, PART, DEVICE, BODY)                                                                              \
    REF1(NAME, uint32_t, uint32_t, DEVICE, each<PART>(a, a, [](I x, I) -> I { return BODY; }))
#define PACKED(NAME, PART, DEVICE, BODY)                                                                               \
    REF2(NAME, uint32_t, uint32_t, DEVICE, each<PART>(a, b, [](I x, I y) -> I { return BODY; }))
PACKED1(vabs2, int16_t, __vabs2(a), x < 0 ? -x : x)
PACKED1(vabsss2, int16_t, __vabsss2(a), clamp(x < 0 ? -x : x, 0, 32767))
PACKED(vadd2, int16_t, __vadd2(a, b), x + y)
PACKED(vaddss2, int16_t, __vaddss2(a, b), clamp(x + y, -32768, 32767))
PACKED(vaddus2, uint16_t, __vaddus2(a, b), clamp(x + y, 0, 65535))
PACKED(vsub2, int16_t, __vsub2(a, b), x - y)
PACKED(vsubss2, int16_t, __vsubss2(a, b), clamp(x - y, -32768, 32767))
PACKED(vsubus2, uint16_t, __vsubus2(a, b), clamp(x - y, 0, 65535))
PACKED1(vneg2, int16_t, __vneg2(a), -x)
PACKED1(vnegss2, int16_t, __vnegss2(a), clamp(-x, -32768, 32767))
PACKED(vabsdiffs2, int16_t, __vabsdiffs2(a, b), x > y ? x - y : y - x)
PACKED(vabsdiffu2, uint16_t, __vabsdiffu2(a, b), x > y ? x - y : y - x)
PACKED(vavgs2, int16_t, __vavgs2(a, b), (x + y + (x + y >= 0)) >> 1)
PACKED(vavgu2, uint16_t, __vavgu2(a, b), (x + y + 1) >> 1)
PACKED(vhaddu2, uint16_t, __vhaddu2(a, b), (x + y) >> 1)
PACKED(vmaxs2, int16_t, __vmaxs2(a, b), x > y ? x : y)
PACKED(vminu2, uint16_t, __vminu2(a, b), x < y ? x : y)
PACKED(vcmpeq2, int16_t, __vcmpeq2(a, b), x == y ? -1 : 0)
PACKED(vcmpgts2, int16_t, __vcmpgts2(a, b), x > y ? -1 : 0)
PACKED(vcmpleu2, uint16_t, __vcmpleu2(a, b), x <= y ? -1 : 0)
PACKED(vseteq2, int16_t, __vseteq2(a, b), x == y)
PACKED(vsetlts2, int16_t, __vsetlts2(a, b), x < y)
PACKED1(vabs4, int8_t, __vabs4(a), x < 0 ? -x : x)
PACKED(vadd4, int8_t, __vadd4(a, b), x + y)
PACKED(vaddss4, int8_t, __vaddss4(a, b), clamp(x + y, -128, 127))
PACKED(vaddus4, uint8_t, __vaddus4(a, b), clamp(x + y, 0, 255))
PACKED(vsub4, int8_t, __vsub4(a, b), x - y)
PACKED(vsubss4, int8_t, __vsubss4(a, b), clamp(x - y, -128, 127))
PACKED(vsubus4, uint8_t, __vsubus4(a, b), clamp(x - y, 0, 255))
PACKED(vabsdiffs4, int8_t, __vabsdiffs4(a, b), x > y ? x - y : y - x)
PACKED(vabsdiffu4, uint8_t, __vabsdiffu4(a, b), x > y ? x - y : y - x)
PACKED(vavgu4, uint8_t, __vavgu4(a, b), (x + y + 1) >> 1)
PACKED(vmaxs4, int8_t, __vmaxs4(a, b), x > y ? x : y)
PACKED(vminu4, uint8_t, __vminu4(a, b), x < y ? x : y)
PACKED(vcmpne4, int8_t, __vcmpne4(a, b), x != y ? -1 : 0)
PACKED(vcmpgeu4, uint8_t, __vcmpgeu4(a, b), x >= y ? -1 : 0)
PACKED(vsetgts4, int8_t, __vsetgts4(a, b), x > y)
#define TOTALLED(NAME, PART, DEVICE)                                                                                   \
    REF2(NAME, uint32_t, uint32_t, DEVICE, total<PART>(a, b, [](I x, I y) -> I { return x > y ? x - y : y - x; }))
TOTALLED(vsads2, int16_t, __vsads2(a, b))
TOTALLED(vsadu2, uint16_t, __vsadu2(a, b))
TOTALLED(vsads4, int8_t, __vsads4(a, b))
TOTALLED(vsadu4, uint8_t, __vsadu4(a, b))

__device__ uint32_t asm_vabsdiff4_add(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
REF3(vabsdiff4_add, uint32_t, uint32_t, asm_vabsdiff4_add(a, b, c),
     total<uint8_t>(a, b, [](I x, I y) -> I { return x > y ? x - y : y - x; }) + c)

// Three-way and fused minimum and maximum.
REF3(vimin3, int32_t, int32_t, __vimin3_s32(a, b, c), a < b ? (a < c ? a : c) : (b < c ? b : c))
REF3(vimax3_relu, int32_t, int32_t, __vimax3_s32_relu(a, b, c),
     [](I m) { return m < 0 ? 0 : m; }(a > b ? (a > c ? a : c) : (b > c ? b : c)))
REF3(viaddmax, int32_t, int32_t, __viaddmax_s32(a & 0xffffff, b & 0xffffff, c),
     (a & 0xffffff) + (b & 0xffffff) > c ? (a & 0xffffff) + (b & 0xffffff) : c)

// ---- Carries ----

struct Wide {
    uint64_t low, high;
};
namespace suite {
template <> struct Domain<Wide> {
    static std::vector<Wide> edges() {
        std::vector<Wide> edges;
        for (uint64_t low : {0ull, 1ull, ~0ull, 1ull << 63, 0xffffffffull}) {
            for (uint64_t high : {0ull, 1ull, ~0ull, 1ull << 63, 0x100000000ull}) {
                edges.push_back({low, high});
            }
        }
        return edges;
    }
    static Wide random(Random &random) { return {Domain<uint64_t>::random(random), Domain<uint64_t>::random(random)}; }
};
} // namespace suite
using u128 = unsigned __int128;
using s128 = __int128;
__host__ __device__ inline u128 join(Wide a) { return static_cast<u128>(a.high) << 64 | a.low; }
__host__ __device__ inline Wide split(u128 a) { return {static_cast<uint64_t>(a), static_cast<uint64_t>(a >> 64)}; }

__device__ Wide carry_add(Wide a, Wide b) {
    uint32_t d0, d1, d2, d3;
    asm("add.cc.u32 %0, %4, %8;\n\taddc.cc.u32 %1, %5, %9;\n\taddc.cc.u32 %2, %6, %10;\n\taddc.u32 %3, %7, %11;"
        : "=&r"(d0), "=&r"(d1), "=&r"(d2), "=&r"(d3)
        : "r"(uint32_t(a.low)), "r"(uint32_t(a.low >> 32)), "r"(uint32_t(a.high)), "r"(uint32_t(a.high >> 32)),
          "r"(uint32_t(b.low)), "r"(uint32_t(b.low >> 32)), "r"(uint32_t(b.high)), "r"(uint32_t(b.high >> 32)));
    return {uint64_t(d1) << 32 | d0, uint64_t(d3) << 32 | d2};
}
__device__ Wide carry_sub(Wide a, Wide b) {
    Wide d;
    asm("sub.cc.u64 %0, %2, %4;\n\tsubc.u64 %1, %3, %5;"
        : "=&l"(d.low), "=l"(d.high)
        : "l"(a.low), "l"(a.high), "l"(b.low), "l"(b.high));
    return d;
}
__device__ Wide carry_product(uint64_t a, uint64_t b) {
    uint32_t a0 = uint32_t(a), a1 = uint32_t(a >> 32), b0 = uint32_t(b), b1 = uint32_t(b >> 32), d0, d1, d2, d3;
    asm("mul.lo.u32 %0, %4, %6;\n\t"
        "mul.hi.u32 %1, %4, %6;\n\t"
        "mad.lo.cc.u32 %1, %4, %7, %1;\n\t"
        "madc.hi.u32 %2, %4, %7, 0;\n\t"
        "mad.lo.cc.u32 %1, %5, %6, %1;\n\t"
        "madc.hi.cc.u32 %2, %5, %6, %2;\n\t"
        "addc.u32 %3, 0, 0;\n\t"
        "mad.lo.cc.u32 %2, %5, %7, %2;\n\t"
        "madc.hi.u32 %3, %5, %7, %3;"
        : "=&r"(d0), "=&r"(d1), "=&r"(d2), "=&r"(d3)
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
    return {uint64_t(d1) << 32 | d0, uint64_t(d3) << 32 | d2};
}
__device__ Wide carry_mad64(Wide a, Wide b) {
    Wide d;
    asm("mad.lo.cc.u64 %0, %2, %3, %4;\n\tmadc.hi.u64 %1, %2, %3, %5;"
        : "=&l"(d.low), "=&l"(d.high)
        : "l"(a.low), "l"(b.low), "l"(a.high), "l"(b.high));
    return d;
}
REF2(add_carry_u32, Wide, Wide, carry_add(a, b), split(join(a) + join(b)))
REF2(sub_borrow_u64, Wide, Wide, carry_sub(a, b), split(join(a) - join(b)))
REF2(mad_carry_u32, Wide, uint64_t, carry_product(a, b), split(static_cast<u128>(a) * b))
REF2(mad_carry_u64, Wide, Wide, carry_mad64(a, b),
     split(static_cast<u128>(a.low) * b.low + (static_cast<u128>(b.high) << 64 | a.high)))

// 128-bit integers of the compiler.
MAP2(add_sub_u128, Wide, Wide, split(join(a) + join(b) * 3 - (join(b) >> 5)))
MAP2(mul_u128, Wide, Wide, split(join(a) * join(b)))
MAP2(div_u128, Wide, Wide, split(join(b) == 0 ? join(a) : join(a) / join(b)))
MAP2(rem_u128, Wide, Wide, split(join(b) == 0 ? join(a) : join(a) % join(b)))
MAP2(div_s128, Wide, Wide,
     split(join(b) == 0 || ~join(b) == 0 ? join(a)
                                         : static_cast<u128>(static_cast<s128>(join(a)) / static_cast<s128>(join(b)))))
MAP2(shift_u128, Wide, Wide, split((join(a) << (b.low & 127)) ^ (join(a) >> (b.high & 127))))
MAP2(compare_u128, uint32_t, Wide,
     (join(a) < join(b)) | (join(a) == join(b)) << 1 | (static_cast<s128>(join(a)) < static_cast<s128>(join(b))) << 2)

// ---- Hashes and generators ----

MAP2(murmur_mix, uint32_t, uint32_t,
     ((((a ^ (a >> 16)) * 0x85ebca6bu) ^ (b * 0xcc9e2d51u)) << 13 |
      (((a ^ (a >> 16)) * 0x85ebca6bu) ^ (b * 0xcc9e2d51u)) >> 19) *
             5 +
         0xe6546b64u)
__host__ __device__ inline uint64_t splitmix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
MAP1(splitmix_u64, uint64_t, uint64_t, splitmix(splitmix(a)))
__host__ __device__ inline uint32_t pcg(uint64_t state) {
    for (int i = 0; i < 5; ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
    }
    uint32_t shifted = static_cast<uint32_t>(((state >> 18) ^ state) >> 27),
             rotation = static_cast<uint32_t>(state >> 59);
    return (shifted >> rotation) | (shifted << ((0 - rotation) & 31));
}
MAP1(pcg_u32, uint32_t, uint64_t, pcg(a))
__host__ __device__ inline uint32_t gcd(uint32_t a, uint32_t b) {
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
MAP2(gcd_u32, uint32_t, uint32_t, gcd(a, b))
__host__ __device__ inline uint32_t power_modulo(uint32_t base, uint32_t exponent, uint32_t modulus) {
    uint64_t result = 1 % modulus, square = base % modulus;
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1) {
            result = result * square % modulus;
        }
        square = square * square % modulus;
    }
    return static_cast<uint32_t>(result);
}
MAP3(power_modulo_u32, uint32_t, uint32_t, power_modulo(a, b, c | 1))
__host__ __device__ inline uint32_t root(uint64_t x) {
    uint64_t result = 0;
    for (uint64_t bit = 1ull << 31; bit != 0; bit >>= 1) {
        if ((result | bit) * (result | bit) <= x) {
            result |= bit;
        }
    }
    return static_cast<uint32_t>(result);
}
MAP1(integer_root_u64, uint32_t, uint64_t, root(a))
__host__ __device__ inline uint32_t morton(uint32_t x, uint32_t y) {
    uint32_t code = 0;
    for (int bit = 0; bit < 16; ++bit) {
        code |= (x >> bit & 1) << (2 * bit) | (y >> bit & 1) << (2 * bit + 1);
    }
    return code;
}
MAP2(morton_u32, uint32_t, uint32_t, morton(a, b))
SUITE_MAIN("packed")
