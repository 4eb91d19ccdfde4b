#include <fmt/format.h>

#include <iterator>

#include "report/canvas.h"

namespace deltatrain::report {

namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string paint(const char* what, const Colour& colour) {
  std::string text =
      fmt::format("{}='#{:02x}{:02x}{:02x}'", what, colour.red, colour.green, colour.blue);
  if (colour.opacity < 1) text += fmt::format(" {}-opacity='{:g}'", what, colour.opacity);
  return text;
}

class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(double width, double height)
      : svg_(fmt::format("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' "
                         "width='{0}' height='{1}' font-family='sans-serif'>\n",
                         width, height)) {}

  void rectangle(Point corner, double width, double height, Colour fill) override {
    fmt::format_to(std::back_inserter(svg_),
                   "<rect x='{:g}' y='{:g}' width='{:g}' height='{:g}' {}/>\n", corner.first,
                   corner.second, width, height, paint("fill", fill));
  }

  void polyline(std::span<const Point> points, Colour stroke, double width) override {
    if (points.empty()) return;
    svg_ += "<path d='";
    char command = 'M';
    for (const auto& [x, y] : points) {
      fmt::format_to(std::back_inserter(svg_), "{}{:.1f} {:.1f}", command, x, y);
      command = 'L';
    }
    fmt::format_to(std::back_inserter(svg_),
                   "' fill='none' {} stroke-width='{:g}' stroke-linejoin='round'/>\n",
                   paint("stroke", stroke), width);
  }

  void circle(Point centre, double radius, Colour fill, Colour stroke, double width) override {
    fmt::format_to(std::back_inserter(svg_),
                   "<circle cx='{:.1f}' cy='{:.1f}' r='{:g}' {} {} stroke-width='{:g}'/>\n",
                   centre.first, centre.second, radius, paint("fill", fill),
                   paint("stroke", stroke), width);
  }

  void text(Point at, const std::string& text, double size, TextAnchor anchor, Colour fill,
            bool upwards) override {
    const char* const anchors[] = {"start", "middle", "end"};
    const std::string place =
        upwards
            ? fmt::format("transform='translate({:.1f} {:.1f}) rotate(-90)'", at.first, at.second)
            : fmt::format("x='{:.1f}' y='{:.1f}'", at.first, at.second);
    fmt::format_to(std::back_inserter(svg_),
                   "<text {} font-size='{:g}' text-anchor='{}' {}>{}</text>\n", place, size,
                   anchors[static_cast<size_t>(anchor)], paint("fill", fill), escaped(text));
  }

  std::string finish() override { return std::move(svg_) + "</svg>\n"; }

 private:
  std::string svg_;
};

}  // namespace

std::unique_ptr<Canvas> make_svg_canvas(double width, double height) {
  return std::make_unique<SvgCanvas>(width, height);
}

}  // namespace deltatrain::report
