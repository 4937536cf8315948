/* Keeping what one event says: spans, arguments, flows, memory instants, metadata. */
#ifndef DTPROF_KEEP_H
#define DTPROF_KEEP_H

#include "_events.h"

enum { RAW_METADATA, RAW_KEY, RAW_VALUE };

static void keep_raw(Scan *s, int kind, const char *p, const char *end) {
    push_i64(&s->guard, &s->raw_start, s->raw.count);
    push_i64(&s->guard, &s->raw_start, kind);
    push_i64(&s->guard, &s->raw_start, offset_of(s, p));
    push_bytes(&s->guard, &s->raw, p, end - p);
}

static double read_double(Span t) {
    char copy[64], *end;
    if (t.n && *t.p == '"')
        t.p++, t.n -= 2;
    if (t.n <= 0 || t.n >= (int64_t)sizeof copy)
        return NAN;
    memcpy(copy, t.p, (size_t)t.n);
    copy[t.n] = 0;
    double value = strtod(copy, &end);
    return (int64_t)strspn(copy, "0123456789+-.eE") == t.n && end == copy + t.n && isfinite(value) ? value : NAN;
}

static void keep_args(Scan *s, Event *ev, int64_t row, int32_t name_code, int memory) {
    Guard *guard = &s->guard;
    for (uint64_t left = ev->present >> 2 << 2; left; left &= left - 1) {
        int slot = __builtin_ctzll(left), kind = s->slot_kind[slot];
        Arg *arg = &s->args[slot];
        if ((kind == ARG_MEMORY) != memory)
            continue;
        if (kind == ARG_TEXT || kind == ARG_COMM_TEXT) {
            if (kind == ARG_COMM_TEXT && !(name_code >= 0 && texts_entry(&s->names, name_code)->flags & TEXT_COMM))
                continue;
            int32_t code = code_of(s, &arg->texts, ev->value[slot].text);
            push_i32(guard, &arg->values, code);
        } else if (kind == ARG_FLOAT) {
            push_f64(guard, &arg->values, read_double(ev->value[slot].text));
        } else {
            push_i64(guard, &arg->values, ev->value[slot].i);
        }
        push_i32(guard, &arg->rows, (int32_t)row);
    }
}

static inline int64_t dense(const Event *ev, int slot) { return ev->present >> slot & 1 ? ev->value[slot].i : MISSING; }

static int64_t keep_span(Scan *s, Event *ev, const char *e, int64_t dur) {
    Guard *guard = &s->guard;
    int64_t row = s->ts.count;
    if (row == INT32_MAX)
        longjmp(guard->out_of_memory, 1);
    int32_t name = code_of(s, &s->names, ev->name);
    push_i32(guard, &s->cat_codes, code_of(s, &s->cats, ev->cat));
    push_i32(guard, &s->name_codes, name);
    push_i32(guard, &s->track_codes, track_of(s, ev, e));
    push_i64(guard, &s->dur, dur);
    push_i64(guard, &s->correlation, dense(ev, SLOT_CORRELATION));
    push_i64(guard, &s->external, dense(ev, SLOT_EXTERNAL));
    keep_args(s, ev, row, name, 0);
    push_i64(guard, &s->ts, ev->ts);
    return row;
}

/* Begun spans wait in their own column: dur holds -2 - (row + 1 of the begun span around it, or 0). */
static int64_t *open_span(Scan *s, int32_t track) {
    while (s->open_top.count <= track)
        push_i64(&s->guard, &s->open_top, 0);
    return (int64_t *)(void *)s->open_top.data + track;
}

static void end_span(Scan *s, Event *ev, const char *start, const char *e) {
    int64_t *top = open_span(s, track_of(s, ev, e)), *dur = (int64_t *)(void *)s->dur.data;
    const int32_t *names = (const int32_t *)(void *)s->name_codes.data;
    int32_t name = code_of(s, &s->names, ev->name);
    int64_t row = *top - 1;
    while (row >= 0 && name >= 0 && names[row] != name)
        row = -2 - dur[row] - 1;
    if (row < 0) {
        note(s, FLAW_UNPAIRED, start);
        return;
    }
    for (int64_t inner = *top - 1; inner != row;) { /* begun inside, never ended */
        int64_t around = -2 - dur[inner] - 1;
        dur[inner] = MISSING;
        s->dead++;
        note(s, FLAW_UNPAIRED, start);
        inner = around;
    }
    *top = -2 - dur[row];
    dur[row] = ev->ts - ((int64_t *)(void *)s->ts.data)[row];
    if (dur[row] < 0 || dur[row] > MAX_DURATION) {
        note(s, dur[row] < 0 ? FLAW_NEGATIVE : FLAW_TIME, start);
        dur[row] = MISSING;
        s->dead++;
        return;
    }
    for (int slot = 0; slot < 2; slot++)
        if (ev->present >> slot & 1)
            ((int64_t *)(void *)(slot ? s->external : s->correlation).data)[row] = ev->value[slot].i;
    keep_args(s, ev, row, names[row], 0);
}

static int flow_number(Span id, int64_t *out) {
    if (id.kind == 's' && id.n > 2 && id.n <= 17 && id.p[0] == '0' && lower(id.p[1]) == 'x') {
        uint64_t v = 0;
        for (int64_t i = 2; i < id.n; i++) {
            char c = lower(id.p[i]);
            if (!is_digit(c) && !(c >= 'a' && c <= 'f'))
                return 0;
            v = v << 4 | (uint64_t)(is_digit(c) ? c - '0' : c - 'a' + 10);
        }
        *out = (int64_t)v;
        return 1;
    }
    uint64_t v = 0;
    if (id.kind && id.n < 19 && read_digits(id.p, id.p + id.n, &v) == id.p + id.n && id.n) {
        *out = (int64_t)v;
        return 1;
    }
    return id.kind && decimal(id.p, id.n, 0, out) == IS_NUMBER;
}

static void keep_flow(Scan *s, Event *ev, const char *start, const char *e) {
    int64_t id = 0;
    if (!flow_number(ev->id, &id)) {
        note(s, FLAW_FLOW, start);
        return;
    }
    push_i8(&s->guard, &s->flow_phase, ev->ph == 's' ? 0 : ev->ph == 't' ? 1 : 2);
    push_i64(&s->guard, &s->flow_id, id);
    push_i32(&s->guard, &s->flow_track, track_of(s, ev, e));
    push_i32(&s->guard, &s->flow_cat_codes, code_of(s, &s->flow_cats, ev->cat));
    push_i64(&s->guard, &s->flow_ts, ev->ts);
}

static void keep_event(Scan *s, const char *start, const char *end, const char *e) {
    Event *ev = &s->event;
    int span = ev->ph == 'X' || ev->ph == 'B' || ev->ph == 'E', flow = ev->ph == 's' || ev->ph == 't' || ev->ph == 'f';
    int memory = ev->ph == 'i' && ev->name.kind == 's' && ev->name.n == 8 && !memcmp(ev->name.p, "[memory]", 8);
    s->events_total++;
    if (span || memory)
        ev->flaws |= (unsigned)!!(ev->damaged & (memory ? s->memory_slots : ~s->memory_slots)) << FLAW_NUMBER;
    else if (!flow)
        ev->flaws &= ~(1u << FLAW_NUMBER);
    if (span || flow || memory) {
        if (ev->ts == MISSING || ev->ts > MAX_TIME || ev->ts < -MAX_TIME)
            ev->flaws |= 1u << FLAW_TIME;
        if (ev->ph == 'X' && (ev->dur == MISSING || ev->dur > MAX_DURATION))
            ev->flaws |= 1u << FLAW_TIME;
        else if (ev->ph == 'X' && ev->dur < 0)
            ev->flaws |= 1u << FLAW_NEGATIVE;
    }
    if (ev->flaws) {
        const unsigned fatal = 1u << FLAW_TWICE | 1u << FLAW_TIME | 1u << FLAW_NEGATIVE;
        if (ev->flaws & fatal)
            ev->flaws &= ~(1u << FLAW_NUMBER);
        for (int flaw = 0; flaw < FLAW_COUNT; flaw++)
            if (ev->flaws >> flaw & 1)
                note(s, flaw, start);
        if (ev->flaws & fatal)
            return;
    }
    if (ev->ph == 'X') {
        keep_span(s, ev, e, ev->dur);
    } else if (ev->ph == 'B') {
        int64_t *top = open_span(s, track_of(s, ev, e));
        *top = keep_span(s, ev, e, -2 - *top) + 1;
    } else if (ev->ph == 'E') {
        end_span(s, ev, start, e);
    } else if (flow) {
        keep_flow(s, ev, start, e);
    } else if (memory) {
        keep_args(s, ev, s->memory_ts.count, -1, 1);
        push_i64(&s->guard, &s->memory_ts, ev->ts);
    } else if (ev->ph == 'M') {
        keep_raw(s, RAW_METADATA, start, end);
    }
}

#endif
