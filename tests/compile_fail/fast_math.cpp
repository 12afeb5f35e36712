// expect: heed: -ffast-math breaks -inf masks and empty rows
// flags: -ffast-math
#include "heed/config.hpp"
