/* Stands in for each executable of the toolkit where there is no GPU: what gives a container its GPU is done by
   stand_in.py, all else by the stand-in that every node has. */
int execv(const char *path, char *const argv[]);
char *strrchr(const char *text, int c);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, unsigned long count);

static int gives_gpus(const char *name, int argc, char **argv) {
    if (!strncmp(name, "nvidia-container-runtime", 24))
        return strncmp(name + 24, "-hook", 5);
    if (strncmp(name, "nvidia-ctk", 10) || argc < 3 || strcmp(argv[1], "cdi") || strcmp(argv[2], "generate"))
        return 0;
    for (int i = 3; i < argc; i++)
        if (!strncmp(argv[i], "--mode=", 7))
            return 0;
    return 1;
}

int main(int argc, char **argv) {
    static char *words[1024] = {"python3", "-I", "/opt/gpu/stand_in.py"};
    char *slash = strrchr(argv[0], '/');
    argv[0] = slash ? slash + 1 : argv[0];
    if (!gives_gpus(argv[0], argc, argv))
        return execv("/opt/stand-in", argv);
    for (int i = 0; i < argc && i < 1000; i++)
        words[3 + i] = argv[i];
    return execv("/usr/bin/python3", words);
}
