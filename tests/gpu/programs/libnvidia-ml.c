/* Stands in for libnvidia-ml.so.1 where there is no GPU. */
int open(const char *path, int flags, ...);
int close(int fd);

int nvmlInit_v2(void) {
    int fd = open("/dev/nvidiactl", 2);
    if (fd < 0)
        return 9; /* the driver is not loaded */
    close(fd);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}
