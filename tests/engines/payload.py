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
char *strncat(char *to, const char *from, unsigned long count);
int strncmp(const char *a, const char *b, unsigned long count);
unsigned long strlen(const char *text);
long read(int fd, void *bytes, unsigned long count);
int access(const char *path, int mode);
int strcmp(const char *a, const char *b);

static void say(int fd, const char *text) { write(fd, text, strlen(text)); }

/* As far as the installer asks nvidia-ctk: control device nodes, the specification, other roots in it. */
static int ctk(int argc, char **argv) {
    static char node[2048], bytes[65536];
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--dev-root=", 11)) {
            strncat(node, argv[i] + 11, 1024);
            strncat(node, "/dev/nvidiactl", 32);
        }
    if (argc > 2 && !strcmp(argv[1], "system") && !strcmp(argv[2], "create-device-nodes"))
        return open(node, 0101, 0666) < 0;
    if (argc < 3 || strcmp(argv[1], "cdi"))
        return 0;
    if (!strcmp(argv[2], "generate")) {
        if (access(node, 0)) {
            say(2, "time=now level=error msg=failed\\n no NVIDIA device nodes found\\n");
            return 1;
        }
        say(1, "cdiVersion: 0.5.0\\n");
    } else {
        long count;
        while ((count = read(0, bytes, sizeof bytes)) > 0)
            write(1, bytes, count);
    }
    for (int i = 2; i < argc; i++) {
        say(1, "# ");
        say(1, argv[i]);
        say(1, "\\n");
    }
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
