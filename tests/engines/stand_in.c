/* Stands in for each executable of the toolkit; roots.py has it built, with MARK as the path of the mark.
   A line of the mark is the name it was started by, then its arguments.
   Declared by hand: tcc needs the start files of libc6-dev, but no kernel headers this way. */
int open(const char *path, int flags, ...);
long read(int fd, void *bytes, unsigned long count);
long write(int fd, const void *bytes, unsigned long count);
int close(int fd);
int dprintf(int fd, const char *format, ...);
int printf(const char *format, ...);
int snprintf(char *to, unsigned long size, const char *format, ...);
int execvp(const char *file, char *const argv[]);
char *strrchr(const char *text, int c);
char *strstr(const char *text, const char *part);
char *strncat(char *to, const char *from, unsigned long count);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, unsigned long count);
unsigned long strlen(const char *text);
int access(const char *path, int mode);
int mknod(const char *path, unsigned mode, unsigned long device);
int chmod(const char *path, unsigned mode);
long readlink(const char *path, char *to, unsigned long size);

#define LIBRARIES "/usr/lib/x86_64-linux-gnu/"

static const char *const NODES[] = {"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"};
static const unsigned long NUMBERS[] = {195 << 8 | 255, 195 << 8 | 254, 238 << 8, 238 << 8 | 1};
static const char *const GPUS[] = {"nvidia0", "nvidia1", "nvidia2", "nvidia3"};

/* As far as the installer asks nvidia-ctk v1.20.0, in its words: control device nodes of a driver that is
   loaded, the specification for management containers, other roots in it, and that of the GPUs. */
static char *given(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], flag, strlen(flag)))
            return argv[i] + strlen(flag);
    return "";
}

static const char *below(const char *root) { return strcmp(root, "/") ? root : ""; }

static char *node(const char *root, const char *name) {
    static char path[2048];
    snprintf(path, sizeof path, "%s/dev/%s", below(root), name);
    return path;
}

static int make_nodes(const char *root) {
    for (int i = 0; i < 4; i++) {
        char *path = node(root, NODES[i]);
        if (access(path, 0) && (mknod(path, 020666, NUMBERS[i]) || chmod(path, 0666))) {
            dprintf(2, "time=now level=error msg=failed to create device node\n");
            return 1;
        }
    }
    return 0;
}

static int generate(int argc, char **argv) {
    char *root = given(argc, argv, "--dev-root=");
    int found = 0;
    for (int i = 0; i < 4; i++) {
        char *path = node(root, NODES[i]);
        if (access(path, 0))
            continue;
        if (!found++)
            printf("---\ncdiVersion: 0.5.0\nkind: %s/%s\ndevices:\n    - name: all\n      containerEdits:\n"
                   "        deviceNodes:\n",
                   given(argc, argv, "--vendor="), given(argc, argv, "--class="));
        printf("            - path: /dev/%s\n", NODES[i]);
        if (*below(root))
            printf("              hostPath: %s\n", path);
    }
    if (!found) {
        dprintf(2, "time=now level=error msg=failed\n no NVIDIA device nodes found\n");
        return 1;
    }
    printf("containerEdits:\n    env:\n        - NVIDIA_VISIBLE_DEVICES=void\n    hooks:\n"
           "        - hookName: createContainer\n          path: %s\n",
           given(argc, argv, "--nvidia-cdi-hook-path="));
    return 0;
}

static void say_gpu(const char *root, const char *name) {
    printf("{\"path\":\"/dev/%s\"", name);
    if (*below(root))
        printf(",\"hostPath\":\"%s\"", node(root, name));
    printf("}");
}

/* The GPUs as JSON: one line without an end, names by index and one for all, the library that libcuda.so.1 is
   a link to. As v1.20.0 does, a driver's root that is a link ends well, without any library. */
static int generate_gpus(int argc, char **argv) {
    static char path[4096], library[512];
    char *root = given(argc, argv, "--driver-root="), *dev = given(argc, argv, "--dev-root=");
    int found = 0;
    snprintf(path, sizeof path, "%s" LIBRARIES "libcuda.so.1", below(root));
    if (readlink(path, library, sizeof library - 1) <= 0) {
        dprintf(2, "time=now level=error msg=\"failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND\"\n");
        return 1;
    }
    printf("{\"cdiVersion\":\"0.5.0\",\"kind\":\"%s/%s\",\"devices\":[", given(argc, argv, "--vendor="),
           given(argc, argv, "--class="));
    for (int i = 0; i < 4; i++) {
        if (access(node(dev, GPUS[i]), 0))
            continue;
        printf("{\"name\":\"%d\",\"containerEdits\":{\"deviceNodes\":[", i);
        say_gpu(dev, GPUS[i]);
        printf("]}},");
    }
    printf("{\"name\":\"all\",\"containerEdits\":{\"deviceNodes\":[");
    for (int i = 0; i < 4; i++) {
        if (access(node(dev, GPUS[i]), 0))
            continue;
        if (found++)
            printf(",");
        say_gpu(dev, GPUS[i]);
    }
    printf("]}}],\"containerEdits\":{\"env\":[\"NVIDIA_VISIBLE_DEVICES=void\"],\"hooks\":["
           "{\"hookName\":\"createContainer\",\"path\":\"%s\",\"args\":"
           "[\"nvidia-cdi-hook\",\"update-ldcache\",\"--folder\",\"/usr/lib/x86_64-linux-gnu\"]}]",
           given(argc, argv, "--nvidia-cdi-hook-path="));
    if (readlink(root, path, sizeof path - 1) <= 0)
        printf(",\"mounts\":[{\"hostPath\":\"%s" LIBRARIES "%s\",\"containerPath\":\"" LIBRARIES "%s\","
               "\"options\":[\"ro\",\"nosuid\",\"nodev\",\"rbind\",\"rprivate\"]}]",
               below(root), library, library);
    printf("}}");
    return 0;
}

/* A path is another's where it is that one or lies below it. */
static int transform(const char *from, const char *to) {
    static char text[65536];
    long count, size = 0;
    char *at = text, *next;
    while ((count = read(0, text + size, sizeof text - 1 - size)) > 0)
        size += count;
    while ((next = strstr(at, "ath: "))) {
        next += 5;
        printf("%.*s", (int)(next - at), at);
        at = next;
        if (!strncmp(at, from, strlen(from)) && (at[strlen(from)] == '/' || at[strlen(from)] == '\n')) {
            printf("%s", to);
            at += strlen(from);
        }
    }
    printf("%s", at);
    return 0;
}

static int ctk(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "system") && !strcmp(argv[2], "create-device-nodes"))
        return make_nodes(given(argc, argv, "--dev-root="));
    if (argc > 2 && !strcmp(argv[1], "cdi") && !strcmp(argv[2], "generate"))
        return *given(argc, argv, "--mode=") ? generate(argc, argv) : generate_gpus(argc, argv);
    if (argc > 2 && !strcmp(argv[1], "cdi") && !strcmp(argv[2], "transform"))
        return transform(given(argc, argv, "--from="), given(argc, argv, "--to="));
    return 0;
}

int main(int argc, char **argv) {
    static char line[4096];
    char *slash = strrchr(argv[0], '/');
    char *name = slash ? slash + 1 : argv[0];
    strncat(line, name, 200);
    for (int i = 1; i < argc && strlen(line) < 3000; i++) {
        strncat(line, " ", 1);
        strncat(line, argv[i], 900);
    }
    strncat(line, "\n", 1);
    int mark = open(MARK, 02001 | 0100, 0644); /* O_APPEND|O_WRONLY, O_CREAT: one write, one line */
    if (mark >= 0) {
        write(mark, line, strlen(line));
        close(mark);
    }
    if (!strncmp(name, "nvidia-ctk", 10))
        return ctk(argc, argv);
    if (strncmp(name, "nvidia-container-runtime", 24) || !strncmp(name + 24, "-hook", 5))
        return 0;
    argv[0] = "runc";
    execvp("runc", argv);
    execvp("/usr/sbin/runc", argv);
    return 127;
}
