// Calls of XLA's programs that are made in two halves: start, which copies the operands and returns at once, and done, which
// hands the results over. What a program computes between the two goes on while rows travel. XLA by itself begins little
// beside a call that is under way: arrays that do not depend on each other share memory.
//
// Between the two a call is known by a number in this process, which stands in an array of the program's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "client/c/mutex.h"
#include "client/c/status.h"

namespace epd::jax {

// Memory that is not cleared.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) : size_(size), data_(new std::byte[size]) {}
  Bytes(const void* from, std::size_t size);

  void* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

// One call. Thread-safe.
class StartedCall {
 public:
  using Then = std::function<void(const client::Status&)>;

  StartedCall(Bytes rows, Bytes weights) : rows_(std::move(rows)), weights_(std::move(weights)) {}

  // Its results, which whoever makes the call writes before End.
  void* rows() const { return rows_.data(); }
  void* weights() const { return weights_.data(); }

  // Once. Runs what waits for it, here.
  void End(client::Status status);
  // Once. `then` runs once the call has ended: here, if it has.
  void Await(Then then);
  // Copies the results, once the call has ended well. False: they have other sizes.
  bool Copy(void* rows, std::size_t rows_bytes, void* weights, std::size_t weights_bytes) const;

 private:
  const Bytes rows_;
  const Bytes weights_;
  client::Mutex mutex_;
  std::optional<client::Status> ended_ EPD_GUARDED_BY(mutex_);
  Then then_ EPD_GUARDED_BY(mutex_);
};

// Those whose done has not come. Thread-safe.
class StartedCalls {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // How long one is kept for its done. A program that fails elsewhere never comes to it.
  static constexpr std::chrono::minutes kKept{10};
  // Numbers are below: they stand in two float32, of 24 bits each.
  static constexpr std::uint64_t kLimit = std::uint64_t{1} << 48;

  // The one of this process; never destroyed.
  static StartedCalls& Shared();

  // Returns its number, which is not 0; forgets those from before `now` - kKept.
  std::uint64_t Add(std::shared_ptr<StartedCall> call, Time now);
  // Null: there is none, or it was taken or forgotten.
  std::shared_ptr<StartedCall> Take(std::uint64_t number);
  std::size_t size() const;

 private:
  struct Known {
    std::shared_ptr<StartedCall> call;
    Time since;
  };
  mutable client::Mutex mutex_;
  std::uint64_t last_ EPD_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Known> known_ EPD_GUARDED_BY(mutex_);  // In the order of `since`.
};

// What one call site starts, at each of its places: one after another, as the library counts the uses of a site in the order in
// which they begin. Thread-safe.
class StartOrder {
 public:
  using Place = std::pair<std::int32_t, std::int32_t>;  // Domain and position.
  using Work = std::function<void()>;

  // Runs `begin` if nothing of the place is under way, here, else once what was is over.
  void Add(Place place, Work begin);
  // What was begun last at the place is over. Runs the next one's `begin`, here.
  void IsOver(Place place);

 private:
  client::Mutex mutex_;
  std::map<Place, std::deque<Work>> waiting_ EPD_GUARDED_BY(mutex_);  // While one is under way.
};

// A number as two floats, and back; 0 where they are none of ours.
void PutNumber(std::uint64_t number, float* token);
std::uint64_t GetNumber(const float* token);

}  // namespace epd::jax
