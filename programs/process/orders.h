/* Programs that are told by lines on their standard input what to do, and answer each line with a line. */
#pragma once

#include "process.h"

/* What a line that begins with a name does: one of these, and what is answered. The rest of the line follows the name and a space. */
struct Order {
    const char *name;
    /* `ok`. */
    void (*act)(void);
    void (*act_on)(const char *rest);
    /* What it returns. */
    const char *(*say)(void);
    /* `ok`, or `error N`. */
    CUresult (*try)(void);
    CUresult (*try_on)(const char *rest);
};

/* Obeys one line. */
static inline void obey_line(const struct Order *order, const char *rest) {
    if (order->act) {
        order->act();
    } else if (order->act_on) {
        order->act_on(rest);
    } else if (order->say) {
        answer(order->say());
        return;
    } else {
        answer_result(order->try ? order->try() : order->try_on(rest));
        return;
    }
    answer("ok");
}

/* Obeys until the input ends. */
static inline void obey(const struct Order *orders, size_t count) {
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        const struct Order *found = NULL;
        const char *rest = "";
        for (const struct Order *it = orders; it < orders + count; ++it) {
            size_t length = strlen(it->name);
            if (strncmp(line, it->name, length) == 0 && (line[length] == 0 || line[length] == ' ')) {
                found = it;
                rest = line + length + (line[length] == ' ');
                break;
            }
        }
        if (found) {
            obey_line(found, rest);
        } else {
            answer("no such order");
        }
    }
}

#define OBEY(orders) obey(orders, sizeof orders / sizeof *orders)

/* Waits for everything. */
static inline CUresult synchronize(void) { return FUNCTION(cuCtxSynchronize, "")(); }
