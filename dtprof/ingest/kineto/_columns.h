/* Columns that grow while a file is scanned, and tables that turn texts into small integers. */
#ifndef DTPROF_COLUMNS_H
#define DTPROF_COLUMNS_H

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MISSING INT64_MIN

/* Growable array of fixed-width values. Memory that is reserved but not yet written costs nothing: the pages are untouched. */
typedef struct {
    char *data;
    int64_t count, capacity; /* values, not bytes */
} Column;

/* Out of memory anywhere in a scan jumps back to feed(); everything allocated hangs on the scanner, so nothing leaks. */
typedef struct {
    jmp_buf out_of_memory;
} Guard;

static void *resized(Guard *guard, void *old, int64_t bytes) {
    void *fresh = bytes < 0 ? NULL : realloc(old, (size_t)bytes);
    if (!fresh)
        longjmp(guard->out_of_memory, 1);
    return fresh;
}

static void column_grow(Guard *guard, Column *c, int64_t more, int width) {
    int64_t capacity = c->capacity ? 2 * c->capacity : 1024;
    while (capacity < c->count + more)
        capacity *= 2;
    c->data = resized(guard, c->data, capacity * width);
    c->capacity = capacity;
}

#define PUSHER(NAME, TYPE)                                                                                                       \
    static inline void push_##NAME(Guard *guard, Column *c, TYPE value) {                                                        \
        if (c->count == c->capacity)                                                                                             \
            column_grow(guard, c, 1, sizeof(TYPE));                                                                              \
        ((TYPE *)(void *)c->data)[c->count++] = value;                                                                           \
    }
PUSHER(i8, int8_t)
PUSHER(i32, int32_t)
PUSHER(i64, int64_t)
PUSHER(f64, double)
#undef PUSHER

static void push_bytes(Guard *guard, Column *c, const char *bytes, int64_t n) {
    if (!n)
        return;
    if (c->count + n > c->capacity)
        column_grow(guard, c, n, 1);
    memcpy(c->data + c->count, bytes, (size_t)n);
    c->count += n;
}

/* Distinct texts, numbered by first appearance. */
typedef struct {
    int64_t start;  /* in the bytes of all texts, end to end */
    int64_t first;  /* byte offset in the file where it was first seen */
    uint32_t hash;
    int32_t length, flags, unused;
} Entry;

typedef struct {
    Column text, entries;
    int32_t *slots; /* open addressing; -1 is free */
    int64_t slot_count;
} Texts;

enum { TEXT_JSON = 1 /* a JSON value as it stands, not the inside of a string */, TEXT_COMM = 2 /* may name a communication */ };

static inline Entry *texts_entry(const Texts *t, int64_t code) { return (Entry *)(void *)t->entries.data + code; }

static inline uint64_t load8(const char *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

static inline uint64_t load4(const char *p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

static inline uint32_t text_hash(const char *s, int64_t n) {
    const uint64_t k = 0xff51afd7ed558ccdull;
    uint64_t h = 0x9e3779b97f4a7c15ull ^ (uint64_t)n, x = 0;
    if (n >= 8) {
        const char *last = s + n - 8;
        for (; s < last; s += 8) {
            h = (h ^ load8(s)) * k;
            h ^= h >> 32;
        }
        x = load8(last);
    } else if (n >= 4) {
        x = load4(s) << 32 | load4(s + n - 4);
    } else if (n) {
        x = (uint64_t)(unsigned char)s[0] << 16 | (uint64_t)(unsigned char)s[n / 2] << 8 | (unsigned char)s[n - 1];
    }
    h = (h ^ x) * k;
    return (uint32_t)(h >> 32);
}

static void texts_rehash(Guard *guard, Texts *t, int64_t slot_count) {
    t->slots = resized(guard, t->slots, slot_count * (int64_t)sizeof(int32_t));
    t->slot_count = slot_count;
    memset(t->slots, 0xff, (size_t)slot_count * sizeof(int32_t));
    for (int64_t i = 0; i < t->entries.count; i++) {
        int64_t at = texts_entry(t, i)->hash & (slot_count - 1);
        while (t->slots[at] >= 0)
            at = (at + 1) & (slot_count - 1);
        t->slots[at] = (int32_t)i;
    }
}

/* The number of text s[0:n]; *is_new is set where it had none yet. */
static inline int32_t texts_code(Guard *guard, Texts *t, const char *s, int64_t n, int json, int64_t offset, int *is_new) {
    if (2 * (t->entries.count + 1) > t->slot_count)
        texts_rehash(guard, t, t->slot_count ? 4 * t->slot_count : 256);
    uint32_t hash = text_hash(s, n);
    int64_t at = hash & (t->slot_count - 1);
    for (; t->slots[at] >= 0; at = (at + 1) & (t->slot_count - 1)) {
        const Entry *entry = texts_entry(t, t->slots[at]);
        if (entry->hash == hash && entry->length == n && (entry->flags & TEXT_JSON) == json &&
            (!n || !memcmp(t->text.data + entry->start, s, (size_t)n)))
            return t->slots[at];
    }
    const Entry fresh = {t->text.count, offset, hash, (int32_t)n, json, 0};
    if (t->entries.count == t->entries.capacity)
        column_grow(guard, &t->entries, 1, sizeof fresh);
    push_bytes(guard, &t->text, s, n);
    t->slots[at] = (int32_t)t->entries.count++;
    *texts_entry(t, t->slots[at]) = fresh;
    *is_new = 1;
    return t->slots[at];
}

static void texts_free(Texts *t) {
    free(t->text.data);
    free(t->entries.data);
    free(t->slots);
}

#endif
