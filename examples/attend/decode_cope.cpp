// Decoding with CoPE.
#include "decode_call.hpp"

namespace attend_program {

ATTEND_DECODE(float, const heed::cope<float>&, const heed::relative<float>&)
ATTEND_DECODE(double, const heed::cope<double>&, const heed::relative<double>&)

}  // namespace attend_program
