// Decoding with FoX.
#include "decode.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/rope.hpp"

namespace attend_program {

ATTEND_DECODE(float, const heed::fox<float>&)
ATTEND_DECODE(double, const heed::fox<double>&)
ATTEND_DECODE(float, const heed::rope&, const heed::fox<float>&)
ATTEND_DECODE(double, const heed::rope&, const heed::fox<double>&)

}  // namespace attend_program
