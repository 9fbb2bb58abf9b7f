// The kernel as a custom call of XLA's programs for the CPU.
//
// XLA's FFI is a stable C interface. The structs of version 0.1, which JAX supports since 0.8, are declared here as far as
// the kernel reads them, so that building needs no jaxlib; tests/test_jax_native.py compares them with jaxlib's header
// xla/ffi/api/c_api.h, whose names are in the comments.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rope::xla {

struct Error;    // XLA_FFI_Error
struct Context;  // XLA_FFI_ExecutionContext

struct Extension {  // XLA_FFI_Extension_Base; since JAX 0.12 XLA_FFI_InternalExtension
    size_t struct_size;
    int type;
    Extension* next;
};

constexpr int METADATA = 1;  // XLA_FFI_Extension_Metadata

struct Version {  // XLA_FFI_Api_Version
    size_t struct_size;
    Extension* extensions;
    int major, minor;
};

struct Metadata {  // XLA_FFI_Metadata, up to the last field that is written
    size_t struct_size;
    Version version;
};

struct MetadataExtension {  // XLA_FFI_Metadata_Extension
    Extension base;
    Metadata* metadata;
};

struct ErrorArgs {  // XLA_FFI_Error_Create_Args
    size_t struct_size;
    Extension* extensions;
    const char* message;
    int code;
};

constexpr int INVALID_ARGUMENT = 3, INTERNAL = 13;  // XLA_FFI_Error_Code

struct ErrorDestroyArgs {  // XLA_FFI_Error_Destroy_Args
    size_t struct_size;
    Extension* extensions;
    Error* error;
};

struct NumThreadsArgs {  // XLA_FFI_ThreadPool_NumThreads_Args
    size_t struct_size;
    Extension* extensions;
    Context* context;
    int64_t* num_threads;
};

struct Api {  // XLA_FFI_Api, up to the last function that is called
    size_t struct_size;
    Extension* extensions;
    Version version;
    const void* internal;
    Error* (*create_error)(ErrorArgs*);
    void* get_error_message;
    void (*destroy_error)(ErrorDestroyArgs*);
    void* unused[9];
    Error* (*get_num_threads)(NumThreadsArgs*);
};

struct Buffer {  // XLA_FFI_Buffer: row-major
    size_t struct_size;
    Extension* extensions;
    int dtype;
    void* data;
    int64_t rank;
    int64_t* shape;
};

// XLA_FFI_DataType
enum BufferType { S8 = 2, S32 = 4, S64 = 5, U32 = 8, F16 = 10, F32 = 11, F64 = 12, BF16 = 16, F8E4M3FN = 20 };

struct Operands {  // XLA_FFI_Args and XLA_FFI_Rets
    size_t struct_size;
    Extension* extensions;
    int64_t size;
    int* types;
    void** values;
};

constexpr int BUFFER = 1;  // XLA_FFI_ArgType_BUFFER and XLA_FFI_RetType_BUFFER

struct Array {  // XLA_FFI_Array
    int dtype;
    size_t size;
    void* data;
};

struct Attributes {  // XLA_FFI_Attrs
    size_t struct_size;
    Extension* extensions;
    int64_t size;
    int* types;
    void** names;
    void** values;
};

constexpr int ARRAY = 1;  // XLA_FFI_AttrType_ARRAY

struct CallFrame {  // XLA_FFI_CallFrame, up to the last field that is read
    size_t struct_size;
    Extension* extensions;
    const Api* api;
    Context* context;
    int stage;
    Operands arguments, results;
    Attributes attributes;
};

// Rotate the first argument, by the second (positions) or by the second and third (cos and sin), into the
// result. They have as many axes, each of x's size or 1. The one attribute is the plan: see set_plan() in
// operands.hpp. With a norm, its scale is the second argument, before the source, and its eps and rounding are an
// attribute before the plan. Serves int32, int64 and uint32 positions, and tables of the compute dtype; otherwise returns
// an error. loops/rotate.hpp states the errors of the rotation.
Error* rotate_in_program(CallFrame* frame);

// Write rows, the second argument, into slots of a cache, the first argument, whose memory the result has. The third
// argument has the slot of each row, of int32 or int64; slots outside of the cache are not written. The attribute has the
// number of axes of pages, 0 or 1, and the axis of slots. Rows have the axes of the cache without these, after one of
// tokens.
Error* write_in_program(CallFrame* frame);

}  // namespace rope::xla
