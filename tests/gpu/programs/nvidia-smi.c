/* Stands in for nvidia-smi -L where there is no GPU. */
void *dlopen(const char *file, int mode);
void *dlsym(void *library, const char *name);
int printf(const char *format, ...);

int main(void) {
    unsigned count = 0;
    void *nvml = dlopen("libnvidia-ml.so.1", 2);
    int code;
    if (!nvml) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n");
        return 12;
    }
    code = ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))();
    if (code) {
        printf("Failed to initialize NVML: %d\n", code);
        return code;
    }
    ((int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2"))(&count);
    for (unsigned i = 0; i < count; i++)
        printf("GPU %u: stand-in (UUID: GPU-00000000-0000-0000-0000-00000000000%u)\n", i, i);
    return 0;
}
