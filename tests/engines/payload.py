"""A toolkit to install: real ELF files under the real names, of which the runtimes leave a mark."""

import shutil
from pathlib import Path

MARK = "/run/mark"
ARTIFACTS = "/artifacts"  # where every node has one payload, ready to be a --toolkit-source
STAND_IN = "/opt/stand-in"
EXECUTABLES = (
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-cli",
    "nvidia-container-runtime-hook",
)
LIBRARIES = ("libnvidia-container.so", "libnvidia-container-go.so")

# One program for all names. A line of the mark is the name it was started by, then its arguments.
# Declared by hand: tcc needs the start files of libc6-dev, but no kernel headers this way.
SOURCE = """
int open(const char *path, int flags, ...);
long write(int fd, const void *bytes, unsigned long count);
int close(int fd);
int execvp(const char *file, char *const argv[]);
char *strrchr(const char *text, int c);
char *strstr(const char *text, const char *part);
char *strncat(char *to, const char *from, unsigned long count);
int strncmp(const char *a, const char *b, unsigned long count);
unsigned long strlen(const char *text);
long read(int fd, void *bytes, unsigned long count);
int access(const char *path, int mode);
int strcmp(const char *a, const char *b);
int mknod(const char *path, unsigned mode, unsigned long device);
int chmod(const char *path, unsigned mode);
long readlink(const char *path, char *to, unsigned long size);

static void say(int fd, const char *text) { write(fd, text, strlen(text)); }

static const char *const NODES[] = {"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"};
static const unsigned long NUMBERS[] = {195 << 8 | 255, 195 << 8 | 254, 238 << 8, 238 << 8 | 1};

/* As far as the installer asks nvidia-ctk v1.20.0, in its words: control device nodes of a driver that is
   loaded, the specification for management containers, other roots in it, and that of the GPUs. */
static char *given(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], flag, strlen(flag)))
            return argv[i] + strlen(flag);
    return "";
}

static char *node(const char *root, int i) {
    static char path[2048];
    path[0] = 0;
    strncat(path, root, 1024);
    strncat(path, "/dev/", 8);
    strncat(path, NODES[i], 32);
    return path;
}

static int make_nodes(const char *root) {
    for (int i = 0; i < 4; i++) {
        char *path = node(root, i);
        if (!access(path, 0))
            continue;
        if (mknod(path, 020666, NUMBERS[i]) || chmod(path, 0666)) {
            say(2, "time=now level=error msg=failed to create device node\\n");
            return 1;
        }
    }
    return 0;
}

static int generate(int argc, char **argv) {
    char *root = given(argc, argv, "--dev-root=");
    int found = 0;
    for (int i = 0; i < 4; i++) {
        if (access(node(root, i), 0))
            continue;
        if (!found++) {
            say(1, "---\\ncdiVersion: 0.5.0\\nkind: ");
            say(1, given(argc, argv, "--vendor="));
            say(1, "/");
            say(1, given(argc, argv, "--class="));
            say(1, "\\ndevices:\\n    - name: all\\n      containerEdits:\\n        deviceNodes:\\n");
        }
        say(1, "            - path: /dev/");
        say(1, NODES[i]);
        if (*root && strcmp(root, "/")) {
            say(1, "\\n              hostPath: ");
            say(1, node(root, i));
        }
        say(1, "\\n");
    }
    if (!found) {
        say(2, "time=now level=error msg=failed\\n no NVIDIA device nodes found\\n");
        return 1;
    }
    say(1, "containerEdits:\\n    env:\\n        - NVIDIA_VISIBLE_DEVICES=void\\n    hooks:\\n");
    say(1, "        - hookName: createContainer\\n          path: ");
    say(1, given(argc, argv, "--nvidia-cdi-hook-path="));
    say(1, "\\n");
    return 0;
}

#define LIBRARIES "/usr/lib/x86_64-linux-gnu/"

static char *gpu(const char *dev, int i) {
    static char path[2048], number[2] = "0";
    number[0] = '0' + i;
    path[0] = 0;
    strncat(path, strcmp(dev, "/") ? dev : "", 1024);
    strncat(path, "/dev/nvidia", 16);
    strncat(path, number, 1);
    return access(path, 0) ? 0 : path;
}

static void say_node(const char *dev, char *path) {
    say(1, "{\\"path\\":\\"");
    say(1, strcmp(dev, "/") ? path + strlen(dev) : path);
    if (strcmp(dev, "/")) {
        say(1, "\\",\\"hostPath\\":\\"");
        say(1, path);
    }
    say(1, "\\"}");
}

/* The GPUs as JSON: one line without an end, names by index and one for all, the library that libcuda.so.1 is
   a link to. As v1.20.0 does, a driver's root that is a link ends well, without any library. */
static int generate_gpus(int argc, char **argv) {
    static char path[4096], library[512];
    char *root = given(argc, argv, "--driver-root="), *dev = given(argc, argv, "--dev-root=");
    int found = 0;
    strncat(path, strcmp(root, "/") ? root : "", 2000);
    strncat(path, LIBRARIES "libcuda.so.1", 64);
    if (readlink(path, library, sizeof library - 1) <= 0) {
        say(2, "time=now level=error msg=\\"failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND\\"\n");
        return 1;
    }
    say(1, "{\\"cdiVersion\\":\\"0.5.0\\",\\"kind\\":\\"");
    say(1, given(argc, argv, "--vendor="));
    say(1, "/");
    say(1, given(argc, argv, "--class="));
    say(1, "\\",\\"devices\\":[");
    for (int i = 0; i < 4; i++) {
        if (!gpu(dev, i))
            continue;
        say(1, "{\\"name\\":\\"");
        write(1, &"0123"[i], 1);
        say(1, "\\",\\"containerEdits\\":{\\"deviceNodes\\":[");
        say_node(dev, gpu(dev, i));
        say(1, "]}},");
    }
    say(1, "{\\"name\\":\\"all\\",\\"containerEdits\\":{\\"deviceNodes\\":[");
    for (int i = 0; i < 4; i++) {
        if (!gpu(dev, i))
            continue;
        if (found++)
            say(1, ",");
        say_node(dev, gpu(dev, i));
    }
    say(1, "]}}],\\"containerEdits\\":{\\"env\\":[\\"NVIDIA_VISIBLE_DEVICES=void\\"],\\"hooks\\":[");
    say(1, "{\\"hookName\\":\\"createContainer\\",\\"path\\":\\"");
    say(1, given(argc, argv, "--nvidia-cdi-hook-path="));
    say(1, "\\",\\"args\\":[\\"nvidia-cdi-hook\\",\\"update-ldcache\\",\\"--folder\\",\\"/usr/lib/x86_64-linux-gnu\\"]}]");
    if (readlink(root, path, sizeof path - 1) <= 0) {
        say(1, ",\\"mounts\\":[{\\"hostPath\\":\\"");
        say(1, strcmp(root, "/") ? root : "");
        say(1, LIBRARIES);
        say(1, library);
        say(1, "\\",\\"containerPath\\":\\"" LIBRARIES);
        say(1, library);
        say(1, "\\",\\"options\\":[\\"ro\\",\\"nosuid\\",\\"nodev\\",\\"rbind\\",\\"rprivate\\"]}]");
    }
    say(1, "}}");
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
        write(1, at, next - at);
        at = next;
        if (!strncmp(at, from, strlen(from)) && (at[strlen(from)] == '/' || at[strlen(from)] == '\\n')) {
            say(1, to);
            at += strlen(from);
        }
    }
    say(1, at);
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
    strncat(line, "\\n", 1);
    int mark = open("%(mark)s", 02001 | 0100, 0644); /* O_APPEND|O_WRONLY, O_CREAT: one write, one line */
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
"""


def stand_in_source() -> str:
    """Return the C text of the program that stands in for each executable."""
    return SOURCE % {"mark": MARK}


def mark_payload(directory: Path, stand_in: Path, version: str = "1.0.0") -> Path:
    """Write a tree such as ``/artifacts`` of the image; no two files and no two versions are alike."""
    binaries, libraries = directory / "usr/bin", directory / "usr/lib/x86_64-linux-gnu"
    for folder in (binaries, libraries):
        folder.mkdir(parents=True, exist_ok=True)
    for name in EXECUTABLES:
        _copy(stand_in, binaries / name, f"{name} {version}", 0o755)
    for name in LIBRARIES:
        _copy(stand_in, libraries / f"{name}.{version}", f"{name} {version}", 0o644)
        link = libraries / f"{name}.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.{version}")
    return directory


def _copy(stand_in: Path, target: Path, trailer: str, mode: int) -> None:
    # Bytes behind the last section belong to no segment: the program runs as before.
    shutil.copyfile(stand_in, target)
    with target.open("ab") as file:
        file.write(f"\n{trailer}\n".encode())
    target.chmod(mode)
