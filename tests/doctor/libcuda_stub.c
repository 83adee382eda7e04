/* A libcuda.so.1 whose answers come from environment variables, to drive the real CUDA runtime
 * on a machine without a GPU: STUB_CUINIT (code), STUB_DRIVER (12060), STUB_DEVICES (count). */
#include <stdlib.h>
#include <string.h>

static int value(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { (void)flags; return value("STUB_CUINIT", 0); }

int cuDriverGetVersion(int *version) {
    *version = value("STUB_DRIVER", 12060);
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = value("STUB_DEVICES", 0);
    return *count ? 0 : 100;
}

/* Every other entry point: not supported (801), so that the runtime stops there and says so. */
static int unsupported(void) { return 801; }

int cuGetExportTable(const void **table, const void *id) {
    (void)id;
    *table = 0;
    return 1;
}

static void *find(const char *name) {
    if (!strcmp(name, "cuInit")) return (void *)cuInit;
    if (!strcmp(name, "cuDriverGetVersion")) return (void *)cuDriverGetVersion;
    if (!strcmp(name, "cuDeviceGetCount")) return (void *)cuDeviceGetCount;
    if (!strcmp(name, "cuGetExportTable")) return (void *)cuGetExportTable;
    return (void *)unsupported;
}

int cuGetProcAddress_v2(const char *name, void **entry, int version, unsigned long long flags,
                        int *status) {
    (void)version;
    (void)flags;
    *entry = strcmp(name, "cuGetProcAddress") ? find(name) : (void *)cuGetProcAddress_v2;
    if (status) *status = 0;
    return 0;
}

int cuGetProcAddress(const char *name, void **entry, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, entry, version, flags, 0);
}
