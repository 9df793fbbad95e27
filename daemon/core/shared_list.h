// A list that is written once and then shared.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace epd {

// What many messages and records repeat, such as the members of a group of thousands: a copy costs
// a counter, not the items. Immutable; equality is that of the items. Copies may be used by any
// thread.
template <typename T>
class SharedList {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;

  SharedList() = default;
  SharedList(std::vector<T> items)  // NOLINT(google-explicit-constructor): it stands for one.
      : items_(std::make_shared<const std::vector<T>>(std::move(items))) {}
  SharedList(std::initializer_list<T> items) : SharedList(std::vector<T>(items)) {}

  const std::vector<T>& items() const {
    static const std::vector<T> none;
    return items_ == nullptr ? none : *items_;
  }
  const_iterator begin() const { return items().begin(); }
  const_iterator end() const { return items().end(); }
  size_t size() const { return items().size(); }
  bool empty() const { return items().empty(); }
  const T& operator[](size_t i) const { return items()[i]; }

  // Whether both share their items; false negatives only.
  bool Shares(const SharedList& other) const { return items_ != nullptr && items_ == other.items_; }

  friend bool operator==(const SharedList& a, const SharedList& b) {
    return a.items_ == b.items_ || a.items() == b.items();
  }

 private:
  std::shared_ptr<const std::vector<T>> items_;
};

}  // namespace epd
