/* Read numbers, predict each from the last four, learn from the error, and print the mean error of every 100. */

#include <stdio.h>
#include <stdlib.h>

#include "step.h"

static _Alignas(64) char memory[1 << 16];

int main(void) {
    float last[4] = {0}, next, guess, loss, sum = 0;
    step_inputs inputs = {.last = last, .value = &next};
    step_outputs outputs = {.guess = &guess, .loss = &loss};
    int32_t code = step_init(memory, sizeof memory);
    for (long n = 1; code == 0 && scanf("%f", &next) == 1; n++) {
        code = step(memory, &inputs, &outputs);
        for (int k = 0; k < 3; k++) last[k] = last[k + 1];
        last[3] = next;
        sum += loss;
        if (n % 100 == 0) {
            printf("after %ld numbers: mean error %.5f\n", n, sum / 100);
            sum = 0;
        }
    }
    if (code) {
        fprintf(stderr, "%s\n", step_error(code));
        return EXIT_FAILURE;
    }
    size_t size = step_saved_size();
    char *bytes = malloc(size);
    FILE *file = fopen("state.safetensors", "wb");
    if (!bytes || !file || step_save(memory, bytes, size) || fwrite(bytes, 1, size, file) != size) {
        fprintf(stderr, "the state cannot be saved\n");
        return EXIT_FAILURE;
    }
    fclose(file);
    free(bytes);
    return EXIT_SUCCESS;
}
