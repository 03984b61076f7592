#include "corpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>

namespace deepinfer::bench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDocumentBytes = 16 << 10;

constexpr std::string_view kEnglish =
    R"(The harbour had been quiet since the early morning, when the last of the fishing boats went out past the lighthouse.
A thin mist lay over the water, and from the terrace of the old customs house one could only guess where the islands began.
Mrs. Hallam, who had kept the post office for thirty-one years, used to say that weather like this brought letters.
"It isn't that people write more," she'd explain, "it's that they remember what they meant to write."
Nobody contradicted her; besides, she was usually right about the things that could be counted.
In the report of 1987 the committee concluded that the bridge would need to be replaced within fifteen years.
Its authors had examined the foundations, the traffic of an average working day, and the cost of three alternatives.
None of the proposals was adopted, although parts of the second one reappeared, with different names, in later plans.
Photosynthesis converts light energy into chemical energy that is stored in carbohydrate molecules such as sugars and starches.
The process occurs in two stages: reactions that depend on light, and a cycle that fixes carbon dioxide from the atmosphere.
Most of the oxygen we breathe was released in this way over roughly two and a half billion years.
A good explanation answers the question that was asked before it answers the question that should have been asked.
If you are unsure whether an assumption holds, write it down, test it, and only then build something on top of it.
Distributed systems fail in ways that single machines do not: messages arrive late, twice, out of order, or never.
The engineers measured latency at the fiftieth, ninety-ninth and 99.9th percentile, because averages hide what users notice.
After the storm the villagers repaired the roofs, cleared the road, and argued for a week about who should pay for the well.
He took the 7:45 train to the city, read forty pages of a novel he didn't enjoy, and arrived eleven minutes late.
Preheat the oven to 180 degrees, mix the flour with the butter and sugar, and let the dough rest for half an hour.
The defendant's lawyer argued that the contract, signed under considerable pressure, could not be considered binding.
Economists disagree about the causes of the slowdown, but few deny that investment fell sharply after the second quarter.
Children who read for pleasure tend to acquire larger vocabularies, an effect that persists well into adulthood.
On the following page you will find a map of the region, a list of abbreviations, and a short chronology of the events.
She tuned the violin carefully, listening to each string against the next, and nodded when the fifth rang pure.
Quantum mechanics assigns probabilities to outcomes; it doesn't say, and perhaps cannot say, which outcome will occur.
The museum's new wing, designed by a little-known architect from Rotterdam, opened to enthusiastic reviews in October.
What makes the algorithm fast is not cleverness but the absence of work: most comparisons are never performed at all.
)";

constexpr std::string_view kChinese =
    R"(清晨的港口十分安静，最后一批渔船在天亮之前就已经驶过了灯塔。
海面上笼罩着一层薄雾，从老海关大楼的露台上望去，只能猜测岛屿从哪里开始。
在邮局工作了三十一年的哈勒姆太太常说，这样的天气会带来信件。
委员会在1987年的报告中指出，这座桥必须在十五年之内更换，但是提出的三个方案都没有被采纳。
光合作用把光能转化为化学能，并储存在糖类和淀粉等碳水化合物分子之中。
大约二十五亿年以来，我们呼吸的氧气绝大部分都是通过这种方式释放出来的。
好的解释首先回答别人提出的问题，然后才回答本来应该提出的问题。
如果你不确定某个假设是否成立，就把它写下来，加以检验，然后再在它的基础上继续工作。
分布式系统出现故障的方式与单台机器不同：消息可能迟到、重复、乱序，甚至永远不会到达。
工程师们测量了延迟的中位数和第九十九百分位数，因为平均值会掩盖用户真正感受到的东西。
暴风雨过后，村民们修好了屋顶，清理了道路，又为谁来出修井的钱争论了整整一个星期。
他乘坐早上七点四十五分的火车进城，读了四十页并不喜欢的小说，结果还是迟到了十一分钟。
把烤箱预热到180度，将面粉、黄油和糖混合均匀，让面团静置半个小时。
被告的律师认为，这份合同是在巨大的压力之下签订的，因此不具有法律约束力。
经济学家们对增长放缓的原因看法不一，但很少有人否认第二季度之后投资大幅下降。
喜欢阅读的孩子往往掌握更丰富的词汇，这种影响会一直持续到成年以后。
下一页附有该地区的地图、缩略语表以及事件的简要年表。
她仔细地给小提琴调音，一根弦一根弦地听，直到五度音程纯净地响起才点了点头。
量子力学给出各种结果的概率，却没有说明，也许根本无法说明，究竟会出现哪一种结果。
博物馆的新馆由一位鲜为人知的建筑师设计，十月开放以后受到了观众的热烈欢迎。
人工智能模型首先把文本切分成词元，然后在数十亿个参数的帮助下预测下一个词元。
春天来了，公园里的樱花开得正盛，许多人带着家人和朋友来到湖边散步、拍照、野餐。
)";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string gather(const std::vector<std::string>& folders, const std::vector<std::string>& extensions) {
  std::vector<fs::path> paths;
  for (const std::string& folder : folders) {
    const fs::path root = fs::path(DEEPINFER_SOURCE_DIR) / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const bool wanted = std::find(extensions.begin(), extensions.end(), entry.path().extension()) != extensions.end();
      if (entry.is_regular_file() && wanted && entry.path().string().find("node_modules") == std::string::npos) {
        paths.push_back(entry.path());
      }
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const fs::path& path : paths) text += read_text(path) + "\n";
  return text;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t n = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.emplace_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return lines;
}

/// The units that are swapped: words of ASCII letters, or three-byte characters.
std::vector<std::string_view> units(std::string_view line, bool chinese) {
  std::vector<std::string_view> found;
  for (size_t i = 0; i < line.size();) {
    const auto byte = static_cast<uint8_t>(line[i]);
    size_t n = 1;
    if (chinese && byte >= 0xE4 && byte <= 0xE9 && i + 3 <= line.size()) {
      n = 3;
      found.push_back(line.substr(i, n));
    } else if (!chinese && std::isalpha(byte) != 0) {
      while (i + n < line.size() && std::isalpha(static_cast<unsigned char>(line[i + n])) != 0) ++n;
      found.push_back(line.substr(i, n));
    }
    i += n;
  }
  return found;
}

Corpus make(std::string name, const std::string& text, size_t bytes, bool chinese) {
  std::mt19937_64 random(20261129);
  std::vector<std::string> lines = split_lines(text);
  std::vector<std::string> pool;
  for (const std::string& line : lines) {
    for (const std::string_view unit : units(line, chinese)) pool.emplace_back(unit);
  }
  const auto replacement = [&]() -> std::string {
    if (chinese || random() % 4 != 0) return pool[random() % pool.size()];
    static constexpr std::string_view kSyllables[] = {"ba", "cor", "den", "fi",  "gra", "lo", "mer",
                                                      "ni", "os",  "per", "qua", "ris", "ta", "vel"};
    std::string word;
    for (size_t n = 2 + random() % 3; n > 0; --n) word += kSyllables[random() % std::size(kSyllables)];
    return word;
  };
  Corpus corpus{std::move(name), {}, 0};
  std::string document;
  while (corpus.bytes < bytes) {
    std::shuffle(lines.begin(), lines.end(), random);
    for (const std::string& line : lines) {
      size_t at = 0;
      for (const std::string_view unit : units(line, chinese)) {
        const auto begin = static_cast<size_t>(unit.data() - line.data());
        document.append(line, at, begin - at);
        document += random() % 12 == 0 ? replacement() : std::string(unit);
        at = begin + unit.size();
      }
      document.append(line, at);
      if (document.size() < kDocumentBytes) continue;
      corpus.bytes += document.size();
      corpus.documents.push_back(std::move(document));
      document.clear();
      if (corpus.bytes >= bytes) break;
    }
  }
  return corpus;
}

}  // namespace

std::vector<Corpus> make_corpora(size_t bytes, const std::vector<std::string>& files) {
  std::string english(kEnglish);
  english += gather({"docs", "bench", "models"}, {".md"});
  for (const std::string& file : files) english += read_text(file) + "\n";
  return {make("english", english, bytes, false), make("chinese", std::string(kChinese), bytes, true),
          make("code", gather({"src"}, {".cc", ".h"}), bytes, false)};
}

}  // namespace deepinfer::bench
