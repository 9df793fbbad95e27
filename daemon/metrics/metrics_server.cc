#include "daemon/metrics/metrics_server.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <httplib.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/metrics/access.h"
#include "daemon/metrics/limited_stream.h"
#include "daemon/metrics/node_metrics.h"
#include "daemon/metrics/page.h"
#include "daemon/tls/address.h"
#include "daemon/tls/peer_check.h"
#include "proto/machine/thread.h"

namespace epd {
namespace {

constexpr size_t kThreads = 4;
constexpr size_t kMaxQueued = 16;
constexpr char kThreadName[] = "epd-metrics";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

// httplib's own pool queues connections without end.
class MetricsServer::BoundedThreads {
 public:
  ~BoundedThreads() { Shutdown(); }
  // 0, or why there is none: an errno.
  int Start() {
    int error = 0;
    for (Thread& thread : threads_) {
      if (error == 0)
        error = StartThread(
            {kThreadName}, [this] { Work(); }, &thread);
    }
    return error;
  }
  // Waits for room: the listening thread takes no more connections until then.
  void Add(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.size() < kMaxQueued; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void Shutdown() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (Thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;  // Connections that nobody has looked at end with the process.
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      changed_.notify_all();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::array<Thread, kThreads> threads_;
};

namespace {

// What httplib asks for once it listens: threads that are there already.
template <typename Threads>
class Connections final : public httplib::TaskQueue {
 public:
  explicit Connections(Threads& threads) : threads_(threads) {}
  void enqueue(std::function<void()> task) override { threads_.Add(std::move(task)); }
  void shutdown() override { threads_.Shutdown(); }

 private:
  Threads& threads_;
};

// One request on a connection, within LimitedStream's limits. `Base` is one of httplib's servers.
template <typename Base>
class LimitedServer final : public Base {
 public:
  using Base::Base;

 private:
  bool process_and_close_socket(socket_t socket) override {
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(nullptr, &SSL_free);
    if constexpr (std::is_same_v<Base, httplib::SSLServer>) {
      ssl.reset(SSL_new(this->ssl_context()));
      SSL_set_fd(ssl.get(), socket);
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL, 0) | O_NONBLOCK);
    }
    LimitedStream stream(socket, ssl.get(), {});
    bool closed = false;
    const bool served = stream.Accept() && this->process_request(stream, true, closed, nullptr);
    if (served && ssl != nullptr) SSL_shutdown(ssl.get());
    shutdown(socket, SHUT_WR);
    close(socket);
    return served;
  }
};

std::unique_ptr<httplib::Server> MakeServer(const Settings& settings, bool tls) {
  if (!tls) return std::make_unique<LimitedServer<httplib::Server>>();
  return std::make_unique<LimitedServer<httplib::SSLServer>>([&](SSL_CTX& context) {
    // OpenSSL's own asks at the terminal: of a file that was exchanged since CheckPair() has seen it.
    SSL_CTX_set_default_passwd_cb(&context, [](char*, int, int, void*) { return 0; });
    return SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION) == 1 &&
           SSL_CTX_use_certificate_chain_file(&context, settings.metrics_cert.c_str()) == 1 &&
           SSL_CTX_use_PrivateKey_file(&context, settings.metrics_key.c_str(), SSL_FILETYPE_PEM) ==
               1 &&
           SSL_CTX_check_private_key(&context) == 1;
  });
}

std::string ToJson(const FiguresCache::Answer& answer) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(*answer.figures, &json, options).ok())
    json = "{}";
  return absl::StrCat("{\"age_seconds\": ", absl::ToDoubleSeconds(answer.age),
                      ", \"late\": ", answer.late ? "true" : "false", ", \"figures\": ", json,
                      "}\n");
}

void Refuse(Admission why, httplib::Response& response) {
  if (why == Admission::kNoToken) {
    response.status = 401;
    response.set_header("WWW-Authenticate", "Bearer");
    response.set_content("the bearer token of metrics_token is missing or wrong\n", "text/plain");
  } else {
    response.status = 421;
    response.set_content("ask at localhost or at this machine's loopback address\n", "text/plain");
  }
}

}  // namespace

MetricsServer::MetricsServer(FiguresCache::Ask ask) : figures_(std::move(ask)) {}
MetricsServer::~MetricsServer() { Stop(); }

absl::Status MetricsServer::Start(const Settings& settings, const std::string& before) {
  if (settings.metrics_listen.empty()) return absl::OkStatus();
  absl::StatusOr<MetricsAccess> access = ReadMetricsAccess(settings);
  if (!access.ok()) return access.status();
  if (access->tls) {
    const absl::Status fits =
        CheckPair({"metrics_cert", settings.metrics_cert}, {"metrics_key", settings.metrics_key},
                  ReadPem(settings.metrics_cert), ReadPem(settings.metrics_key));
    if (!fits.ok()) return fits;
  }
  server_ = MakeServer(settings, access->tls);
  if (!server_->is_valid())
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot serve metrics with the certificate '", settings.metrics_cert, "' and the key '",
        settings.metrics_key, "' (metrics_cert, metrics_key); are both PEM, and of each other?"));
  threads_ = std::make_unique<BoundedThreads>();
  server_->new_task_queue = [this] { return new Connections(*threads_); };  // The server owns it.
  // httplib's own choice lets a second epd share the port; it must fail.
  server_->set_socket_options([](socket_t socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  server_->set_default_headers({{"X-Content-Type-Options", "nosniff"},
                                {"Referrer-Policy", "no-referrer"},
                                {"Cache-Control", "no-store"},
                                {"Content-Security-Policy", "default-src 'none'"}});
  Route(*access);

  const std::string listen = KeepPort(settings.metrics_listen, before);
  const std::string host = HostOf(listen);
  int port = 0;
  const bool parsed = absl::SimpleAtoi(listen.substr(listen.rfind(':') + 1), &port);
  if (parsed && port == 0)
    port = server_->bind_to_any_port(host);
  else if (!parsed || !server_->bind_to_port(host, port))
    port = -1;
  if (port <= 0) {
    const std::string why = WhyNotBound(host);
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot serve metrics on '", listen, "' (metrics_listen): ",
        why.empty() ? "somebody else may have the port" : why, "; is the address free and local?"));
  }
  address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
  int error = threads_->Start();
  if (error == 0)
    error = StartThread(
        {kThreadName}, [this] { server_->listen_after_bind(); }, &listener_);
  if (error != 0) return absl::ResourceExhaustedError(WhyNoThread(kThreadName, error));
  // httplib forgets a stop that comes before it listens.
  for (int i = 0; i < 1000 && !server_->is_running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return absl::OkStatus();
}

void MetricsServer::Route(const MetricsAccess& access) {
  // It holds nothing of this node, and asks for the token by itself.
  server_->Get("/", [html = PageHtml()](const httplib::Request&, httplib::Response& response) {
    response.headers.erase("Content-Security-Policy");
    response.set_header("Content-Security-Policy", PagePolicy(html));
    response.set_content(html, "text/html; charset=utf-8");
  });
  const auto serve = [this, access](const char* type, auto text_of) {
    return [this, access, type, text_of](const httplib::Request& request,
                                         httplib::Response& response) {
      const Admission admission = Admit(access, request.get_header_value("Host"),
                                        request.get_header_value("Authorization"));
      if (admission != Admission::kAllowed) return Refuse(admission, response);
      const FiguresCache::Answer answer = figures_.Get();
      if (answer.figures == nullptr) {
        response.status = 503;
        return response.set_content("epd's control thread does not answer\n", "text/plain");
      }
      response.set_content(text_of(answer), type);
    };
  };
  server_->Get("/metrics", serve(kMetricsType, [](const FiguresCache::Answer& answer) {
                 return MetricsText(*answer.figures, answer.age);
               }));
  server_->Get("/figures.json", serve("application/json", ToJson));
}

void MetricsServer::Stop() {
  if (!listener_.joinable()) return;
  server_->stop();
  listener_.join();
}

}  // namespace epd
