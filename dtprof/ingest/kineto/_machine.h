/* The way through a file: header, events, back to the header; and back into step after damage. */
#ifndef DTPROF_MACHINE_H
#define DTPROF_MACHINE_H

#include "_keep.h"

enum { NOT_ENOUGH = -1, NO, YES, YES_PH };

/* Does the brace at p open an event? Its first key tells. */
static int opens_event(const char *p, const char *e) {
    static const char *const keys[] = {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args", "id", "bp", "s", "tts", "cname"};
    const char *key;
    int64_t n;
    p++;
    SKIP_SPACE(p);
    if (*p != '"')
        return p >= e ? NOT_ENOUGH : NO;
    for (key = ++p; *p >= 'a' && *p <= 'z' && p - key < 6;)
        p++;
    if (*p != '"')
        return p >= e ? NOT_ENOUGH : NO;
    n = p++ - key;
    SKIP_SPACE(p);
    if (*p != ':')
        return p >= e ? NOT_ENOUGH : NO;
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        if ((int64_t)strlen(keys[i]) == n && !memcmp(keys[i], key, (size_t)n))
            return i ? YES : YES_PH;
    return NO;
}

/* Does the quote at p open a top-level member? */
static int opens_member(const char *p, const char *e) {
    static const char *const keys[] = {"traceEvents", "distributedInfo", "baseTimeNanoseconds", "deviceProperties", "schemaVersion",
                                       "displayTimeUnit", "traceName", "trace_id", "record_shapes", "with_stack"};
    const char *key = ++p;
    for (; p < e && *p != '"' && p - key < 20;)
        p++;
    if (*p != '"')
        return p >= e ? NOT_ENOUGH : NO;
    int64_t n = p++ - key;
    SKIP_SPACE(p);
    if (*p != ':')
        return p >= e ? NOT_ENOUGH : NO;
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        if ((int64_t)strlen(keys[i]) == n && !memcmp(keys[i], key, (size_t)n))
            return YES;
    return NO;
}

static const char *lose(Scan *s, int flaw, const char *p, const char *resume) {
    note(s, flaw, p);
    note_break(s, p);
    s->state = RESYNC;
    return resume;
}

/* To the next event or top-level member after damage. */
static const char *step_resync(Scan *s, const char *p, const char *e, int final) {
    for (const char *start = p; p < e; p++) {
        int found = *p == '{' ? opens_event(p, e) : *p == '"' ? opens_member(p, e) : NO;
        if (found == NOT_ENOUGH && !final)
            return p == start ? MORE : p;
        if (found > NO) {
            s->state = *p == '{' ? IN_EVENTS : IN_HEADER;
            s->need_comma = 0;
            s->resyncing = 1;
            return p;
        }
        if (!is_space(*p))
            s->last_byte = *p;
    }
    return p;
}

static const char *step_start(Scan *s, const char *p, const char *e) {
    if (*p == '\xef' && e - p < 3)
        return MORE;
    if (*p == '\xef' && p[1] == '\xbb' && p[2] == '\xbf') /* byte order mark */
        p += 3;
    SKIP_SPACE(p);
    if (p >= e)
        return p;
    if (*p == '{') {
        int found = opens_event(p, e);
        if (found == NOT_ENOUGH)
            return MORE;
        s->state = IN_HEADER;
        if (found == YES_PH) { /* events without the array around them */
            note(s, FLAW_GARBAGE, p);
            s->state = IN_EVENTS, s->bare = 1, s->arrays = 1;
            return p;
        }
        return p + 1;
    }
    if (*p == '[') {
        s->state = IN_EVENTS, s->bare = 1, s->arrays = 1;
        return p + 1;
    }
    return lose(s, FLAW_HEADER, p, p);
}

/* A comma between events or top-level members. */
static void step_comma(Scan *s, const char *p) {
    if (!s->need_comma && !s->resyncing)
        note(s, FLAW_COMMA, p);
    s->need_comma = 0;
}

/* The bracket behind events or members. */
static void end_of_items(Scan *s, const char *p) {
    if (!s->need_comma && s->any_item && !s->resyncing)
        note(s, FLAW_COMMA, p);
}

static const char *enter_events(Scan *s, const char *key, const char *p) {
    if (s->need_comma)
        note(s, FLAW_COMMA, key);
    s->state = IN_EVENTS;
    s->need_comma = s->resyncing = s->any_item = 0;
    s->arrays++;
    return p;
}

static const char *step_header(Scan *s, const char *p, const char *e) {
    const char *start, *end, *value, *q;
    int found;
    unsigned flaws = 0;
    SKIP_SPACE(p);
    if (p >= e)
        return p;
    start = p;
    if (*p == ',') {
        step_comma(s, p);
        return p + 1;
    }
    if (*p == '}') {
        end_of_items(s, p);
        s->state = AFTER_END;
        return p + 1;
    }
    if (*p == '{') { /* the array was closed too early */
        found = opens_event(p, e);
        if (found == NOT_ENOUGH)
            return MORE;
        if (found > NO)
            return lose(s, FLAW_GARBAGE, p, p);
    }
    if (*p != '"')
        return lose(s, FLAW_HEADER, p, p + 1);
    end = string_end(p + 1, e);
    if (end == MORE)
        return MORE;
    value = end + 1;
    SKIP_SPACE(value);
    if (*value != ':')
        return value >= e ? MORE : lose(s, FLAW_HEADER, start, start + 1);
    value++;
    SKIP_SPACE(value);
    int events = end - start == 12 && !memcmp(start, "\"traceEvents", 12);
    if (*value == '[') {
        q = value + 1;
        SKIP_SPACE(q);
        if (events) {
            if (s->arrays)
                note(s, FLAW_AGAIN, start);
            return enter_events(s, start, q);
        }
        found = *q == '{' ? opens_event(q, e) : q >= e ? NOT_ENOUGH : NO;
        if (found == NOT_ENOUGH)
            return MORE;
        if (found == YES_PH) {
            note(s, FLAW_KEY, start);
            return enter_events(s, start, q);
        }
    } else if (events && *value == '{') {
        found = opens_event(value, e);
        if (found == NOT_ENOUGH)
            return MORE;
        if (found > NO) { /* the array's bracket is missing */
            note(s, FLAW_GARBAGE, value);
            return enter_events(s, start, value);
        }
    }
    q = skip_value(value, e, &flaws);
    if (q == MORE)
        return MORE;
    if (q == BAD || events)
        return lose(s, FLAW_HEADER, start, start + 1);
    const char *next = q;
    SKIP_SPACE(next);
    if (next >= e)
        return MORE;
    if (*next != ',' && *next != '}' && *next != '"') /* the value may have swallowed something */
        return lose(s, FLAW_HEADER, start, start + 1);
    keep_raw(s, RAW_KEY, start + 1, end);
    keep_raw(s, RAW_VALUE, value, q);
    if (s->need_comma)
        note(s, FLAW_COMMA, start);
    s->need_comma = s->any_item = 1;
    s->resyncing = 0;
    return q;
}

static const char *step_events(Scan *s, const char *p, const char *e) {
    SKIP_SPACE(p);
    if (p >= e)
        return p;
    if (*p == ',') {
        step_comma(s, p);
        return p + 1;
    }
    if (*p == ']') {
        end_of_items(s, p);
        s->state = s->bare ? AFTER_END : IN_HEADER;
        s->need_comma = s->any_item = 1;
        return p + 1;
    }
    if (*p != '{')
        return lose(s, FLAW_GARBAGE, p, p);
    const char *q = read_event(s, p, e);
    if (q == MORE)
        return MORE;
    if (q == BAD)
        return lose(s, FLAW_BROKEN, p, p + 1);
    if (!(s->event.keys & KEY_PH)) {
        if (s->resyncing) { /* some object inside the damage */
            s->state = RESYNC;
            return p + 1;
        }
        note(s, FLAW_NO_PH, p);
    } else {
        if (s->need_comma)
            note(s, FLAW_COMMA, p);
        keep_event(s, p, q, e);
        s->resyncing = 0;
    }
    s->need_comma = s->any_item = 1;
    return q;
}

/* Reads from p until at least stop, or until more bytes are needed. Returns the first byte not consumed. */
static const char *advance(Scan *s, const char *p, const char *stop, const char *e, int final) {
    while (p < stop) {
        const char *q = p;
        switch (s->state) {
        case AT_START: q = step_start(s, p, e); break;
        case IN_HEADER: q = step_header(s, p, e); break;
        case IN_EVENTS: q = step_events(s, p, e); break;
        case RESYNC: q = step_resync(s, p, e, final); break;
        case AFTER_END:
            SKIP_SPACE(q);
            if (q < e)
                q = lose(s, FLAW_GARBAGE, q, q);
            break;
        }
        if (q == MORE) {
            if (!final && e - p <= MAX_PIECE)
                return p;
            SKIP_SPACE(p);
            if (!s->ends_inside)
                note(s, final ? FLAW_TRUNCATED : FLAW_BROKEN, p);
            s->ends_inside = final;
            note_break(s, p);
            s->state = RESYNC;
            q = p + 1;
        }
        p = q;
    }
    return p;
}

#endif
