/* Stands in for the program while its Windows installer is tried: notes how it was called, and stays until told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static void below(const char *name, char *path, size_t size) {
    snprintf(path, size, "%s\\%s", getenv("STUB_NOTES"), name);
}

int main(int argc, char **argv) {
    char path[1024];
    below("called.txt", path, sizeof path);
    FILE *notes = fopen(path, "a");
    if (notes == NULL) return 1;
    const char *name = strrchr(argv[0], '\\');
    fprintf(notes, "%s", name ? name + 1 : argv[0]);
    for (int i = 1; i < argc; i++) fprintf(notes, "|%s", argv[i]);
    fprintf(notes, "\n");
    fclose(notes);
    if (argc > 1 && strcmp(argv[1], "stay") == 0) {
        below("go", path, sizeof path);
        for (int i = 0; i < 600 && GetFileAttributesA(path) == INVALID_FILE_ATTRIBUTES; i++) Sleep(200);
    }
    return 0;
}
