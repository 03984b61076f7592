#include "apps/xml_check.h"

#include <cctype>
#include <set>
#include <vector>

namespace deepinfer::testing {
namespace {

class XmlCheck {
 public:
  explicit XmlCheck(std::string_view text) : text_(text) {}

  std::string run() {
    if (text_.starts_with("<!doctype html>")) at_ = 15;
    while (at_ < text_.size() && defect_.empty()) {
      if (text_[at_] == '<') {
        tag();
      } else {
        character(/*in_attribute=*/false);
      }
    }
    if (defect_.empty() && !open_.empty()) fail("open: " + open_.back());
    if (defect_.empty() && roots_ != 1) fail("not one root");
    return defect_;
  }

 private:
  void fail(const std::string& what) {
    if (defect_.empty()) defect_ = what + " at byte " + std::to_string(at_);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char c) {
    if (peek() != c) return fail(std::string("expected ") + c);
    ++at_;
  }
  void spaces() {
    while (std::isspace(static_cast<unsigned char>(peek())) != 0) ++at_;
  }
  std::string name() {
    const size_t start = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '-' || peek() == '_') ++at_;
    if (start == at_) fail("no name");
    return std::string(text_.substr(start, at_ - start));
  }

  void character(bool in_attribute) {
    const char c = peek();
    if (c == '&') {
      for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
        if (text_.substr(at_).starts_with(entity)) {
          at_ += entity.size();
          return;
        }
      }
      return fail("unknown entity");
    }
    if (c == '<') return fail("< in text");
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' && c != '\r') return fail("control character");
    if (!in_attribute && text_.substr(at_).starts_with("]]>")) return fail("]]> in text");
    if (!in_attribute && open_.empty() && std::isspace(static_cast<unsigned char>(c)) == 0) return fail("text outside");
    ++at_;
  }

  void tag() {
    expect('<');
    if (peek() == '/') {
      ++at_;
      const std::string closed = name();
      spaces();
      expect('>');
      if (open_.empty() || open_.back() != closed) return fail("closes " + closed);
      open_.pop_back();
      return;
    }
    if (open_.empty()) ++roots_;
    const std::string opened = name();
    std::set<std::string> attributes;
    for (spaces(); defect_.empty() && peek() != '>' && peek() != '/'; spaces()) {
      if (!attributes.insert(name()).second) return fail("attribute twice");
      expect('=');
      expect('"');
      while (defect_.empty() && peek() != '"') {
        if (at_ >= text_.size()) return fail("open attribute");
        character(/*in_attribute=*/true);
      }
      ++at_;
    }
    if (peek() == '/') {
      ++at_;
    } else {
      open_.push_back(opened);
    }
    expect('>');
  }

  std::string_view text_;
  size_t at_ = 0;
  int roots_ = 0;
  std::vector<std::string> open_;
  std::string defect_;
};

}  // namespace

std::string xml_defect(std::string_view text) { return XmlCheck(text).run(); }

}  // namespace deepinfer::testing
