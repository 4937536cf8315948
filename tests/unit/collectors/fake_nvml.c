/* A small libnvidia-ml.so.1: two H100 of different serial, the second cut into two MIG devices. It stands below the real
   pynvml, so that signatures, error codes and structures are those of the real thing.

   FAKE_NVML is a list of NAME=CODE@CALL: from that call on (1 is the first; CALL-LAST ends it again) the function answers with
   that error; the code
   "hang" never returns and "na" gives the value that means not available. FAKE_NVML_MODELS=1 makes the first GPU another model. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define NA 999

typedef struct { int index; int slice; const char *uuid; } Device;
static Device devices[] = {
    {0, -1, "GPU-11111111-aaaa-bbbb-cccc-000000000001"},
    {1, -1, "GPU-22222222-aaaa-bbbb-cccc-000000000002"},
    {1, 0, "MIG-33333333-aaaa-bbbb-cccc-000000000003"},
    {1, 1, "MIG-44444444-aaaa-bbbb-cccc-000000000004"},
};

static struct { const char *name; int calls; } counted[64];

static int calls_of(const char *name) {
    for (int i = 0; i < 64; i++) {
        if (!counted[i].name) counted[i].name = name;
        if (!strcmp(counted[i].name, name)) return ++counted[i].calls;
    }
    return 0;
}

static int planned(const char *name) {
    int call = calls_of(name);
    const char *plan = getenv("FAKE_NVML");
    char entry[128];
    while (plan && *plan) {
        size_t n = strcspn(plan, ",");
        snprintf(entry, sizeof entry, "%.*s", (int)n, plan);
        char *equals = strchr(entry, '='), *at = strchr(entry, '@');
        if (equals && at) {
            *equals = *at = 0;
            const char *last = strchr(at + 1, '-');
            if (!strcmp(entry, name) && call >= atoi(at + 1) && (!last || call <= atoi(last + 1))) {
                if (!strcmp(equals + 1, "hang")) for (;;) sleep(1000);
                return strcmp(equals + 1, "na") ? atoi(equals + 1) : NA;
            }
        }
        plan += n + (plan[n] == ',');
    }
    return 0;
}

#define PLAN int plan = planned(__func__); if (plan && plan != NA) return plan
#define BOARD if (((Device *)d)->slice >= 0) return NOT_SUPPORTED

int nvmlInitWithFlags(unsigned flags) { (void)flags; PLAN; return 0; }
int nvmlShutdown(void) {
    PLAN;
    const char *mark = getenv("FAKE_NVML_SHUTDOWN");
    FILE *file = mark ? fopen(mark, "w") : NULL;
    if (file) fclose(file);
    return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned n) { PLAN; snprintf(text, n, "570.00"); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { PLAN; *version = 12080; return 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned link, unsigned *active) { (void)d; PLAN; if (link > 17) return 2; *active = 1; return 0; }
int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status) { (void)a; (void)b; (void)what; PLAN; *status = 0; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level) { (void)a; (void)b; PLAN; *level = 40; return 0; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *d, Pci *pci) {
    PLAN;
    snprintf(pci->text, sizeof pci->text, "00000000:%X:00.0", 0x1b + ((Device *)d)->index);
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *n) { PLAN; *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { PLAN; if (i > 1) return 2; *d = &devices[i]; return 0; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned n) { PLAN; snprintf(text, n, "%s", ((Device *)d)->uuid); return 0; }
int nvmlDeviceGetName(void *d, char *text, unsigned n) {
    PLAN;
    snprintf(text, n, ((Device *)d)->index == 0 && getenv("FAKE_NVML_MODELS") ? "NVIDIA T4" : "NVIDIA H100");
    return 0;
}
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *then) {
    PLAN;
    *now = *then = ((Device *)d)->index == 1 && getenv("FAKE_NVML_MIG");
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *n) { (void)d; PLAN; *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned i, void **slice) {
    PLAN;
    if (((Device *)d)->index != 1 || i > 1) return NOT_FOUND;
    *slice = &devices[2 + i];
    return 0;
}
int nvmlDeviceGetGpuInstanceId(void *d, unsigned *n) { PLAN; *n = 7 + ((Device *)d)->slice; return 0; }
int nvmlDeviceGetComputeInstanceId(void *d, unsigned *n) { (void)d; PLAN; *n = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { PLAN; BOARD; u[0] = 90 + ((Device *)d)->index; u[1] = 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, uint64_t *m) {
    PLAN;
    m[0] = 80ull << 30;
    m[2] = plan == NA ? UINT64_MAX : ((Device *)d)->slice >= 0 ? 5ull << 30 : 20ull << 30;
    m[1] = m[0] - m[2];
    return 0;
}
int nvmlDeviceGetClockInfo(void *d, int kind, unsigned *mhz) { PLAN; BOARD; *mhz = plan == NA ? UINT32_MAX : kind == 1 ? 1980 : 2619; return 0; }
int nvmlDeviceGetMaxClockInfo(void *d, int kind, unsigned *mhz) { (void)d; (void)kind; PLAN; *mhz = 1980; return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { PLAN; BOARD; *mw = 351500; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { (void)d; PLAN; *mw = 700000; return 0; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *c) { (void)sensor; PLAN; BOARD; *c = 61; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, uint64_t *mask) {
    PLAN;
    BOARD;
    static int n;
    *mask = ++n % 2 ? 1 : 0x40 | 0x4;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, uint64_t *n) { (void)counter; PLAN; BOARD; *n = kind == 0 ? 3 : 0; return 0; }
int nvmlDeviceGetPcieThroughput(void *d, int way, unsigned *kb) { PLAN; BOARD; *kb = way == 0 ? 1000 : 2000; return 0; }
int nvmlDeviceGetPcieReplayCounter(void *d, unsigned *n) { PLAN; BOARD; *n = 2; return 0; }

typedef struct { uint32_t id, scope; int64_t at, latency; int type, result; union { double d; uint64_t u; } value; } Field;
int nvmlDeviceGetFieldValues(void *d, int n, Field *f) {
    static uint64_t kib;
    PLAN;
    BOARD;
    kib += 1024;
    for (int i = 0; i < n; i++) {
        f[i].type = 3;
        f[i].result = 0;
        switch (f[i].id) {
        case 38: f[i].value.u = 7; break;
        case 52: f[i].value.u = 1; break;
        case 138: f[i].value.u = kib; f[i].result = f[i].scope == UINT32_MAX ? 0 : 2; break;
        case 139: f[i].value.u = 2 * kib; f[i].result = f[i].scope == UINT32_MAX ? 0 : 2; break;
        default: f[i].result = NOT_SUPPORTED;
        }
    }
    return 0;
}
const char *nvmlErrorString(int code) { (void)code; return "error of the fake library"; }
