// The inner loops, compiled once for each level. Every header included here uses unnamed namespaces: the linker keeps
// one copy of an inline function that several files define, perhaps with instructions that the processor lacks.
#include "loops/norm.hpp"

#define ROPE_JOIN(a, b) a##b
#define ROPE_LEVEL(name) ROPE_JOIN(level_, name)

namespace rope {

extern const Level ROPE_LEVEL(ROPE_NAME);
const Level ROPE_LEVEL(ROPE_NAME) = {
    ROPE_LABEL, make_tables32, make_tables64, finish_stream,
    {rotate<Native<float>>, rotate<Native<double>>, rotate<Float16<>>, rotate<BFloat16>},
    {rotate_normed<Native<float>>, rotate_normed<Native<double>>, rotate_normed<Float16<>>, rotate_normed<BFloat16>},
    {rotate_normed<Native<float>>, rotate_normed<Native<double>>, rotate_normed<Float16<>, Native<float>>,
     rotate_normed<BFloat16, Native<float>>},
    {widen_row<Native<float>>, widen_row<Native<double>>, widen_row<Float16<>>, widen_row<BFloat16>},
    {norm_gradients<Native<float>>, norm_gradients<Native<double>>, norm_gradients<Float16<>>, norm_gradients<BFloat16>},
    {store_row<ToFloat<Native<float>>>, store_row<ToFloat<Float16<>>>, store_row<ToFloat<BFloat16>>, store_row<ToE4M3>,
     store_row<ToInt8>}};

}  // namespace rope
