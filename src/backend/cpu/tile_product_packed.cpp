#include "backend/cpu/tile_product.h"

namespace deltatrain::backend::cpu {

void tile_product(const TileProduct& args) { packed_product(args); }

}  // namespace deltatrain::backend::cpu
