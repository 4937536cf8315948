/* Reading JSON text: where strings and values end, and numbers as exact integers.
 *
 * Functions take p, the next byte, and e, one past the last. *e is readable and 0, so loops over a class of bytes
 * need no bounds check. A function that returns a position returns MORE where the text ends before the value does,
 * and BAD where the text is not JSON.
 */
#ifndef DTPROF_TEXT_H
#define DTPROF_TEXT_H

#include "_columns.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MORE ((const char *)0)
#define BAD ((const char *)1)
#define STOPPED(p) ((uintptr_t)(p) <= 1)
#define UNEXPECTED(p, e) ((p) >= (e) ? MORE : BAD)

/* What may be wrong with an event; kept as bits until the event is complete, then counted once. */
enum {
    FLAW_BROKEN,   /* not JSON */
    FLAW_NO_PH,    /* an object that is no event */
    FLAW_TWICE,    /* ts twice: two events run together */
    FLAW_TIME,     /* ts or dur missing, not finite or out of range */
    FLAW_NEGATIVE, /* dur below zero */
    FLAW_NUMBER,   /* an argument not finite or out of range */
    FLAW_COMMA,    /* stray or missing comma */
    FLAW_GARBAGE,  /* text between events or after the end */
    FLAW_HEADER,   /* a top-level key or value that cannot be read */
    FLAW_TRUNCATED,
    FLAW_UNPAIRED, /* begin without end, end without begin */
    FLAW_FLOW,     /* flow without a usable id */
    FLAW_KEY,      /* events under another key than traceEvents */
    FLAW_AGAIN,    /* traceEvents twice */
    FLAW_COUNT
};

static inline int is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static inline int is_digit(char c) { return (unsigned char)(c - '0') < 10; }

/* The first byte from p that is no white space; indentation goes eight spaces at a time. */
static inline const char *skip_space(const char *p, const char *e) {
    for (; is_space(*p); p++)
        if (*p == '\n')
            while (e - p > 8 && load8(p + 1) == 0x2020202020202020ull)
                p += 8;
    return p;
}
#define SKIP_SPACE(p) ((p) = skip_space(p, e))

/* The closing quote of the string whose content starts at p. Control characters and bad escapes are let through. */
static inline const char *string_end(const char *p, const char *e) {
    for (;;) {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
        for (; p + 16 <= e; p += 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
            int hit = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)));
            if (hit) {
                p += __builtin_ctz((unsigned)hit);
                break;
            }
        }
#endif
        while (p < e && *p != '"' && *p != '\\')
            p++;
        if (p >= e)
            return MORE;
        if (*p == '"')
            return p;
        p += 2;
    }
}

/* Appends the decimal digits at p to *value (which may wrap: callers count digits). */
static inline const char *read_digits(const char *p, const char *e, uint64_t *value) {
    uint64_t v = *value;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (e - p >= 8) { /* eight digits at once */
        uint64_t w = load8(p);
        if (((w & 0xf0f0f0f0f0f0f0f0ull) | (((w + 0x0606060606060606ull) & 0xf0f0f0f0f0f0f0f0ull) >> 4)) != 0x3333333333333333ull)
            break;
        w = (w & 0x0f0f0f0f0f0f0f0full) * 2561 >> 8;
        w = (w & 0x00ff00ff00ff00ffull) * 6553601 >> 16;
        v = v * 100000000 + ((w & 0x0000ffff0000ffffull) * 42949672960001ull >> 32);
        p += 8;
    }
#else
    (void)e;
#endif
    while (is_digit(*p))
        v = v * 10 + (uint64_t)(*p++ - '0');
    *value = v;
    return p;
}

enum { IS_NUMBER, NOT_NUMBER, NOT_FINITE };

static inline char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }
static inline int is_word_byte(char c) { return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || (c && strchr("+-._#()", c)); }

static int same_word(const char *p, int64_t n, const char *word) {
    for (int64_t i = 0; i < n; i++)
        if (!word[i] || lower(p[i]) != word[i])
            return 0;
    return !word[n];
}

/* NaN and infinities as printf, JavaScript and Windows spell them. */
static int is_not_finite(const char *p, int64_t n) {
    static const char *const words[] = {"nan", "inf", "infinity", "nan(ind)", "nan(snan)", "1.#inf", "1.#qnan", "1.#ind", "1.#snan"};
    if (n && (*p == '-' || *p == '+'))
        p++, n--;
    if (!n || !strchr("nNiI1", *p))
        return 0;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (same_word(p, n, words[i]))
            return 1;
    return 0;
}

/* Text p[0:n] times 10^scale as an exact integer; what is left is rounded half away from zero. */
static int decimal(const char *p, int64_t n, int scale, int64_t *out) {
    const char *e = p + n;
    int negative = n && *p == '-', any = 0, kept = 0, point = 0, seen_point = 0;
    char digits[20];
    if (is_not_finite(p, n))
        return NOT_FINITE;
    if (n && (*p == '-' || *p == '+'))
        p++;
    for (; p < e && (is_digit(*p) || (*p == '.' && !seen_point)); p++) {
        if (*p == '.') {
            seen_point = 1;
            continue;
        }
        any = 1;
        if (kept || *p != '0') {
            if (kept < 20)
                digits[kept++] = *p;
            point += point < 1000000 && !seen_point;
        } else if (seen_point) {
            point -= point > -1000000;
        }
    }
    if (!any)
        return NOT_NUMBER;
    if (p < e && lower(*p) == 'e') {
        int down = 0, exponent = 0;
        p++;
        if (p < e && (*p == '-' || *p == '+'))
            down = *p++ == '-';
        if (p >= e)
            return NOT_NUMBER;
        for (; p < e && is_digit(*p); p++)
            exponent = exponent < 1000000 ? exponent * 10 + (*p - '0') : exponent;
        point += down ? -exponent : exponent;
    }
    if (p != e)
        return NOT_NUMBER;
    point += scale;
    uint64_t v = 0;
    if (!kept || point < 0) {
        *out = 0;
        return IS_NUMBER;
    }
    if (point > 19)
        return NOT_FINITE;
    for (int i = 0; i < point; i++)
        v = v * 10 + (uint64_t)(i < kept ? digits[i] - '0' : 0);
    v += point < kept && digits[point] >= '5';
    if (v > (uint64_t)INT64_MAX)
        return NOT_FINITE;
    *out = negative ? -(int64_t)v : (int64_t)v;
    return IS_NUMBER;
}

/* A number or a word (null, true, NaN, -inf, ...) that is not a string or container. */
static const char *scalar_end(const char *p, const char *e, unsigned *flaws) {
    const char *q = p;
    int digit = 0, numeric = 1;
    for (; is_word_byte(*q); q++) {
        digit |= is_digit(*q);
        numeric &= is_digit(*q) || *q == '.' || *q == '-' || *q == '+' || *q == 'e' || *q == 'E';
    }
    if (q >= e)
        return MORE;
    if (numeric && digit)
        return q;
    if (is_not_finite(p, q - p)) {
        *flaws |= 1u << FLAW_NUMBER;
        return q;
    }
    return same_word(p, q - p, "null") || same_word(p, q - p, "true") || same_word(p, q - p, "false") ? q : BAD;
}

/* Is the key that opens at p "ph"? No value inside an event or the header has one: there it means a swallowed event. */
static inline int is_ph_key(const char *p) { return p[1] == 'p' && p[2] == 'h' && p[3] == '"'; }

/* The end of any value. Nested containers are checked in full: an unclosed one must not swallow what follows. */
static const char *skip_value(const char *p, const char *e, unsigned *flaws) {
    uint64_t objects = 0; /* bit 0: is the innermost open container an object? */
    int depth = 0;
value:
    switch (*p) {
    case '"':
        p = string_end(p + 1, e);
        if (p == MORE)
            return MORE;
        p++;
        break;
    case '{':
    case '[':
        if (depth++ == 64)
            return BAD;
        objects = objects << 1 | (*p == '{');
        p++;
        SKIP_SPACE(p);
        if (*p == ((objects & 1) ? '}' : ']'))
            goto close;
        goto element;
    default: {
        const char *q = p;
        while (is_digit(*q))
            q++;
        if (q > p && (*q == ',' || *q == ']' || *q == '}'))
            p = q;
        else
            p = scalar_end(p, e, flaws);
        if (STOPPED(p))
            return p;
    }
    }
after:
    if (!depth)
        return p;
    SKIP_SPACE(p);
    if (*p == ',') {
        p++;
        SKIP_SPACE(p);
        if (*p != '}' && *p != ']')
            goto element;
        *flaws |= 1u << FLAW_COMMA;
    }
close:
    if (*p != ((objects & 1) ? '}' : ']'))
        return UNEXPECTED(p, e);
    p++;
    objects >>= 1;
    depth--;
    goto after;
element:
    if (objects & 1) {
        if (*p != '"')
            return UNEXPECTED(p, e);
        if (is_ph_key(p))
            return BAD;
        p = string_end(p + 1, e);
        if (p == MORE)
            return MORE;
        p++;
        SKIP_SPACE(p);
        if (*p != ':')
            return UNEXPECTED(p, e);
        p++;
        SKIP_SPACE(p);
    }
    goto value;
}

/* A number, quoted or not, times 10^scale; MISSING where there is none. *damaged: there is one, but out of range or malformed. */
static inline const char *read_decimal(const char *p, const char *e, int scale, int64_t *out, int *damaged, unsigned *flaws) {
    const char *start = p;
    uint64_t v = 0;
    int negative = *p == '-';
    p += negative;
    const char *first = p;
    p = read_digits(p, e, &v);
    if (p > first && p - first <= (scale ? 16 : 18)) {
        if (*p == '.' && scale == 3 && is_digit(p[1])) {
            const char *point = p++;
            int64_t unit = 1000;
            for (; is_digit(*p) && p - point <= 3; p++) {
                v = v * 10 + (uint64_t)(*p - '0');
                unit /= 10;
            }
            v *= (uint64_t)unit;
        } else if (scale == 3) {
            v *= 1000;
        }
        if ((*p == ',' || *p == '}' || is_space(*p)) && v <= (uint64_t)INT64_MAX) {
            *out = negative ? -(int64_t)v : (int64_t)v;
            return p;
        }
    }
    const char *text = start, *end;
    int state;
    *out = MISSING;
    if (*start == '"') {
        text++;
        end = string_end(text, e);
        if (end == MORE)
            return MORE;
        p = end + 1;
    } else {
        p = end = skip_value(start, e, flaws);
        if (STOPPED(p))
            return p;
    }
    state = decimal(text, end - text, scale, out);
    *damaged = state == NOT_FINITE || (state == NOT_NUMBER && (*start == '-' || is_digit(*start)));
    return p;
}

#endif
