// Of builds without Cairo; png_canvas_cairo.cpp of the others.
#include "base/error.h"
#include "report/canvas.h"

namespace deltatrain::report {

std::unique_ptr<Canvas> make_png_canvas(double, double) {
  throw UnsupportedError(error_text("", "PNG pictures",
                                    "a build with Cairo (Debian: libcairo2-dev)",
                                    "one without; .svg and .html need nothing"));
}

}  // namespace deltatrain::report
