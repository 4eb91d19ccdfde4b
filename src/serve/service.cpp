#include "serve/service.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "serve/completion.h"
#include "serve/page.h"

namespace deltatrain::serve {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kDefaultMaxTokens = 16;  // the API's, of completions

struct Route {
  const char* path;
  const char* method;
  bool needs_key;
};

const Route* find_route(const std::string& path) {
  static constexpr Route kRoutes[] = {{"/", "GET", false},
                                      {"/health", "GET", false},
                                      {"/metrics", "GET", true},
                                      {"/v1/models", "GET", true},
                                      {"/v1/completions", "POST", true},
                                      {"/v1/chat/completions", "POST", true}};
  const auto* const found =
      std::ranges::find_if(kRoutes, [&](const Route& route) { return path == route.path; });
  return found == std::end(kRoutes) ? nullptr : found;
}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
    case 405:
      return "not_found_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

// Takes the same time for every key of one length.
bool equal_keys(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Service::Service(Engine& engine, const text::Tokenizer& tokenizer, const ServiceOptions& options)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(options),
      metrics_(std::make_shared<Metrics>()),
      start_unix_seconds_(static_cast<int64_t>(std::time(nullptr))) {}

Service::~Service() = default;

std::string Service::error_body(int status, const std::string& message,
                                const std::string& parameter) {
  OrderedJson error = {{"message", message}, {"type", error_type(status)}};
  error["param"] = parameter.empty() ? OrderedJson(nullptr) : OrderedJson(parameter);
  error["code"] = status;
  return OrderedJson{{"error", error}}.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

bool Service::may_ask(const HttpRequest& request) const {
  if (options_.api_key.empty()) return true;
  return equal_keys(request.authorization, "Bearer " + options_.api_key);
}

std::string Service::models() const {
  return OrderedJson{
      {"object", "list"},
      {"data", OrderedJson::array({OrderedJson{{"id", options_.model_name},
                                               {"object", "model"},
                                               {"created", start_unix_seconds_},
                                               {"owned_by", "deltatrain"},
                                               {"max_model_len", engine_.options().max_length}}})}}
      .dump();
}

void Service::handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const auto refuse = [&](int status, const std::string& message, const std::string& parameter) {
    HttpResponse response{.status = status, .body = error_body(status, message, parameter)};
    if (status == 401) response.headers = {{"WWW-Authenticate", "Bearer"}};
    if (status == 503) response.headers = {{"Retry-After", "1"}};
    // Paths that nobody serves would be names without end.
    metrics_->count(find_route(request.path) == nullptr ? "other" : request.path, status);
    exchange->respond(std::move(response));
  };
  try {
    route(request, exchange);
  } catch (const ApiError& error) {
    refuse(error.status(), error.what(), error.parameter());
  } catch (const std::bad_alloc&) {
    refuse(503, "host memory: not enough", "");
  } catch (const std::exception& error) {
    refuse(500, error.what(), "");
  }
}

void Service::route(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const Route* const route = find_route(request.path);
  if (route == nullptr)
    throw ApiError(404,
                   "no such path; there are /, /health, /metrics, /v1/models, "
                   "/v1/completions and /v1/chat/completions");
  if (request.method != route->method)
    throw ApiError(405,
                   error_text(route->path, "method", route->method, request.method.substr(0, 16)));
  if (route->needs_key && !may_ask(request))
    throw ApiError(401, "Authorization: expected \"Bearer KEY\" with this server's key");

  const auto respond = [&](const std::string& content_type, std::string body) {
    metrics_->count(request.path, 200);
    HttpResponse response{.content_type = content_type, .body = std::move(body)};
    if (request.path == "/")
      response.headers = {{"Content-Security-Policy",
                           "default-src 'none'; style-src 'unsafe-inline'; "
                           "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
                           "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
    exchange->respond(std::move(response));
  };
  if (request.path == "/") {
    respond("text/html; charset=utf-8", std::string(page()));
  } else if (request.path == "/health") {
    respond("application/json", "{\"status\":\"ok\"}");
  } else if (request.path == "/metrics") {
    static const HttpStats kNone;
    respond("text/plain; version=0.0.4; charset=utf-8",
            metrics_->text(engine_.stats(), http_stats_ == nullptr ? kNone : *http_stats_));
  } else if (request.path == "/v1/models") {
    respond("application/json", models());
  } else {
    complete(request, exchange, request.path == "/v1/chat/completions");
  }
}

void Service::complete(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange,
                       bool is_chat) {
  const int64_t max_length = engine_.options().max_length;
  const ApiLimits limits{.max_prompts = engine_.options().max_queue,
                         .max_prompt_tokens = max_length};
  ApiRequest api =
      is_chat ? parse_chat_request(http.body, limits) : parse_completion_request(http.body, limits);
  std::vector<std::vector<int32_t>> prompts;
  if (is_chat) {
    if (options_.chat_template == nullptr) throw ApiError(400, options_.no_chat_reason);
    // The template writes the special tokens itself.
    api.prompts = {options_.chat_template->render(api.messages)};
  }
  for (const Prompt& prompt : api.prompts) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
      prompts.push_back(*ids);
      continue;
    }
    std::vector<int32_t> ids = tokenizer_.encode(
        std::get<std::string>(prompt),
        api.add_special_tokens ? text::AddSpecialTokens::kYes : text::AddSpecialTokens::kNo);
    if (ids.empty()) {
      const auto start = tokenizer_.bos_id() ? tokenizer_.bos_id() : tokenizer_.eos_id();
      if (!start)
        throw ApiError(400, "prompt: expected text, as the tokenizer has no token to start from",
                       "prompt");
      ids.push_back(*start);
    }
    prompts.push_back(std::move(ids));
  }

  if (!api.has_seed) api.sampling.seed = random_seed();
  std::vector<Request> requests;
  for (const std::vector<int32_t>& ids : prompts) {
    const int64_t room = max_length - static_cast<int64_t>(ids.size());
    Request request{.prompt = ids,
                    .num_samples = api.num_samples,
                    .sampling = api.sampling,
                    .num_top = api.num_top,
                    .scores_prompt = api.echo && api.num_top >= 0};
    const int64_t wanted = is_chat ? room : std::min(kDefaultMaxTokens, room);
    request.max_new_tokens = api.max_tokens.value_or(std::max<int64_t>(1, wanted));
    if (!api.ignore_eos && tokenizer_.eos_id()) request.stop_ids = {*tokenizer_.eos_id()};
    try {
      engine_.check(request);
    } catch (const ConfigError& error) {
      throw ApiError(400, error.what(), is_chat ? "messages" : "prompt");
    }
    requests.push_back(std::move(request));
  }
  const auto completion =
      std::make_shared<Completion>(tokenizer_,
                                   CompletionSettings{.is_chat = is_chat,
                                                      .echo = api.echo,
                                                      .streams = api.stream,
                                                      .includes_usage = api.include_usage,
                                                      .num_top = api.num_top,
                                                      .num_samples = api.num_samples,
                                                      .stop = api.stop,
                                                      .model_name = options_.model_name,
                                                      .path = http.path},
                                   std::move(prompts), exchange, metrics_);
  std::vector<Engine::Submission> submissions;
  for (size_t i = 0; i < requests.size(); ++i)
    submissions.push_back({std::move(requests[i]), completion->listener(i)});
  if (engine_.submit(std::move(submissions))) return;
  completion->abandon();
  throw ApiError(503, "the queue is full: at most " + std::to_string(engine_.options().max_queue) +
                          " prompts wait; try again");
}

}  // namespace deltatrain::serve
