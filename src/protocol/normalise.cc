#include "protocol/normalise.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace deepinfer {
namespace {

using Role = Message::Role;

bool user_like(const Message& m) { return m.role == Role::kUser || m.role == Role::kTool; }

/// Sorts the tool messages of every run of user and tool messages into the order of the calls they answer.
void sort_tool_results(std::vector<Message>& messages) {
  std::unordered_map<std::string, size_t> order;
  bool any_calls = false;
  for (size_t i = 0; i < messages.size();) {
    if (!user_like(messages[i])) {
      if (messages[i].role == Role::kAssistant && !messages[i].tool_calls.empty()) {
        any_calls = true;
        order.clear();
        for (size_t c = 0; c < messages[i].tool_calls.size(); ++c) order.emplace(messages[i].tool_calls[c].id, c);
      }
      ++i;
      continue;
    }
    std::vector<size_t> slots;
    for (; i < messages.size() && user_like(messages[i]); ++i) {
      if (messages[i].role == Role::kTool) slots.push_back(i);
    }
    if (slots.size() < 2 || !any_calls) continue;
    std::vector<Message> results;
    results.reserve(slots.size());
    for (const size_t slot : slots) results.push_back(std::move(messages[slot]));
    const auto position = [&](const Message& m) {
      const auto found = order.find(m.tool_call_id);
      return found == order.end() ? size_t{0} : found->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const Message& a, const Message& b) { return position(a) < position(b); });
    for (size_t k = 0; k < slots.size(); ++k) messages[slots[k]] = std::move(results[k]);
  }
}

}  // namespace

void append_content(Message& to, const Message& from, std::string_view separator) {
  to.content += separator;
  const size_t base = to.content.size();
  to.content += from.content;
  for (const PlacedImage& image : from.images) to.images.push_back({base + image.offset, image.image});
}

std::vector<Message> normalise_messages(const std::vector<Message>& messages, ModelVersion version) {
  std::vector<Message> out;
  bool only_system = true;
  for (const Message& m : messages) {
    if (m.role == Role::kSystem && version == ModelVersion::kV4) {
      if (only_system && !out.empty()) {
        append_content(out.back(), m, out.back().content.empty() || m.content.empty() ? "" : "\n\n");
      } else if (only_system) {
        out.push_back(m);
      } else if (!m.content.empty()) {
        out.push_back(Message::User(m.content));
      }
      continue;
    }
    only_system = only_system && m.role == Role::kSystem;
    if (m.role == Role::kUser && !out.empty() && out.back().role == Role::kUser) {
      append_content(out.back(), m, "\n\n");
      if (!m.task.empty()) out.back().task = m.task;
      continue;
    }
    out.push_back(m);
  }
  sort_tool_results(out);
  return out;
}

}  // namespace deepinfer
