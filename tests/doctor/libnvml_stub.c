/* A libnvidia-ml.so.1 whose answers come from environment variables: STUB_NVML (nvmlInit's code),
 * STUB_DEVICES (count), STUB_HANG (never answers). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int value(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int nvmlInit_v2(void) {
    while (getenv("STUB_HANG")) pause();
    return value("STUB_NVML", 0);
}

const char *nvmlErrorString(int code) {
    return code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, "570.86.15", length);
    return 0;
}

int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12080; return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = value("STUB_DEVICES", 2); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return 0;
}

int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    (void)device;
    strncpy(text, "NVIDIA L40S", length);
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    strncpy(text, "GPU-00000000-0000-0000-0000-000000000000", length);
    text[4] = (char)('0' + (size_t)device);
    return 0;
}
