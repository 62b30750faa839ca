// Hashes, checksums, ciphers and generators by their published values; transforms, strings and numbers.
#include "suite.h"

#include <algorithm>
#include <string>

// ---- Hashes, checksums and ciphers ----

__constant__ uint32_t sha_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
__device__ uint32_t rotated(uint32_t x, int by) { return x >> by | x << (32 - by); }
// One padded block of up to 55 bytes per thread.
__global__ void sha256(const uint8_t *messages, int length, uint32_t *digests) {
    uint32_t w[64],
        state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block[64] = {};
    for (int i = 0; i < length; ++i) {
        block[i] = messages[threadIdx.x * length + i];
    }
    block[length] = 0x80;
    block[62] = static_cast<uint8_t>(length * 8 >> 8);
    block[63] = static_cast<uint8_t>(length * 8);
    for (int i = 0; i < 16; ++i) {
        w[i] = block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
        uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3,
                 s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
             h = state[7];
    for (int i = 0; i < 64; ++i) {
        uint32_t t1 =
            h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + sha_constants[i] + w[i];
        uint32_t t2 = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) {
        digests[threadIdx.x * 8 + i] = state[i] + sums[i];
    }
}
// The published digest of "abc", by every thread.
CASE(sha256) {
    std::vector<uint8_t> messages;
    std::vector<uint32_t> expected;
    for (int i = 0; i < 32; ++i) {
        messages.insert(messages.end(), {'a', 'b', 'c'});
        expected.insert(expected.end(), {0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c,
                                         0xb410ff61, 0xf20015ad});
    }
    DeviceArray<uint8_t> device_messages(messages);
    DeviceArray<uint32_t> digests(expected.size());
    suite::launch(sha256, 1, 32, device_messages.get(), 3, digests.get());
    suite::compare(digests, expected);
}

// CRC-32 with a table that the block computes first; the published check value is that of "123456789".
__global__ void crc32(const uint8_t *texts, int length, uint32_t *out) {
    __shared__ uint32_t table[256];
    for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) {
        uint32_t entry = i;
        for (int bit = 0; bit < 8; ++bit) {
            entry = entry & 1 ? entry >> 1 ^ 0xedb88320u : entry >> 1;
        }
        table[i] = entry;
    }
    __syncthreads();
    uint32_t crc = 0xffffffffu;
    for (int i = 0; i < length; ++i) {
        crc = crc >> 8 ^ table[(crc ^ texts[threadIdx.x * length + i]) & 0xff];
    }
    out[threadIdx.x] = ~crc;
}
CASE(crc32) {
    std::vector<uint8_t> texts;
    std::vector<uint32_t> expected;
    for (int thread = 0; thread < 48; ++thread) {
        std::string text = "123456789";
        std::rotate(text.begin(), text.begin() + thread % 9, text.end());
        texts.insert(texts.end(), text.begin(), text.end());
        uint32_t crc = 0xffffffffu;
        for (char letter : text) {
            crc ^= static_cast<uint8_t>(letter);
            for (int bit = 0; bit < 8; ++bit) {
                crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
            }
        }
        expected.push_back(~crc);
    }
    HOLDS(expected[0] == 0xcbf43926u);
    DeviceArray<uint8_t> device_texts(texts);
    DeviceArray<uint32_t> out(expected.size());
    suite::launch(crc32, 1, 48, device_texts.get(), 9, out.get());
    suite::compare(out, expected);
}

__host__ __device__ inline uint32_t adler(uint32_t seed) {
    uint32_t a = 1, b = 0;
    for (int i = 0; i < 40; ++i) {
        a = (a + (seed >> (i % 4 * 8) & 0xff)) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}
MAP1(adler32, uint32_t, uint32_t, adler(a))

__host__ __device__ inline uint64_t xtea(uint32_t v0, uint32_t v1) {
    const uint32_t key[4] = {0x01234567, 0x89abcdef, 0xfedcba98, 0x76543210};
    uint32_t sum = 0;
    for (int round = 0; round < 32; ++round) {
        v0 += (((v1 << 4) ^ (v1 >> 5)) + v1) ^ (sum + key[sum & 3]);
        sum += 0x9e3779b9;
        v1 += (((v0 << 4) ^ (v0 >> 5)) + v0) ^ (sum + key[sum >> 11 & 3]);
    }
    return static_cast<uint64_t>(v0) << 32 | v1;
}
MAP2(xtea_cipher, uint64_t, uint32_t, xtea(a, b))

__host__ __device__ inline void quarter_round(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d) {
    a += b, d ^= a, d = d << 16 | d >> 16;
    c += d, b ^= c, b = b << 12 | b >> 20;
    a += b, d ^= a, d = d << 8 | d >> 24;
    c += d, b ^= c, b = b << 7 | b >> 25;
}
__host__ __device__ inline uint32_t chacha(uint32_t seed) {
    uint32_t x[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    for (uint32_t i = 4; i < 16; ++i) {
        x[i] = seed * i;
    }
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < 4; ++i) {
            quarter_round(x[i], x[4 + i], x[8 + i], x[12 + i]);
        }
        for (int i = 0; i < 4; ++i) {
            quarter_round(x[i], x[4 + (i + 1) % 4], x[8 + (i + 2) % 4], x[12 + (i + 3) % 4]);
        }
    }
    return x[0] ^ x[5] ^ x[10] ^ x[15] ^ x[3] << 1;
}
MAP1(chacha20, uint32_t, uint32_t, chacha(a))

// Philox 4x32-10 by products' high words; the reference test vector for a zero counter and key.
struct Philox {
    uint32_t word[4];
};
__device__ Philox philox(Philox counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        uint32_t low0 = counter.word[0] * 0xd2511f53u, high0 = __umulhi(counter.word[0], 0xd2511f53u);
        uint32_t low1 = counter.word[2] * 0xcd9e8d57u, high1 = __umulhi(counter.word[2], 0xcd9e8d57u);
        counter = {{high1 ^ counter.word[1] ^ key0, low1, high0 ^ counter.word[3] ^ key1, low0}};
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return counter;
}
__global__ void philox_stream(uint32_t *out) {
    Philox random = philox({{threadIdx.x, 0, 0, 0}}, 0, 0);
    for (int i = 0; i < 4; ++i) {
        out[4 * threadIdx.x + i] = random.word[i];
    }
}
CASE(philox_stream) {
    std::vector<uint32_t> expected;
    for (uint32_t thread = 0; thread < 64; ++thread) {
        uint32_t c[4] = {thread, 0, 0, 0}, key[2] = {0, 0};
        for (int round = 0; round < 10; ++round) {
            uint64_t p = uint64_t(c[0]) * 0xd2511f53u, q = uint64_t(c[2]) * 0xcd9e8d57u;
            uint32_t next[4] = {uint32_t(q >> 32) ^ c[1] ^ key[0], uint32_t(q), uint32_t(p >> 32) ^ c[3] ^ key[1],
                                uint32_t(p)};
            std::copy(next, next + 4, c);
            key[0] += 0x9e3779b9u;
            key[1] += 0xbb67ae85u;
        }
        expected.insert(expected.end(), c, c + 4);
    }
    HOLDS(expected[0] == 0x6627e8d5u && expected[1] == 0xe169c58du && expected[2] == 0xbc57ac4cu &&
          expected[3] == 0x9b00dbd8u);
    DeviceArray<uint32_t> out(256);
    suite::launch(philox_stream, 1, 64, out.get());
    suite::compare(out, expected);
}

// ---- Transforms, strings and numbers ----

// A fast Fourier transform of 128 points by steps of two, against sums in double precision.
__global__ void fft_128(const float2 *in, float2 *out) {
    __shared__ float2 data[128];
    unsigned i = threadIdx.x;
    data[__brev(i) >> 25] = in[i];
    for (unsigned half = 1; half < 128; half *= 2) {
        __syncthreads();
        if (i < 64) {
            unsigned k = i % half, low = i / half * half * 2 + k;
            float sine, cosine;
            sincospif(-static_cast<float>(k) / static_cast<float>(half), &sine, &cosine);
            float2 a = data[low], b = data[low + half], turned = {b.x * cosine - b.y * sine, b.x * sine + b.y * cosine};
            data[low] = {a.x + turned.x, a.y + turned.y};
            data[low + half] = {a.x - turned.x, a.y - turned.y};
        }
    }
    __syncthreads();
    out[i] = data[i];
}
CASE(fft_128) {
    std::vector<float2> in;
    for (int i = 0; i < 128; ++i) {
        in.push_back({static_cast<float>(i * i % 17) - 8, static_cast<float>(i * 7 % 11) - 5});
    }
    DeviceArray<float2> device_in(in), out(128);
    suite::launch(fft_128, 1, 128, device_in.get(), out.get());
    const std::vector<float2> got = out.to_host();
    for (int k = 0; k < 128; ++k) {
        double real = 0, imaginary = 0;
        for (int i = 0; i < 128; ++i) {
            double angle = -2 * 3.14159265358979323846 * (i * k % 128) / 128;
            real += in[i].x * std::cos(angle) - in[i].y * std::sin(angle);
            imaginary += in[i].x * std::sin(angle) + in[i].y * std::cos(angle);
        }
        HOLDS(std::fabs(got[k].x - real) < 1e-3 && std::fabs(got[k].y - imaginary) < 1e-3);
    }
}
// A number-theoretic transform modulo 998244353: exact.
__host__ __device__ inline uint32_t power(uint32_t base, uint32_t exponent) {
    uint64_t result = 1, square = base;
    for (; exponent != 0; exponent >>= 1, square = square * square % 998244353) {
        result = exponent & 1 ? result * square % 998244353 : result;
    }
    return static_cast<uint32_t>(result);
}
__global__ void number_transform(uint32_t *data) {
    __shared__ uint32_t words[64];
    unsigned i = threadIdx.x;
    words[__brev(i) >> 26] = data[i];
    for (unsigned half = 1; half < 64; half *= 2) {
        __syncthreads();
        if (i < 32) {
            unsigned k = i % half, low = i / half * half * 2 + k;
            uint32_t root = power(3, 998244352 / (2 * half) * k);
            uint32_t a = words[low],
                     b = static_cast<uint32_t>(static_cast<uint64_t>(words[low + half]) * root % 998244353);
            words[low] = (a + b) % 998244353;
            words[low + half] = (a + 998244353 - b) % 998244353;
        }
    }
    __syncthreads();
    data[i] = words[i];
}
CASE(number_transform) {
    std::vector<uint32_t> data, expected;
    for (uint32_t i = 0; i < 64; ++i) {
        data.push_back(i * i * 7919 % 998244353);
    }
    for (uint32_t k = 0; k < 64; ++k) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < 64; ++i) {
            sum += static_cast<uint64_t>(data[i]) * power(3, 998244352 / 64 * (i * k % 64)) % 998244353;
        }
        expected.push_back(static_cast<uint32_t>(sum % 998244353));
    }
    DeviceArray<uint32_t> device(data);
    suite::launch(number_transform, 1, 64, device.get());
    suite::compare(device, expected);
}
__global__ void count_matches(const char *text, int length, const char *pattern, int size, int *matches) {
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at + size <= length; at += gridDim.x * blockDim.x) {
        int i = 0;
        while (i < size && text[at + i] == pattern[i]) {
            ++i;
        }
        if (i == size) {
            atomicAdd(matches, 1);
        }
    }
}
CASE(count_matches) {
    std::vector<char> text;
    for (uint32_t x = 1; text.size() < 3000; x = x * 1664525u + 1013904223u) {
        text.push_back("abab"[x >> 30]);
    }
    const std::string pattern = "abba", all(text.begin(), text.end());
    int expected = 0;
    for (size_t at = all.find(pattern); at != std::string::npos; at = all.find(pattern, at + 1)) {
        ++expected;
    }
    DeviceArray<char> device_text(text), device_pattern(std::vector<char>(pattern.begin(), pattern.end()));
    DeviceArray<int> matches(std::vector<int>(1, 0));
    suite::launch(count_matches, 3, 128, device_text.get(), 3000, device_pattern.get(), 4, matches.get());
    suite::compare(matches, {expected});
}
__global__ void sieve(uint8_t *composite, int limit) {
    for (int p = 2; p * p <= limit; ++p) {
        if (!composite[p]) {
            for (int multiple = p * p + threadIdx.x * p; multiple <= limit; multiple += blockDim.x * p) {
                composite[multiple] = 1;
            }
        }
        __syncthreads();
    }
}
CASE(sieve) {
    constexpr int kLimit = 2000;
    std::vector<uint8_t> expected(kLimit + 1, 0);
    for (int i = 4; i <= kLimit; ++i) {
        for (int divisor = 2; divisor * divisor <= i; ++divisor) {
            expected[i] |= i % divisor == 0;
        }
    }
    DeviceArray<uint8_t> composite(std::vector<uint8_t>(kLimit + 1, 0));
    suite::launch(sieve, 1, 128, composite.get(), kLimit);
    suite::compare(composite, expected);
}
// The area of a quarter circle, by an integer generator and exact counting.
__global__ void monte_carlo(uint64_t *inside, int tries) {
    uint32_t x = 12345 + 7919 * (blockIdx.x * blockDim.x + threadIdx.x);
    unsigned count = 0;
    for (int i = 0; i < tries; ++i) {
        x = x * 1664525u + 1013904223u;
        uint64_t a = x >> 12;
        x = x * 1664525u + 1013904223u;
        uint64_t b = x >> 12;
        count += a * a + b * b < 1ull << 40;
    }
    unsigned sum = __popc(__ballot_sync(0xffffffffu, count & 1));
    for (int bit = 1; bit < 16; ++bit) {
        sum += __popc(__ballot_sync(0xffffffffu, count >> bit & 1)) << bit;
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(inside), static_cast<unsigned long long>(sum));
    }
}
CASE(monte_carlo) {
    constexpr int kThreads = 256, kTries = 100;
    uint64_t expected = 0;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
        uint32_t x = 12345 + 7919 * thread;
        for (int i = 0; i < kTries; ++i) {
            x = x * 1664525u + 1013904223u;
            uint64_t a = x >> 12;
            x = x * 1664525u + 1013904223u;
            uint64_t b = x >> 12;
            expected += a * a + b * b < 1ull << 40;
        }
    }
    DeviceArray<uint64_t> inside(std::vector<uint64_t>(1, 0));
    suite::launch(monte_carlo, 4, 64, inside.get(), kTries);
    suite::compare(inside, {expected});
}
SUITE_MAIN("hashes")
