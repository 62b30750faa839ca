// Kernels of the programs beside this file; they are loaded as a cubin and as PTX.

// Runs until the word is written, or for so long.
extern "C" __global__ void spin(volatile unsigned *word, volatile unsigned *started, unsigned long long limit_ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    *started = 1;
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*word == 0 && now - begin < limit_ns);
}

extern "C" __global__ void tick(unsigned *count) { atomicAdd(count, 1); }

// A step of an inference: so many cycles.
extern "C" __global__ void step(long long cycles) {
    for (long long begin = clock64(); clock64() - begin < cycles;) {
    }
}

#ifndef WITHOUT_VARIABLES
__device__ unsigned global_word;
#else
constexpr unsigned global_word = 1;
#endif
extern "C" __global__ void plain(unsigned *out) { *out += global_word; }
extern "C" __global__ void other(unsigned *out) { *out += 2; }

// Each has more local memory than the one before.
#define FRAME(name, bytes)                                                   \
    extern "C" __global__ void name(unsigned *out, unsigned at) {            \
        volatile unsigned frame[bytes / 4];                                  \
        for (unsigned i = 0; i < bytes / 4; ++i) {                           \
            frame[i] = i ^ at;                                               \
        }                                                                    \
        *out = frame[at % (bytes / 4)];                                      \
    }
FRAME(frame_0, 4096)
FRAME(frame_1, 8192)
FRAME(frame_2, 16384)
