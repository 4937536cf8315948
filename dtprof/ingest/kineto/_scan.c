/* dtprof.ingest.kineto._scan: the scanner as a Python type.
 *
 *     scanner = Scanner(args, words)   args: (key, kind, slot) triples; words: what the name of a communication record contains
 *     scanner.feed(chunk)              bytes of decompressed JSON, cut anywhere; runs without the GIL
 *     scanner.finish()                 dict of columns; every Column owns its memory and speaks the buffer protocol
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_machine.h"

/* ---- Column: memory handed to numpy ---- */

typedef struct {
    PyObject_HEAD
    char *data;
    Py_ssize_t bytes;
} ColumnObject;

static void column_dealloc(ColumnObject *self) {
    free(self->data);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int column_buffer(ColumnObject *self, Py_buffer *view, int flags) {
    static char nothing[8];
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data ? self->data : nothing, self->bytes, 0, flags);
}

static PyBufferProcs column_buffer_procs = {(getbufferproc)column_buffer, NULL};

static PyTypeObject ColumnType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtprof.ingest.kineto._scan.Column",
    .tp_doc = "One column's memory; numpy reads it in place.",
    .tp_basicsize = sizeof(ColumnObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)column_dealloc,
    .tp_as_buffer = &column_buffer_procs,
};

/* Takes the memory out of c. */
static PyObject *hand_out(Column *c, int width) {
    ColumnObject *out = PyObject_New(ColumnObject, &ColumnType);
    if (!out)
        return NULL;
    out->bytes = (Py_ssize_t)c->count * width;
    char *trimmed = c->count ? realloc(c->data, (size_t)out->bytes) : c->data;
    out->data = trimmed ? trimmed : c->data;
    *c = (Column){NULL, 0, 0};
    return (PyObject *)out;
}

/* (bytes, entries) of a table of texts. */
static PyObject *hand_out_texts(Texts *t) {
    return Py_BuildValue("(NN)", PyBytes_FromStringAndSize(t->text.data, (Py_ssize_t)t->text.count),
                         hand_out(&t->entries, sizeof(Entry)));
}

/* ---- Scanner ---- */

typedef struct {
    PyObject_HEAD
    Scan *scan;
    Column carry; /* bytes fed but not yet consumed, plus a 0 */
    int64_t fed, retry_at;
    int busy, finished;
} Scanner;

static int add_arg(Scan *s, const char *key, Py_ssize_t length, int kind, int slot) {
    if (s->key_count == MAX_ARGS || slot < 0 || slot >= MAX_ARGS || length >= (Py_ssize_t)sizeof s->keys->key) {
        PyErr_SetString(PyExc_ValueError, "too many or too long argument names");
        return 0;
    }
    ArgKey *k = &s->keys[s->key_count];
    memcpy(k->key, key, (size_t)length);
    k->length = (int)length, k->kind = kind, k->slot = slot;
    s->slot_kind[slot] = kind;
    s->memory_slots |= (uint64_t)(kind == ARG_MEMORY) << slot;
    k->head = key_head(key, length, key + length);
    unsigned at = key_hash(k->head, length);
    while (s->key_slots[at] >= 0)
        at = (at + 1) & 255;
    s->key_slots[at] = (int8_t)s->key_count++;
    return 1;
}

static int scanner_init(Scanner *self, PyObject *positional, PyObject *keywords) {
    static char *names[] = {"args", "words", NULL};
    PyObject *args, *words;
    if (!PyArg_ParseTupleAndKeywords(positional, keywords, "O!O!", names, &PyTuple_Type, &args, &PyTuple_Type, &words))
        return -1;
    if (self->scan || !(self->scan = calloc(1, sizeof(Scan)))) {
        PyErr_SetString(PyExc_MemoryError, "scanner");
        return -1;
    }
    Scan *s = self->scan;
    memset(s->key_slots, 0xff, sizeof s->key_slots);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        const char *key;
        Py_ssize_t length;
        int kind, slot;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args, i), "s#ii", &key, &length, &kind, &slot) || !add_arg(s, key, length, kind, slot))
            return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); i++) {
        const char *word = PyUnicode_AsUTF8(PyTuple_GET_ITEM(words, i));
        if (!word)
            return -1;
        if (s->word_count == MAX_WORDS || strlen(word) >= sizeof *s->words) {
            PyErr_SetString(PyExc_ValueError, "too many or too long words");
            return -1;
        }
        strcpy(s->words[s->word_count++], word);
    }
    return 0;
}

static void scanner_dealloc(Scanner *self) {
    Scan *s = self->scan;
    free(self->carry.data);
    if (s) {
        Column *columns[] = {&s->ts, &s->dur, &s->name_codes, &s->cat_codes, &s->track_codes, &s->correlation, &s->external,
                             &s->flow_phase, &s->flow_id, &s->flow_ts, &s->flow_track, &s->flow_cat_codes, &s->memory_ts,
                             &s->open_top, &s->raw, &s->raw_start, &s->breaks, &s->scratch};
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
            free(columns[i]->data);
        texts_free(&s->names), texts_free(&s->cats), texts_free(&s->flow_cats), texts_free(&s->tracks);
        for (int i = 0; i < MAX_ARGS; i++) {
            free(s->args[i].rows.data), free(s->args[i].values.data);
            texts_free(&s->args[i].texts);
        }
        free(s);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Reads data[0:n], which begins at file offset self->fed. An event cut by the end of a chunk is completed in the carry buffer. */
static void consume(Scanner *self, const char *data, int64_t n, int final) {
    Scan *s = self->scan;
    Column *carry = &self->carry;
    int64_t used = 0;
    while (carry->count && (used < n || final)) {
        int64_t old = carry->count, take = n - used;
        if (old >= self->retry_at && take > old && take > 4096)
            take = old > 4096 ? old : 4096;
        push_bytes(&s->guard, carry, data + used, take);
        if (carry->count < self->retry_at && !final) {
            used += take;
            continue;
        }
        push_i8(&s->guard, carry, 0);
        carry->count--;
        s->buffer = carry->data;
        s->base = self->fed + used - old;
        int last = final && used + take == n;
        const char *stop = carry->data + old, *p = advance(s, carry->data, stop, carry->data + carry->count, last);
        if (p >= stop) {
            used += p - stop;
            carry->count = 0;
            self->retry_at = 0;
            break;
        }
        if (p == carry->data)
            self->retry_at = 2 * carry->count;
        carry->count -= p - carry->data;
        memmove(carry->data, p, (size_t)carry->count);
        used += take;
    }
    if (used < n) {
        s->buffer = data;
        s->base = self->fed;
        const char *p = advance(s, data + used, data + n, data + n, final);
        push_bytes(&s->guard, carry, p, data + n - p);
    }
    self->fed += n;
}

/* consume() without the GIL; 0 where memory ran out. */
static int run(Scanner *self, const char *data, int64_t n, int final) {
    volatile int ok = 1;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    if (setjmp(self->scan->guard.out_of_memory))
        ok = 0;
    else
        consume(self, data, n, final);
    Py_END_ALLOW_THREADS
    self->busy = 0;
    self->finished |= final || !ok;
    if (!ok)
        PyErr_NoMemory();
    return ok;
}

static int ready(Scanner *self) {
    if (self->scan && !self->busy && !self->finished)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, self->busy ? "the scanner is in use by another thread" : "the scanner is finished");
    return 0;
}

static PyObject *scanner_feed(Scanner *self, PyObject *chunk) {
    if (!PyBytes_Check(chunk)) { /* bytes end in a 0, which the scanner relies on */
        PyErr_SetString(PyExc_TypeError, "feed() takes bytes");
        return NULL;
    }
    if (!ready(self) || !run(self, PyBytes_AS_STRING(chunk), PyBytes_GET_SIZE(chunk), 0))
        return NULL;
    Py_RETURN_NONE;
}

/* Stores a new reference under key; 0 on failure. */
static int put(PyObject *dict, const char *key, PyObject *value) {
    int ok = value && !PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return ok;
}

static PyObject *args_out(Scan *s) {
    PyObject *out = PyDict_New();
    for (int i = 0; out && i < s->key_count; i++) {
        ArgKey *k = &s->keys[i];
        Arg *arg = &s->args[k->slot];
        if (k->kind == ARG_DENSE || !arg->rows.count)
            continue;
        int text = k->kind == ARG_TEXT || k->kind == ARG_COMM_TEXT;
        PyObject *rows = hand_out(&arg->rows, 4), *values = hand_out(&arg->values, text ? 4 : 8), *item;
        item = text ? Py_BuildValue("(NNN)", rows, values, hand_out_texts(&arg->texts)) : Py_BuildValue("(NN)", rows, values);
        if (!put(out, k->key, item))
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *flaws_out(Scan *s) {
    PyObject *out = PyList_New(0);
    for (int i = 0; out && i < FLAW_COUNT; i++) {
        PyObject *item = Py_BuildValue("(iLL)", i, (long long)s->flaw_first[i], (long long)s->flaw_count[i]);
        if (!item || (s->flaw_count[i] && PyList_Append(out, item)))
            Py_CLEAR(out);
        Py_XDECREF(item);
    }
    return out;
}

static PyObject *scanner_finish(Scanner *self, PyObject *Py_UNUSED(nothing)) {
    if (!ready(self) || !run(self, "", 0, 1))
        return NULL;
    Scan *s = self->scan;
    s->buffer = "", s->base = self->fed;
    int closed = s->state == AFTER_END || s->state == AT_START || (s->state == RESYNC && (s->last_byte == '}' || s->last_byte == ']'));
    if (!closed && !s->ends_inside)
        note(s, FLAW_TRUNCATED, s->buffer);
    PyObject *out = PyDict_New();
    int ok = out && put(out, "ts", hand_out(&s->ts, 8)) && put(out, "dur", hand_out(&s->dur, 8)) &&
             put(out, "name", Py_BuildValue("(NN)", hand_out(&s->name_codes, 4), hand_out_texts(&s->names))) &&
             put(out, "cat", Py_BuildValue("(NN)", hand_out(&s->cat_codes, 4), hand_out_texts(&s->cats))) &&
             put(out, "track", hand_out(&s->track_codes, 4)) && put(out, "tracks", hand_out_texts(&s->tracks)) &&
             put(out, "correlation", hand_out(&s->correlation, 8)) && put(out, "external", hand_out(&s->external, 8)) &&
             put(out, "flow_phase", hand_out(&s->flow_phase, 1)) && put(out, "flow_id", hand_out(&s->flow_id, 8)) &&
             put(out, "flow_ts", hand_out(&s->flow_ts, 8)) && put(out, "flow_track", hand_out(&s->flow_track, 4)) &&
             put(out, "flow_cat", Py_BuildValue("(NN)", hand_out(&s->flow_cat_codes, 4), hand_out_texts(&s->flow_cats))) &&
             put(out, "memory_ts", hand_out(&s->memory_ts, 8)) && put(out, "args", args_out(s)) &&
             put(out, "raw", PyBytes_FromStringAndSize(s->raw.data, (Py_ssize_t)s->raw.count)) &&
             put(out, "raw_pieces", hand_out(&s->raw_start, 8)) && put(out, "breaks", hand_out(&s->breaks, 8)) &&
             put(out, "flaws", flaws_out(s)) && put(out, "pairs", PyBool_FromLong(s->open_top.count > 0)) &&
             put(out, "arrays", PyLong_FromLong(s->arrays)) && put(out, "bare", PyBool_FromLong(s->bare)) && put(out, "bytes", PyLong_FromLongLong(self->fed)) &&
             put(out, "events_total", PyLong_FromLongLong(s->events_total));
    if (!ok)
        Py_CLEAR(out);
    return out;
}

static PyMethodDef scanner_methods[] = {
    {"feed", (PyCFunction)scanner_feed, METH_O, "Read the next bytes of the file."},
    {"finish", (PyCFunction)scanner_finish, METH_NOARGS, "The end of the file: hand out the columns."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ScannerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtprof.ingest.kineto._scan.Scanner",
    .tp_doc = "Streams a Kineto trace into columns.",
    .tp_basicsize = sizeof(Scanner),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)scanner_init,
    .tp_dealloc = (destructor)scanner_dealloc,
    .tp_methods = scanner_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_scan", .m_doc = "Kineto traces to columns, in C.", .m_size = -1};

PyMODINIT_FUNC PyInit__scan(void) {
    if (PyType_Ready(&ColumnType) < 0 || PyType_Ready(&ScannerType) < 0)
        return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m && (PyModule_AddObjectRef(m, "Scanner", (PyObject *)&ScannerType) < 0 ||
              PyModule_AddObjectRef(m, "Column", (PyObject *)&ColumnType) < 0))
        Py_CLEAR(m);
    return m;
}
