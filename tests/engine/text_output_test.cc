#include "engine/text_output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "testing/paths.h"
#include "testing/random.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using Ids = std::vector<int32_t>;

const std::shared_ptr<const Tokenizer>& nano() {
  static const auto tokenizer = Tokenizer::Load(testing::nano_dir() + "/tokenizer.json").value();
  return tokenizer;
}

/// One token a byte.
Ids byte_ids(std::string_view bytes) {
  static const auto table = [] {
    std::array<int32_t, 256> ids{};
    for (int32_t id = 0; id < nano()->vocab_size(); ++id) {
      const std::string_view b = nano()->token_bytes(id);
      if (b.size() == 1 && !nano()->is_added(id)) ids[static_cast<uint8_t>(b[0])] = id;
    }
    return ids;
  }();
  Ids ids;
  for (const char c : bytes) ids.push_back(table[static_cast<uint8_t>(c)]);
  return ids;
}

struct Answer {
  std::string text;
  std::optional<std::string> stop;
  size_t used = 0;  ///< tokens until the stop string was complete
};

Answer run(const Ids& ids, TextOutput::Options options, bool finish = true) {
  TextOutput output(nano(), std::move(options));
  Answer answer;
  for (const int32_t id : ids) {
    ++answer.used;
    std::string piece;
    const bool stopped = output.push(id, piece);
    EXPECT_EQ(utf8_valid_prefix(piece), piece.size()) << "half a character in \"" << piece << "\"";
    answer.text += piece;
    EXPECT_EQ(stopped, output.stop().has_value());
    if (stopped) break;
  }
  if (finish) output.finish(answer.text);
  answer.stop = output.stop();
  return answer;
}

Answer run(std::string_view bytes, std::vector<std::string> stop, bool include = false) {
  return run(byte_ids(bytes), {.stop = std::move(stop), .include_stop_string = include});
}

TEST(TextOutputTest, WithoutStopsTextComesAtOnce) {
  TextOutput output(nano(), {});
  std::string text;
  for (const int32_t id : nano()->encode("Once upon a time")) {
    const size_t size = text.size();
    EXPECT_FALSE(output.push(id, text));
    EXPECT_GT(text.size(), size);
  }
  EXPECT_EQ(text, "Once upon a time");
  output.finish(text);
  EXPECT_EQ(text, "Once upon a time");
  EXPECT_FALSE(output.stop().has_value());
}

TEST(TextOutputTest, TextIsAppended) {
  TextOutput output(nano(), {.stop = {"zz"}});
  std::string text = "before ";
  for (const int32_t id : byte_ids("abz")) output.push(id, text);
  EXPECT_EQ(text, "before ab");
  output.finish(text);
  EXPECT_EQ(text, "before abz");
}

TEST(TextOutputTest, WithoutTokenizerThereIsNoText) {
  TextOutput output(nullptr, {.stop = {"a"}});
  std::string text;
  for (const int32_t id : byte_ids("banana")) EXPECT_FALSE(output.push(id, text));
  output.finish(text);
  EXPECT_EQ(text, "");
  EXPECT_FALSE(output.stop().has_value());
}

TEST(TextOutputTest, AStopStringSplitAtEveryByte) {
  const std::string stop = "<end é>";
  for (const bool include : {false, true}) {
    const Answer answer = run("text " + stop + " more", {stop}, include);
    EXPECT_EQ(answer.text, include ? "text " + stop : "text ");
    EXPECT_EQ(answer.stop, stop);
    EXPECT_EQ(answer.used, 5 + stop.size()) << "found with its last byte";
  }
  // Cut short at every byte, then something else, or nothing: all of it is text.
  for (size_t cut = 0; cut < stop.size(); ++cut) {
    const std::string part = stop.substr(0, cut);
    std::string lossy;
    utf8_append_lossy(part, true, lossy);
    EXPECT_EQ(run("text " + part, {stop}).text, "text " + lossy) << cut;
    EXPECT_EQ(run("text " + part + "!", {stop}).text, "text " + lossy + "!") << cut;
    EXPECT_EQ(run("text " + part + stop, {stop}).text, "text " + lossy) << cut;
    EXPECT_FALSE(run("text " + part, {stop}).stop.has_value());
  }
}

TEST(TextOutputTest, AStopStringInsideATokenAndAcrossTokens) {
  const std::string text = "Hello world, hello again.";
  const Ids ids = nano()->encode(text);
  ASSERT_LT(ids.size(), text.size());
  for (size_t first = 0; first < text.size(); ++first) {
    for (size_t n = 1; first + n <= text.size(); ++n) {
      const std::string stop = text.substr(first, n);
      const Answer answer = run(ids, {.stop = {stop}});
      EXPECT_EQ(answer.text, text.substr(0, text.find(stop))) << stop;
      EXPECT_EQ(answer.stop, stop);
      EXPECT_EQ(run(ids, {.stop = {stop}, .include_stop_string = true}).text, text.substr(0, text.find(stop)) + stop);
    }
  }
}

TEST(TextOutputTest, HeldBackNoMoreThanNeeded) {
  TextOutput output(nano(), {.stop = {"aab"}});
  const auto push = [&](std::string_view bytes) {
    std::string text;
    for (const int32_t id : byte_ids(bytes)) output.push(id, text);
    return text;
  };
  EXPECT_EQ(push("x"), "x");
  EXPECT_EQ(push("a"), "");
  EXPECT_EQ(push("a"), "");
  EXPECT_EQ(push("a"), "a") << "only the last two may begin the stop string";
  EXPECT_EQ(push("c"), "aac");
  EXPECT_EQ(push("aab"), "");
  EXPECT_EQ(output.stop(), "aab");
}

TEST(TextOutputTest, SeveralStops) {
  // The first to be complete.
  EXPECT_EQ(run("one two three", {"three", "two"}).stop, "two");
  EXPECT_EQ(run("one two three", {"three", "two"}).text, "one ");
  // One is a prefix of the other: the shorter is complete first.
  EXPECT_EQ(run("ababc", {"abc", "ab"}).stop, "ab");
  EXPECT_EQ(run("ababc", {"ab", "abc"}).text, "");
  // One lies within the other: byte by byte the inner one is complete first.
  EXPECT_EQ(run("xabcdx", {"abcd", "bc"}).stop, "bc");
  EXPECT_EQ(run("xabcdx", {"abcd", "bc"}).text, "xa");
  // Overlapping: the second begins within the first.
  EXPECT_EQ(run("xabcd", {"bcd", "abc"}).stop, "abc");
  EXPECT_EQ(run("xabd abc bcd", {"bcd", "abc"}).text, "xabd ");
  // The longer fails, the shorter that began within it goes on.
  EXPECT_EQ(run("aabaac", {"aabaab", "baac"}).text, "aa");
  EXPECT_EQ(run("aabaac", {"aabaab", "baac"}).stop, "baac");
  // The same string twice.
  EXPECT_EQ(run("xab", {"ab", "ab"}).stop, "ab");
}

TEST(TextOutputTest, WithinOneTokenTheOneThatBeginsFirst) {
  const Ids ids = nano()->encode(" the");
  ASSERT_EQ(ids.size(), 1u);
  for (const auto& stops : {std::vector<std::string>{"he", " t"}, {" t", "he"}}) EXPECT_EQ(run(ids, {.stop = stops}).stop, " t");
  for (const auto& stops : {std::vector<std::string>{"h", "the"}, {"the", "h"}}) EXPECT_EQ(run(ids, {.stop = stops}).stop, "the");
  // Of those that begin at the same place, the shorter: it would have been complete first.
  for (const auto& stops : {std::vector<std::string>{"th", "the"}, {"the", "th"}})
    EXPECT_EQ(run(ids, {.stop = stops}).stop, "th");
  // What comes after the stop string is not text, included or not.
  EXPECT_EQ(run(ids, {.stop = {"th"}, .include_stop_string = true}).text, " th");
}

TEST(TextOutputTest, AfterAStopNothingComes) {
  TextOutput output(nano(), {.stop = {"b"}});
  std::string text;
  for (const int32_t id : byte_ids("ab")) output.push(id, text);
  EXPECT_EQ(output.stop(), "b");
  for (const int32_t id : byte_ids("cb")) EXPECT_FALSE(output.push(id, text));
  output.finish(text);
  EXPECT_EQ(text, "a");
}

TEST(TextOutputTest, CharactersSplitOverTokens) {
  const std::string text = "aé中😀z";
  EXPECT_EQ(run(text, {}).text, text);
  EXPECT_EQ(run(text, {"zz"}).text, text);
  EXPECT_EQ(run(text, {"中😀"}).text, "aé");
  EXPECT_EQ(run(text, {"😀"}).text, "aé中");
  EXPECT_EQ(run(text, {"😀z"}, true).text, text);
  // A character shares its first bytes with another: nothing is cut within it.
  EXPECT_EQ(run("😁", {"😀"}).text, "😁");
  EXPECT_EQ(run("a\xF0\x9F", {"😀"}).text, "a\xEF\xBF\xBD") << "unfinished at the end";
  EXPECT_EQ(run("a\xF0\x9F", {}).text, "a\xEF\xBF\xBD");
  EXPECT_EQ(run("a\xFF\x62", {}).text,
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(run("a\xFF\x62", {"\xEF\xBF\xBD"}).text, "a") << "text is searched, not bytes";
}

TEST(TextOutputTest, AStopStringThatTheEndCompletes) {
  // The last character is broken off; what stands for it completes the stop string, so the text ends before it.
  const Answer answer = run("ab\xE4\xB8", {"b\xEF\xBF\xBD"});
  EXPECT_EQ(answer.text, "a");
  EXPECT_EQ(answer.stop, "b\xEF\xBF\xBD");
}

TEST(TextOutputTest, SpecialTokens) {
  const int32_t eos = 1, think = nano()->added_token("<think>").value();
  Ids ids = byte_ids("a");
  ids.push_back(eos);
  ids.push_back(think);
  for (const int32_t id : byte_ids("b")) ids.push_back(id);
  EXPECT_EQ(run(ids, {}).text, "a<think>b") << "not flagged special in the file";
  EXPECT_EQ(run(ids, {.stop = {}, .skip_special = false}).text, nano()->decode(ids));
  // A stop string sees the text as the reader does.
  EXPECT_EQ(run(ids, {.stop = {"a<th"}}).stop, "a<th");
  EXPECT_FALSE(run(ids, {.stop = {"a<th"}, .skip_special = false}).stop.has_value());
  EXPECT_EQ(run(ids, {.stop = {"end▁of"}, .skip_special = false}).text, "a<｜");
  // Ids without a token are no text.
  EXPECT_EQ(run({4096, 100000, -1}, {.stop = {"a"}}).text, "");
}

// --- Against a search in the whole text ---------------------------------------------------------------------------------------

struct Found {
  size_t at = std::string::npos;
  const std::string* stop = nullptr;
};

Found search(const std::string& whole, const std::vector<std::string>& stops) {
  Found best;
  for (const std::string& stop : stops) {
    const size_t at = whole.find(stop);
    if (at == std::string::npos) continue;
    if (best.stop == nullptr || at < best.at || (at == best.at && stop.size() < best.stop->size())) best = {at, &stop};
  }
  return best;
}

/// Length of the longest end of `whole` that begins a stop string.
size_t undecided(const std::string& whole, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= whole.size(); ++n) {
      if (whole.compare(whole.size() - n, n, stop, 0, n) == 0) longest = std::max(longest, n);
    }
  }
  return longest;
}

void compare_with_search(const Ids& ids, const TextOutput::Options& options) {
  TextOutput output(nano(), options);
  std::string bytes, text;
  size_t longest = 0;
  for (const std::string& stop : options.stop) longest = std::max(longest, stop.size());
  for (size_t i = 0; i <= ids.size(); ++i) {
    const bool last = i == ids.size();
    bool stopped = false;
    if (last) {
      output.finish(text);
      stopped = output.stop().has_value();
    } else {
      stopped = output.push(ids[i], text);
      if (!options.skip_special || !nano()->is_special(ids[i])) bytes += nano()->token_bytes(ids[i]);
    }
    std::string whole;
    utf8_append_lossy(bytes, last, whole);
    const Found found = search(whole, options.stop);
    ASSERT_EQ(stopped, found.stop != nullptr) << "token " << i << " of " << ids.size() << ": " << whole;
    if (stopped) {
      ASSERT_EQ(*output.stop(), *found.stop) << whole;
      ASSERT_EQ(text, whole.substr(0, found.at + (options.include_stop_string ? found.stop->size() : 0)));
      return;
    }
    const size_t held = last ? 0 : undecided(whole, options.stop);
    ASSERT_EQ(text, whole.substr(0, whole.size() - held)) << "token " << i;
    ASSERT_TRUE(held == 0 || held < longest);
    ASSERT_EQ(utf8_valid_prefix(text), text.size());
  }
}

TEST(TextOutputTest, EqualsASearchInTheWholeText) {
  testing::Random random(5);
  const std::vector<std::string> alphabets[] = {{"a", "b"}, {"a", "b", "é", "中"}, {"😀", "😁", "\xF0", "\x9F", "a"}};
  int stops_found = 0;
  for (int round = 0; round < 6000; ++round) {
    // Tokens: letters of a small alphabet, or anything in the vocabulary.
    Ids ids;
    const int64_t kind = random.below(4);
    const int64_t length = random.between(0, 40);
    std::string text;
    for (int64_t i = 0; i < length; ++i) {
      if (kind == 3) {
        ids.push_back(static_cast<int32_t>(random.below(nano()->vocab_size() + 2)));
        text += nano()->token_bytes(ids.back());
      } else {
        const auto& alphabet = alphabets[kind];
        const std::string& letter = alphabet[static_cast<size_t>(random.below(static_cast<int64_t>(alphabet.size())))];
        for (const int32_t id : byte_ids(letter)) ids.push_back(id);
        text += letter;
      }
    }
    std::string lossy;
    utf8_append_lossy(text, true, lossy);
    TextOutput::Options options;
    options.include_stop_string = random.below(2) == 0;
    options.skip_special = random.below(2) == 0;
    const int64_t count = random.between(0, 4);
    for (int64_t i = 0; i < count; ++i) {
      // A piece of the text, whole characters, perhaps with another end.
      std::string stop = lossy;
      if (!stop.empty()) stop = stop.substr(static_cast<size_t>(random.below(static_cast<int64_t>(stop.size()))));
      while (!stop.empty() && (static_cast<uint8_t>(stop[0]) & 0xC0) == 0x80) stop.erase(0, 1);
      stop = stop.substr(0, static_cast<size_t>(random.between(1, 12)));
      stop.resize(utf8_valid_prefix(stop));
      if (random.below(2) == 0) stop += random.below(2) == 0 ? "a" : "b";
      if (!stop.empty()) options.stop.push_back(stop);
    }
    ASSERT_NO_FATAL_FAILURE(compare_with_search(ids, options)) << "round " << round;
    stops_found += search(lossy, options.stop).stop != nullptr ? 1 : 0;
  }
  EXPECT_GT(stops_found, 1000);
}

TEST(TextOutputTest, LongStopsOverLongText) {
  // Many long strings that nearly match.
  TextOutput::Options options;
  for (size_t i = 0; i < 64; ++i) options.stop.push_back(std::string(1023 - i, 'a') + "b");
  TextOutput output(nano(), options);
  std::string text;
  const int32_t a = byte_ids("a")[0];
  for (int i = 0; i < 2000; ++i) ASSERT_FALSE(output.push(a, text));
  EXPECT_EQ(text.size(), 2000u - 1023u);
  EXPECT_TRUE(output.push(byte_ids("b")[0], text));
  EXPECT_EQ(output.stop()->size(), 1024u);
  EXPECT_EQ(text.size(), 2000u - 1023u);
}

}  // namespace
}  // namespace deepinfer
