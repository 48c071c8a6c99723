// Loads a ggml backend plugin as Tessera does on Windows and tells what its registry says.
//   windows_probe.exe FOLDER PLUGIN      FOLDER holds ggml.dll and ggml-base.dll
// Prints lines `key value`; ends with 0 where the plugin was taken, 3 where ggml refused it, 2 where a DLL is missing.

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

typedef void * (*load_fn)(const char *);
typedef const char * (*text_fn)(void *);
typedef const char * (*version_fn)(void);
typedef size_t (*count_fn)(void *);
typedef void * (*device_fn)(void *, size_t);
typedef void (*memory_fn)(void *, size_t *, size_t *);
typedef void * (*init_fn)(void *, const char *);
typedef int (*score_fn)(void);

static HMODULE opened(const char * folder, const char * name) {
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s\\%s", folder, name);
    HMODULE found = LoadLibraryExA(path, NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
    if (!found) {
        printf("missing %s: error %lu\n", name, GetLastError());
        exit(2);
    }
    return found;
}

int main(int count, char ** arguments) {
    if (count != 3) {
        return 1;
    }
    SetDllDirectoryA(arguments[1]);
    HMODULE base = opened(arguments[1], "ggml-base.dll"), ggml = opened(arguments[1], "ggml.dll");
    printf("ggml %s\n", ((version_fn) (void *) GetProcAddress(base, "ggml_version"))());

    HMODULE plugin = LoadLibraryA(arguments[2]);
    if (!plugin) {
        printf("plugin does not load: error %lu\n", GetLastError());
        return 2;
    }
    const char * const entries[] = { "ggml_backend_init", "ggml_backend_score" };
    for (int i = 0; i < 2; i++) {
        printf("entry %s %s\n", entries[i], GetProcAddress(plugin, entries[i]) ? "yes" : "no");
    }
    score_fn score = (score_fn) (void *) GetProcAddress(plugin, "ggml_backend_score");
    if (score) {
        printf("score %d\n", score());
    }
    void * registry = ((load_fn) (void *) GetProcAddress(ggml, "ggml_backend_load"))(arguments[2]);
    if (!registry) {
        printf("refused\n");
        return 3;
    }
    printf("registry %s\n", ((text_fn) (void *) GetProcAddress(base, "ggml_backend_reg_name"))(registry));
    const size_t devices = ((count_fn) (void *) GetProcAddress(base, "ggml_backend_reg_dev_count"))(registry);
    printf("devices %zu\n", devices);
    for (size_t i = 0; i < devices; i++) {
        void * device = ((device_fn) (void *) GetProcAddress(base, "ggml_backend_reg_dev_get"))(registry, i);
        size_t free_bytes = 0, total = 0;
        ((memory_fn) (void *) GetProcAddress(base, "ggml_backend_dev_memory"))(device, &free_bytes, &total);
        printf("device %s | %s | %zu MiB\n", ((text_fn) (void *) GetProcAddress(base, "ggml_backend_dev_name"))(device),
               ((text_fn) (void *) GetProcAddress(base, "ggml_backend_dev_description"))(device), total >> 20);
        void * stream = ((init_fn) (void *) GetProcAddress(base, "ggml_backend_dev_init"))(device, NULL);
        printf("opened %s\n", stream ? "yes" : "no");
    }
    return 0;
}
