/* How the compiled engine counts references; setup.py includes this before mypyc's C. It matters on CPython 3.12 and
   3.13, where Py_INCREF writes 32 bits of a count and Py_DECREF reads 64: the processor cannot forward the store to the
   load, which waits for a dozen cycles, some sixty times for each operation of the engine. */

#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000 && SIZEOF_VOID_P > 4 && !defined(Py_GIL_DISABLED) \
    && !defined(Py_REF_DEBUG) && !defined(Py_LIMITED_API)
/* Py_DECREF on the 32 bits that Py_INCREF writes. The others are 0 in any object that is not immortal. */
static inline void Engine_DECREF(PyObject *op)
{
    if (!_Py_IsImmortal(op) && --op->ob_refcnt_split[PY_BIG_ENDIAN] == 0) {
        _Py_Dealloc(op);
    }
}
#undef Py_DECREF
#define Py_DECREF(op) Engine_DECREF(_PyObject_CAST(op))
#endif

#include "mypyc_util.h"
#include "vecs/librt_vecs.h"

/* The buffer of a vec is never immortal, so it is counted as mypyc counts instances of compiled classes. */
#undef VEC_I64_INCREF
#undef VEC_I64_DECREF
#undef VEC_I32_INCREF
#undef VEC_I32_DECREF
#define VEC_I64_INCREF(v) do { if ((v).items) CPy_INCREF_NO_IMM(VEC_I64_BUF(v)); } while (0)
#define VEC_I64_DECREF(v) do { if ((v).items) CPy_DECREF_NO_IMM(VEC_I64_BUF(v)); } while (0)
#define VEC_I32_INCREF(v) do { if ((v).items) CPy_INCREF_NO_IMM(VEC_I32_BUF(v)); } while (0)
#define VEC_I32_DECREF(v) do { if ((v).items) CPy_DECREF_NO_IMM(VEC_I32_BUF(v)); } while (0)
#undef VEC_I16_INCREF
#undef VEC_I16_DECREF
#undef VEC_U8_INCREF
#undef VEC_U8_DECREF
#define VEC_I16_INCREF(v) do { if ((v).items) CPy_INCREF_NO_IMM(VEC_I16_BUF(v)); } while (0)
#define VEC_I16_DECREF(v) do { if ((v).items) CPy_DECREF_NO_IMM(VEC_I16_BUF(v)); } while (0)
#define VEC_U8_INCREF(v) do { if ((v).items) CPy_INCREF_NO_IMM(VEC_U8_BUF(v)); } while (0)
#define VEC_U8_DECREF(v) do { if ((v).items) CPy_DECREF_NO_IMM(VEC_U8_BUF(v)); } while (0)
