#include "compiled.hpp"

HEED_COMPILED()
