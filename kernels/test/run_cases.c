/* Run cases of operators and write their results: run_cases CASES OUTPUTS ISA THREADS [CLUSTERS]. Without an argument
 * it prints the instruction sets that this CPU runs. run_cases team THREADS CLUSTERS SPIN_NANOSECONDS LENT tests a team
 * instead, run_cases copies WITH_THREADS THREADS the copies, run_cases tiles WORDS the emulated tile unit.
 *
 * CASES: "HCCASES1", int64 number of cases. Each case: char op[32], int64 num_ints num_floats num_arrays, int64 ints,
 * double floats, then per array int64 dtype, count (-1: NULL), is_output and the content, padded to 8 bytes. OUTPUTS:
 * per case int64 status, int64 violation bits (cases.h), and the content of its outputs, padded to 8 bytes. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/cases.h"

static char *contents; /* content of the file of cases */
static const char *current = "none";
static long current_index = -1;

static void die(const char *what) {
    fprintf(stderr, "run_cases: %s\n", what);
    exit(2);
}

static void die_in_case(int number) {
    char line[128];
    const int length = snprintf(line, sizeof(line), "run_cases: signal %d in case %ld (%s)\n", number, current_index, current);
    if (write(2, line, (size_t)length) != length) {
        _exit(4);
    }
    _exit(3);
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        die("cannot open the file of cases");
    }
    const long size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    if (data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size) {
        die("cannot read the file of cases");
    }
    fclose(file);
    return data;
}

static int64_t take_int(char **at) {
    int64_t value;
    memcpy(&value, *at, sizeof(value));
    *at += sizeof(value);
    return value;
}

static int64_t bytes_of(const hc_case *one, int i) {
    return one->counts[i] * (one->dtypes[i] == HC_F64 ? 8 : one->dtypes[i] == HC_F32 ? 4 : 2);
}

static int64_t padded(int64_t bytes) {
    return (bytes + 7) / 8 * 8;
}

/* Read the next case of the file, with its arrays in guarded memory. out_inputs: the initial content of each array. */
static void take_case(char **at, hc_case *one, const char **out_inputs) {
    memset(one, 0, sizeof(*one));
    memcpy(one->op, *at, sizeof(one->op));
    *at += sizeof(one->op);
    one->num_ints = take_int(at);
    one->num_floats = take_int(at);
    one->num_arrays = take_int(at);
    if (one->num_arrays > HC_MAX_ARRAYS) {
        die("a case has too many arrays");
    }
    one->ints = (int64_t *)(void *)*at;
    *at += 8 * one->num_ints;
    one->floats = (double *)(void *)*at;
    *at += 8 * one->num_floats;
    for (int i = 0; i < one->num_arrays; i++) {
        one->dtypes[i] = (int)take_int(at);
        one->counts[i] = take_int(at);
        one->is_output[i] = (int)take_int(at);
        if (one->counts[i] < 0) {
            continue;
        }
        one->arrays[i] = hc_guarded(bytes_of(one, i));
        if (one->arrays[i] == NULL) {
            die("no memory");
        }
        memcpy(one->arrays[i], *at, (size_t)bytes_of(one, i));
        out_inputs[i] = *at;
        *at += padded(bytes_of(one, i));
    }
}

static void put(FILE *file, const void *data, int64_t bytes) {
    static const char zeros[8];
    fwrite(data, 1, (size_t)bytes, file);
    fwrite(zeros, 1, (size_t)(padded(bytes) - bytes), file);
}

static void run_case(hc_context *context, char **at, FILE *outputs) {
    hc_case one;
    const char *inputs[HC_MAX_ARRAYS];
    take_case(at, &one, inputs);
    current = one.op;
    int64_t broken;
    const int64_t status = hc_watched_call(context, &one, &broken);
    for (int i = 0; i < one.num_arrays; i++) {
        if (one.arrays[i] == NULL) {
            continue;
        }
        broken |= hc_guard_is_broken(one.arrays[i]) ? HC_BROKEN_MEMORY : 0;
        if (!one.is_output[i] && memcmp(one.arrays[i], inputs[i], (size_t)bytes_of(&one, i)) != 0) {
            broken |= HC_BROKEN_INPUT;
        }
    }
    put(outputs, &status, sizeof(status));
    put(outputs, &broken, sizeof(broken));
    for (int i = 0; i < one.num_arrays; i++) {
        if (one.arrays[i] != NULL && one.is_output[i]) {
            put(outputs, one.arrays[i], bytes_of(&one, i));
        }
        if (one.arrays[i] != NULL) {
            hc_unguard(one.arrays[i], bytes_of(&one, i));
        }
    }
}

/* Print the names of the instruction sets of this CPU that the library was built for, one per line. */
static void print_isas(void) {
    for (int number = 0; number < 100; number++) {
        int found;
        const char *name = hc_isa_name(number);
        if (name != NULL && hc_isa_detect(name, &found) == HC_OK) {
            printf("%s\n", name);
        }
    }
}

static hc_context *context_of(const char *isa, int threads, int clusters) {
    hc_machine machine = {.num_threads = threads, .num_clusters = clusters};
    hc_context *context;
    if (hc_isa_detect(isa, &machine.isa) != HC_OK) {
        die("no such instruction set here");
    }
    if (hc_context_create(&machine, &context) != HC_OK) {
        die("no context");
    }
    return context;
}

int main(int argc, char **argv) {
    if (argc == 1) {
        print_isas();
        return 0;
    }
    if (argc == 6 && strcmp(argv[1], "team") == 0) {
        return hc_test_team(atoi(argv[2]), atoi(argv[3]), atoll(argv[4]), atoi(argv[5]));
    }
    if (argc == 4 && strcmp(argv[1], "copies") == 0) {
        return hc_test_copies(atoi(argv[2]), atoi(argv[3]));
    }
    if (argc > 2 && strcmp(argv[1], "tiles") == 0) {
        return hc_test_tiles(argc - 2, argv + 2);
    }
    if (argc != 5 && argc != 6) {
        die("expected: run_cases CASES OUTPUTS ISA THREADS [CLUSTERS], or run_cases team THREADS CLUSTERS SPIN_NANOSECONDS LENT");
    }
    hc_context *context = context_of(argv[3], atoi(argv[4]), argc == 6 ? atoi(argv[5]) : 0);
    signal(SIGSEGV, die_in_case);
    signal(SIGBUS, die_in_case);
    signal(SIGILL, die_in_case);
    signal(SIGFPE, die_in_case);
    signal(SIGABRT, die_in_case);
    contents = read_file(argv[1]);
    FILE *outputs = fopen(argv[2], "wb");
    if (outputs == NULL || memcmp(contents, "HCCASES1", 8) != 0) {
        die("cannot write outputs, or not a file of cases");
    }
    char *at = contents + 8;
    const int64_t num_cases = take_int(&at);
    for (current_index = 0; current_index < num_cases; current_index++) {
        run_case(context, &at, outputs);
    }
    hc_context_destroy(context);
    free(contents);
    return fclose(outputs) == 0 ? 0 : 2;
}
