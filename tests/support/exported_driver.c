/* Run libraries on inputs from standard input; write their results and saved states to standard output.

   Each array ends at the end of its memory, where the next access would fail.  With BARE there is no C library. */

#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t (*state_size)(void), (*saved_size)(void);
    int32_t (*init)(void *, size_t), (*run)(void *, void *, void *), (*save)(const void *, void *, size_t);
    int32_t (*load)(void *, const void *, size_t);
    const char *(*error)(int32_t);
    int calls, inputs;
    const size_t *in;
    int outputs;
    const size_t *out;
} Library;

#include "tables.h"

#define PAGE 4096

#ifdef BARE
#if defined(__aarch64__)
static long call(long n, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
static long call(long n, long a, long b, long c, long d, long e, long f) {
    register long a7 __asm__("a7") = n, a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c;
    register long a3 __asm__("a3") = d, a4 __asm__("a4") = e, a5 __asm__("a5") = f;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5) : "memory");
    return a0;
}
#endif
static void stop(int code) { call(94, code, 0, 0, 0, 0, 0); for (;;) ; }
static long get(void *to, size_t n) { return call(63, 0, (long)to, (long)n, 0, 0, 0); }
static long put(const void *from, size_t n) { return call(64, 1, (long)from, (long)n, 0, 0, 0); }
static char *pages(size_t n) { return (char *)call(222, 0, (long)n, 3, 0x22, -1, 0); }
static void forbid(char *at) { call(226, (long)at, PAGE, 0, 0, 0, 0); }
#else
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void stop(int code) { exit(code); }
static long get(void *to, size_t n) { return read(0, to, n); }
static long put(const void *from, size_t n) { return write(1, from, n); }
static char *pages(size_t n) { return mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void forbid(char *at) { mprotect(at, PAGE, PROT_NONE); }
#endif

/* Memory of n bytes that ends before a page that nothing may touch. */
static char *memory(size_t n) {
    size_t whole = (n + PAGE - 1) / PAGE * PAGE;
    char *found = pages(whole + PAGE);
    forbid(found + whole);
    return found + whole - n;
}

static void all(long (*move)(void *, size_t), char *at, size_t n) {
    while (n > 0) {
        long done = move(at, n);
        if (done <= 0) stop(3);
        at += done, n -= (size_t)done;
    }
}

static long put_some(void *from, size_t n) { return put(from, n); }

static void check(int32_t code) {
    if (code) stop(100 + code);
}

int main(void) {
    for (int k = 0; k < COUNT; k++) {
        const Library *l = &libraries[k];
        void *inputs[64], *outputs[64];
        size_t size = l->state_size(), saved = l->saved_size();
        char *state = memory(size), *bytes = memory(saved);
        if (l->run(state, inputs, outputs) != 2) stop(4); /* it is not set up */
        if (l->init(state, size - 1) != 3 || l->init(state + 1, size) != 1) stop(5);
        check(l->init(state, size));
        for (int i = 0; i < l->inputs; i++) inputs[i] = memory(l->in[i]);
        for (int i = 0; i < l->outputs; i++) outputs[i] = memory(l->out[i]);
        for (int j = 0; j < l->calls; j++) {
            for (int i = 0; i < l->inputs; i++) all(get, inputs[i], l->in[i]);
            check(l->run(state, inputs, outputs));
            for (int i = 0; i < l->outputs; i++) all(put_some, outputs[i], l->out[i]);
        }
        check(l->save(state, bytes, saved));
        if (l->save(state, bytes, saved - 1) != 3 || l->load(state, bytes, saved - 1) != 4) stop(6);
        check(l->load(state, bytes, saved));
        all(put_some, bytes, saved);
    }
    return 0;
}

#ifdef BARE
void _start(void) { stop(main()); }
#endif
