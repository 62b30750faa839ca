/* Managed memory: what the host and kernels make of it together. It does what it reads from standard input, and answers each line
 * with "ok", or ends with what was wrong.
 *
 * add               two arrays that the host fills, a kernel adds, the host checks
 * stencil           arrays that are swapped, and a word that the host reads, for each step
 * calls             read, write, pread and readv straight into and out of memory that the device has
 * threads           several threads touch the same blocks at once, and others
 * handler           a handler of SIGSEGV of the program's own
 * beside            the host writes and reads beside a kernel that writes between its words
 * copies            copies and fills of every kind
 * again             memory that is freed and allocated again
 * fork              a child, which may have the memory or not
 * fork gone         a child, which must not
 * variable          a managed variable that the host finds while a kernel that writes it runs
 * waiters           two threads that wait for kernels of their own, each of which writes a managed variable
 * shared event      a managed variable, once an event of processes is reached
 * thrown away       pages that the program throws away, and the rest of their blocks
 * full              managed memory for a program that has all that it may have
 * hint              advice and prefetches, and what is said of them
 * attached          memory that only the host uses stays with it beside kernels, until kernels may use it again
 * prefetched        what was prefetched to the host is there once the stream was waited for
 * locked            memory that the program has locked
 * random SEED STEPS two threads with a stream each: touches, system calls, copies, kernels, hints, frees, against a model
 * take MIB          allocates, has the device write all of it, and keeps it
 * write             the host writes all that was taken anew
 * look              whether all that was taken is right
 */
#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

enum { THREADS = 256, PAGE = 4096 };

/* add(to, from): to[i] += from[i]
 * set(to, value): to[i] = value + i
 * smooth(to, from, count): to[i] = from[i] + from[(i + 1) % count]
 * raise(to, which, by): to[2 * i + which] += by
 * wait(flag, to, value): once *flag is not 0, to[2 * i + 1] = value + i */
#define INDEX                                                                  \
    "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;\n"      \
    "mad.lo.u32 %r3, %r0, %r1, %r2; mul.wide.u32 %rd2, %r3, 4;\n"
static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry add(.param .u64 to, .param .u64 from)\n{\n"
    ".reg .b32 %r<8>; .reg .b64 %rd<6>;\n"
    "ld.param.u64 %rd0, [to]; ld.param.u64 %rd1, [from];\n" INDEX
    "add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;\n"
    "ld.global.u32 %r4, [%rd3]; ld.global.u32 %r5, [%rd4]; add.u32 %r4, %r4, %r5; st.global.u32 [%rd3], %r4;\nret;\n}\n"
    ".visible .entry set(.param .u64 to, .param .u32 value)\n{\n"
    ".reg .b32 %r<8>; .reg .b64 %rd<6>;\n"
    "ld.param.u64 %rd0, [to]; ld.param.u32 %r4, [value];\n" INDEX
    "add.u64 %rd3, %rd0, %rd2; add.u32 %r4, %r4, %r3; st.global.u32 [%rd3], %r4;\nret;\n}\n"
    ".visible .entry smooth(.param .u64 to, .param .u64 from, .param .u32 count)\n{\n"
    ".reg .b32 %r<9>; .reg .b64 %rd<8>;\n"
    "ld.param.u64 %rd0, [to]; ld.param.u64 %rd1, [from]; ld.param.u32 %r7, [count];\n" INDEX
    "add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2; ld.global.u32 %r4, [%rd4];\n"
    "add.u32 %r5, %r3, 1; rem.u32 %r5, %r5, %r7; mul.wide.u32 %rd5, %r5, 4; add.u64 %rd6, %rd1, %rd5;\n"
    "ld.global.u32 %r6, [%rd6]; add.u32 %r4, %r4, %r6; st.global.u32 [%rd3], %r4;\nret;\n}\n"
    ".visible .entry raise(.param .u64 to, .param .u32 which, .param .u32 by)\n{\n"
    ".reg .b32 %r<9>; .reg .b64 %rd<6>;\n"
    "ld.param.u64 %rd0, [to]; ld.param.u32 %r4, [which]; ld.param.u32 %r5, [by];\n" INDEX
    "mad.lo.u32 %r3, %r3, 2, %r4; mul.wide.u32 %rd2, %r3, 4; add.u64 %rd3, %rd0, %rd2;\n"
    "ld.global.u32 %r6, [%rd3]; add.u32 %r6, %r6, %r5; st.global.u32 [%rd3], %r6;\nret;\n}\n"
    ".visible .entry wait(.param .u64 flag, .param .u64 to, .param .u32 value)\n{\n"
    ".reg .b32 %r<9>; .reg .b64 %rd<6>; .reg .pred %p;\n"
    "ld.param.u64 %rd1, [flag]; ld.param.u64 %rd0, [to]; ld.param.u32 %r5, [value];\n"
    "LOOP: ld.volatile.global.u32 %r4, [%rd1]; setp.eq.u32 %p, %r4, 0; @%p bra LOOP;\n" INDEX
    "add.u32 %r5, %r5, %r3; shl.b64 %rd2, %rd2, 1; add.u64 %rd3, %rd0, %rd2; st.global.u32 [%rd3+4], %r5;\nret;\n}\n";

/* Variables, each of which a kernel sets once *flag is not 0. */
#define SET_VARIABLE(N)                                                        \
    ".visible .global .attribute(.managed) .align 4 .u32 v" #N ";\n"           \
    ".visible .entry set" #N "(.param .u64 flag, .param .u32 value)\n{\n"      \
    ".reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p;\n"                      \
    "ld.param.u64 %rd1, [flag]; ld.param.u32 %r1, [value];\n"                  \
    "LOOP: ld.volatile.global.u32 %r0, [%rd1]; setp.eq.u32 %p, %r0, 0; @%p bra LOOP;\n" \
    "st.global.u32 [v" #N "], %r1;\nret;\n}\n"
static const char variables_code[] = ".version 6.0\n.target sm_50\n.address_size 64\n" SET_VARIABLE(0) SET_VARIABLE(1);

static CUfunction add, set, smooth, raise_half, wait_for;
static CUmodule module;
static CUstream streams[2];

static void run(CUfunction function, CUstream stream, size_t count, void **parameters) {
    REQUIRE(count % THREADS == 0);
    CALL(cuLaunchKernel, function, count / THREADS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
}

static uint32_t *managed(size_t bytes) {
    CUdeviceptr at;
    CALL(cuMemAllocManaged, &at, bytes, CU_MEM_ATTACH_GLOBAL);
    return (uint32_t *)at;
}

static void give_back(void *at) { CALL(cuMemFree, (CUdeviceptr)at); }

static void synchronize(void) { CALL(cuCtxSynchronize); }

/* The device writes value + i to word i. */
static void set_all(uint32_t *to, size_t count, uint32_t value) {
    run(set, NULL, count, (void *[]){&to, &value});
}

static void must_be(const uint32_t *words, size_t i, uint32_t expected, const char *where) {
    uint32_t found = words[i];
    if (found != expected) {
        fprintf(stderr, "%s: word %zu is %u instead of %u\n", where, i, found, expected);
        exit(1);
    }
}

static void test_add(void) {
    enum { COUNT = 1 << 20 };
    uint32_t *a = managed(COUNT * 4), *b = managed(COUNT * 4);
    for (uint32_t i = 0; i < COUNT; ++i) {
        a[i] = i;
        b[i] = i * 7;
    }
    for (uint32_t turn = 1; turn <= 3; ++turn) {
        run(add, NULL, COUNT, (void *[]){&a, &b});
        synchronize();
        for (uint32_t i = 0; i < COUNT; i += turn == 2 ? 1 : 977)
            must_be(a, i, i + turn * i * 7, "add");
        /* One word goes there and back. */
        b[5] += 0;
    }
    give_back(a);
    give_back(b);
}

static void test_stencil(void) {
    enum { COUNT = 40 * THREADS, STEPS = 50 };
    uint32_t *from = managed(COUNT * 4), *to = managed(COUNT * 4), count = COUNT;
    static uint32_t expected[2][COUNT];
    for (uint32_t i = 0; i < COUNT; ++i)
        from[i] = expected[0][i] = i * i;
    for (int step = 0; step < STEPS; ++step) {
        run(smooth, NULL, COUNT, (void *[]){&to, &from, &count});
        synchronize();
        for (uint32_t i = 0; i < COUNT; ++i)
            expected[1][i] = expected[0][i] + expected[0][(i + 1) % COUNT];
        memcpy(expected[0], expected[1], sizeof expected[0]);
        must_be(to, step * 101 % COUNT, expected[0][step * 101 % COUNT], "stencil, a word");
        if (step % 7 == 3)
            to[step] = expected[0][step] = step;
        uint32_t *other = from;
        from = to;
        to = other;
    }
    for (uint32_t i = 0; i < COUNT; ++i)
        must_be(from, i, expected[0][i], "stencil");
    give_back(from);
    give_back(to);
}

static void test_calls(void) {
    enum { COUNT = 200 * THREADS, BYTES = COUNT * 4 };
    uint32_t *words = managed(BYTES);
    static uint32_t bytes[COUNT];
    int file = memfd_create("words", 0);
    REQUIRE(file >= 0);
    /* The device has it: write takes it from there. */
    set_all(words, COUNT, 1000);
    synchronize();
    REQUIRE(write(file, words, BYTES) == BYTES);
    REQUIRE(pread(file, bytes, BYTES, 0) == BYTES);
    for (uint32_t i = 0; i < COUNT; ++i)
        must_be(bytes, i, 1000 + i, "write");
    /* read and pread put bytes where the device has others. */
    set_all(words, COUNT, 77);
    synchronize();
    for (uint32_t i = 0; i < COUNT; ++i)
        bytes[i] = i * 5;
    REQUIRE(pwrite(file, bytes, BYTES, 0) == BYTES);
    REQUIRE(pread(file, words + 3000, 4 * 9000, 4 * 3000) == 4 * 9000);
    struct iovec vector[2] = {{words + 20000, 64}, {words + 30000, 40000}};
    REQUIRE(preadv(file, vector, 2, 4 * 100) == 64 + 40000);
    uint32_t *sum = managed(BYTES);
    memset(sum, 0, BYTES);
    run(add, NULL, COUNT, (void *[]){&sum, &words});
    synchronize();
    for (uint32_t i = 0; i < COUNT; ++i) {
        uint32_t expected = i >= 3000 && i < 12000 ? i * 5 : 77 + i;
        if (i >= 20000 && i < 20016)
            expected = (i - 20000 + 100) * 5;
        if (i >= 30000 && i < 40000)
            expected = (i - 30000 + 116) * 5;
        must_be(sum, i, expected, "read");
    }
    /* A pipe, at whose other end a thread is not. */
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    set_all(words, COUNT, 9);
    synchronize();
    REQUIRE(write(ends[1], words + 16384, 4096) == 4096);
    REQUIRE(read(ends[0], words, 4096) == 4096);
    must_be(words, 1023, 9 + 16384 + 1023, "pipe");
    must_be(words, 1024, 9 + 1024, "behind the pipe's");
    close(ends[0]);
    close(ends[1]);
    close(file);
    give_back(words);
    give_back(sum);
}

struct Part {
    uint32_t *words;
    size_t count, number;
};

/* Every word of the thread's own, among those of the others. */
static void *touch_part(void *argument) {
    struct Part *part = argument;
    for (size_t i = part->number; i < part->count; i += 4) {
        must_be(part->words, i, 500 + i, "threads");
        part->words[i] = i * 3;
    }
    return NULL;
}

static void test_threads(void) {
    enum { COUNT = 400 * THREADS };
    uint32_t *words = managed(COUNT * 4), *sum = managed(COUNT * 4);
    for (int turn = 0; turn < 5; ++turn) {
        set_all(words, COUNT, 500);
        CALL(cuMemsetD32, (CUdeviceptr)sum, 0, COUNT);
        synchronize();
        pthread_t threads[4];
        struct Part parts[4];
        for (size_t i = 0; i < 4; ++i) {
            parts[i] = (struct Part){words, COUNT, i};
            REQUIRE(pthread_create(&threads[i], NULL, touch_part, &parts[i]) == 0);
        }
        for (int i = 0; i < 4; ++i)
            pthread_join(threads[i], NULL);
        run(add, NULL, COUNT, (void *[]){&sum, &words});
        synchronize();
        for (size_t i = 0; i < COUNT; ++i)
            must_be(sum, i, i * 3, "what threads wrote");
    }
    give_back(words);
    give_back(sum);
}

static sigjmp_buf back;
static void *volatile faulted;
static volatile int faults;

static void handle(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    faulted = info->si_addr;
    ++faults;
    siglongjmp(back, 1);
}

static void test_handler(void) {
    enum { COUNT = 64 * THREADS };
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, before;
    REQUIRE(sigaction(SIGSEGV, &action, &before) == 0);
    char *guarded = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *words = managed(COUNT * 4);
    faults = 0;
    for (int turn = 0; turn < 10; ++turn) {
        set_all(words, COUNT, turn);
        synchronize();
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)guarded = 1;
            REQUIRE(!"no signal came");
        }
        REQUIRE(faults == turn + 1 && faulted == guarded);
        must_be(words, COUNT - 1, turn + COUNT - 1, "after a signal");
        words[turn] = 3;
    }
    REQUIRE(faults == 10);
    /* Natively, too, what is freed is gone. */
    give_back(words);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile uint32_t *)words = 1;
        REQUIRE(!"freed memory was written");
    }
    REQUIRE(faults == 11 && faulted == words);
    REQUIRE(sigaction(SIGSEGV, &before, NULL) == 0);
    munmap(guarded, PAGE);
}

/* While a kernel waits that will write all odd words, the host writes even ones, all over the same pages. */
static void test_beside(void) {
    enum { COUNT = 128 * THREADS };
    uint32_t *words = managed(COUNT * 8), *others = managed(COUNT * 4), *flag, value = 40;
    CALL(cuMemHostAlloc, (void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP);
    for (int turn = 0; turn < 3; ++turn) {
        *flag = 0;
        memset(words, 0, COUNT * 8);
        memset(others, 0, COUNT * 4);
        run(wait_for, streams[0], COUNT, (void *[]){&flag, &words, &value});
        for (uint32_t i = 0; i < COUNT; i += turn == 1 ? 1 : 1000)
            words[2 * i] = i + turn + 1;
        /* What was written goes to other work meanwhile, whose end is waited for. */
        run(add, streams[1], COUNT, (void *[]){&others, &words});
        CALL(cuStreamSynchronize, streams[1]);
        for (uint32_t i = 0; i < COUNT; i += 2)
            must_be(others, i, turn == 1 || i / 2 % 1000 == 0 ? i / 2 + turn + 1 : 0, "beside, copied");
        must_be(words, 0, turn + 1, "beside, again");
        words[2] = 123;
        __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
        synchronize();
        for (uint32_t i = 0; i < COUNT; ++i) {
            uint32_t expected = turn == 1 || i % 1000 == 0 ? i + turn + 1 : 0;
            must_be(words, 2 * i, i == 1 ? 123 : expected, "beside, the host's");
            must_be(words, 2 * i + 1, value + i, "beside, the kernel's");
        }
    }
    CALL(cuMemFreeHost, flag);
    give_back(words);
    give_back(others);
}

static void test_copies(void) {
    enum { COUNT = 100 * THREADS, BYTES = COUNT * 4 };
    uint32_t *words = managed(BYTES), *others = managed(BYTES), *pinned, *plain = malloc(BYTES);
    CUdeviceptr device;
    CALL(cuMemAlloc, &device, BYTES);
    CALL(cuMemHostAlloc, (void **)&pinned, BYTES, 0);
    REQUIRE(plain);
    for (uint32_t i = 0; i < COUNT; ++i)
        words[i] = plain[i] = i * 9;
    /* By unified addresses, and by functions that name a side. */
    CALL(cuMemcpy, (CUdeviceptr)others, (CUdeviceptr)words, BYTES);
    must_be(others, COUNT - 1, (COUNT - 1) * 9, "managed to managed");
    words[7] = 1;
    CALL(cuMemcpyHtoD, device, words, BYTES);
    others[8] = 2;
    CALL(cuMemcpyDtoH, others, device, BYTES);
    must_be(others, 7, 1, "managed to device and back");
    must_be(others, 8, 72, "overwritten");
    CALL(cuMemcpyHtoD, (CUdeviceptr)words, plain, BYTES);
    must_be(words, 7, 63, "pageable to managed");
    words[9] = 5;
    memset(plain, 0, BYTES);
    CALL(cuMemcpyDtoH, plain, (CUdeviceptr)words, BYTES);
    must_be(plain, 9, 5, "managed to pageable");
    must_be(plain, 10, 90, "managed to pageable");
    words[11] = 6;
    CALL(cuMemcpyAsync, (CUdeviceptr)pinned, (CUdeviceptr)words, BYTES, streams[0]);
    CALL(cuStreamSynchronize, streams[0]);
    must_be(pinned, 11, 6, "managed to pinned");
    pinned[11] = 8;
    CALL(cuMemcpyAsync, (CUdeviceptr)words, (CUdeviceptr)pinned, BYTES, streams[0]);
    CALL(cuStreamSynchronize, streams[0]);
    must_be(words, 11, 8, "pinned to managed");
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = words, .srcPitch = 400, .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = (CUdeviceptr)others, .dstPitch = 800, .WidthInBytes = 40, .Height = 50};
    words[101] = 33;
    others[201 + 20] = 34;
    CALL(cuMemcpy2D, &rows);
    must_be(others, 201, 33, "rows");
    must_be(others, 201 + 20, 34, "between rows");
    words[1] = 17;
    CALL(cuMemsetD32, (CUdeviceptr)(words + 2), 4, COUNT - 2);
    must_be(words, 1, 17, "before the fill");
    must_be(words, COUNT - 1, 4, "filled");
    CALL(cuMemsetD8Async, (CUdeviceptr)words, 1, 4, streams[1]);
    CALL(cuStreamSynchronize, streams[1]);
    must_be(words, 0, 0x01010101, "filled by bytes");
    must_be(words, 1, 17, "behind that");
    /* What the driver itself reads, and writes, where the device has it. */
    CUfunction found;
    strcpy((char *)words, "smooth");
    strcpy((char *)(words + COUNT / 2), "smooth");
    for (int turn = 0; turn < 2; ++turn) {
        run(add, NULL, COUNT, (void *[]){&others, &others});
        synchronize();
        CALL(cuModuleGetFunction, &found, module, (const char *)(words + turn * COUNT / 2));
        REQUIRE(found == smooth);
    }
    run(add, NULL, COUNT, (void *[]){&others, &others});
    synchronize();
    CALL(cuMemGetInfo, (size_t *)words, (size_t *)(words + COUNT / 2));
    REQUIRE(*(size_t *)words && *(size_t *)words <= *(size_t *)(words + COUNT / 2));
    CALL(cuMemFreeHost, pinned);
    CALL(cuMemFree, device);
    free(plain);
    give_back(words);
    give_back(others);
}

static void test_again(void) {
    for (int turn = 0; turn < 200; ++turn) {
        size_t count = (size_t)(turn % 5 + 1) * 7 * THREADS;
        uint32_t *words = managed(count * 4), *small = managed(40);
        REQUIRE((uintptr_t)words % PAGE == 0);
        words[count - 1] = turn;
        small[9] = turn;
        if (turn % 3) {
            set_all(words, count, turn);
            if (turn % 3 == 1)
                synchronize();
            must_be(small, 9, turn, "of its own");
        }
        give_back(words);
        give_back(small);
    }
}

static int told(const uint32_t *words, size_t bytes, CUmem_range_attribute attribute) {
    int value = -9;
    CALL(cuMemRangeGetAttribute, &value, sizeof value, attribute, (CUdeviceptr)words, bytes);
    return value;
}

static void test_hint(void) {
    enum { COUNT = 16 * PAGE / 4, BYTES = COUNT * 4 };
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    uint32_t *words = managed(BYTES);
    CUdeviceptr at = (CUdeviceptr)words;
    int nowhere = CU_DEVICE_INVALID;
    REQUIRE(told(words, BYTES, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);
    REQUIRE(told(words, BYTES, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == nowhere);
    CALL(cuMemAdvise, at, BYTES / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
    CALL(cuMemAdvise, at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
    CALL(cuMemAdvise, at, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
    words[1] = 5;
    CALL(cuMemPrefetchAsync, at, BYTES, device, 0, streams[0]);
    REQUIRE(told(words, BYTES / 2, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 1);
    REQUIRE(told(words, BYTES, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);
    int preferred, list[3], type;
    void *places[3] = {&preferred, list, &type};
    size_t sizes[3] = {sizeof preferred, sizeof list, sizeof type};
    CUmem_range_attribute asked[3] = {CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                      CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE};
    CALL(cuMemRangeGetAttributes, places, sizes, asked, 3, at, BYTES);
    REQUIRE(preferred == CU_DEVICE_CPU && list[0] == 0 && list[1] == nowhere && list[2] == nowhere);
    REQUIRE(type == CU_MEM_LOCATION_TYPE_DEVICE);
    must_be(words, 1, 5, "after a prefetch");
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuMemRangeGetAttribute, "")(&type, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, BYTES));
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuMemRangeGetAttribute, "")(&type, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, BYTES + PAGE));
    int is_managed = 0;
    size_t length = 0;
    CUdeviceptr base = 0;
    CALL(cuPointerGetAttribute, &is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at + 100);
    CALL(cuMemGetAddressRange, &base, &length, at + 100);
    REQUIRE(is_managed && base == at && length == BYTES);
    CUipcMemHandle handle;
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuIpcGetMemHandle, "")(&handle, at));
    give_back(words);
    words = managed(BYTES);
    REQUIRE(told(words, BYTES, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == nowhere);
    give_back(words);
}

static void fork_and_touch(int is_gone) {
    enum { COUNT = 32 * THREADS };
    uint32_t *words = managed(COUNT * 4);
    set_all(words, COUNT, 5);
    synchronize();
    must_be(words, 1, 6, "before a fork");
    words[2] = 44;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        /* The driver's memory is not the child's. */
        signal(SIGSEGV, SIG_DFL);
        *(volatile uint32_t *)(words + 3);
        _exit(7);
    }
    int ended = 0;
    REQUIRE(waitpid(child, &ended, 0) == child);
    REQUIRE(WIFSIGNALED(ended) ? WTERMSIG(ended) == SIGSEGV : !is_gone && WEXITSTATUS(ended) == 7);
    must_be(words, 2, 44, "after a fork");
    run(add, NULL, COUNT, (void *[]){&words, &words});
    synchronize();
    must_be(words, 2, 88, "after a fork, by a kernel");
    must_be(words, 3, 16, "after a fork, by a kernel");
    give_back(words);
}

static void test_fork(void) { fork_and_touch(0); }

static void test_fork_gone(void) { fork_and_touch(1); }

/* What one thread of a random sequence has: an array that both threads share, of which it uses every second word, and arrays of its
 * own. Of each it knows all words, as work that it has posted will leave them. */
enum { SHARED = 96 * THREADS, OWN = 3, MOST_OWN = 60 * THREADS };

struct Side {
    uint64_t random;
    unsigned which, steps;
    uint32_t *shared, *known_shared;
    struct Own {
        uint32_t *words, *known;
        size_t count;
    } own[OWN];
    CUcontext context;
    CUstream stream;
    int file, is_busy;
};

static uint32_t draw(struct Side *side, uint32_t below) {
    side->random ^= side->random << 13;
    side->random ^= side->random >> 7;
    side->random ^= side->random << 17;
    return (uint32_t)((side->random >> 11) % below);
}

static void await_side(struct Side *side) {
    if (side->is_busy)
        CALL(cuStreamSynchronize, side->stream);
    side->is_busy = 0;
}

static void renew(struct Side *side, struct Own *own) {
    if (own->words)
        give_back(own->words);
    own->count = (draw(side, MOST_OWN / THREADS) + 1) * THREADS;
    own->words = managed(own->count * 4);
    for (size_t i = 0; i < own->count; ++i)
        own->words[i] = own->known[i] = draw(side, 1 << 30);
}

static void step(struct Side *side) {
    struct Own *own = &side->own[draw(side, OWN)], *other = &side->own[draw(side, OWN)];
    size_t from = draw(side, own->count), most = own->count - from;
    size_t length = draw(side, 4) ? draw(side, most < 50 ? most : 50) + 1 : draw(side, most) + 1;
    if (length > most)
        length = most;
    uint32_t value = draw(side, 1 << 30), half = side->which;
    CUdeviceptr at = (CUdeviceptr)(own->words + from);
    switch (draw(side, 17)) {
    case 0: /* The host writes. */
        await_side(side);
        for (size_t i = from; i < from + length; ++i)
            own->words[i] = own->known[i] = value + i;
        break;
    case 1: /* And looks. */
        await_side(side);
        for (size_t i = from; i < from + length; ++i)
            must_be(own->words, i, own->known[i], "random, own");
        break;
    case 2:
    case 3: /* Beside what the other thread's kernels write: its own half of the words. */
        await_side(side);
        for (size_t i = from % SHARED & ~1u; i < SHARED && i < from % SHARED + length; i += 2) {
            must_be(side->shared, i + half, side->known_shared[i + half], "random, shared");
            side->shared[i + half] = side->known_shared[i + half] = value + i;
        }
        break;
    case 4:
    case 5: /* Kernels on its half. */
        run(raise_half, side->stream, SHARED / 2, (void *[]){&side->shared, &half, &value});
        for (size_t i = half; i < SHARED; i += 2)
            side->known_shared[i] += value;
        side->is_busy = 1;
        break;
    case 6:
    case 7: { /* And on arrays. */
        size_t count = own->count < other->count ? own->count : other->count;
        run(add, side->stream, count, (void *[]){&own->words, &other->words});
        for (size_t i = 0; i < count; ++i)
            own->known[i] += other->known[i];
        side->is_busy = 1;
        break;
    }
    case 8: /* System calls. */
        await_side(side);
        REQUIRE(pwrite(side->file, own->words + from, length * 4, 0) == (ssize_t)length * 4);
        for (size_t i = 0; i < length; ++i) {
            uint32_t word;
            if (i % 97 == 0) {
                REQUIRE(pread(side->file, &word, 4, i * 4) == 4);
                REQUIRE(word == own->known[from + i]);
            }
        }
        break;
    case 9:
        await_side(side);
        length = length < 5000 ? length : 5000;
        for (size_t i = 0; i < length; ++i)
            own->known[from + i] = value ^ i;
        REQUIRE(pwrite(side->file, own->known + from, length * 4, 64) == (ssize_t)length * 4);
        REQUIRE(pread(side->file, own->words + from, length * 4, 64) == (ssize_t)length * 4);
        break;
    case 10: /* Fills and copies on the stream. */
        CALL(cuMemsetD32Async, at, value, length, side->stream);
        for (size_t i = from; i < from + length; ++i)
            own->known[i] = value;
        side->is_busy = 1;
        break;
    case 11: {
        size_t count = length < other->count ? length : other->count;
        if (own == other)
            break;
        CALL(cuMemcpyAsync, at, (CUdeviceptr)other->words, count * 4, side->stream);
        memcpy(own->known + from, other->known, count * 4);
        side->is_busy = 1;
        break;
    }
    case 12: { /* From and to memory that is neither managed nor pinned. */
        await_side(side);
        uint32_t *plain = malloc(length * 4);
        REQUIRE(plain);
        CALL(cuMemcpyDtoH, plain, at, length * 4);
        REQUIRE(!memcmp(plain, own->known + from, length * 4));
        plain[0] = own->known[from] = value;
        CALL(cuMemcpyHtoD, at, plain, length * 4);
        free(plain);
        break;
    }
    case 13: /* Hints. */
        CALL(cuMemPrefetchAsync, at, length * 4,
             (CUmemLocation){draw(side, 2) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, 0}, 0, side->stream);
        CALL(cuMemAdvise, at, length * 4, (CUmem_advise)(draw(side, 6) + 1), (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0});
        CALL(cuStreamAttachMemAsync, side->stream, (CUdeviceptr)own->words, 0, CU_MEM_ATTACH_GLOBAL);
        side->is_busy = 1;
        break;
    case 14:
        await_side(side);
        if (draw(side, 4) == 0)
            renew(side, own);
        break;
    case 15: /* Only the host uses an array for a while, beside what the other thread's kernels do. */
        await_side(side);
        CALL(cuStreamAttachMemAsync, side->stream, (CUdeviceptr)own->words, 0, CU_MEM_ATTACH_HOST);
        CALL(cuStreamSynchronize, side->stream);
        for (size_t i = from; i < from + length; ++i) {
            must_be(own->words, i, own->known[i], "random, attached");
            own->words[i] = own->known[i] = value - i;
        }
        run(raise_half, side->stream, SHARED / 2, (void *[]){&side->shared, &half, &value});
        for (size_t i = half; i < SHARED; i += 2)
            side->known_shared[i] += value;
        side->is_busy = 1;
        for (size_t i = from; i < from + length; ++i)
            must_be(own->words, i, own->known[i], "random, attached, beside a kernel");
        own->words[from] = own->known[from] = value;
        CALL(cuStreamAttachMemAsync, side->stream, (CUdeviceptr)own->words, 0, CU_MEM_ATTACH_GLOBAL);
        break;
    default:
        await_side(side);
    }
}

static void *run_side(void *argument) {
    struct Side *side = argument;
    CALL(cuCtxSetCurrent, side->context);
    side->file = memfd_create("random", 0);
    REQUIRE(side->file >= 0);
    for (int i = 0; i < OWN; ++i) {
        side->own[i].known = malloc(MOST_OWN * 4);
        REQUIRE(side->own[i].known);
        renew(side, &side->own[i]);
    }
    for (unsigned i = 0; i < side->steps; ++i)
        step(side);
    await_side(side);
    for (int i = 0; i < OWN; ++i) {
        for (size_t word = 0; word < side->own[i].count; ++word)
            must_be(side->own[i].words, word, side->own[i].known[word], "random, at the end");
        give_back(side->own[i].words);
        free(side->own[i].known);
    }
    close(side->file);
    return NULL;
}

static void test_random(uint64_t seed, unsigned steps) {
    static uint32_t known[SHARED];
    uint32_t *shared = managed(SHARED * 4);
    memset(known, 0, sizeof known);
    memset(shared, 0, SHARED * 4);
    struct Side sides[2];
    pthread_t threads[2];
    CUcontext context;
    CALL(cuCtxGetCurrent, &context);
    for (unsigned i = 0; i < 2; ++i) {
        sides[i] = (struct Side){.random = seed * 2654435761u + i + 1, .which = i, .steps = steps, .shared = shared,
                                 .known_shared = known, .context = context, .stream = streams[i]};
        REQUIRE(pthread_create(&threads[i], NULL, run_side, &sides[i]) == 0);
    }
    for (int i = 0; i < 2; ++i)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < SHARED; ++i)
        must_be(shared, i, known[i], "random, shared, at the end");
    give_back(shared);
}

static struct Taken {
    uint32_t *words;
    size_t count;
} taken[64];
static int taken_count;

static uint32_t *host_word(uint32_t value) {
    uint32_t *word;
    CALL(cuMemHostAlloc, (void **)&word, 4, 0);
    *(volatile uint32_t *)word = value;
    return word;
}

static CUmodule variables(void) {
    CUmodule loaded;
    CALL(cuModuleLoadData, &loaded, variables_code);
    return loaded;
}

static volatile uint32_t *variable(CUmodule loaded, const char *name) {
    CUdeviceptr at;
    CALL(cuModuleGetGlobal, &at, NULL, loaded, name);
    return (volatile uint32_t *)at;
}

/* The kernel sets the variable once the flag is not 0. */
static void set_variable(CUmodule loaded, const char *kernel, CUstream stream, uint32_t *flag, uint32_t value) {
    CUfunction function;
    CALL(cuModuleGetFunction, &function, loaded, kernel);
    CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&flag, &value}, NULL);
}

static void test_variable(void) {
    CUmodule loaded = variables();
    uint32_t *flag = host_word(0);
    set_variable(loaded, "set0", streams[0], flag, 7);
    volatile uint32_t *found = variable(loaded, "v0");
    *(volatile uint32_t *)flag = 1;
    synchronize();
    REQUIRE(*found == 7);
    CALL(cuModuleUnload, loaded);
    CALL(cuMemFreeHost, flag);
}

static CUmodule waited_for;
static uint32_t *raised;

static void *waiter(void *number) {
    CUcontext context;
    int at = (int)(intptr_t)number;
    char kernel[] = "set0", name[] = "v0";
    kernel[3] = name[1] = (char)('0' + at);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    volatile uint32_t *own = variable(waited_for, name);
    for (uint32_t turn = 1; turn <= 2000; ++turn) {
        set_variable(waited_for, kernel, streams[at], raised, turn);
        CALL(cuStreamSynchronize, streams[at]);
        if (*own != turn) {
            fprintf(stderr, "waiters: thread %d has %u instead of %u\n", at, *own, turn);
            exit(1);
        }
    }
    return NULL;
}

static void test_waiters(void) {
    pthread_t threads[2];
    waited_for = variables();
    raised = host_word(1);
    /* Both are there before anybody waits. */
    variable(waited_for, "v0");
    variable(waited_for, "v1");
    for (int i = 0; i < 2; ++i)
        REQUIRE(!pthread_create(&threads[i], NULL, waiter, (void *)(intptr_t)i));
    for (int i = 0; i < 2; ++i)
        pthread_join(threads[i], NULL);
    CALL(cuModuleUnload, waited_for);
    CALL(cuMemFreeHost, raised);
}

static void test_shared_event(void) {
    CUmodule loaded = variables();
    CUevent event;
    CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    uint32_t *flag = host_word(1);
    volatile uint32_t *found = variable(loaded, "v1");
    for (uint32_t turn = 1; turn <= 50; ++turn) {
        set_variable(loaded, "set1", streams[1], flag, turn);
        CALL(cuEventRecord, event, streams[1]);
        CUresult reached;
        while ((reached = FUNCTION(cuEventQuery, "")(event)) == CUDA_ERROR_NOT_READY) {
        }
        REQUIRE(reached == CUDA_SUCCESS);
        REQUIRE(*found == turn);
    }
    CALL(cuEventDestroy, event);
    CALL(cuModuleUnload, loaded);
    CALL(cuMemFreeHost, flag);
}

/* What of it reads as zeros afterwards is nobody's promise; the other pages are, and that it ends. */
static void test_thrown_away(void) {
    enum { COUNT = 1 << 16 };
    uint32_t *words = managed(COUNT * 4), *none = managed(COUNT * 4);
    memset(none, 0, COUNT * 4);
    for (uint32_t turn = 1; turn <= 3; ++turn) {
        for (uint32_t i = 0; i < COUNT; ++i)
            words[i] = i * turn;
        REQUIRE(!madvise(words, PAGE, MADV_DONTNEED));
        run(add, NULL, COUNT, (void *[]){&words, &none});
        synchronize();
        for (size_t i = PAGE / 4; i < COUNT; ++i)
            must_be(words, i, (uint32_t)i * turn, "thrown away");
    }
    give_back(words);
    give_back(none);
}

static void test_full(void) {
    enum { COUNT = 1 << 18 };
    uint32_t *words = managed(COUNT * 4);
    for (size_t bytes = (size_t)64 << 20; bytes >= 512; bytes /= 2) {
        CUdeviceptr at;
        CUresult had;
        while ((had = FUNCTION(cuMemAlloc, "")(&at, bytes)) == CUDA_SUCCESS) {
        }
        REQUIRE(had == CUDA_ERROR_OUT_OF_MEMORY);
    }
    for (uint32_t i = 0; i < COUNT; ++i)
        words[i] = i;
    run(add, NULL, COUNT, (void *[]){&words, &words});
    synchronize();
    for (size_t i = 0; i < COUNT; ++i)
        must_be(words, i, 2 * (uint32_t)i, "full");
    test_add();
}

/* Whether the host has all pages of an array. */
static int is_here(const void *words, size_t bytes) {
    unsigned char here[bytes / PAGE];
    REQUIRE(mincore((void *)words, bytes, here) == 0);
    for (size_t i = 0; i < sizeof here; ++i)
        if (!(here[i] & 1))
            return 0;
    return 1;
}

static void test_attached(void) {
    enum { COUNT = 48 * PAGE, BYTES = COUNT * 4 };
    uint32_t *own = managed(BYTES), *devices = managed(BYTES);
    set_all(own, COUNT, 3);
    set_all(devices, COUNT, 0);
    CALL(cuStreamAttachMemAsync, NULL, (CUdeviceptr)own, 0, CU_MEM_ATTACH_HOST);
    synchronize();
    for (size_t i = 0; i < COUNT; ++i)
        must_be(own, i, 3 + i, "attached to the host");
    for (uint32_t turn = 1; turn <= 20; ++turn) {
        run(add, streams[0], COUNT, (void *[]){&devices, &devices});
        REQUIRE(is_here(own, BYTES));
        own[turn * 977] = turn;
        must_be(own, turn * 977 + 1, 3 + turn * 977 + 1, "beside a kernel");
        CALL(cuStreamSynchronize, streams[0]);
    }
    for (uint32_t turn = 1; turn <= 20; ++turn)
        own[turn * 977] = 3 + turn * 977;
    /* A copy finds what the host has written, whatever it is attached to. */
    own[5] = 77;
    CALL(cuMemcpyDtoD, (CUdeviceptr)devices, (CUdeviceptr)own, 64);
    must_be(devices, 5, 77, "copied");
    own[5] = 8;
    CALL(cuStreamAttachMemAsync, NULL, (CUdeviceptr)own, BYTES, CU_MEM_ATTACH_GLOBAL);
    run(add, NULL, COUNT, (void *[]){&own, &own});
    synchronize();
    for (size_t i = 0; i < COUNT; ++i)
        must_be(own, i, 2 * (3 + (uint32_t)i), "attached to all");
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuStreamAttachMemAsync, "")(NULL, (CUdeviceptr)own, 0, 3));
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuStreamAttachMemAsync, "")(NULL, (CUdeviceptr)own, PAGE, CU_MEM_ATTACH_HOST));
    give_back(own);
    give_back(devices);
}

static void test_prefetched(void) {
    enum { COUNT = 700 * PAGE, BYTES = COUNT * 4 };
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    uint32_t *words = managed(BYTES);
    for (uint32_t turn = 0; turn < 3; ++turn) {
        run(set, streams[turn % 2], COUNT, (void *[]){&words, &turn});
        CALL(cuMemPrefetchAsync, (CUdeviceptr)words, BYTES, host, 0, streams[turn % 2]);
        CALL(cuStreamSynchronize, streams[turn % 2]);
        REQUIRE(is_here(words, BYTES));
        for (size_t i = 0; i < COUNT; ++i)
            must_be(words, i, turn + i, "prefetched");
    }
    give_back(words);
}

static void test_locked(void) {
    enum { COUNT = 64 * PAGE, BYTES = COUNT * 4 };
    uint32_t *words = managed(BYTES);
    REQUIRE(mlock(words, BYTES) == 0);
    for (uint32_t turn = 0; turn < 3; ++turn) {
        set_all(words, COUNT, turn);
        synchronize();
        for (size_t i = 0; i < COUNT; i += 100) {
            must_be(words, i, turn + i, "locked");
            words[i] = 9;
        }
        run(add, NULL, COUNT, (void *[]){&words, &words});
        synchronize();
        must_be(words, 100, 18, "locked, written by the host");
        must_be(words, 101, 2 * (turn + 101), "locked, not written");
    }
    REQUIRE(munlock(words, BYTES) == 0);
    give_back(words);
}

static void take(size_t mib) {
    struct Taken *one = &taken[taken_count];
    one->count = (mib << 20) / 4;
    one->words = managed(mib << 20);
    set_all(one->words, one->count, (uint32_t)taken_count * 1000);
    synchronize();
    ++taken_count;
}

static void write_all(void) {
    for (int i = 0; i < taken_count; ++i)
        for (size_t word = 0; word < taken[i].count; ++word)
            taken[i].words[word] = i * 1000 + word;
}

static void look(void) {
    for (int i = 0; i < taken_count; ++i)
        for (size_t word = 0; word < taken[i].count; word += 1021)
            must_be(taken[i].words, word, i * 1000 + word, "taken");
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &add, module, "add");
    CALL(cuModuleGetFunction, &set, module, "set");
    CALL(cuModuleGetFunction, &smooth, module, "smooth");
    CALL(cuModuleGetFunction, &raise_half, module, "raise");
    CALL(cuModuleGetFunction, &wait_for, module, "wait");
    for (int i = 0; i < 2; ++i)
        CALL(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
    static const struct Test {
        const char *name;
        void (*run)(void);
    } tests[] = {{"add", test_add},       {"stencil", test_stencil}, {"calls", test_calls}, {"threads", test_threads},
                 {"handler", test_handler}, {"beside", test_beside},   {"copies", test_copies}, {"again", test_again},
                 {"fork", test_fork},     {"fork gone", test_fork_gone},     {"hint", test_hint},      {"look", look},
                 {"variable", test_variable},   {"waiters", test_waiters},   {"shared event", test_shared_event},
                 {"thrown away", test_thrown_away}, {"full", test_full}, {"attached", test_attached},
                 {"prefetched", test_prefetched}, {"locked", test_locked},     {"write", write_all}};
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        int is_known = 0, mib;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "take %d", &mib) == 1) {
            take(mib);
            is_known = 1;
        }
        unsigned long long seed;
        unsigned steps;
        if (sscanf(line, "random %llu %u", &seed, &steps) == 2) {
            test_random(seed, steps);
            is_known = 1;
        }
        for (size_t i = 0; i < sizeof tests / sizeof *tests; ++i)
            if (!strcmp(line, tests[i].name)) {
                tests[i].run();
                is_known = 1;
            }
        REQUIRE(is_known);
        answer("ok");
    }
    return 0;
}
