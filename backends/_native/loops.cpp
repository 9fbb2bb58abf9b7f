// The inner loops, compiled once for each level. Every header included here uses unnamed namespaces: the linker keeps
// one copy of an inline function that several files define, perhaps with instructions that the processor lacks.
#include "loops/rotate.hpp"

#define ROPE_JOIN(a, b) a##b
#define ROPE_LEVEL(name) ROPE_JOIN(level_, name)

namespace rope {

extern const Level ROPE_LEVEL(ROPE_NAME);
const Level ROPE_LEVEL(ROPE_NAME) = {
    ROPE_LABEL, make_tables32, make_tables64, finish_stream,
    {rotate<Native<float>>, rotate<Native<double>>, rotate<Float16<>>, rotate<BFloat16>}};

}  // namespace rope
