// Decoding with PaTH.
#include "decode_call.hpp"

namespace attend_program {

ATTEND_DECODE(float, const heed::path<float>&, const heed::fox<float>&)
ATTEND_DECODE(double, const heed::path<double>&, const heed::fox<double>&)

}  // namespace attend_program
