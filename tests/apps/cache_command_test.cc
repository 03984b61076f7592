// `deepinfer cache` from its arguments to its output and exit code, over real stores.

#include "cache_command.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/command_run.h"
#include "cache/tiers/local_store.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/store_fixture.h"
#include "cache/tiers/store_secret.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer::cache {
namespace {

using namespace store_testing;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

using CommandRun = testing::CommandOutput;

CommandRun run(Arguments arguments) {
  CLI::App app;
  cli::Command chosen;
  add_cache_command(app, chosen);
  arguments.insert(arguments.begin(), "cache");
  return testing::run_command(app, chosen, std::move(arguments));
}

Json run_json(Arguments arguments, int code = 0) {
  arguments.emplace_back("--json");
  const CommandRun r = run(std::move(arguments));
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << r.out;
  return Json::parse(r.out, nullptr, /*allow_exceptions=*/false);
}

std::string error_of(const Arguments& arguments) {
  const CommandRun r = run(arguments);
  EXPECT_EQ(r.code, 1) << r.out;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err.find('\n'), std::string::npos) << r.err;
  return r.err;
}

std::unique_ptr<KvStore> open(const std::string& kind, const std::string& directory, const std::string& model = "model") {
  const KvFingerprint fingerprint = kv_fingerprint(model, kShape);
  if (kind == "local") return std::move(*LocalStore::Open(kShape, fingerprint, {.directory = directory}));
  SharedStoreOptions options{.directory = directory};
  options.gc_interval_seconds = 0;
  return std::move(*SharedStore::Open(kShape, fingerprint, options));
}

/// Pages 1 to 4 of chats, 5 and 6 of agents, 7 of a chat whose day is over.
void fill(const std::string& kind, const std::string& directory, const std::string& model = "model") {
  const auto store = open(kind, directory, model);
  const double now = wall_seconds();
  for (uint64_t n = 1; n <= 6; ++n)
    ASSERT_TRUE(put(*store, n, now, n != 4, n <= 4 ? CacheClass::kChat : CacheClass::kAgent).ok());
  ASSERT_TRUE(put(*store, 7, now - 2 * 86400).ok());
}

class CacheCommand : public ::testing::TestWithParam<std::string> {
 protected:
  CacheCommand() { fill(GetParam(), store_.path()); }
  const std::string& store() const { return store_.path(); }
  std::string file(const std::string& name = "pages.kv") const { return elsewhere_.path() + "/" + name; }

  Directory store_, elsewhere_;
};
INSTANTIATE_TEST_SUITE_P(All, CacheCommand, ::testing::Values("local", "shared"), [](const auto& param) { return param.param; });

/// Changes a few bytes in the middle of a page of a shared store.
void damage_a_page(const std::string& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() < 4000) continue;
    std::fstream out(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(2000);
    out.write("damage", 6);
    return;
  }
  FAIL() << "no page to damage";
}

TEST_P(CacheCommand, StatTellsWhatThereIs) {
  const Json json = run_json({"stat", store()});
  EXPECT_EQ(json["kind"], GetParam());
  ASSERT_EQ(json["generations"].size(), 1U);
  const Json& generation = json["generations"][0];
  EXPECT_EQ(generation["fingerprint"], hex_text(kv_fingerprint("model", kShape)));
  EXPECT_EQ(generation["classes"]["chat"]["pages"], 5);
  EXPECT_EQ(generation["classes"]["agent"]["pages"], 2);
  EXPECT_EQ(generation["bounded"]["pages"], 1);
  EXPECT_EQ(generation["expired"]["pages"], 1);
  EXPECT_EQ(json["unreadable"]["pages"], 0);
  const CommandRun table = run({"stat", store()});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(table.err, "");
  for (const char* word : {"chat", "agent", "exact", "bounded", "expired", "to expiry"})
    EXPECT_NE(table.out.find(word), std::string::npos) << table.out;
}

TEST_P(CacheCommand, VerifyIsSilentAboutAWholeStore) {
  const Json json = run_json({"verify", store()});
  EXPECT_EQ(json["checked"]["pages"], 7);
  EXPECT_EQ(json["by_reason"]["right"]["pages"], 7);
  EXPECT_EQ(json["damaged"]["pages"], 0);
  EXPECT_NE(run({"verify", store()}).out.find("No damage."), std::string::npos);
}

TEST_P(CacheCommand, GcRemovesWhatHasExpiredThenWhatIsTooMuch) {
  const Json json = run_json({"gc", store()});
  EXPECT_EQ(json["expired"]["pages"], 1);
  EXPECT_EQ(json["kept"]["pages"], 6);
  const Json smaller = run_json({"gc", store(), "--capacity", "16KiB"});
  EXPECT_GT(smaller["evicted"]["pages"], 2);
  EXPECT_GT(smaller["kept"]["pages"], 0);
  EXPECT_EQ(run_json({"stat", store()})["generations"][0]["classes"]["agent"]["pages"], 2) << "chats would expire first";
}

TEST_P(CacheCommand, ExportAndImportCarryPagesToEitherKindOfStore) {
  EXPECT_EQ(run_json({"export", store(), file()})["exported"]["pages"], 6);
  struct stat status {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U) << "what prompts left behind is nobody else's business";
  for (const std::string to : {"local", "shared"}) {
    const Directory other;
    EXPECT_NE(error_of({"import", other.path(), file()}).find(other.path()), std::string::npos);
    EXPECT_TRUE(std::filesystem::is_empty(other.path())) << "no store is made unless somebody asks for one";
    EXPECT_EQ(run_json({"import", other.path(), file(), "--create", to})["imported"]["pages"], 6);
    EXPECT_EQ(run_json({"import", other.path(), file()})["imported"]["pages"], 6) << "again: they are there";
    EXPECT_EQ(run_json({"verify", other.path()})["by_reason"]["right"]["pages"], 6);
    const auto reader = open(to, other.path());
    for (uint64_t n = 1; n <= 6; ++n) EXPECT_EQ(get(*reader, n, wall_seconds(), n != 4), KvStoreMiss::kNone) << n;
    EXPECT_EQ(get(*reader, 7, wall_seconds()), KvStoreMiss::kNotStored) << "it had expired";
  }
}

TEST_P(CacheCommand, ExportChooses) {
  const auto pages = [&](Arguments more) {
    Arguments all = {"export", store(), file(), "--replace"};
    all.insert(all.end(), more.begin(), more.end());
    return run_json(all)["exported"]["pages"].get<int>();
  };
  EXPECT_EQ(pages({}), 6);
  EXPECT_EQ(pages({"--expired"}), 7);
  EXPECT_EQ(pages({"--class", "agent"}), 2);
  EXPECT_EQ(pages({"--class", "agent,pinned,chat", "--exact"}), 5);
  EXPECT_EQ(pages({"--newer-than", "1d", "--expired"}), 6);
  EXPECT_EQ(pages({"--older-than", "1d", "--expired"}), 1);
  EXPECT_EQ(pages({"--fingerprint", hex_text(kv_fingerprint("model", kShape)).substr(0, 12)}), 6);
  EXPECT_EQ(pages({"--fingerprint", "0123456789"}), 0);
}

TEST_P(CacheCommand, ExportLeavesAFileAlone) {
  std::ofstream(file()) << "mine";
  EXPECT_NE(error_of({"export", store(), file()}).find("is there already"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(file()), 4U);
  EXPECT_EQ(run({"export", store(), file(), "--replace"}).code, 0);
  EXPECT_GT(std::filesystem::file_size(file()), 4U);
  EXPECT_NE(error_of({"export", store(), elsewhere_.path() + "/none/pages.kv"}).find("/none/pages.kv"), std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(elsewhere_.path()))
    EXPECT_EQ(entry.path().filename(), "pages.kv") << "nothing temporary is left";
}

TEST_P(CacheCommand, ImportTakesNoOtherModelUnlessItIsNamed) {
  ASSERT_EQ(run({"export", store(), file()}).code, 0);
  const Directory other;
  { ASSERT_TRUE(put(*open(GetParam(), other.path(), "another model"), 100, wall_seconds()).ok()); }
  const std::string model = hex_text(kv_fingerprint("model", kShape)).substr(0, 16);
  const std::string error = error_of({"import", other.path(), file()});
  EXPECT_NE(error.find(file()), std::string::npos) << error;
  EXPECT_NE(error.find(model), std::string::npos) << error;
  EXPECT_EQ(run_json({"verify", other.path()})["checked"]["pages"], 1) << "nothing of it was stored";
  EXPECT_EQ(run_json({"import", other.path(), file(), "--fingerprint", model})["imported"]["pages"], 6);
  const Json stat = run_json({"stat", other.path()});
  EXPECT_EQ(stat["generations"].size(), 2U) << "each in the place of its own model";
  EXPECT_EQ(get(*open(GetParam(), other.path(), "model"), 1, wall_seconds()), KvStoreMiss::kNone);
  EXPECT_EQ(get(*open(GetParam(), other.path(), "another model"), 1, wall_seconds()) == KvStoreMiss::kNone, false);
}

TEST_P(CacheCommand, ImportTakesNoPagesOfAnotherSecret) {
  ASSERT_TRUE(load_or_create_store_secret(store() + "/secret").has_value());
  ASSERT_EQ(run({"export", store(), file()}).code, 0);
  const Directory other;
  { ASSERT_TRUE(put(*open(GetParam(), other.path()), 100, wall_seconds()).ok()); }
  // An engine would make a secret of its own there.
  EXPECT_NE(error_of({"import", other.path(), file()}).find("has no secret"), std::string::npos);
  ASSERT_TRUE(load_or_create_store_secret(other.path() + "/secret").has_value());
  EXPECT_NE(error_of({"import", other.path(), file()}).find("another secret"), std::string::npos);
  EXPECT_EQ(run_json({"verify", other.path()})["checked"]["pages"], 1);
  EXPECT_EQ(run({"import", other.path(), file(), "--secret-file", store() + "/secret"}).code, 0);
  EXPECT_NE(error_of({"import", other.path(), file(), "--secret-file", file("none")}).find(file("none")), std::string::npos);
}

TEST_P(CacheCommand, ImportStoresNothingOfADamagedFile) {
  ASSERT_EQ(run({"export", store(), file()}).code, 0);
  const auto size = std::filesystem::file_size(file());
  struct Harm {
    const char* name;
    std::function<void()> harm;
    const char* says;
  };
  const auto flip = [&](std::streamoff at) {
    std::fstream out(file(), std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(at);
    const int byte = out.get();
    out.seekp(at);
    out.put(static_cast<char>(byte ^ 1));
  };
  const Harm harms[] = {
      {"last page", [&] { flip(static_cast<std::streamoff>(size) - 200); }, "entry 5: page record: wrong checksum of rows"},
      {"last byte", [&] { std::filesystem::resize_file(file(), size - 1); }, "truncated"},
      {"half of it", [&] { std::filesystem::resize_file(file(), size / 2); }, "are left"},
      {"more behind it", [&] { std::filesystem::resize_file(file(), size + 4096); }, "4096 bytes behind the end"},
      {"nothing", [&] { std::filesystem::resize_file(file(), 0); }, "truncated: the header"},
  };
  const Directory other;
  { (void)open(GetParam(), other.path()); }
  for (const Harm& harm : harms) {
    ASSERT_EQ(run({"export", store(), file(), "--replace"}).code, 0);
    harm.harm();
    const std::string error = error_of({"import", other.path(), file()});
    EXPECT_NE(error.find(file()), std::string::npos) << harm.name << ": " << error;
    EXPECT_NE(error.find(harm.says), std::string::npos) << harm.name << ": " << error;
    EXPECT_EQ(run_json({"verify", other.path()})["checked"]["pages"], 0) << harm.name;
  }
}

TEST(CacheCommandDamage, IsCountedByReasonRemovedAndNotExported) {
  const Directory directory, elsewhere;
  fill("shared", directory.path());
  damage_a_page(directory.path());
  const Json found = run_json({"verify", directory.path()}, 1);
  EXPECT_EQ(found["by_reason"]["corrupt"]["pages"], 1);
  EXPECT_EQ(found["damaged"]["pages"], 1);
  ASSERT_EQ(found["problems"].size(), 1U);
  EXPECT_NE(found["problems"][0].get<std::string>().find(directory.path()), std::string::npos);
  const CommandRun table = run({"verify", directory.path()});
  EXPECT_EQ(table.code, 1);
  EXPECT_NE(table.out.find("Damaged: 1 page"), std::string::npos) << table.out;
  const Json exported = run_json({"export", directory.path(), elsewhere.path() + "/f", "--expired"}, 1);
  EXPECT_EQ(exported["exported"]["pages"], 6);
  EXPECT_EQ(exported["damaged"]["pages"], 1);
  EXPECT_EQ(run_json({"verify", directory.path(), "--remove"}, 1)["removed"], 1);
  EXPECT_EQ(run_json({"verify", directory.path()})["checked"]["pages"], 6);
}

std::string write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// Sessions that come back every 20 seconds with a block more, ten times.
std::string sessions_trace() {
  std::string text;
  for (int turn = 0; turn < 10; ++turn) {
    for (int session = 0; session < 20; ++session) {
      Json row = {{"timestamp", turn * 20000 + session * 10}, {"input_length", (turn + 1) * 512}, {"output_length", 10}};
      for (int block = 0; block <= turn; ++block) row["hash_ids"].push_back(session * 100 + block);
      text += row.dump() + "\n";
    }
  }
  return text;
}

TEST(CachePlan, FitsAndRecommends) {
  const Directory directory;
  const std::string trace = write_file(directory.path() + "/trace.jsonl", sessions_trace());
  const std::string saved = directory.path() + "/intervals.json", svg = directory.path() + "/plan.svg";
  const Arguments prices = {"--page-bytes", "100KB", "--prefill-rate", "1000", "--pull-rate", "1GB", "--device-cost", "2"};
  const auto with_prices = [&](Arguments all) {
    all.insert(all.end(), prices.begin(), prices.end());
    return all;
  };
  const Json plan =
      run_json(with_prices({"plan", "--trace", "agent=" + trace, "--save-intervals", saved, "--svg", svg, "--capacity", "10MB"}));
  ASSERT_EQ(plan["classes"].size(), 1U);
  const Json& agent = plan["classes"][0];
  EXPECT_EQ(agent["class"], "agent");
  EXPECT_EQ(agent["requests"], 200);
  EXPECT_EQ(agent["fits"].size(), 4U);
  EXPECT_LT(agent["fits"][0]["ks_distance"], 0.3);
  EXPECT_GE(agent["recommended"]["ttl_seconds"], 20) << "or nothing would ever be hit";
  ASSERT_EQ(plan["replays"].size(), 3U);
  EXPECT_NEAR(plan["replays"][0]["hit_rate"].get<double>(), 900.0 / 1100, 1e-9);
  EXPECT_LT(plan["replays"][2]["hit_rate"], plan["replays"][0]["hit_rate"]) << "100 pages do not hold 20 sessions";
  EXPECT_GT(std::filesystem::file_size(svg), 1000U);
  // What was saved gives the same plan, without the replays that need the requests.
  const Json again = run_json(with_prices({"plan", "--intervals", saved}));
  EXPECT_EQ(again["classes"], plan["classes"]);
  EXPECT_EQ(again["replays"].size(), 0U);
  const CommandRun table = run(with_prices({"plan", "--trace", "agent=" + trace}));
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* word : {"Class agent: 200 requests", "KS", "<- cheapest", "--kv-ttl-agent", "Replay"})
    EXPECT_NE(table.out.find(word), std::string::npos) << table.out;
}

TEST(CachePlan, TakesRatesFromWhoRecorded) {
  const Directory directory;
  const std::string trace = write_file(directory.path() + "/trace.jsonl", sessions_trace());
  const std::string saved = directory.path() + "/intervals.json";
  ASSERT_EQ(run({"plan", "--trace", trace, "--page-bytes", "1KB", "--prefill-rate", "1", "--pull-rate", "1GB", "--save-intervals",
                 saved})
                .code,
            0);
  Json recording = Json::parse(std::ifstream(saved));
  EXPECT_FALSE(recording.contains("measured")) << "nobody measured";
  recording["measured"] = {{"page_bytes", 100000},
                           {"page_positions", 128},
                           {"prefill_tokens_per_second", 700},
                           {"pull_bytes_per_second", {{"local", 4e8}, {"shared", 3e8}}}};
  write_file(saved, recording.dump());
  const Json plan = run_json({"plan", "--intervals", saved});
  EXPECT_EQ(plan["page_bytes"], 100000);
  EXPECT_EQ(plan["prefill_tokens_per_second"], 700);
  EXPECT_EQ(plan["pull_bytes_per_second"], 4e8);
  EXPECT_EQ(run_json({"plan", "--intervals", saved, "--store", "redis"})["pull_bytes_per_second"], 3e8);
  EXPECT_EQ(run_json({"plan", "--intervals", saved, "--prefill-rate", "9"})["prefill_tokens_per_second"], 9);
  EXPECT_NE(error_of({"plan", "--intervals", saved, "--store", "host"}).find("--pull-rate"), std::string::npos);
  const std::string again = directory.path() + "/again.json";
  ASSERT_EQ(run({"plan", "--intervals", saved, "--save-intervals", again}).code, 0);
  EXPECT_EQ(Json::parse(std::ifstream(again))["measured"], recording["measured"]);
}

TEST(CachePlan, TakesRatesFromBenchmarks) {
  const Directory directory;
  const std::string trace = write_file(directory.path() + "/trace.jsonl", sessions_trace());
  const std::string measured = write_file(directory.path() + "/lines.jsonl",
                                          R"({"name":"kv_prefill","value":500,"unit":"tokens/s"}
{"name":"kv_pull","value":2,"unit":"GB/s","conditions":{"store":"host","cached":"yes"}}
{"name":"kv_pull","value":0.5,"unit":"GB/s","conditions":{"store":"local","cached":"no"}}
{"name":"kv_pull","value":3,"unit":"GB/s","conditions":{"store":"local","cached":"yes"}}
)");
  const Json plan = run_json({"plan", "--trace", trace, "--page-bytes", "100KB", "--measured", measured});
  EXPECT_EQ(plan["prefill_tokens_per_second"], 500);
  EXPECT_EQ(plan["pull_bytes_per_second"], 5e8);
  EXPECT_EQ(run_json({"plan", "--trace", trace, "--page-bytes", "100KB", "--measured", measured, "--store",
                      "host"})["pull_bytes_per_second"],
            2e9);
  EXPECT_NE(error_of({"plan", "--trace", trace, "--page-bytes", "1MB", "--measured", measured, "--store", "shared"})
                .find("--pull-rate"),
            std::string::npos);
}

TEST(CachePlan, ErrorsNameWhatIsWrong) {
  const Directory directory;
  const std::string trace = write_file(directory.path() + "/trace.jsonl", sessions_trace());
  const std::string azure =
      write_file(directory.path() + "/azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4808,10\n");
  const Arguments prices = {"--page-bytes", "100KB", "--prefill-rate", "1000", "--pull-rate", "1GB"};
  const auto error = [&](Arguments arguments, bool with_prices = true) {
    arguments.insert(arguments.begin(), "plan");
    if (with_prices) arguments.insert(arguments.end(), prices.begin(), prices.end());
    return error_of(arguments);
  };
  EXPECT_NE(error({}).find("--trace or --intervals"), std::string::npos);
  EXPECT_NE(error({"--trace", trace, "--intervals", trace}).find("--trace or --intervals"), std::string::npos);
  EXPECT_NE(error({"--trace", "/nonexistent"}).find("/nonexistent"), std::string::npos);
  EXPECT_NE(error({"--trace", azure}).find("nothing says which prompts share"), std::string::npos);
  EXPECT_NE(error({"--intervals", trace}).find("format"), std::string::npos);
  EXPECT_NE(error({"--trace", trace}, false).find("--model or --page-bytes"), std::string::npos);
  EXPECT_NE(error({"--trace", trace, "--page-bytes", "1MB"}, false).find("--prefill-rate"), std::string::npos);
  EXPECT_NE(error({"--trace", trace, "--device-cost", "0"}).find("--device-cost"), std::string::npos);
  EXPECT_NE(error({"--trace", trace, "--max-ttl", "11y"}).find("--max-ttl"), std::string::npos);
  // Slower than computing: no page is worth bringing back.
  EXPECT_NE(error({"--trace", trace, "--page-bytes", "1MB", "--prefill-rate", "1000000", "--pull-rate", "1KB"}, false)
                .find("bringing a page back"),
            std::string::npos);
}

TEST(CacheCommandErrors, NameWhatIsWrong) {
  const Directory empty;
  for (const char* command : {"stat", "verify", "gc"}) {
    EXPECT_NE(error_of({command, empty.path()}).find(empty.path() + ": neither a local nor a shared store"), std::string::npos);
    EXPECT_NE(error_of({command, "/nonexistent"}).find("/nonexistent"), std::string::npos);
  }
  EXPECT_NE(error_of({"import", empty.path(), "/nonexistent"}).find("/nonexistent: no such file"), std::string::npos);
  EXPECT_NE(error_of({"import", empty.path(), "/dev/null"}).find("/dev/null: is no regular file"), std::string::npos);
  EXPECT_NE(error_of({"gc", empty.path(), "--capacity", "0"}).find("--capacity"), std::string::npos);
  EXPECT_NE(error_of({"gc", empty.path(), "--kv-directory", "http://h"}).find("redis://"), std::string::npos);
  EXPECT_NE(error_of({"export", empty.path(), "f", "--class", "chat,robot"}).find("--class"), std::string::npos);
  EXPECT_NE(error_of({"export", empty.path(), "f", "--fingerprint", "XYZ"}).find("--fingerprint"), std::string::npos);
  EXPECT_NE(error_of({"export", empty.path(), "f", "--newer-than", "soon"}).find("--newer-than"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::cache
