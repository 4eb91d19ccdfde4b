#include <cairo.h>
#include <dlfcn.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "report/canvas.h"

namespace deltatrain::report {

namespace {

constexpr double kScale = 2;
constexpr double kMostPixels = 16384;  // a side

// Cairo, opened at run time (cmake/dependencies.cmake says why).
struct Cairo {
  decltype(&cairo_image_surface_create) image_surface_create;
  decltype(&cairo_surface_destroy) surface_destroy;
  decltype(&cairo_surface_write_to_png_stream) surface_write_to_png_stream;
  decltype(&cairo_create) create;
  decltype(&cairo_destroy) destroy;
  decltype(&cairo_status) status;
  decltype(&cairo_status_to_string) status_to_string;
  decltype(&cairo_save) save;
  decltype(&cairo_restore) restore;
  decltype(&cairo_scale) scale;
  decltype(&cairo_translate) translate;
  decltype(&cairo_rotate) rotate;
  decltype(&cairo_select_font_face) select_font_face;
  decltype(&cairo_set_font_size) set_font_size;
  decltype(&cairo_text_extents) text_extents;
  decltype(&cairo_show_text) show_text;
  decltype(&cairo_set_line_join) set_line_join;
  decltype(&cairo_set_line_width) set_line_width;
  decltype(&cairo_set_source_rgba) set_source_rgba;
  decltype(&cairo_new_path) new_path;
  decltype(&cairo_move_to) move_to;
  decltype(&cairo_line_to) line_to;
  decltype(&cairo_arc) arc;
  decltype(&cairo_rectangle) rectangle;
  decltype(&cairo_fill) fill;
  decltype(&cairo_fill_preserve) fill_preserve;
  decltype(&cairo_stroke) stroke;
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw UnsupportedError(error_text("libcairo.so.2", name, "a function", "none"));
}

Cairo open_cairo() {
  void* const library = ::dlopen("libcairo.so.2", RTLD_NOW | RTLD_LOCAL);  // stays open
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    throw UnsupportedError(error_text("", "PNG pictures", "Cairo (Debian: libcairo2)",
                                      reason == nullptr ? "none" : reason) +
                           "; .svg and .html need nothing");
  }
  Cairo cairo{};
  find(library, "cairo_image_surface_create", cairo.image_surface_create);
  find(library, "cairo_surface_destroy", cairo.surface_destroy);
  find(library, "cairo_surface_write_to_png_stream", cairo.surface_write_to_png_stream);
  find(library, "cairo_create", cairo.create);
  find(library, "cairo_destroy", cairo.destroy);
  find(library, "cairo_status", cairo.status);
  find(library, "cairo_status_to_string", cairo.status_to_string);
  find(library, "cairo_save", cairo.save);
  find(library, "cairo_restore", cairo.restore);
  find(library, "cairo_scale", cairo.scale);
  find(library, "cairo_translate", cairo.translate);
  find(library, "cairo_rotate", cairo.rotate);
  find(library, "cairo_select_font_face", cairo.select_font_face);
  find(library, "cairo_set_font_size", cairo.set_font_size);
  find(library, "cairo_text_extents", cairo.text_extents);
  find(library, "cairo_show_text", cairo.show_text);
  find(library, "cairo_set_line_join", cairo.set_line_join);
  find(library, "cairo_set_line_width", cairo.set_line_width);
  find(library, "cairo_set_source_rgba", cairo.set_source_rgba);
  find(library, "cairo_new_path", cairo.new_path);
  find(library, "cairo_move_to", cairo.move_to);
  find(library, "cairo_line_to", cairo.line_to);
  find(library, "cairo_arc", cairo.arc);
  find(library, "cairo_rectangle", cairo.rectangle);
  find(library, "cairo_fill", cairo.fill);
  find(library, "cairo_fill_preserve", cairo.fill_preserve);
  find(library, "cairo_stroke", cairo.stroke);
  return cairo;
}

const Cairo& library() {
  static const Cairo cairo = open_cairo();
  return cairo;
}

cairo_status_t append(void* closure, const unsigned char* data, unsigned int length) {
  static_cast<std::string*>(closure)->append(reinterpret_cast<const char*>(data), length);
  return CAIRO_STATUS_SUCCESS;
}

class PngCanvas final : public Canvas {
 public:
  PngCanvas(double width, double height)
      : surface_(library().image_surface_create(CAIRO_FORMAT_RGB24,
                                                static_cast<int>(std::ceil(width * kScale)),
                                                static_cast<int>(std::ceil(height * kScale)))),
        cairo_(library().create(surface_)) {
    library().scale(cairo_, kScale, kScale);
    library().select_font_face(cairo_, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                               CAIRO_FONT_WEIGHT_NORMAL);
    library().set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
  }
  ~PngCanvas() override {
    library().destroy(cairo_);
    library().surface_destroy(surface_);
  }
  PngCanvas(const PngCanvas&) = delete;
  PngCanvas& operator=(const PngCanvas&) = delete;

  void rectangle(Point corner, double width, double height, Colour fill) override {
    paint(fill);
    library().rectangle(cairo_, corner.first, corner.second, width, height);
    library().fill(cairo_);
  }

  void polyline(std::span<const Point> points, Colour stroke, double width) override {
    if (points.empty()) return;
    paint(stroke);
    library().set_line_width(cairo_, width);
    library().move_to(cairo_, points.front().first, points.front().second);
    for (const auto& [x, y] : points.subspan(1)) library().line_to(cairo_, x, y);
    library().stroke(cairo_);
  }

  void circle(Point centre, double radius, Colour fill, Colour stroke, double width) override {
    library().new_path(cairo_);
    library().arc(cairo_, centre.first, centre.second, radius, 0, 2 * std::numbers::pi);
    paint(fill);
    library().fill_preserve(cairo_);
    paint(stroke);
    library().set_line_width(cairo_, width);
    library().stroke(cairo_);
  }

  void text(Point at, const std::string& text, double size, TextAnchor anchor, Colour fill,
            bool upwards) override {
    library().save(cairo_);
    paint(fill);
    library().set_font_size(cairo_, size);
    cairo_text_extents_t extents;
    library().text_extents(cairo_, text.c_str(), &extents);
    library().translate(cairo_, at.first, at.second);
    if (upwards) library().rotate(cairo_, -std::numbers::pi / 2);
    const double shares[] = {0, 0.5, 1};
    library().move_to(cairo_, -extents.x_advance * shares[static_cast<size_t>(anchor)], 0);
    library().show_text(cairo_, text.c_str());
    library().restore(cairo_);
  }

  std::string finish() override {
    std::string bytes;
    cairo_status_t status = library().status(cairo_);
    if (status == CAIRO_STATUS_SUCCESS)
      status = library().surface_write_to_png_stream(surface_, append, &bytes);
    if (status != CAIRO_STATUS_SUCCESS)
      throw InternalError(std::string("PNG picture: ") + library().status_to_string(status));
    return bytes;
  }

 private:
  void paint(const Colour& colour) {
    library().set_source_rgba(cairo_, colour.red / 255.0, colour.green / 255.0, colour.blue / 255.0,
                              colour.opacity);
  }

  cairo_surface_t* surface_;
  cairo_t* cairo_;
};

}  // namespace

std::unique_ptr<Canvas> make_png_canvas(double width, double height) {
  if (!(width * kScale <= kMostPixels && height * kScale <= kMostPixels))
    throw ConfigError(error_text("", "PNG picture", "at most 8192 by 8192 units", "a larger one"));
  return std::make_unique<PngCanvas>(width, height);
}

}  // namespace deltatrain::report
