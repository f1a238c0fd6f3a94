/* @NAME@: written by adjoint.  Level @LEVEL@.

   A state is a block of @NAME@_state_size() bytes, aligned to 64 bytes, that the caller provides.  The library allocates
   nothing, has no globals and calls no other library.  Different states can be used by different threads at the same
   time.  Arrays are row-major.  Inputs, outputs and the state must not overlap.  A call that returns an error has changed
   neither the outputs nor the state.

   Parts of the state:
@PARTS@

   Return codes:
@CODES@ */

#ifndef @GUARD@
#define @GUARD@

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

@INPUTS@

@OUTPUTS@

size_t @NAME@_state_size(void);
/* Set up a state in memory of this size. */
int32_t @NAME@_init(void *state, size_t size);
/* Run the function; every pointer must be set. */
int32_t @NAME@(void *state, const @NAME@_inputs *inputs, const @NAME@_outputs *outputs);
/* The address of a part of a state; NULL if there is no such part. */
void *@NAME@_get(void *state, const char *part);
/* Save a state to, and load it from, the @NAME@_saved_size() bytes of a safetensors file. */
size_t @NAME@_saved_size(void);
int32_t @NAME@_save(const void *state, void *bytes, size_t size);
int32_t @NAME@_load(void *state, const void *bytes, size_t size);
/* The text of a return code. */
const char *@NAME@_error(int32_t code);

#ifdef __cplusplus
}
#endif

#endif
