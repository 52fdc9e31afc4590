/* A CUDA test by the driver's own API: it copies memory to the first GPU and back. With the argument "hold" it
   goes on, ten times a second, and counts in /tmp/count; an error ends it.
   Declared by hand: neither CUDA's toolkit nor any header is needed. */
void *dlopen(const char *file, int mode);
void *dlsym(void *library, const char *name);
char *dlerror(void);
int printf(const char *format, ...);
int fflush(void *stream);
int open(const char *path, int flags, ...);
int close(int fd);
int dprintf(int fd, const char *format, ...);
int usleep(unsigned microseconds);
void exit(int code);

enum { SIZE = 1 << 20 };
typedef unsigned long long Address;
static unsigned char sent[SIZE], back[SIZE];
static void *cuda;

static void *named(const char *name) {
    void *found = dlsym(cuda, name);
    if (!found) {
        printf("no %s in libcuda.so.1\n", name);
        exit(1);
    }
    return found;
}

static void good(const char *what, int code) {
    if (code) {
        printf("%s gave %d\n", what, code);
        exit(1);
    }
}

static void copy(int round) {
    Address there = 0;
    for (int i = 0; i < SIZE; i++) {
        sent[i] = i * 31 + (i >> 8) + round;
        back[i] = ~sent[i];
    }
    good("cuMemAlloc", ((int (*)(Address *, unsigned long))named("cuMemAlloc_v2"))(&there, SIZE));
    good("cuMemcpyHtoD", ((int (*)(Address, const void *, unsigned long))named("cuMemcpyHtoD_v2"))(there, sent, SIZE));
    good("cuMemcpyDtoH", ((int (*)(void *, Address, unsigned long))named("cuMemcpyDtoH_v2"))(back, there, SIZE));
    good("cuMemFree", ((int (*)(Address))named("cuMemFree_v2"))(there));
    for (int i = 0; i < SIZE; i++)
        good("the comparison of what came back", sent[i] != back[i]);
}

int main(int argc, char **argv) {
    int count = 0, version = 0, device = 0;
    void *context = 0;
    cuda = dlopen("libcuda.so.1", 2);
    if (!cuda) {
        printf("%s\n", dlerror());
        return 1;
    }
    good("cuInit", ((int (*)(unsigned))named("cuInit"))(0));
    good("cuDeviceGetCount", ((int (*)(int *))named("cuDeviceGetCount"))(&count));
    good("cuDriverGetVersion", ((int (*)(int *))named("cuDriverGetVersion"))(&version));
    good("cuDeviceGet", ((int (*)(int *, int))named("cuDeviceGet"))(&device, 0));
    good("cuDevicePrimaryCtxRetain", ((int (*)(void **, int))named("cuDevicePrimaryCtxRetain"))(&context, device));
    good("cuCtxSetCurrent", ((int (*)(void *))named("cuCtxSetCurrent"))(context));
    copy(0);
    printf("CUDA %d.%d devices %d copied %d\n", version / 1000, version % 1000 / 10, count, SIZE);
    fflush(0);
    for (int round = 1; argc > 1; round++) {
        int counted;
        usleep(100000);
        copy(round);
        counted = open("/tmp/count", 01 | 0100 | 01000, 0644); /* O_WRONLY|O_CREAT|O_TRUNC */
        dprintf(counted, "%d\n", round);
        close(counted);
    }
    return 0;
}
