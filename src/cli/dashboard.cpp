#include "cli/dashboard.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "report/page.h"
#include "serve/http_server.h"

namespace deltatrain::cli {

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 20;  // of an answer

// Whole lines of the file from `offset` on; nothing where there are none yet.
std::string lines_from(const std::filesystem::path& path, int64_t offset) {
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(offset)) return "";
  std::string text(static_cast<size_t>(kMostBytes), '\0');
  file.read(text.data(), kMostBytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  const size_t newline = text.rfind('\n');
  text.resize(newline == std::string::npos ? 0 : newline + 1);
  return text;
}

serve::HttpOptions parse_address(const std::string& address) {
  serve::HttpOptions options;
  options.num_threads = 1;
  options.max_connections = 32;
  options.max_body_bytes = 1024;
  const size_t colon = address.rfind(':');
  if (colon != std::string::npos) options.host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? address : address.substr(colon + 1);
  const char* const end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, options.port);
  if (error != std::errc() || stop != end || options.host.empty())
    throw ConfigError(error_text("", "--dashboard", "PORT or HOST:PORT, a port from 0 to 65535",
                                 "\"" + address + "\""));
  return options;
}

}  // namespace

struct Dashboard::Implementation {
  Implementation(const serve::HttpOptions& options, std::filesystem::path run_folder)
      : folder(std::move(run_folder)),
        host(options.host),
        server(
            options,
            [this](const serve::HttpRequest& request, const std::shared_ptr<serve::Exchange>& to) {
              try {
                to->respond(answer(request));
              } catch (const std::exception& error) {  // no reason to end the training
                to->respond({500, "text/plain", std::string(error.what()) + "\n", {}});
              }
            },
            [](int, const std::string& message) { return message + "\n"; }) {}

  serve::HttpResponse answer(const serve::HttpRequest& request) const {
    constexpr std::string_view kMetrics = "/metrics.jsonl/";
    if (request.method != "GET") return {405, "text/plain", "only GET\n", {}};
    if (request.path == "/") {
      std::string title = folder.lexically_normal().string();
      return {200, "text/html; charset=utf-8", report::live_page(title), {}};
    }
    if (request.path.starts_with(kMetrics)) {
      int64_t offset = 0;
      const char* const begin = request.path.data() + kMetrics.size();
      const char* const end = request.path.data() + request.path.size();
      const auto [stop, error] = std::from_chars(begin, end, offset);
      if (error == std::errc() && stop == end && offset >= 0)
        return {200,
                "application/x-ndjson",
                lines_from(folder / "metrics.jsonl", offset),
                {{"Cache-Control", "no-store"}}};
    }
    return {404, "text/plain", "not here: / is the page, /metrics.jsonl/OFFSET its data\n", {}};
  }

  std::filesystem::path folder;
  std::string host;
  serve::HttpServer server;
};

Dashboard::Dashboard(const std::string& address, std::filesystem::path run_folder)
    : implementation_(
          std::make_unique<Implementation>(parse_address(address), std::move(run_folder))) {
  implementation_->server.start();
}

Dashboard::~Dashboard() = default;

std::string Dashboard::url() const {
  return "http://" + implementation_->host + ":" + std::to_string(implementation_->server.port()) +
         "/";
}

}  // namespace deltatrain::cli
