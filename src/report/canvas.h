// Something to draw charts on: an SVG text, or the pixels of a PNG picture.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace deltatrain::report {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  double opacity = 1;
};

enum class TextAnchor : uint8_t { kStart, kMiddle, kEnd };

using Point = std::pair<double, double>;  // x to the right, y down, in units of the SVG's pixels

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void rectangle(Point corner, double width, double height, Colour fill) = 0;
  virtual void polyline(std::span<const Point> points, Colour stroke, double width) = 0;
  virtual void circle(Point centre, double radius, Colour fill, Colour stroke, double width) = 0;
  // `text` is well-formed UTF-8 without control characters; `at` is on its base line.
  // upwards: read from bottom to top.
  virtual void text(Point at, const std::string& text, double size, TextAnchor anchor, Colour fill,
                    bool upwards = false) = 0;
  // The whole picture as the bytes of a file. Once.
  virtual std::string finish() = 0;
};

std::unique_ptr<Canvas> make_svg_canvas(double width, double height);

// Twice the resolution of the SVG's pixels, 8 bits a colour. UnsupportedError in a build without
// Cairo, ConfigError where the picture would be larger than it can draw.
std::unique_ptr<Canvas> make_png_canvas(double width, double height);

}  // namespace deltatrain::report
