/* From the bytes of a Kineto file to columns: one event at a time, in one pass, without looking back. */
#ifndef DTPROF_EVENTS_H
#define DTPROF_EVENTS_H

#include <math.h>

#include "_columns.h"
#include "_text.h"

enum { MAX_ARGS = 64, MAX_WORDS = 64, SLOT_CORRELATION = 0, SLOT_EXTERNAL = 1 };
enum { ARG_INT, ARG_FLOAT, ARG_TEXT, ARG_COMM_TEXT, ARG_MEMORY, ARG_DENSE };
static const int64_t MAX_PIECE = 32 << 20;             /* an event or header value longer than this is damage */
static const int64_t MAX_TIME = (int64_t)1 << 62;      /* ns; leaves room to add baseTimeNanoseconds */
static const int64_t MAX_DURATION = 10000000000000000; /* ns; 116 days */

typedef struct {
    const char *p;
    int64_t n;
    int kind; /* 0 absent, 's' inside of a string, 'j' any other JSON value */
} Span;

typedef struct {
    uint64_t head; /* the first eight bytes of the key, or all of it */
    char key[64];
    int length, kind, slot;
} ArgKey;

typedef struct {
    uint64_t present, damaged; /* which args have a value; which have a number out of range */
    unsigned flaws, keys;
    char ph;
    Span name, cat, pid, tid, id;
    int64_t ts, dur;
    union {
        int64_t i;
        double f;
        Span text;
    } value[MAX_ARGS];
} Event;

typedef struct {
    Column rows, values;
    Texts texts;
} Arg;

typedef struct {
    uint64_t pid, tid;
    int32_t lengths, code;
} CachedTrack;

typedef enum { AT_START, IN_HEADER, IN_EVENTS, RESYNC, AFTER_END } State;

typedef struct {
    Guard guard;
    State state;
    int bare, arrays, any_item, need_comma, resyncing, ends_inside;
    char last_byte; /* last one passed over while out of step */
    int64_t base; /* file offset of the buffer being read */
    const char *buffer;
    ArgKey keys[MAX_ARGS];
    int key_count, slot_count, slot_kind[MAX_ARGS];
    int8_t key_slots[256];
    uint64_t memory_slots;
    char words[MAX_WORDS][32];
    int word_count;
    Column ts, dur, name_codes, cat_codes, track_codes, correlation, external;
    Column flow_phase, flow_id, flow_ts, flow_track, flow_cat_codes, memory_ts;
    Texts names, cats, flow_cats, tracks;
    CachedTrack cached[64];
    Arg args[MAX_ARGS];
    Column open_top; /* i64 per track: innermost begun span */
    int64_t dead;    /* spans to drop in the end */
    Column raw, raw_start; /* metadata events and header members, for Python to read */
    Column breaks;         /* i64 x 5: offset, spans, flows, memory rows, raw pieces at each loss of the thread */
    Column scratch;
    int64_t events_total, flaw_count[FLAW_COUNT], flaw_first[FLAW_COUNT];
    Event event;
} Scan;

static inline int64_t offset_of(const Scan *s, const char *p) { return s->base + (p - s->buffer); }

static void note(Scan *s, int flaw, const char *at) {
    if (!s->flaw_count[flaw]++)
        s->flaw_first[flaw] = offset_of(s, at);
}

static void note_break(Scan *s, const char *at) {
    const int64_t row[5] = {offset_of(s, at), s->ts.count, s->flow_ts.count, s->memory_ts.count, s->raw_start.count};
    for (int i = 0; i < 5; i++)
        push_i64(&s->guard, &s->breaks, row[i]);
}

/* ---- texts ---- */

/* A JSON value without the white space outside its strings, so that layouts do not matter. */
static Span compact(Scan *s, Span t) {
    int quoted = 0;
    s->scratch.count = 0;
    if (s->scratch.capacity < t.n)
        column_grow(&s->guard, &s->scratch, t.n, 1);
    char *out = s->scratch.data;
    for (int64_t i = 0; i < t.n; i++) {
        char c = t.p[i];
        if (quoted && c == '\\' && i + 1 < t.n) {
            *out++ = c;
            c = t.p[++i];
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && is_space(c)) {
            continue;
        }
        *out++ = c;
    }
    return (Span){s->scratch.data, out - s->scratch.data, 'j'};
}

static int32_t code_of(Scan *s, Texts *texts, Span t) {
    int is_new = 0;
    int64_t offset;
    if (!t.kind)
        return -1;
    offset = offset_of(s, t.p);
    if (t.kind == 'j')
        t = compact(s, t);
    int32_t code = texts_code(&s->guard, texts, t.p, t.n, t.kind == 'j', offset, &is_new);
    if (is_new && texts == &s->names) {
        for (int w = 0; w < s->word_count; w++) {
            int64_t length = (int64_t)strlen(s->words[w]);
            for (int64_t i = 0; i + length <= t.n; i++)
                if (same_word(t.p + i, length, s->words[w]))
                    texts_entry(texts, code)->flags |= TEXT_COMM;
        }
    }
    return code;
}

/* The first eight bytes of key[0:n], zeros after it. */
static inline uint64_t key_head(const char *key, int64_t n, const char *e) {
    uint64_t w = 0;
    if (e - key < 8) {
        memcpy(&w, key, n < 8 ? (size_t)n : 8);
        return w;
    }
    w = load8(key);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return n < 8 ? w & ~(~0ull << (8 * n)) : w;
#else
    return n < 8 ? w & ~(~0ull >> (8 * n)) : w;
#endif
}

/* Tracks are few and looked up for every event: short pid and tid are cached as two words. */
static int32_t track_of(Scan *s, const Event *ev, const char *e) {
    Span pid = ev->pid, tid = ev->tid;
    CachedTrack key = {0, 0, 0, 0}, *hit = NULL;
    if (pid.n <= 8 && tid.n <= 8 && pid.kind && tid.kind && e - pid.p >= 8 && e - tid.p >= 8) {
        key.pid = key_head(pid.p, pid.n, e), key.tid = key_head(tid.p, tid.n, e);
        key.lengths = (int32_t)(pid.n << 8 | tid.n << 4 | 1);
        hit = &s->cached[((key.pid * 31 + key.tid) * 0x9e3779b97f4a7c15ull) >> 58];
        if (hit->pid == key.pid && hit->tid == key.tid && hit->lengths == key.lengths)
            return hit->code;
    }
    int is_new = 0;
    char stack[512], *joined = stack;
    if (pid.n + tid.n + 1 > (int64_t)sizeof stack) {
        s->scratch.count = 0;
        if (s->scratch.capacity < pid.n + tid.n + 1)
            column_grow(&s->guard, &s->scratch, pid.n + tid.n + 1, 1);
        joined = s->scratch.data;
    }
    memcpy(joined, pid.n ? pid.p : "", (size_t)pid.n);
    joined[pid.n] = 0;
    memcpy(joined + pid.n + 1, tid.n ? tid.p : "", (size_t)tid.n);
    int64_t where = pid.kind ? offset_of(s, pid.p) : tid.kind ? offset_of(s, tid.p) : 0;
    int32_t code = texts_code(&s->guard, &s->tracks, joined, pid.n + tid.n + 1, 0, where, &is_new);
    if (hit)
        *hit = key, hit->code = code;
    return code;
}

/* ---- reading one event ---- */

static inline unsigned key_hash(uint64_t head, int64_t n) {
    return (unsigned)(((head ^ ((uint64_t)n << 56)) * 0x9e3779b97f4a7c15ull) >> 56);
}

static inline const ArgKey *find_key(const Scan *s, const char *key, int64_t n, const char *e) {
    uint64_t head = key_head(key, n, e);
    for (unsigned at = key_hash(head, n);; at = (at + 1) & 255) {
        int i = s->key_slots[at];
        if (i < 0)
            return NULL;
        if (s->keys[i].head == head && s->keys[i].length == n && (n <= 8 || !memcmp(s->keys[i].key + 8, key + 8, (size_t)n - 8)))
            return &s->keys[i];
    }
}

static inline const char *read_text(const char *p, const char *e, Span *out, unsigned *flaws) {
    const char *start = p;
    if (*p == '"') {
        p = string_end(p + 1, e);
        if (p == MORE)
            return MORE;
        *out = (Span){start + 1, p - start - 1, 's'};
        return p + 1;
    }
    p = skip_value(p, e, flaws);
    if (!STOPPED(p))
        *out = *start == 'n' ? (Span){NULL, 0, 0} : (Span){start, p - start, 'j'}; /* null is no text */
    return p;
}

/* After a member: steps over the comma to the next key, or over the closing brace. *closed says which. */
static inline const char *next_member(const char *p, const char *e, unsigned *flaws, int *closed) {
    SKIP_SPACE(p);
    if (*p == ',') {
        p++;
        SKIP_SPACE(p);
        if (*p == '"')
            return p;
        if (*p == '}')
            *flaws |= 1u << FLAW_COMMA;
    }
    if (*p != '}')
        return UNEXPECTED(p, e);
    *closed = 1;
    return p + 1;
}

static const char *read_args(const Scan *s, Event *ev, const char *p, const char *e) {
    int closed = 0;
    ev->present = ev->damaged = 0;
    p++;
    SKIP_SPACE(p);
    if (*p == '}')
        return p + 1;
    if (*p != '"')
        return UNEXPECTED(p, e);
    while (!closed) {
        if (is_ph_key(p))
            return BAD;
        const char *key = p + 1, *end = string_end(key, e);
        if (end == MORE)
            return MORE;
        p = end + 1;
        SKIP_SPACE(p);
        if (*p != ':')
            return UNEXPECTED(p, e);
        p++;
        SKIP_SPACE(p);
        const ArgKey *known = find_key(s, key, end - key, e);
        if (!known) {
            p = skip_value(p, e, &ev->flaws);
        } else if (known->kind == ARG_TEXT || known->kind == ARG_COMM_TEXT) {
            p = read_text(p, e, &ev->value[known->slot].text, &ev->flaws);
            if (!STOPPED(p))
                ev->present = (ev->present & ~(1ull << known->slot)) | (uint64_t)!!ev->value[known->slot].text.kind << known->slot;
        } else if (known->kind == ARG_FLOAT) {
            const char *start = p;
            p = skip_value(p, e, &ev->flaws);
            if (!STOPPED(p)) {
                int any = *start != 'n' && *start != 't' && *start != 'f';
                ev->value[known->slot].text = (Span){start, p - start, 'j'};
                ev->present = (ev->present & ~(1ull << known->slot)) | (uint64_t)any << known->slot;
            }
        } else {
            int64_t v;
            int damaged = 0;
            p = read_decimal(p, e, 0, &v, &damaged, &ev->flaws);
            ev->value[known->slot].i = v;
            ev->present = (ev->present & ~(1ull << known->slot)) | (uint64_t)(v != MISSING) << known->slot;
            ev->damaged |= (uint64_t)damaged << known->slot;
        }
        if (STOPPED(p))
            return p;
        p = next_member(p, e, &ev->flaws, &closed);
        if (STOPPED(p))
            return p;
    }
    return p;
}

enum { KEY_PH = 1, KEY_TS = 2 };

/* The value of an event's own key; unknown ones are skipped. */
static inline const char *read_member(const Scan *s, Event *ev, const char *key, int64_t n, const char *p, const char *e) {
    uint32_t w = (unsigned char)key[0] | (uint32_t)(unsigned char)key[1] << 8;
    Span ph;
    int ignored; /* a time out of range is missing: damage enough */
    if (n == 2 && w == ('p' | 'h' << 8)) {
        ev->keys |= KEY_PH;
        p = read_text(p, e, &ph, &ev->flaws);
        if (!STOPPED(p))
            ev->ph = ph.kind == 's' && ph.n == 1 ? ph.p[0] : '?';
        return p;
    }
    if (n == 2 && w == ('t' | 's' << 8)) {
        if (ev->keys & KEY_TS)
            ev->flaws |= 1u << FLAW_TWICE;
        ev->keys |= KEY_TS;
        return read_decimal(p, e, 3, &ev->ts, &ignored, &ev->flaws);
    }
    if (n == 2 && w == ('i' | 'd' << 8))
        return read_text(p, e, &ev->id, &ev->flaws);
    if (n == 3) {
        if (!memcmp(key, "cat", 3))
            return read_text(p, e, &ev->cat, &ev->flaws);
        if (!memcmp(key, "pid", 3))
            return read_text(p, e, &ev->pid, &ev->flaws);
        if (!memcmp(key, "tid", 3))
            return read_text(p, e, &ev->tid, &ev->flaws);
        if (!memcmp(key, "dur", 3))
            return read_decimal(p, e, 3, &ev->dur, &ignored, &ev->flaws);
    }
    if (n == 4 && !memcmp(key, "name", 4))
        return read_text(p, e, &ev->name, &ev->flaws);
    if (n == 4 && !memcmp(key, "args", 4) && *p == '{')
        return read_args(s, ev, p, e);
    return skip_value(p, e, &ev->flaws);
}

static const char *read_event(Scan *s, const char *p, const char *e) {
    Event *ev = &s->event;
    int closed = 0;
    ev->present = ev->damaged = 0;
    ev->flaws = ev->keys = 0;
    ev->ph = 0;
    ev->name.kind = ev->cat.kind = ev->pid.kind = ev->tid.kind = ev->id.kind = 0;
    ev->pid.n = ev->tid.n = 0;
    ev->ts = ev->dur = MISSING;
    p++;
    SKIP_SPACE(p);
    if (*p == '}')
        return p + 1;
    if (*p != '"')
        return UNEXPECTED(p, e);
    while (!closed) {
        const char *key = p + 1, *end = string_end(key, e);
        if (end == MORE)
            return MORE;
        p = end + 1;
        SKIP_SPACE(p);
        if (*p != ':')
            return UNEXPECTED(p, e);
        p++;
        SKIP_SPACE(p);
        p = read_member(s, ev, key, end - key, p, e);
        if (STOPPED(p))
            return p;
        p = next_member(p, e, &ev->flaws, &closed);
        if (STOPPED(p))
            return p;
    }
    return p;
}

#endif
