// Decoding with CoPE.
#include "decode.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/relative.hpp"

namespace attend_program {

ATTEND_DECODE(float, const heed::cope<float>&)
ATTEND_DECODE(double, const heed::cope<double>&)
ATTEND_DECODE(float, const heed::cope<float>&, const heed::relative<float>&)
ATTEND_DECODE(double, const heed::cope<double>&, const heed::relative<double>&)

}  // namespace attend_program
