/* A process with three CUDA runtime libraries, as a Python program has that loads several packages: 11.8 and 13.0 shared, and 12.9 in a
 * part of its own, linked statically. They share the primary context and with it each other's memory, one after the other and at once. */
#include <dlfcn.h>
#include <libgen.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARTS = 3, COUNT = 10000, TURNS = 10 };

struct Part {
    const char *file;
    int version;
    int (*allocate)(void **memory, size_t size_bytes);
    int (*free)(void *memory);
    int (*mix)(void *memory, int count, unsigned seed);
    int (*read)(void *to, const void *memory, size_t size_bytes);
    int (*write)(void *memory, const void *from, size_t size_bytes);
    int (*calls)(unsigned *count);
    int (*get_version)(int *version);
};

static struct Part parts[PARTS] = {
    {.file = "part-cudart-11.8-shared.so", .version = 11080},
    {.file = "part-cudart-12.9-static.so", .version = 12090},
    {.file = "part-cudart-13.0-shared.so", .version = 13000},
};

#define CHECK(call) require((call) == 0, #call, __LINE__)
#define REQUIRE(condition) require((condition), #condition, __LINE__)

static void require(int holds, const char *what, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: %s\n", line, what);
        exit(1);
    }
}

static void *find(void *library, const char *name) {
    void *address = dlsym(library, name);
    require(address != NULL, name, __LINE__);
    return address;
}

static void load(struct Part *part) {
    char path[4096] = "";
    require(readlink("/proc/self/exe", path, sizeof path / 2) > 0, "the program's path", __LINE__);
    char *directory = dirname(path);
    char file[8192];
    snprintf(file, sizeof file, "%s/%s", directory, part->file);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    part->allocate = (int (*)(void **, size_t))find(library, "part_allocate");
    part->free = (int (*)(void *))find(library, "part_free");
    part->mix = (int (*)(void *, int, unsigned))find(library, "part_mix");
    part->read = (int (*)(void *, const void *, size_t))find(library, "part_read");
    part->write = (int (*)(void *, const void *, size_t))find(library, "part_write");
    part->calls = (int (*)(unsigned *))find(library, "part_calls");
    part->get_version = (int (*)(int *))find(library, "part_version");
}

static uint32_t mixed(uint32_t value, uint32_t seed, uint32_t i) {
    return (value ^ seed) * 2654435761u + i;
}

/* Each thread works with its own part, in memory of its own. */
static void *at_once(void *argument) {
    struct Part *part = argument;
    static __thread uint32_t values[COUNT];
    void *memory;
    CHECK(part->allocate(&memory, sizeof values));
    CHECK(part->write(memory, values, sizeof values));
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        CHECK(part->mix(memory, COUNT, turn));
    }
    CHECK(part->read(values, memory, sizeof values));
    for (uint32_t i = 0; i < COUNT; ++i) {
        uint32_t expected = 0;
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            expected = mixed(expected, turn, i);
        }
        REQUIRE(values[i] == expected);
    }
    CHECK(part->free(memory));
    return NULL;
}

int main(void) {
    static uint32_t values[COUNT], expected[COUNT];
    void *memory;
    for (int p = 0; p < PARTS; ++p) {
        int version = 0;
        load(&parts[p]);
        CHECK(parts[p].get_version(&version));
        REQUIRE(version == parts[p].version);
    }
    CHECK(parts[0].allocate(&memory, sizeof values));
    CHECK(parts[1].write(memory, values, sizeof values));
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        for (int p = 0; p < PARTS; ++p) {
            CHECK(parts[p].mix(memory, COUNT, turn * PARTS + p));
            for (uint32_t i = 0; i < COUNT; ++i) {
                expected[i] = mixed(expected[i], turn * PARTS + p, i);
            }
        }
    }
    CHECK(parts[2].read(values, memory, sizeof values));
    REQUIRE(memcmp(values, expected, sizeof values) == 0);
    CHECK(parts[2].free(memory));

    pthread_t threads[PARTS];
    for (int p = 0; p < PARTS; ++p) {
        REQUIRE(pthread_create(&threads[p], NULL, at_once, &parts[p]) == 0);
    }
    for (int p = 0; p < PARTS; ++p) {
        REQUIRE(pthread_join(threads[p], NULL) == 0);
    }
    uint64_t checksum = 0;
    for (int p = 0; p < PARTS; ++p) {
        unsigned calls = 0;
        CHECK(parts[p].calls(&calls));
        REQUIRE(calls == 2 * TURNS);
    }
    for (uint32_t i = 0; i < COUNT; ++i) {
        checksum = checksum * 31 + values[i];
    }
    printf("several_runtimes: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
