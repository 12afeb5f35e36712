// Decoding without content.
#include "decode.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"

namespace attend_program {

ATTEND_DECODE(float)
ATTEND_DECODE(double)
ATTEND_DECODE(float, const heed::rope&)
ATTEND_DECODE(double, const heed::rope&)
ATTEND_DECODE(float, const heed::alibi&)
ATTEND_DECODE(double, const heed::alibi&)
ATTEND_DECODE(float, const heed::relative<float>&)
ATTEND_DECODE(double, const heed::relative<double>&)

}  // namespace attend_program
